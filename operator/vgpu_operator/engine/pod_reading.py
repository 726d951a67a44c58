"""Reads the pods of the watch: those that ask for devices in full, of the others their host's part.

The watch brings every pod of the cluster, and any tenant may make one of a megabyte and change its
annotations several times a second. Decoding all fields of such a pod takes half a second, and the
engine has one loop. Of a pod that does not ask for devices the engine needs its node, its phase
and what it takes of the node, so only these fields are decoded; the rest costs no more than the
JSON's parser.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakValueDictionary

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.host import CPU
from vgpu_api.names import GROUP
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
"""What of a container counts on its node."""


_PLACED = (
    "nodeName",
    "overhead",
    "resources",
    "affinity",
    "topologySpreadConstraints",
    "volumes",
)
"""What of a spec matters to other pods of its node."""


class PodReader:
    """Makes of a raw pod what the engine observes.

    Args:
        config: Has the names of the resources that are ours.
        has_room: All that a pod takes of its node is counted (mode Gate), not its CPU alone.
    """

    def __init__(self, config: ClusterConfig, *, has_room: bool) -> None:
        self._words = frozenset(
            name for dialect in dialects() for name in dialect.resource_names(config)
        )
        self._has_room = has_room
        # The newest version of each pod that asks, for as long as the engine's cache has it.
        self._asking: WeakValueDictionary[str, Pod] = WeakValueDictionary()

    def read(self, raw: Object) -> Pod:
        """Return the pod, without what nothing depends on.

        Raises:
            pydantic.ValidationError: It is no pod.
        """
        metadata, spec = raw["metadata"], raw.get("spec") or {}
        # A pod that asked keeps what it asked for, whatever is taken from it later.
        known = self._asking.get(metadata["uid"])
        if known is None and not self._asks(metadata, spec):
            return Pod.model_validate(self._of_host(metadata, spec, raw.get("status") or {}))
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
        if not spec.get("nodeName"):  # it takes nothing yet
            return {"metadata": kept, "status": _only(status, ("phase",))}
        containers = {
            section: self._taking(spec.get(section) or ())
            for section in ("initContainers", "containers")
        }
        if self._has_room:
            kept["labels"] = metadata.get("labels") or {}
            host = {**_only(spec, _PLACED), **containers}
        else:
            host = {**_only(spec, ("nodeName", "overhead", "resources")), **containers}
        return {"metadata": kept, "spec": host, "status": status}

    def _taking(self, containers: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The containers that take something of the node, in their order."""
        found = []
        for each in containers:
            requests = (each.get("resources") or {}).get("requests") or ()
            if (requests or each.get("ports")) if self._has_room else CPU in requests:
                found.append(_only(each, _TAKEN))
        return found


def _again(known: Pod, raw: Object) -> Pod:
    """A newer version of a pod; what its unchanged generation stands for is not decoded again.

    The node and the gates are compared as well: before Kubernetes 1.35 a Binding need not count as
    a generation.
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
