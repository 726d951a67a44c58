"""A HAMi on the tests' node: its objects as its chart makes them, with played programs.

A DaemonSet and a Deployment run `played_hami.py` as the device plugin and the scheduler. So the
kubelet, the controllers and the API server are real, and HAMi's side is what it writes and serves.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from node_overlay import CLUSTER
from real_node import Json, RealNode, a_pod, a_slice, until

NODE, NAMESPACE, TENANTS = "node1", "hami-system", "team-hami"
_PROGRAM = Path(__file__).parent / "played_hami.py"
_IMAGE = "registry.invalid/vgpu/nodeagent:dev"
_COMPONENT = "app.kubernetes.io/component"
_SCHEDULER, _PLUGIN = "hami-scheduler", "hami-device-plugin"
_SOCKETS = "/var/lib/kubelet/device-plugins"
_SPLIT = 10
_CARD = re.compile(r'card uuid=(\S+)-NODE model="([^"]+)" memory_mib=(\d+)')
_DEVICE_CONFIG = """\
nvidia:
  resourceCountName: nvidia.com/gpu
  resourceMemoryName: nvidia.com/gpumem
  resourceCoreName: nvidia.com/gpucores
  overwriteEnv: false
  deviceSplitCount: 10
  deviceMemoryScaling: 1
  deviceCoreScaling: 1
"""


def gpus() -> list[Json]:
    """Return the node's GPUs as HAMi registers them."""
    node = hashlib.md5(NODE.encode()).hexdigest()[:12]  # as manifests/overlays/demo/set-up.sh
    machine = (CLUSTER / "overlay" / "machine.txt").read_text()
    return [
        {
            "id": f"{uuid}-{node}",
            "index": index,
            "count": _SPLIT,
            "devmem": int(memory),
            "devcore": 100,
            "type": f"NVIDIA-{model}",
            "mode": "hami-core",
            "health": True,
        }
        for index, (uuid, model, memory) in enumerate(_CARD.findall(machine))
    ]


class HamiOnNode:
    """HAMi on a node.

    Args:
        node: The node.
    """

    def __init__(self, node: RealNode) -> None:
        self._node = node

    def install(self) -> None:
        """Install HAMi; return when the kubelet offers what its device plugin serves."""
        for name in (NAMESPACE, TENANTS):
            self._node.kubectl("create", "namespace", name)
            wait = ("wait", "--for=create", "serviceaccount/default", "--timeout=30s")
            self._node.kubectl("-n", name, *wait)
        self._node.kubectl("label", "node", NODE, "gpu=on")
        self._node.apply(*_objects())
        until(self.serves, "HAMi's device plugin to serve the node", limit_s=120)

    def serves(self) -> bool:
        """Return True if the node offers HAMi's devices and its scheduler knows them."""
        node = self._node.get("node", NODE)
        offered = node["status"]["allocatable"].get("nvidia.com/gpu")
        annotations = node["metadata"].get("annotations", {})
        return (
            offered == str(_SPLIT * len(gpus()))
            and "hami.io/node-nvidia-register" in annotations
            and annotations.get("hami.io/node-handshake", "").startswith("Requesting")
        )

    def run_pod(self, name: str, gpu: int, mib: int, *, cores: int) -> None:
        """Run a pod that HAMi schedules, on one of the node's GPUs."""
        limits = a_slice(mib, cores=cores)
        pod = a_pod(name, TENANTS, limits=limits, schedulerName=_SCHEDULER)
        pod["metadata"]["annotations"]["nvidia.com/use-gpuuuid"] = gpus()[gpu]["id"]
        self._node.apply(pod)
        self._node.ready(TENANTS, name)


def _objects() -> list[Json]:
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": NAMESPACE}
    rbac = "rbac.authorization.k8s.io"
    extender = {
        "name": "vgpu-scheduler-extender",
        "command": ["python3", "/program/played_hami.py"],
        "args": [
            *("scheduler", "--scheduler-name=hami-scheduler", "--node-scheduler-policy=binpack"),
            *("--gpu-scheduler-policy=spread", "--node-label-selector=gpu=on"),
        ],
        "env": [{"name": "NODE_NAME", "value": NODE}],
    }
    plugin = {
        "name": "device-plugin",
        "command": ["python3", "/program/played_hami.py", "plugin"],
        "env": [
            {"name": "NODE_NAME", "value": NODE},
            {"name": "GPUS", "value": json.dumps(gpus())},
        ],
        "volumeMounts": [{"name": "sockets", "mountPath": _SOCKETS}],
    }
    sockets = {"name": "sockets", "hostPath": {"path": _SOCKETS}}
    hook: Json = {
        "name": "vgpu.hami.io",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {"url": "https://127.0.0.1:1/webhook"},
    }
    return [
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "hami"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [subject],
        },
        _config_map("hami-program", {}, {_PROGRAM.name: _PROGRAM.read_text()}),
        _config_map(
            "hami-scheduler-device",
            {_COMPONENT: _SCHEDULER},
            {"device-config.yaml": _DEVICE_CONFIG},
        ),
        _workload("Deployment", _SCHEDULER, extender, {}),
        _workload("DaemonSet", _PLUGIN, plugin, {"nodeSelector": {"gpu": "on"}}, sockets),
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "hami-webhook"},
            "webhooks": [hook],
        },
    ]


def _config_map(name: str, labels: Json, data: Json) -> Json:
    metadata = {"name": name, "namespace": NAMESPACE, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _workload(kind: str, name: str, container: Json, spec: Json, *volumes: Json) -> Json:
    labels = {_COMPONENT: name}
    program = {"name": "program", "configMap": {"name": "hami-program"}}
    mounts = [{"name": "program", "mountPath": "/program"}, *container.get("volumeMounts", ())]
    pod: dict[str, Any] = {
        "terminationGracePeriodSeconds": 5,
        "containers": [{**container, "image": _IMAGE, "volumeMounts": mounts}],
        "volumes": [program, *volumes],
        **spec,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
