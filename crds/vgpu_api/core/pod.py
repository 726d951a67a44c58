"""The fields of a Pod that matter for GPU sharing."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from vgpu_api.core.written_conditions import WrittenConditions
from vgpu_api.empties import no_entries, no_items
from vgpu_api.v1alpha1.base import ApiModel, Metadata, Word, one_for_equals

_ENDS_OF_ACCEPTED_PODS = frozenset(
    {"DeadlineExceeded", "Preempting", "Terminated", "NodeLost", "Shutdown"}
)
"""Reasons of failed pods that the node had accepted: activeDeadlineSeconds, preemption by a
critical pod, and a node that shut down or was lost, which shows in the node's conditions.
"""


class EnvVar(ApiModel):
    """An environment variable; `value` is absent if it has a `valueFrom`."""

    name: str = ""
    value: str | None = None


class UsedClaim(ApiModel):
    """The use of a ResourceClaim by a container: of one of its requests, or of all."""

    name: Word = ""
    """The entry of the pod's `resourceClaims`."""
    request: Word = ""


class ResourceRequirements(ApiModel):
    """Limits and requests: quantities by resource name, canonicalised by the API server."""

    limits: dict[str, str | int] = Field(default_factory=no_entries)
    requests: dict[str, str | int] = Field(default_factory=no_entries)
    claims: list[UsedClaim] = Field(default_factory=no_items)


class SecurityContext(ApiModel):
    """The fields of a container's security context that we read."""

    privileged: bool | None = None


class VolumeMount(ApiModel):
    """A volume mount of a container."""

    name: str = ""
    mount_path: str = ""


class Container(ApiModel):
    """A container or init container."""

    name: Word = ""
    command: list[str] = Field(default_factory=no_items)
    env: list[Annotated[EnvVar, one_for_equals()]] = Field(default_factory=no_items)
    resources: Annotated[ResourceRequirements, one_for_equals()] = Field(
        default_factory=ResourceRequirements
    )
    restart_policy: str | None = None
    security_context: SecurityContext | None = None
    volume_mounts: list[VolumeMount] = Field(default_factory=no_items)
    ports: list[dict[str, Any]] = Field(default_factory=no_items)

    def requested(self, resource: str) -> str | int | None:
        """Return the requested quantity of a resource: the limit, else the request."""
        limits = self.resources.limits
        return limits[resource] if resource in limits else self.resources.requests.get(resource)

    def env_value(self, name: str) -> str | None:
        """Return a variable's value if it is a literal in the pod's spec, else None."""
        return next((variable.value for variable in self.env if variable.name == name), None)

    @property
    def is_sidecar(self) -> bool:
        """True for a restartable init container, which runs beside the app containers."""
        return self.restart_policy == "Always"


class Toleration(ApiModel):
    """A toleration of a taint."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class NodeSelectorRequirement(ApiModel):
    """One requirement of a node affinity term."""

    key: str = ""
    operator: str = ""
    values: list[str] = Field(default_factory=no_items)


class NodeSelectorTerm(ApiModel):
    """Requirements that must all be met; a term without any matches no node."""

    match_expressions: list[NodeSelectorRequirement] = Field(default_factory=no_items)
    """Requirements about labels."""
    match_fields: list[NodeSelectorRequirement] = Field(default_factory=no_items)
    """Requirements about the node's name."""


class NodeSelector(ApiModel):
    """Terms, at least one of which must match."""

    terms: list[NodeSelectorTerm] = Field(default_factory=no_items, alias="nodeSelectorTerms")


class NodeAffinity(ApiModel):
    """The nodes on which a pod may run. kube-scheduler handles preferences."""

    required: NodeSelector | None = Field(
        default=None, alias="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(ApiModel):
    """The fields of a pod's affinity that we read."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: dict[str, Any] | None = None
    pod_anti_affinity: dict[str, Any] | None = None


class SchedulingGroup(ApiModel):
    """The pod's group, in Kubernetes' own API (1.36 or later)."""

    pod_group_name: Word = ""
    """The PodGroup in the pod's namespace."""


class PodResourceClaim(ApiModel):
    """A ResourceClaim of the pod, or the template from which Kubernetes makes one for it."""

    name: Word = ""
    resource_claim_name: str = ""
    resource_claim_template_name: Word = ""


class MadeResourceClaim(ApiModel):
    """The ResourceClaim that Kubernetes made for an entry of the pod's `resourceClaims`."""

    name: Word = ""
    resource_claim_name: str = ""


class PodSpec(ApiModel):
    """The fields of a pod's spec that we read."""

    node_name: Word = ""
    scheduler_name: Word = ""
    containers: list[Container] = Field(default_factory=no_items)
    init_containers: list[Container] = Field(default_factory=no_items)
    ephemeral_containers: list[Container] = Field(default_factory=no_items)
    """Containers added for debugging while the pod runs; they request no resources."""
    node_selector: dict[str, str] = Field(default_factory=no_entries)
    tolerations: list[Annotated[Toleration, one_for_equals()]] = Field(default_factory=no_items)
    affinity: Affinity | None = None
    priority: int | None = None
    """The value of its PriorityClass, resolved by the API server."""
    priority_class_name: Word = ""
    preemption_policy: Word = ""
    """Never keeps the pod from preempting others; set from its PriorityClass."""
    termination_grace_period_seconds: int = 30
    active_deadline_seconds: int | None = None
    scheduling_gates: list[dict[str, Any]] = Field(default_factory=no_items)
    scheduling_group: SchedulingGroup | None = None
    resource_claims: list[PodResourceClaim] = Field(default_factory=no_items)
    volumes: list[dict[str, Any]] = Field(default_factory=no_items)
    runtime_class_name: str | None = None
    topology_spread_constraints: list[dict[str, Any]] = Field(default_factory=no_items)
    resources: ResourceRequirements | None = None
    overhead: dict[str, str | int] = Field(default_factory=no_entries)


class ContainerStatus(ApiModel):
    """The state of one container."""

    name: str = ""
    container_id: str = Field(default="", alias="containerID")
    ready: bool = False
    state: dict[str, Any] = Field(default_factory=no_entries)
    resources: Annotated[ResourceRequirements, one_for_equals()] | None = None
    """The container's current resources; a resize appears in the spec first."""
    allocated_resources: dict[str, str | int] = Field(default_factory=no_entries)
    """The resources that the kubelet has admitted for the container."""


class PodStatus(ApiModel):
    """The fields of a pod's status that we read."""

    phase: Word = ""
    reason: Word = ""
    """The kubelet's reason for ending or refusing the pod; empty if its containers simply ended."""
    message: str = ""
    qos_class: Word = ""
    start_time: str = ""
    """The time at which the kubelet acknowledged the pod."""
    conditions: WrittenConditions
    nominated_node_name: str = ""
    resource_claim_statuses: list[MadeResourceClaim] = Field(default_factory=no_items)
    resources: Annotated[ResourceRequirements, one_for_equals()] | None = None
    """The current pod-level resources."""
    allocated_resources: dict[str, str | int] = Field(default_factory=no_entries)
    container_statuses: list[ContainerStatus] = Field(default_factory=no_items)
    init_container_statuses: list[ContainerStatus] = Field(default_factory=no_items)


class Pod(ApiModel):
    """A pod."""

    metadata: Metadata = Field(default_factory=Metadata)
    spec: PodSpec = Field(default_factory=PodSpec)
    status: PodStatus = Field(default_factory=lambda: PodStatus())

    @property
    def is_terminal(self) -> bool:
        """True if the pod has ended: none of its containers runs or will run again."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def has_started(self) -> bool:
        """True if one of the containers is running or has run."""
        status = self.status
        if status.phase in ("Running", "Succeeded"):
            return True
        return any(
            each.container_id or "running" in each.state
            for each in (*status.init_container_statuses, *status.container_statuses)
        )

    @property
    def is_rejected(self) -> bool:
        """True if the node's kubelet refused the pod: it failed before any container started.

        Kubernetes has no field for this, only a reason, and kubelet plugins add reasons of their
        own. So every reason counts as a refusal, except those of pods that a kubelet had accepted.
        """
        status = self.status
        return (
            status.phase == "Failed"
            and self.is_bound
            and bool(status.reason)
            and status.reason not in _ENDS_OF_ACCEPTED_PODS
            and not self.has_started
        )

    @property
    def is_ready(self) -> bool:
        """True if the pod's condition Ready is True."""
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)

    @property
    def is_bound(self) -> bool:
        """True if the pod has been assigned to a node."""
        return bool(self.spec.node_name)
