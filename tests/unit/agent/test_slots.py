"""Each transition of slots and leases accepts valid requests and refuses others with a message."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from vgpu_api.effective import Use
from vgpu_api.init_part import InitRound
from vgpu_nodeagent.errors import Refused, Why
from vgpu_nodeagent.kubelet.slot_offer import offer
from vgpu_nodeagent.state import slots
from vgpu_nodeagent.state.slots import Binding, ClaimAllocation, SlotAllocation, SlotState

SMALL = Use(10, 10, 1)
ROUND = InitRound("first", 0)
ALLOCATABLE = {"GPU-0": Use(100, 200, 3), "GPU-1": Use(100, 100, 3)}


def a_holding(
    pod: str = "a", use: Use = SMALL, *, allocation: str = "first", device: str = "GPU-0"
) -> ClaimAllocation:
    return ClaimAllocation(
        f"claim-{pod}", "ns", f"c-{pod}", allocation, f"uid-{pod}", f"pod-{pod}", {device: use}
    )


def allocated(*slot_ids: str, state: SlotState | None = None, now: float = 1.0) -> SlotState:
    state, _ = slots.allocate(state or SlotState(), slot_ids=slot_ids, nonce="n", now=now)
    return state


def granted(
    state: SlotState,
    slot_allocation: str,
    claim_allocation: ClaimAllocation | None = None,
    container: str = "main",
) -> SlotState:
    return slots.grant(
        state,
        claim_allocation=claim_allocation or a_holding(),
        bindings=[Binding(slot_allocation, container)],
        allocatable=ALLOCATABLE,
    )


def refusal(
    state: SlotState, slot_allocation: str, *args: object, **fields: object
) -> tuple[Why, str]:
    with pytest.raises(Refused) as refused:
        granted(state, slot_allocation, *args, **fields)  # type: ignore[arg-type]
    return refused.value.reason, str(refused.value)


def test_an_allocation_is_one_lease_on_all_its_slots_each_of_them_once():
    state, slot_allocation = slots.allocate(
        SlotState(), slot_ids=["slot-2", "slot-1", "slot-2"], nonce="n", now=3.0
    )
    assert slot_allocation == SlotAllocation("slot-1-n", ("slot-1", "slot-2"), 3.0)
    assert state == SlotState({"slot-1-n": slot_allocation})
    assert not slot_allocation.is_bound


def test_an_allocation_of_nothing_is_refused():
    with pytest.raises(Refused, match="allocated no slot") as refused:
        slots.allocate(SlotState(), slot_ids=[], nonce="n", now=0.0)
    assert refused.value.reason is Why.UNKNOWN_SLOT


def test_a_name_is_never_given_twice():
    with pytest.raises(Refused, match="allocation slot-1-n exists already") as refused:
        allocated("slot-1", state=allocated("slot-1"))
    assert refused.value.reason is Why.SLOT_TAKEN


def test_slots_are_sorted_by_number_and_strange_ones_come_first_by_name():
    ids = ["slot-10", "slot-9", "slot-x", "other"]
    assert sorted(ids, key=slots.slot_order) == ["other", "slot-x", "slot-9", "slot-10"]


def test_leases_on_slots_are_found_oldest_first():
    state = SlotState()
    for nonce, ids, now in (("b", ["slot-1"], 2.0), ("a", ["slot-1", "slot-2"], 2.0)):
        state, _ = slots.allocate(state, slot_ids=ids, nonce=nonce, now=now)
    state, _ = slots.allocate(state, slot_ids=["slot-1"], nonce="z", now=1.0)
    state, _ = slots.allocate(state, slot_ids=["slot-3"], nonce="y", now=0.0)
    names = [slot_allocation.name for slot_allocation in state.on(["slot-1"])]
    assert names == ["slot-1-z", "slot-1-a", "slot-1-b"]
    assert [slot_allocation.name for slot_allocation in state.on(["slot-2", "slot-3"])] == [
        "slot-3-y",
        "slot-1-a",
    ]
    assert state.slots_in_use() == {"slot-1", "slot-2", "slot-3"}


def test_a_grant_binds_the_leases_to_the_pod_and_counts_the_claim():
    state = granted(allocated("slot-1"), "slot-1-n", a_holding("a"), "main")
    assert state.slot_allocations["slot-1-n"] == SlotAllocation(
        "slot-1-n", ("slot-1",), 1.0, "uid-a", "main", "claim-a"
    )
    assert state.slot_allocations["slot-1-n"].is_bound
    assert state.claim_allocations == {"claim-a": a_holding("a")}
    assert state.of_claim("claim-a") == [state.slot_allocations["slot-1-n"]]
    assert state.of_claim("claim-b") == []
    assert state.used() == {"GPU-0": Use(10, 10, 1)}


def test_a_second_container_of_the_pod_may_have_a_lease_on_the_same_slot():
    state = granted(allocated("slot-1"), "slot-1-n", container="init")
    state, _ = slots.allocate(state, slot_ids=["slot-1"], nonce="later", now=2.0)
    state = granted(state, "slot-1-later", container="main")
    assert {slot_allocation.container for slot_allocation in state.on(["slot-1"])} == {
        "init",
        "main",
    }


def test_a_lease_that_this_agent_never_gave_is_refused():
    why, said = refusal(SlotState(), "slot-9-n")
    assert (why, said) == (
        Why.UNKNOWN_ALLOCATION,
        "the kubelet names allocation slot-9-n, which this agent does not know",
    )


def test_a_slot_of_another_pod_is_refused_though_the_lease_is_new():
    state = granted(allocated("slot-1", "slot-2"), "slot-1-n")
    state, _ = slots.allocate(state, slot_ids=["slot-2", "slot-3"], nonce="x", now=2.0)
    assert refusal(state, "slot-2-x", a_holding("b")) == (
        Why.SLOT_TAKEN,
        "slot-2, slot-3 still belongs to the pod with UID uid-a; its release is under way",
    )


def test_a_lease_stays_with_its_container():
    state = granted(allocated("slot-1"), "slot-1-n", container="main")
    assert granted(state, "slot-1-n", container="main") == state
    assert refusal(state, "slot-1-n", container="other") == (
        Why.RECORDS_DISAGREE,
        "allocation slot-1-n belongs to container main, not other",
    )


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (Use(61, 0, 1), "memory 100 MiB, 40 MiB in use here, 61 MiB more asked"),
        (Use(1, 161, 1), "cores 200 %, 40 % in use here, 161 % more asked"),
        (Use(1, 1, 3), "slots 3, 1 in use here, 3 more asked"),
    ],
)
def test_a_sum_beyond_the_device_is_refused_with_its_numbers(use, text):
    state = allocated(
        "slot-2", state=granted(allocated("slot-1"), "slot-1-n", a_holding(use=Use(40, 40, 1)))
    )
    assert refusal(state, "slot-2-n", a_holding("b", use)) == (
        Why.OVER_CAPACITY,
        f"claim ns/c-b does not fit on GPU GPU-0: {text}",
    )


def test_a_sum_that_is_exactly_the_device_fits_and_other_devices_do_not_count():
    state = allocated(
        "slot-2", state=granted(allocated("slot-1"), "slot-1-n", a_holding(use=Use(40, 40, 1)))
    )
    assert granted(state, "slot-2-n", a_holding("b", Use(60, 160, 2))).used() == {
        "GPU-0": Use(100, 200, 3)
    }
    assert granted(state, "slot-2-n", a_holding("b", Use(100, 100, 3), device="GPU-1"))


def test_a_claim_is_not_counted_against_itself():
    claim_allocation = a_holding(use=Use(100, 200, 3))
    state = allocated("slot-2", state=granted(allocated("slot-1"), "slot-1-n", claim_allocation))
    assert granted(state, "slot-2-n", claim_allocation).used() == {"GPU-0": Use(100, 200, 3)}
    assert state.used(but="claim-a") == {}


def test_a_device_that_is_not_here_is_refused():
    claim_allocation = a_holding(device="GPU-9")
    assert refusal(allocated("slot-1"), "slot-1-n", claim_allocation) == (
        Why.UNKNOWN_DEVICE,
        "GPU GPU-9 is not on this node",
    )


def test_a_claim_that_serves_a_pod_serves_no_other():
    state = granted(allocated("slot-1"), "slot-1-n")
    other = replace(a_holding(), pod_uid="uid-b", pod_name="pod-b")
    said = "claim ns/c-a still serves pod pod-a (UID uid-a) on this node"
    assert refusal(state, "slot-1-n", other) == (Why.CLAIM_CLOSED, said)


@pytest.mark.parametrize(
    "again",
    [
        pytest.param(a_holding(use=Use(5, 20, 1), allocation="second"), id="decided anew"),
        pytest.param(
            replace(a_holding(use=Use(5, 20, 1)), claim_uid="made-again"), id="claim made again"
        ),
    ],
)
def test_a_running_pod_keeps_its_devices_under_a_claim_that_was_decided_anew(
    again: ClaimAllocation,
):
    """A running container keeps its former limits for a while, so the greater use counts."""
    state = granted(allocated("slot-1"), "slot-1-n")
    state = granted(allocated("slot-2", state=state), "slot-2-n", again, "sidecar")
    assert state.used() == {"GPU-0": Use(10, 20, 1)}
    assert {each.claim_uid for each in state.slot_allocations.values()} == {again.claim_uid}
    assert list(state.claim_allocations) == [again.claim_uid]


def test_a_claim_that_was_decided_anew_on_other_devices_starts_no_container_of_a_running_pod():
    state = granted(allocated("slot-1"), "slot-1-n")
    elsewhere = a_holding(allocation="second", device="GPU-1")
    said = "claim ns/c-a has other GPUs than its pod pod-a uses on this node: it lacks GPU-0"
    assert refusal(state, "slot-1-n", elsewhere) == (Why.CLAIM_CLOSED, said)


def test_an_allocation_that_has_ended_here_is_not_opened_again_but_a_new_one_is():
    state = slots.close(granted(allocated("slot-1"), "slot-1-n"), "claim-a")
    state = allocated("slot-2", state=state)
    assert refusal(state, "slot-2-n") == (
        Why.CLAIM_CLOSED,
        "this allocation of claim ns/c-a has ended on this node",
    )
    again = granted(state, "slot-2-n", a_holding(allocation="second"))
    assert again.used() == {"GPU-0": Use(10, 10, 1)}


def test_closing_a_claim_frees_its_slots_and_its_use_and_nobody_elses():
    state = granted(allocated("slot-1"), "slot-1-n")
    state = granted(allocated("slot-2", state=state), "slot-2-n", a_holding("b", Use(20, 0, 1)))
    closed = slots.close(state, "claim-a")
    assert closed.slots_in_use() == {"slot-2"}
    assert closed.used() == {"GPU-0": Use(20, 0, 1)}
    assert closed.claim_allocations["claim-a"] == replace(a_holding(), closed=True)
    assert slots.close(closed, "nobody") is closed


def test_only_a_closed_claim_is_forgotten():
    state = granted(allocated("slot-1"), "slot-1-n")
    state = granted(allocated("slot-2", state=state), "slot-2-n", a_holding("b"))
    assert slots.forget(state, "claim-a") is state
    assert slots.forget(state, "nobody") is state
    closed = slots.close(state, "claim-a")
    assert slots.forget(closed, "claim-a").claim_allocations == {"claim-b": a_holding("b")}
    assert slots.forget(closed, "claim-a").slot_allocations == closed.slot_allocations


def test_only_a_lease_that_was_never_bound_is_dropped():
    state = allocated("slot-2", state=granted(allocated("slot-1"), "slot-1-n"))
    assert slots.drop(state, "slot-1-n") is state
    assert slots.drop(state, "nothing") is state
    dropped = slots.drop(state, "slot-2-n")
    assert list(dropped.slot_allocations) == ["slot-1-n"]
    assert dropped.claim_allocations == state.claim_allocations


def test_after_its_init_containers_a_claim_counts_what_its_app_containers_use():
    state = granted(allocated("slot-1"), "slot-1-n", a_holding(use=Use(90, 0, 1)))
    rest = {"GPU-0": Use(10, 0, 1)}
    ended = slots.end_init(state, "claim-a", init_round=ROUND, init_ids=["2", "1"], use=rest)
    assert ended.used() == rest
    assert (
        ended.claim_allocations["claim-a"].init_ended,
        ended.claim_allocations["claim-a"].init_ids,
    ) == (
        ROUND,
        ("1", "2"),
    )
    assert ended.slot_allocations == state.slot_allocations
    closed = slots.close(state, "claim-a")
    for unchanged, claim in ((closed, "claim-a"), (state, "nobody")):
        same = slots.end_init(unchanged, claim, init_round=ROUND, init_ids=[], use=rest)
        assert same is unchanged


@pytest.mark.parametrize(
    ("usable", "in_use", "healthy"),
    [
        (3, [], {"slot-0", "slot-1", "slot-2"}),
        (2, [], {"slot-0", "slot-1"}),
        (2, ["slot-2"], {"slot-0", "slot-2"}),
        (1, ["slot-0", "slot-1"], {"slot-0", "slot-1"}),
        (2, ["slot-9"], {"slot-0", "slot-9"}),
        (0, [], set()),
    ],
)
def test_free_slots_are_offered_from_the_bottom_as_far_as_usable_devices_go(
    usable, in_use, healthy
):
    shown = offer(total=3, usable=usable, in_use=in_use)
    assert {slot for slot, fine in shown if fine} == healthy
    assert [slot for slot, _ in shown] == [
        *("slot-0", "slot-1", "slot-2"),
        *(slot for slot in in_use if slot == "slot-9"),
    ]


SLOTS = [f"slot-{number}" for number in range(6)]


@pytest.mark.parametrize("seed", range(200))
def test_kube_scheduler_counts_as_free_exactly_the_slots_of_usable_devices_without_a_holder(
    seed: int,
):
    """For kube-scheduler, a node's free slots are the healthy ones minus those of all its pods.

    Whatever is lost or forgotten: nothing in use vanishes, nothing that a new pod must not get is
    healthy, and the kubelet has an id for each pod that the scheduler sends.
    """
    draw = random.Random(seed)
    usable = draw.randint(0, 6)
    in_use = set(draw.sample(SLOTS, draw.randint(0, 6)))
    lost = {slot for slot in in_use if draw.random() < 0.3} if usable < 6 else set()
    forgotten = {slot for slot in in_use if draw.random() < 0.3}
    shown = dict(offer(total=6, usable=usable, in_use=in_use, lost=lost, forgotten=forgotten))
    healthy = {slot for slot, fine in shown.items() if fine}
    free = max(0, usable - len(in_use - lost))
    assert len(healthy) - len(in_use) == free
    assert in_use <= shown.keys()
    assert healthy.isdisjoint(lost | forgotten)
    known_to_the_kubelet = in_use - forgotten
    assert len(healthy - known_to_the_kubelet) >= free


def test_a_lost_device_leaves_the_free_slots_of_the_others_as_they_are():
    """With one slot per device, the first device is lost with a pod on it; the second is idle."""
    shown = offer(total=2, usable=1, in_use=["slot-0"], lost=["slot-0"])
    assert shown == [("slot-0", False), ("slot-1", True), ("slot-2", True)]


def test_slots_are_offered_by_number_not_by_spelling():
    shown = offer(total=12, usable=3, in_use=["slot-10"])
    assert [slot for slot, _ in shown] == [f"slot-{number}" for number in range(12)]
    assert [slot for slot, fine in shown if fine] == ["slot-0", "slot-1", "slot-10"]


def test_a_slots_number_is_what_stands_behind_its_last_dash():
    assert sorted(["slot-a-2", "slot-0", "slot-x", "slot-a-1"], key=slots.slot_order) == [
        *("slot-0", "slot-x", "slot-a-1", "slot-a-2")
    ]
