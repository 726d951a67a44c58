"""The reasons for refusals: one enum, with counts, converted to text in one place.

The device reasons are exactly HAMi's, because people grep for them. The text format, `count/total
Reason` sorted and joined by `, `, is HAMi's, too. Our own reasons come after HAMi's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cache


class Reason(StrEnum):
    """A reason for refusing a device, a node or a request."""

    # Reasons about a device, in the order of the checks.
    MODE_NOT_FIT = "ModeNotFit"  # about all devices of a node together, so it is counted once
    CARD_UUID_DUPLICATE = "CardUuidDuplicate"  # our own: HAMi does not detect it
    CARD_NOT_HEALTHY = "CardNotHealth"
    CARD_CORDONED = "CardCordoned"
    CARD_TYPE_MISMATCH = "CardTypeMismatch"
    NUMA_NOT_FIT = "NumaNotFit"
    CARD_APP_CLASS_MISMATCH = "CardAppClassMismatch"
    CARD_QOS_POLICY_MISMATCH = "CardQosPolicyMismatch"
    CARD_UUID_MISMATCH = "CardUuidMismatch"
    CARD_TIME_SLICING_EXHAUSTED = "CardTimeSlicingExhausted"
    EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT = "ExclusiveDeviceAllocateConflict"
    RESOURCE_QUOTA_NOT_FIT = "ResourceQuotaNotFit"
    CARD_INSUFFICIENT_MEMORY = "CardInsufficientMemory"
    CARD_INSUFFICIENT_CORE = "CardInsufficientCore"
    CARD_COMPUTE_UNITS_EXHAUSTED = "CardComputeUnitsExhausted"
    CARD_MIG_TOPOLOGY_INFEASIBLE = "CardMigTopologyInfeasible"
    CARD_NOT_FOUND_CUSTOM_FILTER_RULE = "CardNotFoundCustomFilterRule"
    ALLOCATED_CARDS_INSUFFICIENT_REQUEST = "AllocatedCardsInsufficientRequest"
    # Reasons about a node.
    NODE_INSUFFICIENT_DEVICE = "NodeInsufficientDevice"
    NODE_NOT_READY = "NodeNotReady"
    NODE_UNSCHEDULABLE = "NodeUnschedulable"
    NODE_SELECTOR_MISMATCH = "NodeSelectorMismatch"
    NODE_AFFINITY_MISMATCH = "NodeAffinityMismatch"
    NODE_TAINTED = "NodeTainted"
    NODE_INSUFFICIENT_RESOURCES = "NodeInsufficientResources"
    """Resources other than devices are short; checked in Gate mode, before kube-scheduler does."""
    NODE_POD_RULES_MISMATCH = "NodePodRulesMismatch"
    """Pod affinity, anti-affinity or topology spread is violated; checked in Gate mode only."""
    NODE_VOLUME_MISMATCH = "NodeVolumeMismatch"
    """A volume of the pod cannot be used or provisioned on this node; checked in Gate mode only."""
    NODE_VOLUME_LIMIT = "NodeVolumeLimit"
    """The node's CSI drivers cannot attach more volumes; checked in Gate mode only."""
    NODE_AVOIDED = "NodeAvoided"
    """The node recently turned away a pod of the same controller."""
    NODE_OF_SCHEDULER = "NodeOfScheduler"
    """kube-scheduler allocates the node's devices (label vgpu.dev/allocator)."""
    NODE_SEARCH_STOPPED = "NodeSearchStopped"
    """The claim may fit, but the search stopped before it had tried all assignments of devices."""
    NO_GPU_NODES = "NoGPUNodes"
    # Reasons about a request, a claim or a pod.
    IMPOSSIBLE = "Impossible"  # no device of the cluster could ever serve it
    CLAIM_MISSING = "ClaimMissing"
    CLAIM_IN_USE = "ClaimInUse"
    CLAIM_UNREADABLE = "ClaimUnreadable"
    CLAIM_NOT_OWNED = "ClaimNotOwned"
    TEMPLATE = "Template"
    ALLOCATION_UNUSABLE = "AllocationUnusable"
    TAKEN_BACK = "TakenBack"
    """An Immediate claim without a pod made way for a more important pod."""
    REQUEST_MISMATCH = "RequestMismatch"
    POD_UNREADABLE = "PodUnreadable"
    NOT_ADMITTED = "NotAdmitted"
    """The pod requests devices but bypassed our admission, for instance in a namespace that opts
    out.
    """
    VOLUME_CLAIM_NOT_READY = "VolumeClaimNotReady"
    """A PersistentVolumeClaim of the pod is missing, being deleted, or must be bound first."""
    VOLUME_CLAIM_IN_USE = "VolumeClaimInUse"
    RESERVED_ELSEWHERE = "ReservedElsewhere"
    WAITING_FOR_POD = "WaitingForPod"
    GROUP_INCOMPLETE = "GroupIncomplete"
    """Fewer pods of its group can start than must start together."""
    GROUP_MISMATCH = "GroupMismatch"
    """The pods of its group have several schedulers or priorities."""
    NOT_ALLOCATED_HERE = "NotAllocatedHere"
    """kube-scheduler has allocated devices of a node whose devices the operator allocates."""
    GATED = "Gated"  # behind our scheduling gate in a cluster not in Gate mode


class Cure(IntEnum):
    """The event that can end a refusal. A reason with a lower value is reported first.

    In a mixed cluster, most devices can never serve a claim, because they are of another kind than
    requested; reporting that helps nobody. The useful reason is the one that stands between the
    claim and its devices. So reasons that time can cure come first, and those inherent in the
    request last.
    """

    QUOTA = 1
    """Other claims of the namespace end, or the quota grows. It comes before ROOM, because a device
    is checked against the quota only after all earlier checks have passed.
    """
    ROOM = 2
    """Other claims on the device end."""
    OTHERS = 3
    """Other claims end, in a way for which preemption and earmarks do not plan."""
    REPAIR = 4
    """Someone repairs or reopens the device or the node."""
    COUNT = 5
    """More devices fit. The reasons of the node's other devices are more useful, unless the request
    excludes these devices.
    """
    REQUEST = 6
    """The request, the devices or the labels change; waiting alone does not help."""


CURES: Mapping[Reason, Cure] = {
    Reason.RESOURCE_QUOTA_NOT_FIT: Cure.QUOTA,
    Reason.CARD_TIME_SLICING_EXHAUSTED: Cure.ROOM,
    Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT: Cure.ROOM,
    Reason.CARD_INSUFFICIENT_MEMORY: Cure.ROOM,
    Reason.CARD_INSUFFICIENT_CORE: Cure.ROOM,
    Reason.CARD_COMPUTE_UNITS_EXHAUSTED: Cure.ROOM,
    Reason.NUMA_NOT_FIT: Cure.ROOM,
    Reason.NODE_SEARCH_STOPPED: Cure.ROOM,
    # Claims of another class or policy hold the device; once it is empty, it can serve any.
    Reason.CARD_APP_CLASS_MISMATCH: Cure.OTHERS,
    Reason.CARD_QOS_POLICY_MISMATCH: Cure.OTHERS,
    # Other instances may be in the way, or the device has no profile of that size.
    Reason.CARD_MIG_TOPOLOGY_INFEASIBLE: Cure.OTHERS,
    Reason.MODE_NOT_FIT: Cure.OTHERS,
    Reason.NODE_INSUFFICIENT_RESOURCES: Cure.OTHERS,
    Reason.NODE_POD_RULES_MISMATCH: Cure.OTHERS,
    Reason.NODE_VOLUME_LIMIT: Cure.OTHERS,
    Reason.RESERVED_ELSEWHERE: Cure.OTHERS,
    Reason.CARD_NOT_HEALTHY: Cure.REPAIR,
    Reason.CARD_CORDONED: Cure.REPAIR,
    Reason.CARD_UUID_DUPLICATE: Cure.REPAIR,
    Reason.NODE_NOT_READY: Cure.REPAIR,
    Reason.NODE_UNSCHEDULABLE: Cure.REPAIR,
    Reason.NODE_AVOIDED: Cure.REPAIR,
    Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST: Cure.COUNT,
    Reason.CARD_TYPE_MISMATCH: Cure.REQUEST,
    Reason.CARD_UUID_MISMATCH: Cure.REQUEST,
    Reason.CARD_NOT_FOUND_CUSTOM_FILTER_RULE: Cure.REQUEST,
    Reason.NODE_INSUFFICIENT_DEVICE: Cure.REQUEST,
    Reason.NODE_OF_SCHEDULER: Cure.REQUEST,
    Reason.NODE_SELECTOR_MISMATCH: Cure.REQUEST,
    Reason.NODE_AFFINITY_MISMATCH: Cure.REQUEST,
    Reason.NODE_TAINTED: Cure.REQUEST,
    Reason.NODE_VOLUME_MISMATCH: Cure.REQUEST,
}
"""Every reason that a device or a node can have; listed in docs/reference/reasons.md."""

OF_A_NODE = frozenset(
    {
        Reason.NODE_INSUFFICIENT_DEVICE,
        Reason.NODE_NOT_READY,
        Reason.NODE_UNSCHEDULABLE,
        Reason.NODE_SELECTOR_MISMATCH,
        Reason.NODE_AFFINITY_MISMATCH,
        Reason.NODE_TAINTED,
        Reason.NODE_INSUFFICIENT_RESOURCES,
        Reason.NODE_POD_RULES_MISMATCH,
        Reason.NODE_VOLUME_MISMATCH,
        Reason.NODE_VOLUME_LIMIT,
        Reason.NODE_AVOIDED,
        Reason.NODE_OF_SCHEDULER,
        Reason.NODE_SEARCH_STOPPED,
        Reason.RESERVED_ELSEWHERE,
    }
)
"""The reasons that count nodes and not devices."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of each reason among a number of devices or nodes."""

    counts: Mapping[Reason, int]
    total: int

    @staticmethod
    @cache
    def of_node(reason: Reason) -> Tally:
        """Return a tally of one reason that applies to a node as a whole."""
        return Tally({reason: 1}, 1)

    def __str__(self) -> str:
        parts = sorted(
            f"{count}/{self.total} {reason}" for reason, count in self.counts.items() if count
        )
        return ", ".join(parts)

    def __bool__(self) -> bool:
        return any(self.counts.values())


def sum_up(tallies: Iterable[tuple[Tally, int]]) -> Tally:
    """Add up tallies, each multiplied by its count; for instance over all nodes of a cluster."""
    counts: dict[Reason, int] = {}
    total = 0
    for tally, times in tallies:
        total += times * tally.total
        for reason, count in tally.counts.items():
            counts[reason] = counts.get(reason, 0) + times * count
    return Tally(counts, total)


def stopping(*tallies: Tally) -> Reason | None:
    """Return the reason that blocks a claim now, or None if there is none.

    The lowest cure wins, then the order of the tallies (devices come before nodes), then the most
    frequent reason, then the name.
    """
    found = (
        (CURES[reason], place, -count, reason.value, reason)
        for place, tally in enumerate(tallies)
        for reason, count in tally.counts.items()
        if count
    )
    return min(found, default=(None,))[-1]
