"""The fast check of many devices gives the same result as the single checks of each."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from builders import a_geometry, a_request, an_ask, device_facts, some_columns
from vgpu_api.effective import Use
from vgpu_api.reasons import Reason
from vgpu_operator.demand import RequestDemand
from vgpu_operator.placement import Budget, Fleet
from vgpu_operator.placement.constraints import Charge
from vgpu_operator.placement.fit_device import passing, refusal_of_kind, refusal_of_room
from vgpu_operator.placement.fleet import REASONS

DEVICE_MIB = 1000
SLOTS = 2
PROFILES = a_geometry(("1g.1gb", 400, 40, 1, (0, 1)))


def devices_in_every_state() -> Fleet:
    """Return devices of 1,000 MiB and two slots with different uses, some in MIG mode."""
    uses = {
        f"{mode}-{slots}-{cores}-{memory}-{healthy}": (mode, Use(memory, cores, slots), healthy)
        for mode, slots, cores, memory, healthy in product(
            ("Shared", "MIG"), (0, 1, SLOTS), (0, 1, 50, 99, 100), (0, 1, 500, 999, 1000), (True,)
        )
    }
    uses["ill"] = ("Shared", Use(), False)
    return some_columns(
        *(
            device_facts(uuid, index=index, mode=mode, healthy=healthy, memory_mib=DEVICE_MIB,
                   slots=SLOTS, profiles=PROFILES)
            for index, (uuid, (mode, _, healthy)) in enumerate(uses.items())
        ),
        used={uuid: use for uuid, (_, use, _) in uses.items()},
        slices={uuid: (0,) for uuid, (mode, use, _) in uses.items() if mode == "MIG" and use.slots},
    )  # fmt: skip


COLUMNS = devices_in_every_state()
DEVICES = range(len(COLUMNS.uuid))
MEMORY = ({"memory": "1Mi"}, {"memory": "500Mi"}, {"memory": "1000Mi"}, {"memory": "1001Mi"},
          {"memory_percent": 1}, {"memory_percent": 50}, {"memory_percent": 100})  # fmt: skip


def asked(**fields) -> RequestDemand:
    return an_ask(a_request(**fields)).requests[0]


@pytest.mark.parametrize("memory", MEMORY, ids=str)
@pytest.mark.parametrize("cores", [0, 1, 2, 50, 51, 100])
@pytest.mark.parametrize("policies", [(), ("Mutex",)], ids=str)
def test_a_device_passes_if_and_only_if_no_check_refuses_it(memory, cores, policies):
    request = asked(cores=cores, **memory)
    found = passing(COLUMNS, DEVICES, request, policies)
    for _ in range(2):  # the second time from the cache
        assert passing(COLUMNS, DEVICES, request, policies) == found
    assert found == [
        device
        for device in DEVICES
        if refusal_of_kind(COLUMNS, device, request) is None
        and refusal_of_room(COLUMNS, device, request, policies) is None
    ]


@pytest.mark.parametrize(
    ("use", "request_fields", "reason"),
    [
        (Use(slots=SLOTS), {"memory": "1Mi"}, Reason.CARD_TIME_SLICING_EXHAUSTED),
        (Use(500, 0, 1), {"memory": "501Mi"}, Reason.CARD_INSUFFICIENT_MEMORY),
        (Use(500, 0, 1), {"memory": "500Mi"}, None),
        (Use(500, 0, 1), {"memory_percent": 51}, Reason.CARD_INSUFFICIENT_MEMORY),
        (Use(500, 0, 1), {"memory_percent": 50}, None),
        (Use(0, 50, 1), {"memory": "1Mi", "cores": 51}, Reason.CARD_INSUFFICIENT_CORE),
        (Use(0, 50, 1), {"memory": "1Mi", "cores": 50}, None),
        (Use(0, 99, 1), {"memory": "1Mi", "cores": 0}, None),
        (Use(0, 100, 1), {"memory": "1Mi", "cores": 0}, Reason.CARD_COMPUTE_UNITS_EXHAUSTED),
        (Use(0, 0, 1), {"memory": "1Mi", "cores": 100}, Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT),
        (Use(), {"memory": "1Mi", "cores": 100}, None),
    ],
)
def test_what_is_in_use_is_not_to_be_had_once_more(use, request_fields, reason):
    columns = some_columns(device_facts("x", memory_mib=DEVICE_MIB, slots=SLOTS), used={"x": use})
    request = asked(**request_fields)
    assert refusal_of_room(columns, 0, request, ()) == reason
    assert passing(columns, [0], request, ()) == ([] if reason else [0])


def test_a_percentage_that_is_less_than_one_mib_of_a_device_is_no_request_for_nothing():
    columns = some_columns(
        device_facts("tiny", memory_mib=99), device_facts("least", memory_mib=100, index=1)
    )
    request = asked(memory_percent=1)
    assert [columns.uuid[device] for device in passing(columns, (0, 1), request, ())] == ["least"]


def test_where_a_quota_is_left_each_device_is_asked_what_it_would_cost():
    columns = some_columns(
        device_facts("large"), device_facts("small", memory_mib=DEVICE_MIB, index=1)
    )
    request, charge = asked(memory_percent=50), Charge(Budget(500))
    assert [columns.uuid[device] for device in passing(columns, (0, 1), request, (), charge)] == [
        "small"
    ]


@pytest.mark.parametrize("memory_mib", [0, DEVICE_MIB])
def test_a_request_that_takes_no_memory_fits_while_a_slot_is_free(memory_mib: int) -> None:
    """This holds even if a device's memory is unknown or all of it is in use."""
    device = device_facts("free", memory_mib=memory_mib, slots=SLOTS)
    taken = device_facts("taken", index=1, memory_mib=memory_mib, slots=SLOTS)
    used = {"free": Use(memory_mib, 0, 1), "taken": Use(memory_mib, 0, SLOTS)}
    columns = some_columns(device, taken, used=used)
    request = replace(an_ask(a_request()).requests[0], memory_mib=0, memory_percent=None, cores=0)
    assert passing(columns, (0, 1), request, ()) == [0]
    assert refusal_of_room(columns, 0, request, ()) is None
    assert refusal_of_room(columns, 1, request, ()) is Reason.CARD_TIME_SLICING_EXHAUSTED
    counts = columns.refused(request, mutex=False).counts[0]
    assert counts[REASONS.index(Reason.CARD_TIME_SLICING_EXHAUSTED)] == 1
    assert not counts[REASONS.index(Reason.CARD_INSUFFICIENT_MEMORY)]


def test_mutex_of_a_group_keeps_off_devices_that_are_linked_to_one_in_use() -> None:
    """The policy is for cards, and linked devices are dies of one. Source: HAMi v2.10.0, Vastai."""
    links = {"a": {"b": 10}, "b": {"a": 10}, "c": {}}
    devices = [
        device_facts(uuid, index=at, links=peers) for at, (uuid, peers) in enumerate(links.items())
    ]
    columns = some_columns(*devices, used={"a": Use(0, 0, 1)})
    request = an_ask(a_request(memory="1Mi", cores=0)).requests[0]
    assert passing(columns, (0, 1, 2), request, ("Mutex",)) == [1, 2]
    of_group = replace(request, group_mutex=True)
    assert passing(columns, (0, 1, 2), of_group, ("Mutex",)) == [2]
    assert passing(columns, (0, 1, 2), of_group, ()) == [0, 1, 2]
    why = refusal_of_room(columns, 1, of_group, ("Mutex",))
    assert why is Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT


def test_parts_of_one_device_are_of_one_size() -> None:
    """Source: HAMi v2.10.0, Kunlunxin."""
    devices = [device_facts(uuid, index=at, memory_mib=4096) for at, uuid in enumerate("abc")]
    used = {"a": Use(1024, 25, 1), "b": Use(2048, 50, 1)}
    columns = some_columns(*devices, used=used)
    request = replace(an_ask(a_request(memory="1Gi", cores=25)).requests[0], one_size=True)
    assert passing(columns, (0, 1, 2), request, ()) == [0, 2]
    why = refusal_of_room(columns, 1, request, ())
    assert why is Reason.CARD_NOT_FOUND_CUSTOM_FILTER_RULE
    assert passing(columns, (0, 1, 2), replace(request, one_size=False), ()) == [0, 1, 2]
