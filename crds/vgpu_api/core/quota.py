"""A ResourceQuota, as far as it limits devices, and the pods that it counts.

A quota with scopes counts only pods that match all of its scopes. Source: Kubernetes, Resource
Quotas, Quota scopes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pydantic import Field

from vgpu_api.core.pod import Pod, ResourceRequirements
from vgpu_api.empties import no_entries, no_items
from vgpu_api.errors import QuantityError
from vgpu_api.quantity import parse
from vgpu_api.v1alpha1.base import ApiModel, Metadata

_COMPUTE = ("cpu", "memory")
"""The resources that determine a pod's quality of service class."""
_TERM_LISTS = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)


class PodScopes(NamedTuple):
    """The properties of a pod that quota scopes test.

    Attributes:
        terminating: True if the pod has an active deadline.
        best_effort: True if it requests neither CPU nor memory.
        priority_class: The name of its PriorityClass; empty if it has none.
        cross_namespace: True if its affinity refers to pods of other namespaces.
    """

    terminating: bool = False
    best_effort: bool = False
    priority_class: str = ""
    cross_namespace: bool = False

    @classmethod
    def of(cls, pod: Pod) -> PodScopes:
        """Return the scopes that a pod matches."""
        deadline = pod.spec.active_deadline_seconds
        return cls(
            deadline is not None and deadline >= 0,
            _is_best_effort(pod),
            pod.spec.priority_class_name,
            _crosses_namespaces(pod),
        )


class ScopeRequirement(ApiModel):
    """One requirement of a scope selector."""

    scope_name: str = ""
    operator: str = ""
    values: list[str] = Field(default_factory=no_items)

    def matches(self, pod: PodScopes) -> bool:
        """Return True if a pod meets the requirement; an unknown scope matches no pod."""
        if self.scope_name == "PriorityClass":
            return self._matches_class(pod.priority_class)
        match = _SCOPES.get(self.scope_name)
        return match is not None and match(pod)

    def _matches_class(self, name: str) -> bool:
        match self.operator:
            case "In":
                return bool(name) and name in self.values
            case "NotIn":
                return name not in self.values
            case "DoesNotExist":
                return not name
        return self.operator == "Exists" and bool(name)


_SCOPES: Mapping[str, Callable[[PodScopes], bool]] = {
    "Terminating": lambda pod: pod.terminating,
    "NotTerminating": lambda pod: not pod.terminating,
    "BestEffort": lambda pod: pod.best_effort,
    "NotBestEffort": lambda pod: not pod.best_effort,
    "CrossNamespacePodAffinity": lambda pod: pod.cross_namespace,
}
"""VolumeAttributesClass is missing here because it applies to PersistentVolumeClaims, not pods."""


class ScopeSelector(ApiModel):
    """Requirements that must all be met."""

    match_expressions: list[ScopeRequirement] = Field(default_factory=no_items)


class ResourceQuotaSpec(ApiModel):
    """The fields of a quota's spec that we read."""

    hard: dict[str, str | int] = Field(default_factory=no_entries)
    scopes: list[str] = Field(default_factory=no_items)
    scope_selector: ScopeSelector | None = None

    @property
    def is_scoped(self) -> bool:
        """True if the quota counts only some pods."""
        return bool(self.scopes or (self.scope_selector and self.scope_selector.match_expressions))

    def counts(self, pod: PodScopes | None) -> bool:
        """Return True if the quota counts the pod; without a pod, only if it has no scopes."""
        if not self.is_scoped:
            return True
        if pod is None:
            return False
        lines = [ScopeRequirement(scope_name=each, operator="Exists") for each in self.scopes]
        if self.scope_selector is not None:
            lines += self.scope_selector.match_expressions
        return all(line.matches(pod) for line in lines)


class ResourceQuota(ApiModel):
    """A quota of a namespace."""

    metadata: Metadata = Field(default_factory=Metadata)
    spec: ResourceQuotaSpec = Field(default_factory=ResourceQuotaSpec)


def _is_best_effort(pod: Pod) -> bool:
    if pod.status.qos_class:
        return pod.status.qos_class == "BestEffort"
    spec = pod.spec
    # if there are pod-level resources, those of the containers do not matter
    if spec.resources is not None:
        return not _requests_compute([spec.resources])
    containers = (*spec.containers, *spec.init_containers)
    return not _requests_compute(container.resources for container in containers)


def _requests_compute(all_resources: Iterable[ResourceRequirements]) -> bool:
    return any(
        name in amounts and _is_positive(amounts[name])
        for resources in all_resources
        for amounts in (resources.requests, resources.limits)
        for name in _COMPUTE
    )


def _is_positive(written: str | int) -> bool:
    try:
        return parse(written) > 0
    except QuantityError:
        return False


def _crosses_namespaces(pod: Pod) -> bool:
    affinity = pod.spec.affinity
    if affinity is None:
        return False
    return any(
        term.get("namespaces") or term.get("namespaceSelector") is not None
        for rules in (affinity.pod_affinity, affinity.pod_anti_affinity)
        if rules is not None
        for term in _affinity_rules(rules)
    )


def _affinity_rules(rules: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    required, preferred = (rules.get(name) or () for name in _TERM_LISTS)
    yield from required
    for weighted in preferred:
        yield weighted.get("podAffinityTerm") or {}
