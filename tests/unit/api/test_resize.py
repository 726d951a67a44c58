"""A changed request changes the devices that a claim has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_claim, a_request, an_allocated_device, an_allocation, an_ask
from vgpu_api.resize import allowed, granted, is_resized, target, unmet, was_changed
from vgpu_api.v1alpha1 import Condition, VGPUClaimStatus
from vgpu_api.v1alpha1.vgpuclaim import MigAllocation

amounts = st.tuples(st.integers(1, 80_000), st.integers(0, 100))


def a_device(memory_mib: int = 8192, cores: int = 30):
    return an_allocated_device(request="main", memory_mib=memory_mib, cores=cores)


def a_share(memory_mib: int = 8192, cores: int = 30, of_mib: int = 16_384):
    """Return an allocated device of a request for a percentage."""
    return an_allocated_device(request="main", memory_mib=memory_mib, cores=cores, of_mib=of_mib)


def wanted(device, **request):
    claim = a_claim(requests=[a_request(name="main", **request)])
    return target(claim.spec, an_allocation(device))[0]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"memory": "12Gi", "cores": 50}, (12_288, 50)),
        ({"memory": "4Gi"}, (4096, 30)),
        ({"cores": 0}, (8192, 0)),
        ({}, (8192, 30)),
        ({"memory_percent": 10}, (8192, 30)),
        ({"memory": "12Gi", "mode": "Exclusive"}, (8192, 30)),
        ({"memory": "12Gi", "phase": "Init"}, (12_288, 30)),
    ],
)
def test_what_a_request_says_replaces_what_was_given(request_, expected) -> None:
    device = wanted(a_device(), **request_)
    assert (device.memory_mib, device.cores) == expected


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"memory_percent": 25}, (4096, 30)),
        ({"memory_percent": 75, "cores": 50}, (12_288, 50)),
        ({"memory_percent": 33}, (5406, 30)),
        ({"memory_percent": 100}, (16_384, 30)),
        ({"memory": "1Gi"}, (1024, 30)),
        ({}, (8192, 30)),
        ({"memory_percent": 25, "mode": "Exclusive"}, (8192, 30)),
    ],
)
def test_a_percentage_is_of_the_memory_that_the_allocation_records(request_, expected) -> None:
    device = wanted(a_share(), **request_)
    assert (device.memory_mib, device.cores) == expected
    assert device.device_memory == "16Gi"


@given(of_mib=st.integers(1, 300_000), before=st.integers(1, 100), after=st.integers(1, 100))
def test_a_changed_percentage_means_what_a_new_claim_of_it_is_given(of_mib, before, after) -> None:
    """After a resize, any device has the amount that placement gives for any percentage.

    An unchanged percentage changes nothing. A percentage that comes to no MiB leaves the device as
    it is, and is named.
    """
    placed = an_ask(a_request(memory_percent=after)).requests[0].memory_on(of_mib)
    held = an_ask(a_request(memory_percent=before)).requests[0].memory_on(of_mib)
    device = a_share(memory_mib=held, of_mib=of_mib)
    claim = a_claim(requests=[a_request(name="main", memory_percent=after)])
    (found,) = target(claim.spec, an_allocation(device))
    assert found.memory_mib == (placed or held)
    reasons = [reason for reason, _ in unmet(claim.spec, an_allocation(device))]
    assert reasons == ([] if placed else ["DeviceMemoryUnknown"])
    if before == after:
        assert found == device


def test_a_percentage_of_an_unrecorded_memory_is_named_and_changes_nothing() -> None:
    claim = a_claim(requests=[a_request(name="main", memory_percent=25)])
    allocation = an_allocation(a_device())
    assert target(claim.spec, allocation) == allocation.devices
    assert unmet(claim.spec, allocation) == [
        (
            "DeviceMemoryUnknown",
            "device GPU-0: 25 % of its memory asked, 8Gi held; the allocation has none as the "
            "memory of the device: ask by memory, or recreate the pod",
        )
    ]


def test_a_percentage_that_an_instance_has_not_is_named() -> None:
    mig = MigAllocation(profile="1g.10gb", start=0, size=1)
    instance = a_share(of_mib=81_920).model_copy(update={"mig": mig})
    for percent, reasons in ((10, []), (11, ["MigInstance"])):
        claim = a_claim(requests=[a_request(name="main", memory_percent=percent)])
        assert [reason for reason, _ in unmet(claim.spec, an_allocation(instance))] == reasons


def test_a_part_that_a_node_registers_stays_as_it_is_and_what_it_has_not_is_named() -> None:
    part = a_device().model_copy(update={"part": "3g.24gb"})
    assert wanted(part, memory="12Gi") == part
    allocation = an_allocation(part)
    for memory, cores, reasons in (
        ("8Gi", 0, []),
        ("9Gi", 0, ["RegisteredPart"]),
        ("1Gi", 100, ["RegisteredPart"]),
    ):
        claim = a_claim(requests=[a_request(name="main", memory=memory, cores=cores)])
        assert [reason for reason, _ in unmet(claim.spec, allocation)] == reasons
    assert unmet(claim.spec, allocation)[0][1].endswith(
        "its part 3g.24gb has 8Gi and 30 % and cannot change while held"
    )


def test_an_instance_and_a_device_of_no_request_stay_as_they_are() -> None:
    mig = MigAllocation(profile="1g.10gb", start=0, size=1)
    instance = a_device().model_copy(update={"mig": mig})
    assert wanted(instance, memory="12Gi") == instance
    other = an_allocated_device(request="gone")
    assert wanted(other, memory="12Gi") == other


@given(st.lists(st.tuples(amounts, amounts), min_size=1, max_size=4))
def test_pages_never_say_more_than_is_held_while_a_resize_is_under_way(pairs) -> None:
    """Whatever changes to whatever: allowed ≤ held ≤ granted, and allowed ≤ wanted ≤ granted, in
    memory and in cores; what is both allowed and granted is what is wanted and held."""
    new = [a_device(*after) for _, after in pairs]
    held = [a_device(*before) for before, _ in pairs]
    for low, one, other, high in zip(
        allowed(new, held), new, held, granted(new, held), strict=True
    ):
        for field in ("memory_mib", "cores"):
            values = [getattr(device, field) for device in (one, other)]
            assert getattr(low, field) == min(values)
            assert getattr(high, field) == max(values)
    assert granted(held, held) == allowed(held, held) == held


@pytest.mark.parametrize(
    ("status", "generation", "expected"),
    [("True", 3, True), ("True", 2, False), ("False", 3, False), (None, 3, False)],
)
def test_it_is_settled_when_the_agent_says_so_of_this_version(status, generation, expected) -> None:
    conditions = []
    if status is not None:
        conditions = [Condition(type="Resized", status=status, observed_generation=generation)]
    claim = a_claim(generation=3, status=VGPUClaimStatus(conditions=conditions))
    assert is_resized(claim) is expected


def test_a_claim_that_was_never_changed_is_known_by_its_generation() -> None:
    assert [was_changed(a_claim(generation=number)) for number in (1, 2)] == [False, True]
