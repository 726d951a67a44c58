"""The state machine of slots: which slot allocation belongs to which pod and claim.

The kubelet allocates interchangeable slot ids and never names the pod. Each answer to Allocate is
a *slot allocation* with a name that is used once; the first PreStart binds it to a pod for good.
The amounts that a claim uses of each device are its *claim allocation*: they count against the
devices until it is closed, whatever the API server shows until then.

A ResourceClaim names its pod, and has *shares* instead: slot allocations without slots, which are
bound from the beginning.

States are values, without I/O: every transition returns a new one, so a state can be on disk
before it is used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from vgpu_api.effective import Use
from vgpu_api.init_part import InitRound
from vgpu_nodeagent.errors import Refused, Why
from vgpu_nodeagent.state.claim_instances import ClaimInstance


@dataclass(frozen=True, slots=True)
class SlotAllocation:
    """The part of an Allocate response for one container, or its share of a ResourceClaim.

    Attributes:
        name: The name of the CDI device and of the folder, such as `slot-7-<nonce>` or
            `share-<uuid>`; never reused.
        slot_ids: The kubelet's device ids, sorted; none for a share.
        allocated_at: Seconds since the epoch.
        pod_uid: The pod it is bound to; empty until the first PreStart.
        container: The container of that pod.
        claim_uid: The claim that granted it.
        interposed: True if the container was started with the library; None before the first
            PreStart, or if not recorded.
    """

    name: str
    slot_ids: tuple[str, ...]
    allocated_at: float
    pod_uid: str = ""
    container: str = ""
    claim_uid: str = ""
    interposed: bool | None = None

    @property
    def is_bound(self) -> bool:
        """True if a pod holds it."""
        return bool(self.pod_uid)


@dataclass(frozen=True, slots=True)
class ClaimAllocation:
    """The amounts of this node's devices that a claim holds once it is granted.

    Attributes:
        claim_uid: The claim.
        namespace: Its namespace, and the pod's.
        claim_name: Its name.
        allocation_id: The id of the claim's allocation.
        pod_uid: The pod.
        pod_name: Its name.
        use: Effective use per device UUID.
        closed: True if its pages deny and its containers are gone; it is kept until the API server
            has recorded the release.
        init_ended: The round of init containers (`vgpu_api.init_part`) whose pages deny
            permanently; `use` is then the app containers'.
        init_ids: The ids of the init containers that ran in the last round that ended.
        resource_claim_uid: The ResourceClaim that was prepared for the pod; empty for slots.
    """

    claim_uid: str
    namespace: str
    claim_name: str
    allocation_id: str
    pod_uid: str
    pod_name: str
    use: Mapping[str, Use]
    closed: bool = False
    init_ended: InitRound | None = None
    init_ids: tuple[str, ...] = ()
    resource_claim_uid: str = ""


@dataclass(frozen=True, slots=True)
class Binding:
    """A slot allocation to bind, its container, and whether that is started with the library."""

    slot_allocation: str
    container: str
    interposed: bool | None = None


@dataclass(frozen=True, slots=True)
class SlotState:
    """Slot allocations by name, claim allocations by claim UID, MIG instances by place."""

    slot_allocations: Mapping[str, SlotAllocation] = field(default_factory=dict)
    claim_allocations: Mapping[str, ClaimAllocation] = field(default_factory=dict)
    claim_instances: Mapping[str, ClaimInstance] = field(default_factory=dict)

    def on(self, slot_ids: Collection[str]) -> list[SlotAllocation]:
        """Return the slot allocations on any of these slots, oldest first."""
        requested = set(slot_ids)
        found = [
            slot_allocation
            for slot_allocation in self.slot_allocations.values()
            if requested.intersection(slot_allocation.slot_ids)
        ]
        return sorted(
            found, key=lambda slot_allocation: (slot_allocation.allocated_at, slot_allocation.name)
        )

    def of_claim(self, claim_uid: str) -> list[SlotAllocation]:
        """Return the slot allocations of a claim."""
        return [
            slot_allocation
            for slot_allocation in self.slot_allocations.values()
            if slot_allocation.claim_uid == claim_uid
        ]

    def prepared(self, resource_claim_uid: str) -> ClaimAllocation | None:
        """Return the open claim allocation for which a ResourceClaim was prepared."""
        return next(
            (
                each
                for each in self.claim_allocations.values()
                if each.resource_claim_uid == resource_claim_uid and not each.closed
            ),
            None,
        )

    def slots_in_use(self) -> frozenset[str]:
        """Return the slots with a slot allocation, bound or not."""
        return frozenset(
            slot
            for slot_allocation in self.slot_allocations.values()
            for slot in slot_allocation.slot_ids
        )

    def slots_on(self, devices: Collection[str]) -> frozenset[str]:
        """Return the slots of containers whose claim has any of these devices, by UUID."""
        claims = {
            uid
            for uid, claim_allocation in self.claim_allocations.items()
            if not claim_allocation.closed and not claim_allocation.use.keys().isdisjoint(devices)
        }
        return frozenset(
            slot
            for slot_allocation in self.slot_allocations.values()
            if slot_allocation.claim_uid in claims
            for slot in slot_allocation.slot_ids
        )

    def has_open_account(self, pod_uid: str) -> bool:
        """Return True while devices are counted for a pod, for any claim."""
        return any(
            account.pod_uid == pod_uid and not account.closed
            for account in self.claim_allocations.values()
        )

    def used(self, *, but: str = "") -> Mapping[str, Use]:
        """Return the use per device of all open claim allocations, `but` one claim's."""
        total: dict[str, Use] = {}
        for claim_allocation in self.claim_allocations.values():
            if not claim_allocation.closed and claim_allocation.claim_uid != but:
                for uuid, use in claim_allocation.use.items():
                    total[uuid] = total.get(uuid, Use()) + use
        return total


class SlotRecord(Protocol):
    """Holds the newest state; implemented by the checkpoint."""

    @property
    def state(self) -> SlotState:
        """Return the current state, a new value after each transition."""


def slot_order(slot_id: str) -> tuple[int, str]:
    """Return a sort key that orders slots by their number."""
    digits = slot_id.rpartition("-")[2]
    return (int(digits) if digits.isdigit() else 0, slot_id)


def allocate(
    state: SlotState, *, slot_ids: Iterable[str], nonce: str, now: float
) -> tuple[SlotState, SlotAllocation]:
    """Answer an Allocate with a slot allocation of a new name.

    Earlier slot allocations on these slots stay: the kubelet gives the slot of an ordinary init
    container to a later container of the pod before anything has started, and both need theirs.

    Raises:
        Refused: There are no slots, or the nonce was used before.
    """
    ids = tuple(sorted(set(slot_ids), key=slot_order))
    if not ids:
        raise Refused(Why.UNKNOWN_SLOT, "the kubelet allocated no slot")
    slot_allocation = SlotAllocation(f"{ids[0]}-{nonce}", ids, now)
    if slot_allocation.name in state.slot_allocations:
        raise Refused(Why.SLOT_TAKEN, f"allocation {slot_allocation.name} exists already")
    return replace(
        state, slot_allocations={**state.slot_allocations, slot_allocation.name: slot_allocation}
    ), slot_allocation


def with_shares(state: SlotState, names: Iterable[str], *, now: float) -> SlotState:
    """Return the state with shares of these names, for `grant` to bind; known ones stay."""
    new = {n: SlotAllocation(n, (), now) for n in names if n not in state.slot_allocations}
    if not new:
        return state
    return replace(state, slot_allocations={**state.slot_allocations, **new})


def grant(
    state: SlotState,
    *,
    claim_allocation: ClaimAllocation,
    bindings: Collection[Binding],
    allocatable: Mapping[str, Use],
) -> SlotState:
    """Bind slot allocations to the containers of one pod, and count its claim.

    Args:
        state: The current state.
        claim_allocation: What the claim as a whole uses.
        bindings: Every slot allocation to fill, with its container.
        allocatable: The allocatable amounts of each device, by UUID.

    Raises:
        Refused: A slot belongs to another pod, the claim allocation is closed or belongs to another
            pod, a device is unknown, or the sum on a device would exceed what is allocatable.
    """
    # Before the sums: the pod's containers still run under the former claim, and would be counted
    # twice.
    former = _former_accounts(state, claim_allocation)
    if former:
        state, claim_allocation = _taken_over(state, former, claim_allocation)
    slot_allocations = dict(state.slot_allocations)
    for binding in bindings:
        slot_allocations[binding.slot_allocation] = _bound(state, claim_allocation, binding)
    _check_sums(state, claim_allocation, allocatable)
    return replace(
        state,
        slot_allocations=slot_allocations,
        claim_allocations={**state.claim_allocations, claim_allocation.claim_uid: claim_allocation},
    )


def resize(
    state: SlotState, claim_uid: str, *, use: Mapping[str, Use], allocatable: Mapping[str, Use]
) -> SlotState:
    """Count other amounts for a claim on the devices that it has.

    Args:
        state: The current state.
        claim_uid: The claim; one that is closed or unknown stays so.
        use: Effective use per device UUID.
        allocatable: The allocatable amounts of each device, by UUID.

    Raises:
        Refused: The sum on a device would exceed what is allocatable.
    """
    claim_allocation = state.claim_allocations.get(claim_uid)
    if claim_allocation is None or claim_allocation.closed or claim_allocation.use == use:
        return state
    changed = replace(claim_allocation, use=dict(use))
    _check_sums(state, changed, allocatable)
    return replace(state, claim_allocations={**state.claim_allocations, claim_uid: changed})


def close(state: SlotState, claim_uid: str) -> SlotState:
    """End a claim's slot allocations: its slots are free and its use no longer counts."""
    claim_allocation = state.claim_allocations.get(claim_uid)
    if claim_allocation is None:
        return state
    slot_allocations = {
        n: slot_allocation
        for n, slot_allocation in state.slot_allocations.items()
        if slot_allocation.claim_uid != claim_uid
    }
    # The record stays, closed, until the API server has the release. Without it, a PreStart with an
    # old view of the claim would grant the devices once more.
    closed = replace(claim_allocation, closed=True)
    return replace(
        state,
        slot_allocations=slot_allocations,
        claim_allocations={**state.claim_allocations, claim_uid: closed},
    )


def end_init(
    state: SlotState,
    claim_uid: str,
    *,
    init_round: InitRound,
    init_ids: Iterable[str],
    use: Mapping[str, Use],
) -> SlotState:
    """Count a claim by its app containers alone, after the init containers' pages were closed.

    Args:
        state: The current state.
        claim_uid: The claim; one that is closed or unknown stays so.
        init_round: The round that has ended.
        init_ids: The containers that ran in it.
        use: Effective use of the app containers per device UUID.
    """
    claim_allocation = state.claim_allocations.get(claim_uid)
    if claim_allocation is None or claim_allocation.closed:
        return state
    ids = tuple(sorted(init_ids))
    ended = replace(claim_allocation, use=use, init_ended=init_round, init_ids=ids)
    return replace(state, claim_allocations={**state.claim_allocations, claim_uid: ended})


def forget(state: SlotState, claim_uid: str) -> SlotState:
    """Drop a claim allocation if it is closed; the API server has recorded its release."""
    claim_allocation = state.claim_allocations.get(claim_uid)
    if claim_allocation is None or not claim_allocation.closed:
        return state
    claim_allocations = {
        uid: other for uid, other in state.claim_allocations.items() if uid != claim_uid
    }
    return replace(state, claim_allocations=claim_allocations)


def drop(state: SlotState, name: str) -> SlotState:
    """Drop a slot allocation if it was never bound."""
    slot_allocation = state.slot_allocations.get(name)
    # A bound one ends with its claim (`close`), because its container may still run.
    if slot_allocation is None or slot_allocation.is_bound:
        return state
    others = {key: other for key, other in state.slot_allocations.items() if key != name}
    return replace(state, slot_allocations=others)


def _former_accounts(state: SlotState, new: ClaimAllocation) -> list[ClaimAllocation]:
    """Return the open claim allocations of the same pod that the new one replaces.

    A running pod keeps its devices when its claim was allocated again or recreated, for instance
    after its Node or the CRD was deleted. The new claim must have every device on which a container
    of the pod may still run.

    Raises:
        Refused: The allocation has ended here, the claim still serves another pod, or the pod uses
            devices that the new claim does not have.
    """
    claim = f"{new.namespace}/{new.claim_name}"
    old = state.claim_allocations.get(new.claim_uid)
    if old is not None:
        _refuse_ended_or_shared(old, new)
    identity = new.claim_uid, new.allocation_id
    former = [
        account
        for account in state.claim_allocations.values()
        if not account.closed
        and account.pod_uid == new.pod_uid
        and (account.claim_uid, account.allocation_id) != identity
    ]
    left = {uuid for account in former for uuid in account.use} - new.use.keys()
    if left:
        raise Refused(
            Why.CLAIM_CLOSED,
            f"claim {claim} has other GPUs than its pod {new.pod_name} uses on this node: it lacks "
            f"{', '.join(sorted(left))}",
        )
    return former


def _refuse_ended_or_shared(old: ClaimAllocation, new: ClaimAllocation) -> None:
    claim = f"{new.namespace}/{new.claim_name}"
    if old.closed and old.allocation_id == new.allocation_id:
        raise Refused(Why.CLAIM_CLOSED, f"this allocation of claim {claim} has ended on this node")
    if not old.closed and old.pod_uid != new.pod_uid:
        raise Refused(
            Why.CLAIM_CLOSED,
            f"claim {claim} still serves pod {old.pod_name} (UID {old.pod_uid}) on this node",
        )


def _taken_over(
    state: SlotState, former: Collection[ClaimAllocation], new: ClaimAllocation
) -> tuple[SlotState, ClaimAllocation]:
    """Return the state without the former claim allocations, and one that counts for all.

    Running containers keep their former limits until they are resized, so the greater use of each
    device counts.
    """
    uids = {account.claim_uid for account in former}
    before: dict[str, Use] = {}
    for account in former:
        for uuid, use in account.use.items():
            before[uuid] = before.get(uuid, Use()) + use
    # A sum over the former claims, but the greater of former and new: the former ones run side by
    # side, while the new one replaces them.
    peak = {uuid: use.peak(before.get(uuid, Use())) for uuid, use in new.use.items()}
    rest = replace(
        state,
        claim_allocations={
            uid: each for uid, each in state.claim_allocations.items() if uid not in uids
        },
        slot_allocations={
            name: replace(each, claim_uid=new.claim_uid) if each.claim_uid in uids else each
            for name, each in state.slot_allocations.items()
        },
        claim_instances={
            name: replace(each, claim_uid=new.claim_uid, allocation_id=new.allocation_id)
            if each.claim_uid in uids
            else each
            for name, each in state.claim_instances.items()
        },
    )
    return rest, replace(new, use=peak)


def _bound(state: SlotState, claim_allocation: ClaimAllocation, binding: Binding) -> SlotAllocation:
    slot_allocation = state.slot_allocations.get(binding.slot_allocation)
    if slot_allocation is None:
        raise Refused(
            Why.UNKNOWN_ALLOCATION,
            f"the kubelet names allocation {binding.slot_allocation}, "
            "which this agent does not know",
        )
    for other in state.on(slot_allocation.slot_ids):
        # The kubelet may hand out a slot as soon as its pod is gone from the API server, while that
        # pod's containers are still being stopped.
        if other.is_bound and other.pod_uid != claim_allocation.pod_uid:
            raise Refused(
                Why.SLOT_TAKEN,
                f"{', '.join(slot_allocation.slot_ids)} still belongs to the pod with UID "
                f"{other.pod_uid}; its release is under way",
            )
    if slot_allocation.is_bound and slot_allocation.container != binding.container:
        raise Refused(
            Why.RECORDS_DISAGREE,
            f"allocation {slot_allocation.name} belongs to container {slot_allocation.container}, "
            f"not {binding.container}",
        )
    return replace(
        slot_allocation,
        pod_uid=claim_allocation.pod_uid,
        container=binding.container,
        claim_uid=claim_allocation.claim_uid,
        interposed=binding.interposed,
    )


def _check_sums(
    state: SlotState, claim_allocation: ClaimAllocation, allocatable: Mapping[str, Use]
) -> None:
    used = state.used(but=claim_allocation.claim_uid)
    for uuid, use in claim_allocation.use.items():
        has = allocatable.get(uuid)
        if has is None:
            raise Refused(Why.UNKNOWN_DEVICE, f"GPU {uuid} is not on this node")
        already = used.get(uuid, Use())
        total = already + use
        for word, requested, limit, held, unit in (
            ("memory", total.memory_mib, has.memory_mib, already.memory_mib, " MiB"),
            ("cores", total.cores, has.cores, already.cores, " %"),
            ("slots", total.slots, has.slots, already.slots, ""),
        ):
            if requested > limit:
                raise Refused(
                    Why.OVER_CAPACITY,
                    f"claim {claim_allocation.namespace}/{claim_allocation.claim_name} "
                    f"does not fit on GPU {uuid}: "
                    f"{word} {limit}{unit}, {held}{unit} in use here, "
                    f"{requested - held}{unit} more asked",
                )
