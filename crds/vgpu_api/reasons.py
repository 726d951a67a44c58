"""Why something was refused: one enum, with counts, turned into text in one place.

The device reasons are HAMi's words byte for byte, because people grep for them; the text form
`count/total Reason` sorted and joined by `, ` is HAMi's too. Ours come after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache


class Reason(StrEnum):
    """One way in which a device, a node or a request can be refused."""

    # A device (in the order of the checks).
    MODE_NOT_FIT = "ModeNotFit"  # of all devices of a node, and counted once
    CARD_UUID_DUPLICATE = "CardUuidDuplicate"  # ours: HAMi does not notice
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
    # A node.
    NODE_INSUFFICIENT_DEVICE = "NodeInsufficientDevice"
    NODE_NOT_READY = "NodeNotReady"
    NODE_UNSCHEDULABLE = "NodeUnschedulable"
    NODE_SELECTOR_MISMATCH = "NodeSelectorMismatch"
    NODE_AFFINITY_MISMATCH = "NodeAffinityMismatch"
    NODE_TAINTED = "NodeTainted"
    NODE_INSUFFICIENT_RESOURCES = "NodeInsufficientResources"
    """Of what a pod asks besides devices; checked in mode Gate, where kube-scheduler cannot."""
    NODE_POD_RULES_MISMATCH = "NodePodRulesMismatch"
    """Affinity, anti-affinity or spread of pods; checked likewise."""
    NODE_VOLUME_MISMATCH = "NodeVolumeMismatch"
    """A volume of the pod is not there and cannot be made there; checked likewise."""
    NODE_VOLUME_LIMIT = "NodeVolumeLimit"
    """Its CSI drivers attach no more volumes; checked likewise."""
    NO_GPU_NODES = "NoGPUNodes"
    # A request, a claim or a pod.
    IMPOSSIBLE = "Impossible"  # no device of the cluster could ever serve it
    CLAIM_MISSING = "ClaimMissing"
    CLAIM_IN_USE = "ClaimInUse"
    CLAIM_UNREADABLE = "ClaimUnreadable"
    CLAIM_NOT_OWNED = "ClaimNotOwned"
    TEMPLATE = "Template"
    ALLOCATION_UNUSABLE = "AllocationUnusable"
    REQUEST_MISMATCH = "RequestMismatch"
    POD_UNREADABLE = "PodUnreadable"
    VOLUME_CLAIM_NOT_READY = "VolumeClaimNotReady"
    """A PersistentVolumeClaim of the pod is missing, going, or has to be bound first."""
    VOLUME_CLAIM_IN_USE = "VolumeClaimInUse"
    RESERVED_ELSEWHERE = "ReservedElsewhere"
    WAITING_FOR_POD = "WaitingForPod"
    GATED = "Gated"  # behind our scheduling gate, in a cluster that lifts none


@dataclass(frozen=True, slots=True)
class Tally:
    """How often each reason applied, out of how many devices (or nodes)."""

    counts: Mapping[Reason, int]
    total: int

    @staticmethod
    @cache
    def of_node(reason: Reason) -> Tally:
        """One reason that holds for a node as a whole."""
        return Tally({reason: 1}, 1)

    def __str__(self) -> str:
        parts = sorted(
            f"{count}/{self.total} {reason}" for reason, count in self.counts.items() if count
        )
        return ", ".join(parts)

    def __bool__(self) -> bool:
        return any(self.counts.values())

    def leading(self) -> Reason | None:
        """The reason that applied most often; the first by name on a tie."""
        ranked = sorted(self.counts.items(), key=lambda item: (-item[1], item[0].value))
        return ranked[0][0] if ranked and ranked[0][1] else None


def sum_up(tallies: Iterable[tuple[Tally, int]]) -> Tally:
    """Several tallies, each as often as given, as one: for instance of all nodes of a cluster."""
    counts: dict[Reason, int] = {}
    total = 0
    for tally, times in tallies:
        total += times * tally.total
        for reason, count in tally.counts.items():
            counts[reason] = counts.get(reason, 0) + times * count
    return Tally(counts, total)
