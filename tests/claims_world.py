"""An operator in Claims mode on the memory API, with others' actions on its pods and claims."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from builders import CLAIMS, ROOM, a_device, a_node, a_pod
from memory_api import MemoryApi
from replica import Replica
from vgpu_api.core import Pod, ResourceClaim
from vgpu_api.resources import PODS, RESOURCE_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.admission.rules import mutate_pod
from vgpu_operator.admission.rules.json_patch import applied

LIMITS = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192, "nvidia.com/gpucores": 30}


def replica(*nodes: str, api: MemoryApi | None = None, **room: str) -> Replica:
    """Return an operator in Claims mode with ready nodes that have room and a device each."""
    made = Replica(api, config=CLAIMS)
    for number, name in enumerate(nodes or ("node-1",)):
        made.news.node_changed(a_node(name, allocatable={**ROOM, **room}))
        made.news.device_changed(a_device(uuid=f"GPU-{number}", node=name))
    return made


def admitted(world: Replica, name: str = "pod-1", *, token: str = "", **fields: Any) -> Pod:
    """Return a pod as the webhook leaves it, which the operator has seen."""
    raw = a_pod(name, **fields).to_wire()
    raw["spec"]["containers"] = [{"name": "main", "resources": {"limits": dict(LIMITS)}}]
    changed = applied(raw, mutate_pod(raw, CLAIMS, None, token=token or f"{len(name):012x}"))
    return seen(world, changed)


def seen(world: Replica, raw: dict[str, Any]) -> Pod:
    stored_pod = Pod.model_validate(world.api.put(PODS, raw))
    world.news.pod_changed(stored_pod)
    return stored_pod


def name_of(pod: Pod) -> str:
    (entry,) = pod.spec.resource_claims
    return entry.resource_claim_name


def stored(world: Replica, pod: Pod) -> dict[str, Any] | None:
    """Return the pod's ResourceClaim from the API server, or None."""
    found: dict[str, Any] | None = world.api.objects.get(
        (RESOURCE_CLAIMS.plural, "default", name_of(pod))
    )
    return found


def results(world: Replica, pod: Pod) -> list[dict[str, Any]]:
    found = stored(world, pod)
    allocation = (found or {}).get("status", {}).get("allocation") or {}
    return list(allocation.get("devices", {}).get("results", []))


def node_of(world: Replica, pod: Pod) -> str:
    return next((each["pool"] for each in results(world, pod)), "")


def kube_scheduler_takes_away(world: Replica, pod: Pod) -> None:
    found = copy.deepcopy(stored(world, pod))
    assert found is not None
    del found["status"]["allocation"]
    changed(world, found)


def changed(world: Replica, claim: dict[str, Any]) -> None:
    put = world.api.put(RESOURCE_CLAIMS, claim)
    world.news.resource_claim_changed(ResourceClaim.model_validate(put))


def bind(world: Replica, pod: Pod, **status: Any) -> None:
    """Let kube-scheduler reserve the claim for the pod, and bind it to the claim's node."""
    found = copy.deepcopy(stored(world, pod))
    assert found is not None
    consumer = {"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}
    found["status"]["reservedFor"] = [consumer]
    changed(world, found)
    raw = copy.deepcopy(world.api.objects[(PODS.plural, "default", pod.metadata.name)])
    raw["spec"]["nodeName"] = node_of(world, pod)
    raw["status"] = {"phase": "Running", **status}
    seen(world, raw)


def unschedulable(world: Replica, pod: Pod) -> None:
    """Let kube-scheduler set the pod aside; from 1.35 on it keeps a nomination by others."""
    raw = copy.deepcopy(world.api.objects[(PODS.plural, "default", pod.metadata.name)])
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    raw["status"] = {**raw.get("status", {}), "phase": "Pending", "conditions": [condition]}
    seen(world, raw)


def release(world: Replica, pod: Pod) -> None:
    """Let the agent report that the pod's devices are no longer in use."""
    claim = world.claim_of(pod).to_wire()
    claim["status"]["released"] = {"allocationID": claim["status"]["allocation"]["id"]}
    world.claim(VGPUClaim.read(claim))


def recorded(world: Replica, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(world.recorder, "record", lambda _, **event: told.append(event))
    return told
