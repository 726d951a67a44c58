"""The kinds that the server serves: one `Resource` each, and a registry by URL or kind.

Built-in kinds are a table; CRDs add to it at run time. Objects are kept by group and plural
(`Resource.key`), one served version each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Obj = dict[str, Any]
"""A Kubernetes object as decoded JSON. Once stored it is never changed in place."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the Table that kubectl prints; `priority` > 0 shows with `-o wide` only."""

    name: str
    json_path: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Resource:
    """A served kind.

    `schema` is a CRD's structural OpenAPI schema (None for built-in kinds, whose rules are code);
    `selectable` are dotted field-selector labels beyond `metadata.name` and `metadata.namespace`.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    has_status: bool = False
    subresources: tuple[str, ...] = ()
    selectable: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    schema: Obj | None = None
    custom: bool = False
    singular: str = ""
    needs_version: bool = False
    """An update without a resourceVersion is refused, as the real server does for some kinds."""

    created_by_update: bool = False
    """An update of an absent object creates it."""

    @property
    def qualified(self) -> str:
        """`pods`, `vgpuclaims.vgpu.dev`: unique, and what messages and storage use."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """`v1`, `vgpu.dev/v1alpha1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def generation(self) -> bool:
        """Return True if `metadata.generation` counts changes of the spec."""
        return self.custom or self.plural in _WITH_GENERATION


_WITH_GENERATION = frozenset(
    {
        "pods",
        "customresourcedefinitions",
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
    }
)
_POD_FIELDS = (
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)
_EVENT_FIELDS = (
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
)
_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"

CRDS = "customresourcedefinitions.apiextensions.k8s.io"
BUILTIN: tuple[Resource, ...] = (
    Resource(
        "", "v1", "namespaces", "Namespace", False, ("ns",), has_status=True,
        subresources=("finalize",), selectable=("status.phase",),
    ),
    Resource(
        "", "v1", "nodes", "Node", False, ("no",), has_status=True,
        selectable=("spec.unschedulable",),
    ),
    Resource(
        "", "v1", "pods", "Pod", True, ("po",), ("all",), has_status=True,
        subresources=("binding", "eviction"), selectable=_POD_FIELDS,
    ),
    Resource("", "v1", "events", "Event", True, ("ev",), selectable=_EVENT_FIELDS),
    Resource("", "v1", "configmaps", "ConfigMap", True, ("cm",)),
    Resource("", "v1", "secrets", "Secret", True, selectable=("type",)),
    Resource(
        "", "v1", "services", "Service", True, ("svc",), ("all",), has_status=True,
        selectable=("spec.clusterIP",),
    ),
    Resource("", "v1", "serviceaccounts", "ServiceAccount", True, ("sa",)),
    Resource("", "v1", "resourcequotas", "ResourceQuota", True, ("quota",), has_status=True),
    Resource(
        "", "v1", "persistentvolumes", "PersistentVolume", False, ("pv",), has_status=True
    ),
    Resource(
        "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, ("pvc",),
        has_status=True,
    ),
    Resource("apps", "v1", "daemonsets", "DaemonSet", True, ("ds",), has_status=True),
    Resource("apps", "v1", "deployments", "Deployment", True, ("deploy",), has_status=True),
    Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", False, ("sc",)),
    Resource("storage.k8s.io", "v1", "csinodes", "CSINode", False),
    Resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver", False),
    Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", False),
    Resource(
        "resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", True, has_status=True
    ),
    Resource(
        "resource.k8s.io", "v1", "resourceslices", "ResourceSlice", False,
        selectable=("spec.nodeName", "spec.driver"),
    ),
    Resource(
        "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, ("pdb",),
        has_status=True,
    ),
    Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup", True, has_status=True),
    Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", True),
    Resource(
        "coordination.k8s.io", "v1", "leases", "Lease", True, needs_version=True,
        created_by_update=True,
    ),
    Resource(_RBAC, "v1", "clusterroles", "ClusterRole", False),
    Resource(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False),
    Resource(_RBAC, "v1", "roles", "Role", True),
    Resource(_RBAC, "v1", "rolebindings", "RoleBinding", True),
    Resource(
        _ADMISSION, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", False
    ),
    Resource(
        _ADMISSION, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", False
    ),
    Resource(
        _ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False,
        has_status=True,
    ),
    Resource(
        _ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding",
        False,
    ),
    Resource(
        "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition",
        False, ("crd", "crds"), ("api-extensions",), has_status=True,
    ),
)  # fmt: skip


class Registry:
    """The kinds served at this moment, by URL and by kind."""

    def __init__(self) -> None:
        self._by_path: dict[tuple[str, str, str], Resource] = {}
        self._by_kind: dict[tuple[str, str], Resource] = {}
        self.version = 0
        """Grows with every change, so that documents made from the registry can be cached."""
        for resource in BUILTIN:
            self.add(resource)

    def __iter__(self) -> Iterator[Resource]:
        return iter(self._by_path.values())

    def add(self, resource: Resource) -> None:
        """Serve a kind in place of the former one with its group and plural."""
        self.remove(resource.group, resource.plural)
        self._by_path[resource.group, resource.version, resource.plural] = resource
        self._by_kind[resource.api_version, resource.kind] = resource
        self.version += 1

    def remove(self, group: str, plural: str) -> None:
        """Stop serving a kind; an unknown one is ignored."""
        for path, resource in list(self._by_path.items()):
            if (resource.group, resource.plural) == (group, plural):
                del self._by_path[path]
                del self._by_kind[resource.api_version, resource.kind]
                self.version += 1

    def by_path(self, group: str, version: str, plural: str) -> Resource | None:
        """Return the resource behind `/apis/GROUP/VERSION/PLURAL`."""
        return self._by_path.get((group, version, plural))

    def by_kind(self, api_version: str, kind: str) -> Resource | None:
        """Return the resource of an object's `apiVersion` and `kind`."""
        return self._by_kind.get((api_version, kind))

    def get(self, qualified: str) -> Resource:
        """Return the resource called `pods` or `vgpuclaims.vgpu.dev`.

        Raises:
            KeyError: it is not served.
        """
        for resource in self._by_path.values():
            if resource.qualified == qualified:
                return resource
        raise KeyError(qualified)
