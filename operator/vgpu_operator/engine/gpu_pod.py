"""GPU pods in the engine: a pod with its request and its claim."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple, TypeAlias

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod, PodScopes, ResourceClaim
from vgpu_api.errors import BadInput
from vgpu_api.host import cpu_milli_of
from vgpu_api.names import ADMITTED, LABEL_ADMITTED, SCHEDULING_GATE, pod_claim_name
from vgpu_api.v1alpha1 import ReservedFor, VGPUClaim, VGPUClaimSpec
from vgpu_client.recorder import Regarding
from vgpu_operator.demand import Demand
from vgpu_operator.dialects import PodDemand, containers_of_claim, read
from vgpu_operator.dialects.pod_groups import GroupKind, named_group
from vgpu_operator.dialects.resource_claims import claim_of_pod, scheduler_entry
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.node_filter import HostDemand, NodeRules

Rank: TypeAlias = tuple[int, int, str, str, str]
"""A position in the queue: standing, then priority, age and name. The lowest rank is first."""


class GroupKey(NamedTuple):
    """The name of a group of pods, of which a minimum number must start together."""

    namespace: str
    name: str
    kind: GroupKind = GroupKind.KUBERNETES


_OF_CLAIMS = frozenset({"persistentVolumeClaim", "ephemeral"})
"""The kinds of volumes that use a PersistentVolumeClaim."""


class Standing(IntEnum):
    """The certainty that a waiting pod lacks nothing but devices."""

    BOUND = 0
    """The operator bound the pod to its node, so it runs as soon as it has devices."""
    WAITS = 1
    """A Filter refused the pod for lack of devices, or another scheduler bound it."""
    DOUBTFUL = 2
    """kube-scheduler found the pod unschedulable, for a reason that is no longer known."""


def rank_of(standing: Standing, priority: int, created: str | None, key: ClaimKey) -> Rank:
    """Return the rank of a waiter with these properties."""
    return standing.value, -priority, created or "", key.namespace, key.name


@dataclass(frozen=True)
class GPUPod:
    """A pod that requests GPUs.

    Attributes:
        pod: The newest version of the pod.
        demand: The requested devices, or an error if the request is invalid.
        claim: The pod's claim: its own (`owned`), made from `demand` or copied from a template, or
            the one that the pod names.
        owned: True if the claim is the pod's own.
        is_admitted: True if the pod passed our admission, so that it may get devices. Admission
            skips system namespaces and those that opt out, and an unchecked pod could run without
            limits. The label on the pod counts and not the namespace's, which may have changed
            since the pod was created.
        priority: The value of its PriorityClass.
        scopes: The properties of the pod that quota scopes select by.
        awaits_volumes: True if kube-scheduler may have to bind volumes between Filter and Bind,
            which may take minutes.
        group: The group that it belongs to, if any.
        group_least: The number of the group's pods that start together, if the pod says so.
        resource_claim: The name of the ResourceClaim through which it gets its devices, in Claims
            mode; empty otherwise.
        scheduler_entry: The entry of its `resourceClaims` that kube-scheduler allocates; empty if
            it has none. Its claim then only repeats that (`resource_claims/mirror.py`).
        is_handed_over: True if that ResourceClaim is allocated, so that kube-scheduler may bind
            the pod.
    """

    pod: Pod
    demand: PodDemand | BadInput
    claim: ClaimKey
    owned: bool
    group: GroupKey | None = None
    group_least: int | None = None
    resource_claim: str = ""
    scheduler_entry: str = ""
    is_handed_over: bool = False
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

    @property
    def is_of_scheduler(self) -> bool:
        """True if kube-scheduler allocates the pod's devices, and the operator does not."""
        return bool(self.scheduler_entry)

    @cached_property
    def uid(self) -> str:
        """Return the pod's UID."""
        return self.pod.metadata.uid

    def rank(self, standing: Standing) -> Rank:
        """Return the pod's rank in the queue."""
        metadata = self.pod.metadata
        key = ClaimKey(metadata.namespace or "", metadata.name)
        return rank_of(standing, self.priority, metadata.creation_timestamp, key)

    @cached_property
    def template(self) -> ClaimKey | None:
        """Return the claim to copy, if the pod names a template, else None."""
        named = None if isinstance(self.demand, BadInput) else self.demand.native
        if named is None or not named.is_template:
            return None
        return ClaimKey(self.pod.metadata.namespace or "", named.name)

    @cached_property
    def regarding(self) -> Regarding:
        """Return the pod as the subject of events and evictions."""
        metadata = self.pod.metadata
        return Regarding("v1", "Pod", metadata.namespace, metadata.name, metadata.uid)

    @cached_property
    def reserved_for(self) -> ReservedFor:
        """Return the reference to the pod in a claim's status."""
        return ReservedFor(pod_name=self.pod.metadata.name, pod_uid=self.uid)

    @property
    def wants_node(self) -> bool:
        """True while the pod waits for kube-scheduler and no gate or ResourceClaim blocks it."""
        if self.pod.spec.scheduling_gates or (self.resource_claim and not self.is_handed_over):
            return False
        if self.is_of_scheduler:
            return False
        return self._may_be_bound

    @property
    def is_gated(self) -> bool:
        """True while only our scheduling gate, or a ResourceClaim to be allocated, blocks the pod.

        Decisions treat both alike: the pod gets its devices first, and is released afterwards.
        """
        if self.is_of_scheduler:
            return False
        gates = [gate.get("name") for gate in self.pod.spec.scheduling_gates]
        if self.resource_claim:
            return not gates and not self.is_handed_over and self._may_be_bound
        return gates == [SCHEDULING_GATE] and self._may_be_bound

    @property
    def _may_be_bound(self) -> bool:
        """True while the pod is not bound, has not ended and is not being deleted."""
        pod = self.pod
        is_going = pod.metadata.deletion_timestamp is not None
        return not (pod.is_bound or pod.is_terminal or is_going)

    @property
    def is_running(self) -> bool:
        """True while the pod is bound, not ended and not being deleted; it may lack devices."""
        pod = self.pod
        return pod.is_bound and not pod.is_terminal and pod.metadata.deletion_timestamp is None

    @cached_property
    def cpu_milli(self) -> int:
        """Return the milli-CPU that the pod requests."""
        return cpu_milli_of(self.pod)

    @cached_property
    def host_demand(self) -> HostDemand:
        """Return the pod's demands on a node besides devices."""
        return HostDemand.of(self.pod)

    @cached_property
    def rules(self) -> NodeRules:
        """Return the pod's node selector, affinity and tolerations.

        Raises:
            BadInput: Kubernetes would not accept the affinity.
        """
        kinds = None if isinstance(self.demand, BadInput) else self.demand.kinds
        return NodeRules.of(self.pod, kinds=kinds)

    def request(self, spec: VGPUClaimSpec, config: ClusterConfig) -> Demand:
        """Return the demand of a claim with this spec when it is used by this pod."""
        by_labels = not isinstance(self.demand, BadInput) and self.demand.by_labels
        return Demand.of(spec, config, cpu_milli=self.cpu_milli, by_labels=by_labels)

    def seen_again(self, pod: Pod) -> GPUPod:
        """Return a copy with a newer version of the pod, but with its original demand and group."""
        if not self.is_of_scheduler:
            return replace(self, pod=pod)
        found = claim_of_pod(pod) or self.resource_claim
        return replace(self, pod=pod, resource_claim=found)


def group_of(pod: Pod, config: ClusterConfig) -> GroupKey | None:
    """Return the group that a pod without GPUs belongs to, or None; see `named_group`."""
    try:
        return _group_of(pod, config)[0]
    except BadInput:
        return None


def _group_of(pod: Pod, config: ClusterConfig) -> tuple[GroupKey | None, int | None]:
    """Return the pod's group, and the minimum that the pod names; each None if there is none.

    Raises:
        BadInput: The pod's own annotations about its group are invalid.
    """
    named = named_group(pod, config)
    if named is None:
        return None, None
    return GroupKey(pod.metadata.namespace or "", named.name, named.kind), named.least


def gpu_pod_of(pod: Pod, config: ClusterConfig) -> GPUPod | None:
    """Return the pod with its demand, or None if it requests no GPU."""
    namespace = pod.metadata.namespace or ""
    own = ClaimKey(namespace, pod_claim_name(pod.metadata.name, pod.metadata.uid))
    try:
        demand = read(pod, config)
        if demand is None:
            return None
        NodeRules.of(pod)
        group, least = _group_of(pod, config)
    except BadInput as error:
        return GPUPod(
            pod,
            error,
            own,
            owned=True,
            resource_claim=claim_of_pod(pod),
            scheduler_entry=scheduler_entry(pod),
        )
    claim, owned = own, True
    if demand.native is not None and not demand.native.is_template:
        claim, owned = ClaimKey(namespace, demand.native.name), False
    return GPUPod(pod, demand, claim, owned, group, least, claim_of_pod(pod), scheduler_entry(pod))


def mismatch(pod: GPUPod, spec: VGPUClaimSpec) -> str:
    """Return why this claim cannot serve the pod's containers; empty if it can.

    The claim's requests must name containers that admission recorded, and an init or app container
    depending on the request's phase. If the pod was created before its claim, all its containers
    were recorded; those without a request start with a slot but no device.
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


def is_owned_by(claim: VGPUClaim | ResourceClaim, pod_uid: str) -> bool:
    """Return True if the claim belongs to that pod."""
    return any(owner.uid == pod_uid for owner in claim.metadata.owner_references)


def serves_another(claim: VGPUClaim, pod_uid: str) -> bool:
    """Return True if the claim is allocated and reserved for another pod."""
    reserved = claim.status.reserved_for
    return (
        claim.status.allocation is not None
        and reserved is not None
        and bool(reserved.pod_uid)
        and reserved.pod_uid != pod_uid
    )
