"""An operator with a node whose devices kube-scheduler allocates, and what that does."""

from __future__ import annotations

import copy
from typing import Any

from builders import CLAIMS, ROOM, a_device, a_node, a_pod
from claims_world import changed, seen
from replica import Replica
from vgpu_api import dra
from vgpu_api.core import Pod
from vgpu_api.names import pod_claim_name
from vgpu_api.resources import PODS, RESOURCE_CLAIMS, VGPU_CLAIMS
from vgpu_operator.admission.rules import NamedObjects, ask_by_claims, mutate_pod
from vgpu_operator.admission.rules.json_patch import applied

SHARE = "7b2f0c1e-0000-4000-8000-000000000001"


def a_world(*, label: str = "Scheduler") -> Replica:
    """Return an operator with a node of kube-scheduler's and its device of 16 GiB."""
    world = Replica(config=CLAIMS)
    world.news.node_changed(
        a_node("node-1", allocatable=ROOM, labels={"vgpu.dev/allocator": label})
    )
    world.news.device_changed(a_device(uuid="GPU-1", node="node-1", memory_mib=16384))
    return world


def a_template(**capacity: Any) -> dict[str, Any]:
    exactly = {"deviceClassName": "scheduler.vgpu.dev", "capacity": {"requests": capacity}}
    request = {"name": "gpu", "exactly": exactly}
    return {
        "metadata": {"name": "gpus", "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def asking(world: Replica, name: str = "pod-1", **capacity: Any) -> Pod:
    """Return a pod that names a template, as the webhook leaves it."""
    raw = a_pod(name).to_wire()
    raw["spec"]["containers"] = [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}]
    raw["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]
    found = NamedObjects({"gpu": a_template(**capacity)}, {})
    raw = applied(raw, ask_by_claims(raw, found, CLAIMS))
    return seen(world, applied(raw, mutate_pod(raw, CLAIMS, None, token="e" * 12)))


def allocated(
    world: Replica,
    pod: Pod,
    node: str = "node-1",
    device: str = "GPU-1",
    *,
    memory: str = "8Gi",
    cores: str = "50",
    **status: Any,
) -> None:
    """Let Kubernetes make the pod's ResourceClaim from its template, and allocate and bind it."""
    name = f"{pod.metadata.name}-gpu-x1"
    request = a_template()["spec"]["spec"]["devices"]["requests"][0]
    result = {
        "request": "gpu",
        "driver": "vgpu.dev",
        "pool": node,
        "device": dra.device_name(device),
        "shareID": SHARE,
        "consumedCapacity": {"memory": memory, "cores": cores, "shares": "1"},
    }
    if not memory:
        del result["consumedCapacity"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
    consumer = {"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}
    changed(
        world,
        {
            "metadata": {"name": name, "namespace": "default", "ownerReferences": [owner]},
            "spec": {"devices": {"requests": [request]}},
            "status": {
                "allocation": {"devices": {"results": [result]}},
                "reservedFor": [consumer],
                **status,
            },
        },
    )
    raw = copy.deepcopy(world.api.objects[(PODS.plural, "default", pod.metadata.name)])
    raw["spec"]["nodeName"] = node
    raw["status"] = {
        "phase": "Pending",
        "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": name}],
    }
    seen(world, raw)


def allocation_of(world: Replica, pod: Pod) -> dict[str, Any]:
    """Return the allocation of the pod's VGPUClaim in the API server; empty without any."""
    key = (VGPU_CLAIMS.plural, "default", pod_claim_name(pod.metadata.name, pod.metadata.uid))
    found: dict[str, Any] = world.api.objects.get(key, {}).get("status", {}).get("allocation") or {}
    return found


def resource_claims(world: Replica) -> list[dict[str, Any]]:
    return [
        each for (kind, _, _), each in world.api.objects.items() if kind == RESOURCE_CLAIMS.plural
    ]
