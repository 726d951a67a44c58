"""Slots and leases: which allocation belongs to which pod, as a pure state machine.

The kubelet hands out interchangeable slot ids and never names the pod. Each answer to Allocate is
a *lease* with a name used once; the first PreStart binds the lease to a pod, and from then on to
no other. What the lease's claim uses of each device is its *holding*: it counts against the devices
until it is closed, whatever the API server has meanwhile.

States are values: every transition returns a new one, so a state is on disk before it is in use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from vgpu_api.effective import Use
from vgpu_api.init_part import InitRound
from vgpu_nodeagent.errors import Refused, Why
from vgpu_nodeagent.state.cuts import ClaimInstance


@dataclass(frozen=True, slots=True)
class SlotAllocation:
    """One container's share of an Allocate answer.

    Attributes:
        name: `slot-7-<nonce>`: the CDI device and the folder; never used twice.
        slot_ids: The kubelet's device ids, sorted.
        allocated_at: Seconds since the epoch.
        pod_uid: The pod it is bound to; empty until the first PreStart.
        container: The container of that pod.
        claim_uid: The claim that granted it.
        interposed: Whether its container was started with the library; None before the first
        PreStart, and where it was not recorded.
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
        """A pod holds it."""
        return bool(self.pod_uid)


@dataclass(frozen=True, slots=True)
class ClaimAllocation:
    """What a claim, once granted here, holds of this node's devices.

    Attributes:
        claim_uid: The claim.
        namespace: Its namespace, and the pod's.
        claim_name: Its name.
        allocation_id: Which allocation of the claim.
        pod_uid: The pod.
        pod_name: Its name.
        use: Effective use per device UUID.
        closed: Its pages deny and its containers are gone; kept until the API server has recorded
            it.
        init_ended: The round of init containers (`vgpu_api.init_part`) whose pages deny
            permanently; `use` is then the app containers'.
        init_ids: The ids of the init containers that ran in the last round that ended.
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


@dataclass(frozen=True, slots=True)
class Binding:
    """A lease that is to be bound, to which container, and whether that has the library."""

    lease: str
    container: str
    interposed: bool | None = None


@dataclass(frozen=True, slots=True)
class SlotState:
    """All leases by name, all holdings by claim UID, and what devices in MIG mode are cut into."""

    leases: Mapping[str, SlotAllocation] = field(default_factory=dict)
    holdings: Mapping[str, ClaimAllocation] = field(default_factory=dict)
    cuts: Mapping[str, ClaimInstance] = field(default_factory=dict)

    def on(self, slot_ids: Collection[str]) -> list[SlotAllocation]:
        """The leases on any of these slots, oldest first."""
        wanted = set(slot_ids)
        found = [lease for lease in self.leases.values() if wanted.intersection(lease.slot_ids)]
        return sorted(found, key=lambda lease: (lease.allocated_at, lease.name))

    def of_claim(self, claim_uid: str) -> list[SlotAllocation]:
        """The leases that a claim granted."""
        return [lease for lease in self.leases.values() if lease.claim_uid == claim_uid]

    def slots_in_use(self) -> frozenset[str]:
        """Slots with any lease, bound or not."""
        return frozenset(slot for lease in self.leases.values() for slot in lease.slot_ids)

    def used(self, *, but: str = "") -> Mapping[str, Use]:
        """Use per device of all holdings that are not closed, `but` one claim's."""
        total: dict[str, Use] = {}
        for holding in self.holdings.values():
            if not holding.closed and holding.claim_uid != but:
                for uuid, use in holding.use.items():
                    total[uuid] = total.get(uuid, Use()) + use
        return total


def slot_order(slot_id: str) -> tuple[int, str]:
    """Sorts slots by their number."""
    digits = slot_id.rpartition("-")[2]
    return (int(digits) if digits.isdigit() else 0, slot_id)


def allocate(
    state: SlotState, *, slot_ids: Iterable[str], nonce: str, now: float
) -> tuple[SlotState, SlotAllocation]:
    """Answer an Allocate with a lease of a new name.

    Leases already on these slots stay: an ordinary init container's slot goes on to a later
    container of its pod before anything has started, and both need theirs.

    Raises:
        Refused: No slots, or a nonce that was used.
    """
    ids = tuple(sorted(set(slot_ids), key=slot_order))
    if not ids:
        raise Refused(Why.UNKNOWN_SLOT, "the kubelet allocated no slot")
    lease = SlotAllocation(f"{ids[0]}-{nonce}", ids, now)
    if lease.name in state.leases:
        raise Refused(Why.SLOT_TAKEN, f"allocation {lease.name} exists already")
    return replace(state, leases={**state.leases, lease.name: lease}), lease


def grant(
    state: SlotState,
    *,
    holding: ClaimAllocation,
    bindings: Collection[Binding],
    allocatable: Mapping[str, Use],
) -> SlotState:
    """Bind leases to the containers of one pod, on the account of its claim.

    Args:
        state: As it is.
        holding: What the claim as a whole uses.
        bindings: Every lease to fill, with its container.
        allocatable: What may be given away of each device, by UUID.

    Raises:
        Refused: A lease or slot is another pod's, the claim's account is closed or another's, a
            device is unknown, or the sum over a device would exceed what it has.
    """
    _check_account(state, holding)
    leases = dict(state.leases)
    for binding in bindings:
        leases[binding.lease] = _bound(state, holding, binding)
    _check_sums(state, holding, allocatable)
    return replace(state, leases=leases, holdings={**state.holdings, holding.claim_uid: holding})


def resize(
    state: SlotState, claim_uid: str, *, use: Mapping[str, Use], allocatable: Mapping[str, Use]
) -> SlotState:
    """Count a claim by other amounts of the devices that it has.

    Args:
        state: As it is.
        claim_uid: The claim; one that is closed or unknown stays so.
        use: Effective use per device UUID.
        allocatable: What may be given away of each device, by UUID.

    Raises:
        Refused: The sum over a device would exceed what it has.
    """
    holding = state.holdings.get(claim_uid)
    if holding is None or holding.closed or holding.use == use:
        return state
    changed = replace(holding, use=dict(use))
    _check_sums(state, changed, allocatable)
    return replace(state, holdings={**state.holdings, claim_uid: changed})


def close(state: SlotState, claim_uid: str) -> SlotState:
    """End a claim's leases; its slots are free and its use no longer counts."""
    holding = state.holdings.get(claim_uid)
    if holding is None:
        return state
    leases = {n: lease for n, lease in state.leases.items() if lease.claim_uid != claim_uid}
    closed = replace(holding, closed=True)
    return replace(state, leases=leases, holdings={**state.holdings, claim_uid: closed})


def end_init(
    state: SlotState,
    claim_uid: str,
    *,
    init_round: InitRound,
    init_ids: Iterable[str],
    use: Mapping[str, Use],
) -> SlotState:
    """Count a claim by its app containers alone; the init containers' pages deny already.

    Args:
        state: As it is.
        claim_uid: The claim; one that is closed or unknown stays so.
        init_round: The round that has ended.
        init_ids: The containers that ran in it.
        use: Effective use of the app containers per device UUID.
    """
    holding = state.holdings.get(claim_uid)
    if holding is None or holding.closed:
        return state
    ids = tuple(sorted(init_ids))
    ended = replace(holding, use=use, init_ended=init_round, init_ids=ids)
    return replace(state, holdings={**state.holdings, claim_uid: ended})


def forget(state: SlotState, claim_uid: str) -> SlotState:
    """Drop a closed holding once the API server has recorded it; an open one stays."""
    holding = state.holdings.get(claim_uid)
    if holding is None or not holding.closed:
        return state
    holdings = {uid: other for uid, other in state.holdings.items() if uid != claim_uid}
    return replace(state, holdings=holdings)


def drop(state: SlotState, lease_name: str) -> SlotState:
    """Forget a lease that was never bound; a bound one stays."""
    lease = state.leases.get(lease_name)
    if lease is None or lease.is_bound:
        return state
    leases = {name: other for name, other in state.leases.items() if name != lease_name}
    return replace(state, leases=leases)


def _check_account(state: SlotState, holding: ClaimAllocation) -> None:
    old = state.holdings.get(holding.claim_uid)
    if old is None:
        return
    claim = f"{holding.namespace}/{holding.claim_name}"
    same_allocation = old.allocation_id == holding.allocation_id
    if old.closed and same_allocation:
        raise Refused(Why.CLAIM_CLOSED, f"this allocation of claim {claim} has ended on this node")
    if not old.closed and not (same_allocation and old.pod_uid == holding.pod_uid):
        raise Refused(
            Why.CLAIM_CLOSED,
            f"claim {claim} still serves pod {old.pod_name} (UID {old.pod_uid}) on this node",
        )


def _bound(state: SlotState, holding: ClaimAllocation, binding: Binding) -> SlotAllocation:
    lease = state.leases.get(binding.lease)
    if lease is None:
        raise Refused(
            Why.UNKNOWN_ALLOCATION,
            f"the kubelet names allocation {binding.lease}, which this agent does not know",
        )
    for other in state.on(lease.slot_ids):
        if other.is_bound and other.pod_uid != holding.pod_uid:
            raise Refused(
                Why.SLOT_TAKEN,
                f"{', '.join(lease.slot_ids)} still belongs to the pod with UID {other.pod_uid}; "
                "its release is under way",
            )
    if lease.is_bound and lease.container != binding.container:
        raise Refused(
            Why.RECORDS_DISAGREE,
            f"allocation {lease.name} belongs to container {lease.container}, "
            f"not {binding.container}",
        )
    return replace(
        lease,
        pod_uid=holding.pod_uid,
        container=binding.container,
        claim_uid=holding.claim_uid,
        interposed=binding.interposed,
    )


def _check_sums(state: SlotState, holding: ClaimAllocation, allocatable: Mapping[str, Use]) -> None:
    used = state.used(but=holding.claim_uid)
    for uuid, use in holding.use.items():
        has = allocatable.get(uuid)
        if has is None:
            raise Refused(Why.UNKNOWN_DEVICE, f"GPU {uuid} is not on this node")
        already = used.get(uuid, Use())
        total = already + use
        for word, wanted, limit, held, unit in (
            ("memory", total.memory_mib, has.memory_mib, already.memory_mib, " MiB"),
            ("cores", total.cores, has.cores, already.cores, " %"),
            ("slots", total.slots, has.slots, already.slots, ""),
        ):
            if wanted > limit:
                raise Refused(
                    Why.OVER_CAPACITY,
                    f"claim {holding.namespace}/{holding.claim_name} does not fit on GPU {uuid}: "
                    f"{word} {limit}{unit}, {held}{unit} in use here, "
                    f"{wanted - held}{unit} more asked",
                )
