"""A lost slot state is rebuilt from all records, without forgetting or guessing a grant."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from builders import a_claim, a_request, allocation_id, an_allocated_device, an_allocation
from vgpu_api.effective import Use
from vgpu_api.init_part import InitRound
from vgpu_api.v1alpha1 import ReservedFor, VGPUClaim, VGPUClaimStatus
from vgpu_nodeagent.discovery.inventory import DeviceCapacity
from vgpu_nodeagent.enforcement.abi import UNLIMITED, PageState
from vgpu_nodeagent.enforcement.page import DeviceLimit, PageContent
from vgpu_nodeagent.kubelet.kubelet_checkpoint import KubeletEntry
from vgpu_nodeagent.lifecycle.rebuild import rebuild
from vgpu_nodeagent.state.slots import ClaimAllocation, SlotAllocation, SlotState

MIB = 1024 * 1024
TERMS = {"GPU-0": DeviceCapacity(Use(16_384, 100, 10), Use(32_768, 200, 10))}


def an_entry(
    slot_allocation: str = "slot-1-x",
    *,
    pod: str = "uid-of-pod-1",
    container: str = "main",
    slot_ids: tuple[str, ...] = ("slot-1",),
) -> KubeletEntry:
    return KubeletEntry(pod, container, "vgpu.dev/slot", frozenset(slot_ids), slot_allocation)


def a_page(
    state: PageState = PageState.GRANT, *limits: DeviceLimit, name: str = "slot-1-x"
) -> PageContent:
    return PageContent(state, 1, name, limits or (DeviceLimit("GPU-0", 1024 * MIB, 30),))


def its_claim(*, reserved: bool = True, allocated: bool = True, init: bool = False) -> VGPUClaim:
    """Return a claim of 1 GiB for `main`, and with `init` of 8 GiB for `prepare`."""
    requests = [a_request(name="main", memory="1Gi")]
    devices = [an_allocated_device(request="main", cores=30)]
    if init:
        requests.insert(0, a_request(name="prepare", phase="Init", memory="8Gi"))
        devices.insert(0, an_allocated_device(request="prepare", memory_mib=8192))
    status = VGPUClaimStatus(
        allocation=an_allocation(*devices) if allocated else None,
        reserved_for=ReservedFor(pod_name="pod-1", pod_uid="uid-of-pod-1") if reserved else None,
        conditions=[],
    )
    return a_claim(requests=requests, status=status)


def rebuilt(
    *entries: KubeletEntry,
    claims: tuple[VGPUClaim, ...] = (),
    pages: Mapping[str, PageContent | None] | None = None,
) -> SlotState:
    return rebuild(entries=entries, claims=claims, pages=pages or {}, capacities=TERMS, now=7.0)


HELD = ClaimAllocation(
    "uid-of-claim-1",
    "default",
    "claim-1",
    allocation_id(),
    "uid-of-pod-1",
    "pod-1",
    {"GPU-0": Use(1024, 30, 1)},
)


@pytest.mark.parametrize("pages", [{"slot-1-x": a_page()}, {"slot-1-x": None}, {}])
def test_what_kubelet_and_claim_agree_on_is_bound_again(pages):
    state = rebuilt(an_entry(), claims=(its_claim(),), pages=pages)
    slot_allocation = SlotAllocation(
        "slot-1-x", ("slot-1",), 7.0, "uid-of-pod-1", "main", "uid-of-claim-1"
    )
    assert state == SlotState({"slot-1-x": slot_allocation}, {"uid-of-claim-1": HELD})


def test_a_leases_slots_are_in_order_of_their_numbers():
    state = rebuilt(an_entry(slot_ids=("slot-10", "slot-9")))
    assert state.slot_allocations["slot-1-x"].slot_ids == ("slot-9", "slot-10")


def test_an_answer_of_another_plugin_is_no_lease():
    assert rebuilt(an_entry(slot_allocation=""), an_entry()).slot_allocations.keys() == {"slot-1-x"}


@pytest.mark.parametrize("state", [PageState.DENY, PageState.CLOSED])
def test_what_was_not_granted_yet_or_has_ended_stays_unbound(state):
    found = rebuilt(an_entry(), claims=(its_claim(),), pages={"slot-1-x": a_page(state)})
    assert found == SlotState({"slot-1-x": SlotAllocation("slot-1-x", ("slot-1",), 7.0)})


@pytest.mark.parametrize(
    "claims",
    [(), (its_claim(reserved=False),), (its_claim(allocated=False),)],
)
def test_without_a_claim_for_the_pod_its_open_page_is_what_counts(claims):
    state = rebuilt(an_entry(), claims=claims, pages={"slot-1-x": a_page()})
    account = "page:slot-1-x"
    assert state.claim_allocations == {
        account: ClaimAllocation(
            account, "", "", "", "uid-of-pod-1", "", {"GPU-0": Use(1024, 30, 1)}
        )
    }
    assert state.slot_allocations["slot-1-x"] == SlotAllocation(
        "slot-1-x", ("slot-1",), 7.0, "uid-of-pod-1", "main", account
    )


@pytest.mark.parametrize("pages", [{}, {"slot-1-x": None}])
def test_without_claim_and_page_a_lease_waits_for_its_pod(pages):
    state = rebuilt(an_entry(), pages=pages)
    assert state == SlotState({"slot-1-x": SlotAllocation("slot-1-x", ("slot-1",), 7.0)})


def test_another_pods_claim_is_not_taken_for_this_ones():
    state = rebuilt(an_entry(pod="uid-of-pod-2"), claims=(its_claim(),))
    assert state.claim_allocations == {}


def test_a_page_that_the_kubelet_has_forgotten_still_counts_while_it_grants():
    pages = {"slot-1-x": None, "slot-2-y": a_page(PageState.CLOSED), "slot-10-3-z": a_page()}
    state = rebuilt(an_entry(), pages=pages)
    account = "page:slot-10-3-z"
    assert state.slot_allocations == {
        "slot-1-x": SlotAllocation("slot-1-x", ("slot-1",), 7.0),
        "slot-10-3-z": SlotAllocation("slot-10-3-z", ("slot-10-3",), 7.0, account, "", account),
    }
    assert state.claim_allocations == {
        account: ClaimAllocation(account, "", "", "", account, "", {"GPU-0": Use(1024, 30, 1)})
    }


def test_pages_behind_one_that_does_not_count_are_looked_at_too():
    pages = {"slot-1-x": a_page(), "slot-2-y": a_page(PageState.DENY), "slot-3-z": a_page()}
    state = rebuilt(an_entry(), claims=(its_claim(),), pages=pages)
    assert state.slot_allocations.keys() == {"slot-1-x", "slot-3-z"}


def test_a_page_without_a_limit_counts_for_the_whole_device_and_parts_of_one_device_add_up():
    limits = (
        DeviceLimit("GPU-0", UNLIMITED, 20),
        DeviceLimit("GPU-0", 3 * MIB // 2, 5),
        DeviceLimit("GPU-9", UNLIMITED, 0),
    )
    state = rebuilt(pages={"slot-1-x": a_page(PageState.GRANT, *limits)})
    assert state.used() == {"GPU-0": Use(16_384 + 1, 25, 2), "GPU-9": Use(0, 0, 1)}


INIT = an_entry("slot-1-i", container="prepare")


def test_while_the_init_containers_page_grants_the_claim_counts_with_its_peak():
    pages = {"slot-1-i": a_page(), "slot-1-x": a_page(PageState.DENY)}
    state = rebuilt(INIT, an_entry(), claims=(its_claim(init=True),), pages=pages)
    assert state.used() == {"GPU-0": Use(8192, 30, 1)}
    assert state.claim_allocations["uid-of-claim-1"].init_ended is None


@pytest.mark.parametrize("order", [(INIT, an_entry()), (an_entry(), INIT)])
def test_a_closed_page_of_an_init_container_says_that_its_part_has_ended(order):
    """The order in which the kubelet names the containers does not matter."""
    pages = {"slot-1-i": a_page(PageState.CLOSED), "slot-1-x": a_page()}
    state = rebuilt(*order, claims=(its_claim(init=True),), pages=pages)
    assert state.used() == {"GPU-0": Use(1024, 30, 1)}
    assert state.claim_allocations["uid-of-claim-1"].init_ended == InitRound(allocation_id(), 0)
    assert {slot_allocation.claim_uid for slot_allocation in state.slot_allocations.values()} == {
        "uid-of-claim-1"
    }


def test_a_closed_page_of_an_app_container_ends_nothing_of_init_containers():
    pages = {"slot-1-i": a_page(), "slot-1-x": a_page(PageState.CLOSED)}
    state = rebuilt(INIT, an_entry(), claims=(its_claim(init=True),), pages=pages)
    assert state.used() == {"GPU-0": Use(8192, 30, 1)}
    assert not state.slot_allocations["slot-1-x"].is_bound


def test_an_init_request_without_a_name_means_whichever_container_has_the_lease():
    claim = its_claim()
    spec = claim.spec.model_copy(update={"requests": [a_request(phase="Init", memory="8Gi")]})
    allocation = an_allocation(an_allocated_device(memory_mib=8192))
    status = claim.status.model_copy(update={"allocation": allocation})
    claim = claim.model_copy(update={"spec": spec, "status": status})
    state = rebuilt(INIT, claims=(claim,), pages={"slot-1-i": a_page(PageState.CLOSED)})
    assert state.claim_allocations["uid-of-claim-1"].init_ended == InitRound(allocation_id(), 0)
    assert state.used() == {}
