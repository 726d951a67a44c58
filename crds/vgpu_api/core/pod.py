"""A pod, as far as sharing GPUs is concerned."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from vgpu_api.empties import no_entries, no_items
from vgpu_api.v1alpha1.base import ApiModel, Condition, Metadata, Word, one_for_equals

_ENDS_OF_ACCEPTED_PODS = frozenset(
    {"DeadlineExceeded", "Preempting", "Terminated", "NodeLost", "Shutdown"}
)
"""Reasons of failed pods that are not about the node's willingness: activeDeadlineSeconds, room for
a critical pod, and the ends of a node that shuts down or is lost, which its conditions show."""


class EnvVar(ApiModel):
    """An environment variable; `value` is absent when it comes from elsewhere."""

    name: str = ""
    value: str | None = None


class ResourceRequirements(ApiModel):
    """Limits and requests, quantities by resource name (canonicalised by the API server)."""

    limits: dict[str, str | int] = Field(default_factory=no_entries)
    requests: dict[str, str | int] = Field(default_factory=no_entries)


class SecurityContext(ApiModel):
    """What of a container's security context matters here."""

    privileged: bool | None = None


class VolumeMount(ApiModel):
    """A mount of a container."""

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
        """The quantity of a resource: the limit, or the request in its stead."""
        limits = self.resources.limits
        return limits[resource] if resource in limits else self.resources.requests.get(resource)

    def env_value(self, name: str) -> str | None:
        """The value of a variable written in the pod, if it is."""
        return next((variable.value for variable in self.env if variable.name == name), None)

    @property
    def is_sidecar(self) -> bool:
        """A restartable init container: it runs beside the app containers and counts with them."""
        return self.restart_policy == "Always"


class Toleration(ApiModel):
    """A taint that the pod bears."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class NodeSelectorRequirement(ApiModel):
    """One line of an affinity to nodes."""

    key: str = ""
    operator: str = ""
    values: list[str] = Field(default_factory=no_items)


class NodeSelectorTerm(ApiModel):
    """Lines that must all hold; without any it matches no node."""

    match_expressions: list[NodeSelectorRequirement] = Field(default_factory=no_items)
    """About labels."""
    match_fields: list[NodeSelectorRequirement] = Field(default_factory=no_items)
    """About the node's name."""


class NodeSelector(ApiModel):
    """Terms of which one must hold."""

    terms: list[NodeSelectorTerm] = Field(default_factory=no_items, alias="nodeSelectorTerms")


class NodeAffinity(ApiModel):
    """Which nodes a pod may go to; what it merely prefers is left to kube-scheduler."""

    required: NodeSelector | None = Field(
        default=None, alias="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(ApiModel):
    """What of a pod's affinity we read."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: dict[str, Any] | None = None
    pod_anti_affinity: dict[str, Any] | None = None


class PodSpec(ApiModel):
    """What of a pod's spec we read."""

    node_name: Word = ""
    scheduler_name: Word = ""
    containers: list[Container] = Field(default_factory=no_items)
    init_containers: list[Container] = Field(default_factory=no_items)
    ephemeral_containers: list[Container] = Field(default_factory=no_items)
    """Added for debugging while the pod runs; they ask for no resources."""
    node_selector: dict[str, str] = Field(default_factory=no_entries)
    tolerations: list[Annotated[Toleration, one_for_equals()]] = Field(default_factory=no_items)
    affinity: Affinity | None = None
    priority: int | None = None
    """Of its PriorityClass, resolved by the API server."""
    priority_class_name: Word = ""
    active_deadline_seconds: int | None = None
    scheduling_gates: list[dict[str, Any]] = Field(default_factory=no_items)
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
    """What the container has; a resize is in the spec first."""
    allocated_resources: dict[str, str | int] = Field(default_factory=no_entries)
    """What the kubelet has admitted for it."""


class PodStatus(ApiModel):
    """What of a pod's status we read."""

    phase: Word = ""
    reason: Word = ""
    """Why the kubelet ended or refused it; of a pod whose containers just end there is none."""
    message: str = ""
    qos_class: Word = ""
    conditions: list[Condition] = Field(default_factory=no_items)
    nominated_node_name: str = ""
    resources: Annotated[ResourceRequirements, one_for_equals()] | None = None
    """What the pod as a whole has."""
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
        """It has ended: nothing of it runs or will run."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def has_started(self) -> bool:
        """Return True if a container of it runs or has run."""
        status = self.status
        if status.phase in ("Running", "Succeeded"):
            return True
        return any(
            each.container_id or "running" in each.state
            for each in (*status.init_container_statuses, *status.container_statuses)
        )

    @property
    def is_rejected(self) -> bool:
        """Return True if its node's kubelet refused it: it failed before anything of it started.

        Kubernetes has no field for that, only a reason, and plugins of the kubelet bring reasons of
        their own. So every reason counts but those of pods that a kubelet had accepted.
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
    def is_bound(self) -> bool:
        """A node has been chosen."""
        return bool(self.spec.node_name)
