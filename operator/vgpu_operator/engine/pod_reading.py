"""Decodes watched pods: GPU pods in full, and only a few fields of all others.

The watch delivers every pod of the cluster, and any tenant may create a pod of a megabyte and
change its annotations several times a second. Decoding such a pod in full takes half a second, and
the engine has a single loop. Of a pod that requests no device, the engine needs the node, the phase
and the resources that it uses there. Only these fields are decoded; the others only cost the
parsing of their JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakValueDictionary

from vgpu_api.agent_pods import is_agents
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.host import CPU
from vgpu_api.names import (
    ANNOTATION_REQUEUE,
    COSCHEDULING_FORMER_GROUP,
    COSCHEDULING_GROUP,
    GROUP,
    VOLCANO_GROUP,
)
from vgpu_client.transport import Object
from vgpu_operator.dialects.reading import dialects

_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
)
_TAKEN = ("name", "resources", "restartPolicy", "ports")
"""The fields of a container that affect the resources it uses on its node."""


_UNBOUND = ("schedulingGroup", "resourceClaims")
"""The fields of a spec that matter before the pod has a node, too."""
_PLACED = (
    "nodeName",
    "overhead",
    "resources",
    "affinity",
    "topologySpreadConstraints",
    "volumes",
)
"""The fields of a spec that matter to other pods on the node (Gate mode)."""
_GROUPS = (COSCHEDULING_GROUP, COSCHEDULING_FORMER_GROUP)
"""The labels that name a pod's group (Gate mode)."""


class PodReader:
    """A decoder of pods.

    Args:
        config: The configuration, with the names of our resources.
        has_room: True if all resources that a pod uses on its node count (Gate mode), not only CPU.
    """

    def __init__(self, config: ClusterConfig, *, has_room: bool) -> None:
        self._words = frozenset(
            name for dialect in dialects() for name in dialect.resource_names(config)
        )
        self._has_room = has_room
        # The newest version of each GPU pod, while the engine's cache holds it.
        self._asking: WeakValueDictionary[str, Pod] = WeakValueDictionary()

    def read(self, raw: Object) -> Pod:
        """Return the pod, without the fields that the engine does not need.

        Raises:
            pydantic.ValidationError: The object is not a valid pod.
        """
        metadata, spec = raw["metadata"], raw.get("spec") or {}
        # A pod that once requested devices stays a GPU pod, even if its annotations are removed
        # later.
        known = self._asking.get(metadata["uid"])
        is_agent = is_agents(metadata.get("namespace"), metadata.get("labels") or {})
        if known is None and (is_agent or not self._asks(metadata, spec)):
            host = self._of_host(metadata, spec, raw.get("status") or {})
            if is_agent:
                host["metadata"]["labels"] = metadata["labels"]
                host["metadata"]["annotations"] = _only(
                    metadata.get("annotations") or {}, (ANNOTATION_REQUEUE,)
                )
            return Pod.model_validate(host)
        pod = Pod.model_validate(raw) if known is None else _again(known, raw)
        self._asking[metadata["uid"]] = pod
        return pod

    def _asks(self, metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
        if any(GROUP in name for name in metadata.get("annotations") or ()):
            return True
        return any(
            not self._words.isdisjoint(resources.get(kind) or ())
            for section in ("initContainers", "containers")
            for container in spec.get(section) or ()
            if (resources := container.get("resources"))
            for kind in ("limits", "requests")
        )

    def _of_host(
        self, metadata: Mapping[str, Any], spec: Mapping[str, Any], status: Mapping[str, Any]
    ) -> dict[str, Any]:
        kept = _only(metadata, _METADATA)
        owners = metadata.get("ownerReferences") or ()
        kept["ownerReferences"] = [each for each in owners if each.get("kind") == "DaemonSet"][:1]
        grouped = _only(spec, _UNBOUND)
        if self._has_room:
            kept["annotations"] = _only(metadata.get("annotations") or {}, (VOLCANO_GROUP,))
            kept["labels"] = _only(metadata.get("labels") or {}, _GROUPS)
        if not spec.get("nodeName"):  # an unbound pod uses no resources yet
            return {"metadata": kept, "spec": grouped, "status": _only(status, ("phase",))}
        containers = {
            section: self._taking(spec.get(section) or ())
            for section in ("initContainers", "containers")
        }
        if self._has_room:
            kept["labels"] = metadata.get("labels") or {}
            host = {**grouped, **_only(spec, _PLACED), **containers}
        else:
            host = {
                **grouped,
                **_only(spec, ("nodeName", "overhead", "resources")),
                **containers,
            }
        return {"metadata": kept, "spec": host, "status": status}

    def _taking(self, containers: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the containers that use resources of the node, in order."""
        found = []
        for each in containers:
            requests = (each.get("resources") or {}).get("requests") or ()
            if (requests or each.get("ports")) if self._has_room else CPU in requests:
                found.append(_only(each, _TAKEN))
        return found


def _again(known: Pod, raw: Object) -> Pod:
    """Return a newer version of a pod; its decoded spec is reused if the generation is unchanged.

    Node and gates are compared as well, because before Kubernetes 1.35 a Binding may leave the
    generation unchanged.
    """
    metadata, spec = raw["metadata"], raw.get("spec") or {}
    is_same = (
        0 != (metadata.get("generation") or 0) == known.metadata.generation
        and (spec.get("nodeName") or "") == known.spec.node_name
        and len(spec.get("schedulingGates") or ()) == len(known.spec.scheduling_gates)
    )
    if not is_same:
        return Pod.model_validate(raw)
    rest = Pod.model_validate({"metadata": metadata, "status": raw.get("status") or {}})
    return rest.model_copy(update={"spec": known.spec})


def _only(fields: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: fields[name] for name in names if fields.get(name) is not None}
