"""Slots as a state machine: no sequence of actions of kubelet and agent grants anything twice."""

from __future__ import annotations

from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vgpu_api.effective import Use
from vgpu_api.init_part import InitRound
from vgpu_nodeagent.errors import Refused
from vgpu_nodeagent.kubelet.slot_offer import offer
from vgpu_nodeagent.state import slots
from vgpu_nodeagent.state.checkpoint import decode, encode
from vgpu_nodeagent.state.slots import Binding, ClaimAllocation, SlotAllocation, SlotState

DEVICES = {"GPU-0": Use(100, 100, 3), "GPU-1": Use(60, 100, 3)}
SLOTS = [f"slot-{number}" for number in range(4)]
PODS = ["pod-a", "pod-b", "pod-c", "pod-d"]
CLAIMS = [f"{kind}-of-{pod}" for kind in ("claim", "claim-made-again") for pod in PODS]
USES = st.dictionaries(
    st.sampled_from(sorted(DEVICES)),
    st.builds(Use, st.sampled_from([0, 40, 60, 61, 101]), st.sampled_from([0, 60]), st.just(1)),
    min_size=1,
)


class Slots(RuleBasedStateMachine):
    """A kubelet that allocates, pods that start and end, and crashes between any two steps."""

    def __init__(self) -> None:
        super().__init__()
        self.state = SlotState()
        self.on_disk = encode(self.state)
        self.owner_ever: dict[str, str] = {}
        self.names_ever: set[str] = set()
        self.nonce = 0
        # The model: the use that a claim is granted, and the id of its allocation.
        self.open: dict[str, dict[str, Use]] = {}
        self.allocation: dict[str, str] = {}

    def commit(self, state: SlotState) -> None:
        self.on_disk = encode(state)
        self.state = state

    @rule(ids=st.sets(st.sampled_from(SLOTS), min_size=1))
    def allocate(self, ids: set[str]) -> None:
        self.nonce += 1
        state, slot_allocation = slots.allocate(
            self.state, slot_ids=ids, nonce=f"n{self.nonce}", now=0.0
        )
        assert slot_allocation.name not in self.names_ever
        self.names_ever.add(slot_allocation.name)
        self.commit(state)

    @precondition(lambda self: self.state.slot_allocations)
    @rule(data=st.data(), claim=st.sampled_from(CLAIMS), use=USES, time=st.integers(0, 1))
    def grant(self, data: st.DataObject, claim: str, use: dict[str, Use], time: int) -> None:
        """Grant a slot to a container; a running pod's claim may be allocated again."""
        slot_allocation = data.draw(st.sampled_from(sorted(self.state.slot_allocations)))
        pod = claim.rpartition("-of-")[2]
        claim_allocation = ClaimAllocation(claim, "ns", "c", str(time), pod, pod, use)
        before = self.state
        try:
            state = slots.grant(
                before,
                claim_allocation=claim_allocation,
                bindings=[Binding(slot_allocation, "main")],
                allocatable=DEVICES,
            )
        except Refused:
            assert self.state == before
            return
        self.commit(state)
        self.open[claim] = self._with_what_runs(claim, str(time), use)
        self.allocation[claim] = str(time)
        owner = self.owner_ever.setdefault(slot_allocation, pod)
        assert owner == pod, f"{slot_allocation} was granted to {owner} and to {pod}"

    def _with_what_runs(self, claim: str, allocation: str, use: dict[str, Use]) -> dict[str, Use]:
        """Return the use of a grant, at least that of the allocations which it ends."""
        pod = claim.rpartition("-of-")[2]
        former = [
            other
            for other in self.open
            if other.endswith(f"-of-{pod}")
            and (other, self.allocation[other]) != (claim, allocation)
        ]
        runs: dict[str, Use] = {}
        for other in former:
            for uuid, each in self.open.pop(other).items():
                runs[uuid] = runs.get(uuid, Use()) + each
        assert runs.keys() <= use.keys(), "a container runs on a device that the pod has no more"
        return {
            uuid: Use(
                max(each.memory_mib, runs.get(uuid, Use()).memory_mib),
                max(each.cores, runs.get(uuid, Use()).cores),
                max(each.slots, runs.get(uuid, Use()).slots),
            )
            for uuid, each in use.items()
        }

    @rule(claim=st.sampled_from(CLAIMS))
    def close(self, claim: str) -> None:
        self.commit(slots.close(self.state, claim))
        self.open.pop(claim, None)

    @rule(claim=st.sampled_from(CLAIMS))
    def init_containers_end(self, claim: str) -> None:
        """End the init containers: half of the use remains, none if the claim is closed."""
        held = self.state.claim_allocations.get(claim)
        use = held.use if held is not None else {"GPU-0": Use(100, 100, 3)}
        rest = {uuid: Use(each.memory_mib // 2, each.cores // 2, 1) for uuid, each in use.items()}
        self.commit(
            slots.end_init(
                self.state, claim, init_round=InitRound("", 0), init_ids=["b", "a"], use=rest
            )
        )
        if claim in self.open:
            self.open[claim] = rest
            assert self.state.claim_allocations[claim].init_ids == ("a", "b")

    @rule(claim=st.sampled_from(CLAIMS))
    def forget(self, claim: str) -> None:
        held = self.state.claim_allocations.get(claim)
        self.commit(slots.forget(self.state, claim))
        if held is not None and not held.closed:
            assert self.state.claim_allocations[held.claim_uid] == held

    @precondition(lambda self: self.state.slot_allocations)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        slot_allocation = data.draw(st.sampled_from(sorted(self.state.slot_allocations)))
        bound = self.state.slot_allocations[slot_allocation].is_bound
        self.commit(slots.drop(self.state, slot_allocation))
        assert (slot_allocation in self.state.slot_allocations) == bound

    @rule()
    def crash(self) -> None:
        """Restart the agent from its disk, and check that its state is the same."""
        restarted = decode(Path("slots.json"), self.on_disk)
        assert restarted == self.state
        self.state = restarted

    @invariant()
    def no_device_is_over_capacity(self) -> None:
        """The sum of open grants is within each device's capacity."""
        for uuid, use in self.state.used().items():
            assert use.peak(DEVICES[uuid]) == DEVICES[uuid], (uuid, use)

    @invariant()
    def what_is_used_is_what_was_granted_and_has_not_ended(self) -> None:
        """The use of each device equals the sum over a plain dictionary of claims."""
        total: dict[str, Use] = {}
        for uses in self.open.values():
            for uuid, use in uses.items():
                total[uuid] = total.get(uuid, Use()) + use
        assert self.state.used() == total

    @invariant()
    def a_slot_belongs_to_one_pod(self) -> None:
        """All bound leases on a slot belong to one pod."""
        for slot in SLOTS:
            assert len({x.pod_uid for x in self.state.on([slot]) if x.is_bound}) <= 1

    @invariant()
    def every_bound_lease_has_an_open_account(self) -> None:
        """The amounts of a bound slot allocation are counted until its claim is closed."""
        for slot_allocation in self.state.slot_allocations.values():
            if slot_allocation.is_bound:
                assert not self.state.claim_allocations[slot_allocation.claim_uid].closed

    @invariant()
    def slots_in_use_are_offered_as_healthy(self) -> None:
        """A slot in use is never reported as unhealthy, even if few devices are left."""
        in_use = self.state.slots_in_use()
        for usable in range(5):
            shown = dict(offer(total=4, usable=usable, in_use=in_use))
            assert all(shown[slot] for slot in in_use)
            free = [slot for slot, healthy in shown.items() if healthy and slot not in in_use]
            assert len(free) == max(0, min(4, usable) - len(in_use))


class TestSlots(Slots.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(stateful_step_count=30)


def test_the_names_of_leases_carry_their_first_slot_by_number() -> None:
    _, slot_allocation = slots.allocate(
        SlotState(), slot_ids=["slot-10", "slot-9"], nonce="x", now=1.0
    )
    assert slot_allocation == SlotAllocation("slot-9-x", ("slot-9", "slot-10"), 1.0)
