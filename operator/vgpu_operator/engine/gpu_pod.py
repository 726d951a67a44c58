"""A pod that asks for GPUs, as the engine knows it: its request, and which claim serves it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import TypeAlias

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod, PodScopes
from vgpu_api.errors import BadInput
from vgpu_api.host import cpu_milli_of
from vgpu_api.names import ADMITTED, LABEL_ADMITTED, SCHEDULING_GATE, pod_claim_name
from vgpu_api.v1alpha1 import ReservedFor, VGPUClaim, VGPUClaimSpec
from vgpu_operator.demand import Demand
from vgpu_operator.dialects import PodDemand, containers_of_claim, read
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.node_filter import HostDemand, NodeRules

Rank: TypeAlias = tuple[int, int, str, str, str]
"""Whose turn it is: by standing, then by priority, age and name. The least goes first."""


_OF_CLAIMS = frozenset({"persistentVolumeClaim", "ephemeral"})
"""Volumes that a PersistentVolumeClaim stands for."""


class Standing(IntEnum):
    """How sure it is that only devices are missing."""

    BOUND = 0
    """It has a node already, and that from us."""
    WAITS = 1
    """A Filter refused it for want of devices, or it needs nothing else, as one bound past us."""
    DOUBTFUL = 2
    """kube-scheduler set it aside, for a reason that is no longer known."""


def rank_of(standing: Standing, priority: int, created: str | None, key: ClaimKey) -> Rank:
    """A rank."""
    return standing.value, -priority, created or "", key.namespace, key.name


@dataclass(frozen=True)
class GPUPod:
    """A pod and what it asks for.

    Attributes:
        pod: Its newest version.
        demand: What it asks for; where that cannot be understood, what is wrong with it.
        claim: The claim that serves it: its own, made from `demand` or copied from a template
            (`owned`), or the one that it names.
        owned: Whether the claim is the pod's own.
        is_admitted: True if our admission has read the pod, so that it may get devices. Admission
            leaves out namespaces that opt out and those of the system, and a pod that its rules do
            not bind could run without limits. The pod's own mark counts, and not the label of its
            namespace: that may have been another when the pod was created.
        priority: Of its PriorityClass.
        scopes: What the scopes of quotas ask about the pod.
        awaits_volumes: True if volumes are bound for it between Filter and Bind, which may take
            minutes.
    """

    pod: Pod
    demand: PodDemand | BadInput
    claim: ClaimKey
    owned: bool
    is_admitted: bool = field(init=False)
    priority: int = field(init=False)
    scopes: PodScopes = field(init=False)
    awaits_volumes: bool = field(init=False)

    def __post_init__(self) -> None:
        marked = self.pod.metadata.labels.get(LABEL_ADMITTED) == ADMITTED
        object.__setattr__(self, "is_admitted", marked)
        object.__setattr__(self, "priority", self.pod.spec.priority or 0)
        object.__setattr__(self, "scopes", PodScopes.of(self.pod))
        volumes = self.pod.spec.volumes
        awaits = any(not _OF_CLAIMS.isdisjoint(volume) for volume in volumes)
        object.__setattr__(self, "awaits_volumes", awaits)

    @cached_property
    def uid(self) -> str:
        """The pod's identity."""
        return self.pod.metadata.uid

    def rank(self, standing: Standing) -> Rank:
        """Its place among those that wait."""
        metadata = self.pod.metadata
        key = ClaimKey(metadata.namespace or "", metadata.name)
        return rank_of(standing, self.priority, metadata.creation_timestamp, key)

    @cached_property
    def template(self) -> ClaimKey | None:
        """The claim to copy, for a pod that names a template."""
        named = None if isinstance(self.demand, BadInput) else self.demand.native
        if named is None or not named.is_template:
            return None
        return ClaimKey(self.pod.metadata.namespace or "", named.name)

    @cached_property
    def reserved_for(self) -> ReservedFor:
        """How a claim's status names this pod."""
        return ReservedFor(pod_name=self.pod.metadata.name, pod_uid=self.uid)

    @property
    def wants_node(self) -> bool:
        """Whether it waits to be scheduled: neither bound, nor ended, nor going, nor gated."""
        pod = self.pod
        return not (
            pod.is_bound
            or pod.is_terminal
            or pod.metadata.deletion_timestamp is not None
            or pod.spec.scheduling_gates
        )

    @property
    def is_gated(self) -> bool:
        """Whether our gate, and no other, keeps it from being scheduled."""
        pod = self.pod
        gates = [gate.get("name") for gate in pod.spec.scheduling_gates]
        return (
            gates == [SCHEDULING_GATE]
            and not pod.is_bound
            and not pod.is_terminal
            and pod.metadata.deletion_timestamp is None
        )

    @property
    def is_running(self) -> bool:
        """True for a live pod that is bound: it may run as soon as it has an allocation there."""
        pod = self.pod
        return pod.is_bound and not pod.is_terminal and pod.metadata.deletion_timestamp is None

    @cached_property
    def cpu_milli(self) -> int:
        """Milli-CPU that it asks of its node."""
        return cpu_milli_of(self.pod)

    @cached_property
    def host_demand(self) -> HostDemand:
        """What it asks of a node besides devices."""
        return HostDemand.of(self.pod)

    @cached_property
    def rules(self) -> NodeRules:
        """Its rules about nodes.

        Raises:
            BadInput: its affinity is not one that Kubernetes accepts.
        """
        kinds = None if isinstance(self.demand, BadInput) else self.demand.kinds
        return NodeRules.of(self.pod, kinds=kinds)

    def request(self, spec: VGPUClaimSpec, config: ClusterConfig) -> Demand:
        """What a claim with this spec asks for when it serves this pod."""
        by_labels = not isinstance(self.demand, BadInput) and self.demand.by_labels
        return Demand.of(spec, config, cpu_milli=self.cpu_milli, by_labels=by_labels)

    def seen_again(self, pod: Pod) -> GPUPod:
        """With a newer version of the pod. What it asks for is what it asked for first."""
        return replace(self, pod=pod)


def gpu_pod_of(pod: Pod, config: ClusterConfig) -> GPUPod | None:
    """The pod with what it asks for; None when it asks for no GPU."""
    namespace = pod.metadata.namespace or ""
    own = ClaimKey(namespace, pod_claim_name(pod.metadata.name, pod.metadata.uid))
    try:
        demand = read(pod, config)
        if demand is not None:
            NodeRules.of(pod)
    except BadInput as error:
        return GPUPod(pod, error, own, owned=True)
    if demand is None:
        return None
    if demand.native is not None and not demand.native.is_template:
        return GPUPod(pod, demand, ClaimKey(namespace, demand.native.name), owned=False)
    return GPUPod(pod, demand, own, owned=True)


def mismatch(pod: GPUPod, spec: VGPUClaimSpec) -> str:
    """What keeps this claim from serving the pod's containers; empty when they match.

    The claim's requests must name containers that admission recorded, each of the kind of its
    request's phase. Of a pod that came before its claim all are recorded; those without a request
    start with a slot and no device.
    """
    if isinstance(pod.demand, BadInput):
        return ""
    try:
        desired = containers_of_claim(pod.pod, spec)
    except BadInput as error:
        return str(error)
    if not set(desired).issubset(pod.demand.containers):
        recorded = ", ".join(pod.demand.containers) or "none"
        return f"the claim asks for {', '.join(desired)}; the pod was admitted with {recorded}"
    return ""


def is_owned_by(claim: VGPUClaim, pod_uid: str) -> bool:
    """Whether the claim is that pod's own."""
    return any(owner.uid == pod_uid for owner in claim.metadata.owner_references)


def serves_another(claim: VGPUClaim, pod_uid: str) -> bool:
    """Whether the claim is reserved for another pod."""
    reserved = claim.status.reserved_for
    return (
        claim.status.allocation is not None
        and reserved is not None
        and bool(reserved.pod_uid)
        and reserved.pod_uid != pod_uid
    )
