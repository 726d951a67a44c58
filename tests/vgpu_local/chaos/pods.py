"""The pods of a campaign: their shapes, and the script that each of their containers runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_CLAIM_TEMPLATE, GROUP, VERSION
from vgpu_api.resources import POD_GROUPS
from vgpu_client.transport import Object

NAMESPACE = "default"
COUNT, MEMORY, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
PERCENT = "nvidia.com/gpumem-percentage"

Limits = Mapping[str, int]

# Of `$$$$` the kubelet makes `$$`. Written whole and renamed, so that no half record is read.
_TESTIFY = (
    'f="$RECORDS/$POD_UID.$CONTAINER.$$$$"; cp "$VGPU_LIMIT_PAGE" "$f.page"; '
    '{ date +%s.%N; echo "$NVIDIA_VISIBLE_DEVICES"; } > "$f.new"; mv "$f.new" "$f.seen"; '
)


@dataclass(frozen=True, slots=True)
class Box:
    """A container.

    Attributes:
        name: The container's name.
        limits: The container's limits.
        end: The shell command that it runs after it has written its record.
        kind: Init container, sidecar or app container.
    """

    name: str
    limits: Limits
    end: str = "exec sleep infinity"
    kind: Literal["app", "init", "sidecar"] = "app"


@dataclass(frozen=True, slots=True)
class Shape:
    """The containers of a pod, with their limits and their ends, and its place among others."""

    boxes: tuple[Box, ...]
    restart: str = "Never"
    claim: str = ""
    template: str = ""
    scheduler: str = ""
    priority: int = 0
    group: str = ""

    def ending(self, command: str) -> Shape:
        """Return the same pod shape with another command at the end of its app containers."""
        boxes = tuple(replace(b, end=command) if b.kind == "app" else b for b in self.boxes)
        return replace(self, boxes=boxes)


def one(limits: Limits, **rest: Any) -> Shape:
    """Return the shape of a pod with one container."""
    return Shape((Box("main", limits),), **rest)


def pod(name: str, shape: Shape, records: Path, *, namespace: str = NAMESPACE) -> Object:
    """Return the pod's object; its containers write their records into the folder `records`."""
    annotations = {ANNOTATION_CLAIM: shape.claim, ANNOTATION_CLAIM_TEMPLATE: shape.template}
    spec: dict[str, Any] = {
        "restartPolicy": shape.restart,
        "terminationGracePeriodSeconds": 1,
        "containers": [_container(box, records) for box in shape.boxes if box.kind == "app"],
        "initContainers": [_container(box, records) for box in shape.boxes if box.kind != "app"],
    }
    if shape.scheduler:
        spec["schedulerName"] = shape.scheduler
    if shape.priority:
        spec["priority"] = shape.priority
    if shape.group:
        spec["schedulingGroup"] = {"podGroupName": shape.group}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": {key: value for key, value in annotations.items() if value},
        },
        "spec": spec,
    }


def _container(box: Box, records: Path) -> dict[str, Any]:
    return {
        "name": box.name,
        "image": "none",
        "command": ["/bin/sh", "-c", _TESTIFY + box.end],
        "env": [
            {"name": "RECORDS", "value": str(records)},
            {"name": "CONTAINER", "value": box.name},
            {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        ],
        **({"resources": {"limits": dict(box.limits)}} if box.limits else {}),
        **({"restartPolicy": "Always"} if box.kind == "sidecar" else {}),
    }


def claim(
    name: str,
    requests: Sequence[Mapping[str, Any]],
    *,
    namespace: str = NAMESPACE,
    immediate: bool = False,
    **spec: Any,
) -> Object:
    """Return a claim's object."""
    mode = {"bindingMode": "Immediate"} if immediate else {}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "VGPUClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"requests": [dict(request) for request in requests], **mode, **spec},
    }


def pod_group(name: str, least: int) -> Object:
    """Return a group of which at least this many pods start together, and may end singly."""
    policy = {"schedulingPolicy": {"gang": {"minCount": least}}, "disruptionMode": {"single": {}}}
    return {
        "apiVersion": POD_GROUPS[0].api_version,
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": policy,
    }
