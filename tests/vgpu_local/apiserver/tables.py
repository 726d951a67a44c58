"""Objects as the Table that kubectl prints: the server decides the columns, not kubectl."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from vgpu_local.apiserver import jsonpath
from vgpu_local.apiserver.kinds import Column, Obj, Resource
from vgpu_local.apiserver.storage import Stored

_NAME = Column("Name", ".metadata.name", format="name")
_AGE = Column("Age", ".metadata.creationTimestamp", type="date")
Cell = Callable[[Obj], Any]


def table(
    resource: Resource, rows: Sequence[Stored], *, now: float, include: str, metadata: Obj
) -> bytes:
    """Return a `Table` of these objects.

    `include` is `Object`, `Metadata` or `None`: what each row carries along; `now` the present in
    seconds since the epoch, for ages; `metadata` the list's (resourceVersion, continue).
    """
    columns = _columns(resource)
    body = {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [
            {
                "name": column.name,
                "type": column.type,
                "format": column.format,
                "description": column.description,
                "priority": column.priority,
            }
            for column, _ in columns
        ],
        "rows": [
            {
                "cells": [_cell(column, cell, stored.obj, now) for column, cell in columns],
                "object": _carried(stored, include),
            }
            for stored in rows
        ],
    }
    return orjson.dumps(body)


def _carried(stored: Stored, include: str) -> Any:
    if include == "None":
        return None
    if include == "Object":
        return orjson.Fragment(stored.raw)
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": stored.obj["metadata"],
    }


def _columns(resource: Resource) -> list[tuple[Column, Cell | None]]:
    if resource.custom:
        return [(column, None) for column in (_NAME, *resource.columns)]
    return _BUILTIN.get(resource.qualified, _PLAIN)


def _cell(column: Column, cell: Cell | None, obj: Obj, now: float) -> Any:
    if cell is not None:
        return cell(obj)
    found = jsonpath.find(obj, column.json_path)
    if not found or found[0] is None:
        return None
    if column.type == "date":
        return age(str(found[0]), now)
    if column.type in ("integer", "number", "boolean"):
        return found[0]
    return _text(found[0])  # of several versions only the first, as in the real server


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def age(timestamp: str, now: float) -> str:
    """Return a time as kubectl shows it: `5s`, `3m20s`, `2h5m`, `4d`, `<invalid>` in the future."""
    try:
        then = dt.datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return "<unknown>"
    seconds = int(now - then)
    if seconds < -1:
        return "<invalid>"
    seconds = max(seconds, 0)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    return f"{days}d" if days < 730 else f"{days // 365}y"


def _pod_ready(pod: Obj) -> str:
    statuses = pod.get("status", {}).get("containerStatuses", [])
    ready = sum(bool(status.get("ready")) for status in statuses)
    return f"{ready}/{len(pod['spec']['containers'])}"


def _pod_status(pod: Obj) -> str:
    """Return the STATUS column: a container's reason says more than the pod's phase."""
    status = pod.get("status", {})
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    word = str(status.get("reason") or status.get("phase") or "Unknown")
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            word = "SchedulingGated"
    for container in status.get("containerStatuses", []):
        state = container.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason"):
            word = waiting["reason"]
        elif ended.get("reason"):
            word = ended["reason"]
        elif ended:
            word = f"ExitCode:{ended.get('exitCode', 0)}"
    return word


def _pod_restarts(pod: Obj) -> str:
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return str(sum(status.get("restartCount", 0) for status in statuses))


def _node_status(node: Obj) -> str:
    conditions = node.get("status", {}).get("conditions", [])
    ready = next((item["status"] for item in conditions if item["type"] == "Ready"), None)
    word = {"True": "Ready", None: "Unknown"}.get(ready, "NotReady")
    return f"{word},SchedulingDisabled" if node["spec"].get("unschedulable") else word


def _node_roles(node: Obj) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = node["metadata"].get("labels", {})
    roles = sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix))
    return ",".join(roles) or "<none>"


def _event_object(event: Obj) -> str:
    about = event.get("involvedObject", {})
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _field(*path: str, absent: str = "<none>") -> Cell:
    def cell(obj: Obj) -> Any:
        value: Any = obj
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return absent if value in (None, "") else value

    return cell


def _count(key: str) -> Cell:
    return lambda obj: len(obj.get(key) or {})


def _computed(name: str, cell: Cell, priority: int = 0) -> tuple[Column, Cell]:
    return Column(name, "", priority=priority), cell


_PLAIN: list[tuple[Column, Cell | None]] = [(_NAME, None), (_AGE, None)]
_BUILTIN: dict[str, list[tuple[Column, Cell | None]]] = {
    "pods": [
        (_NAME, None),
        _computed("Ready", _pod_ready),
        _computed("Status", _pod_status),
        _computed("Restarts", _pod_restarts),
        (_AGE, None),
        _computed("IP", _field("status", "podIP"), 1),
        _computed("Node", _field("spec", "nodeName"), 1),
        _computed("Nominated Node", _field("status", "nominatedNodeName"), 1),
        _computed("Readiness Gates", lambda pod: "<none>", 1),
    ],
    "nodes": [
        (_NAME, None),
        _computed("Status", _node_status),
        _computed("Roles", _node_roles),
        (_AGE, None),
        _computed("Version", _field("status", "nodeInfo", "kubeletVersion", absent="")),
    ],
    "namespaces": [(_NAME, None), _computed("Status", _field("status", "phase")), (_AGE, None)],
    "events": [
        (Column("Last Seen", ".lastTimestamp", type="date"), None),
        _computed("Type", _field("type", absent="")),
        _computed("Reason", _field("reason", absent="")),
        _computed("Object", _event_object),
        _computed("Source", _field("reportingComponent", absent=""), 1),
        _computed("Message", _field("message", absent="")),
        _computed("Count", _field("count", absent=""), 1),
        (Column("Name", ".metadata.name", priority=1), None),
    ],
    "configmaps": [(_NAME, None), _computed("Data", _count("data")), (_AGE, None)],
    "secrets": [
        (_NAME, None),
        _computed("Type", _field("type", absent="Opaque")),
        _computed("Data", _count("data")),
        (_AGE, None),
    ],
    "leases.coordination.k8s.io": [
        (_NAME, None),
        _computed("Holder", _field("spec", "holderIdentity", absent="")),
        (_AGE, None),
    ],
    "customresourcedefinitions.apiextensions.k8s.io": [
        (_NAME, None),
        _computed("Created At", _field("metadata", "creationTimestamp")),
    ],
}
