"""Plays HAMi on the tests' node: `plugin` is its device plugin, `scheduler` its scheduler.

It runs in the agent's image, which has grpc and the kubelet's messages, as the pods of a DaemonSet
and a Deployment that `hami_on_node.py` makes. What it writes has the form of HAMi v2.10.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from vgpu_nodeagent.kubelet.api import deviceplugin_pb2 as dp
from vgpu_nodeagent.kubelet.api import deviceplugin_pb2_grpc as dp_grpc

RESOURCE, SPLIT = "nvidia.com/gpu", 10
REGISTER, HANDSHAKE = "hami.io/node-nvidia-register", "hami.io/node-handshake"
ALLOCATED, PHASE = "hami.io/vgpu-devices-allocated", "hami.io/bind-phase"
_SOCKETS, _SOCKET = Path("/var/lib/kubelet/device-plugins"), "nvidia-gpu.sock"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LOOK_S = 0.5
_REPORT_S = 30
_ended = threading.Event()


def ask(method: str, path: str, body: Any = None) -> Any:
    """Send a request to the API server as the pod's account; return the answer."""
    patch = method == "PATCH"
    request = urllib.request.Request(
        f"https://{os.environ['KUBERNETES_SERVICE_HOST']}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {(_ACCOUNT / 'token').read_text()}",
            "Content-Type": f"application/{'merge-patch+json' if patch else 'json'}",
        },
    )
    trust = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, context=trust, timeout=10) as answer:
        return json.load(answer)


def annotate(path: str, annotations: Mapping[str, str | None]) -> None:
    """Set annotations of an object, or remove them."""
    ask("PATCH", path, {"metadata": {"annotations": annotations}})


def is_being_served(pod: Any) -> bool:
    """Return True while HAMi gives a pod its devices."""
    annotations = pod["metadata"].get("annotations", {})
    return bool(annotations.get(PHASE) == "allocating")


def repeat(step: Callable[[], None], every_s: float) -> None:
    """Repeat a step until the program is told to end; a refused request is made again."""
    while not _ended.is_set():
        try:
            step()
        except (urllib.error.URLError, TimeoutError) as error:
            print(error, flush=True)
        _ended.wait(every_s)


class Plugin(dp_grpc.DevicePluginServicer):
    """HAMi's device plugin: some ids for each GPU, and variables for a container."""

    def __init__(self, node: str, gpus: list[dict[str, Any]]) -> None:
        self._node = node
        self._ids = [f"{gpu['id']}-{number}" for gpu in gpus for number in range(SPLIT)]

    def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return the options: no call before a container starts."""
        return dp.DevicePluginOptions()

    def ListAndWatch(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        """Send the ids, and hold the stream open."""
        devices = [dp.Device(ID=each, health="Healthy") for each in self._ids]
        yield dp.ListAndWatchResponse(devices=devices)
        _ended.wait()

    def GetPreferredAllocation(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Prefer nothing."""
        return dp.PreferredAllocationResponse()

    def PreStartContainer(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Do nothing: the options do not ask for this call."""
        return dp.PreStartContainerResponse()

    def Allocate(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answer for the pod that waits on this node, as HAMi does, and note that it was served."""
        selector = f"spec.nodeName={self._node},status.phase=Pending"
        pods = ask("GET", f"/api/v1/pods?fieldSelector={selector}")["items"]
        (pod,) = (pod for pod in pods if is_being_served(pod))
        metadata = pod["metadata"]
        uuid, _, mib, _ = metadata["annotations"][ALLOCATED].rstrip(":;").split(",")
        annotate(
            f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}",
            {PHASE: "success", "hami.io/vgpu-devices-to-allocate": ";"},
        )
        answer = dp.AllocateResponse()
        for _ in request.container_requests:
            variables = {"NVIDIA_VISIBLE_DEVICES": uuid, "CUDA_DEVICE_MEMORY_LIMIT_0": f"{mib}m"}
            answer.container_responses.append(dp.ContainerAllocateResponse(envs=variables))
        return answer


def plugin() -> None:
    """Serve the kubelet, and register the node's GPUs."""
    node, gpus = os.environ["NODE_NAME"], json.loads(os.environ["GPUS"])
    server = grpc.server(futures.ThreadPoolExecutor(8))
    dp_grpc.add_DevicePluginServicer_to_server(Plugin(node, gpus), server)
    (_SOCKETS / _SOCKET).unlink(missing_ok=True)
    server.add_insecure_port(f"unix://{_SOCKETS / _SOCKET}")
    server.start()
    options = (("grpc.default_authority", "localhost"),)
    with grpc.insecure_channel(f"unix://{_SOCKETS / 'kubelet.sock'}", options=options) as channel:
        request = dp.RegisterRequest(version="v1beta1", endpoint=_SOCKET, resource_name=RESOURCE)
        dp_grpc.RegistrationStub(channel).Register(request)
    register = {REGISTER: json.dumps(gpus)}
    repeat(lambda: annotate(f"/api/v1/nodes/{node}", register), _REPORT_S)
    server.stop(1).wait()
    (_SOCKETS / _SOCKET).unlink(missing_ok=True)


class Scheduler:
    """HAMi's scheduler on one node: it knows its GPUs, and binds pods to those they choose."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._knows = False

    def look(self) -> None:
        """Note the node's GPUs, or forget them, and bind the pods that wait."""
        path = f"/api/v1/nodes/{self._node}"
        node = ask("GET", path)
        offered = node["status"]["allocatable"].get(RESOURCE, "0") != "0"
        if self._knows and not offered:
            annotate(path, {HANDSHAKE: None})
            self._knows = False
        elif not self._knows and offered and REGISTER in node["metadata"]["annotations"]:
            annotate(path, {HANDSHAKE: time.strftime("Requesting_%Y-%m-%d %H:%M:%S")})
            self._knows = True
        if self._knows and not node["spec"].get("unschedulable"):
            self._bind_next()

    def _bind_next(self) -> None:
        """Bind one pod, unless another is being served: HAMi locks the node while it serves one."""
        served = ask("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={self._node}")["items"]
        if any(map(is_being_served, served)):
            return
        waiting = ask("GET", "/api/v1/pods?fieldSelector=spec.nodeName=")["items"]
        for pod in waiting:
            if pod["spec"].get("schedulerName") == "hami-scheduler":
                self._bind(pod)
                return

    def _bind(self, pod: Any) -> None:
        metadata = pod["metadata"]
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        uuid = metadata["annotations"]["nvidia.com/use-gpuuuid"]
        mib, cores = limits["nvidia.com/gpumem"], limits.get("nvidia.com/gpucores", "0")
        record, now = f"{uuid},NVIDIA,{mib},{cores}:;", str(int(time.time()))
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        annotate(
            path,
            {
                ALLOCATED: record,
                "hami.io/vgpu-devices-to-allocate": record,
                "hami.io/vgpu-node": self._node,
                "hami.io/vgpu-time": now,
                "hami.io/bind-time": now,
                PHASE: "allocating",
            },
        )
        target = {"apiVersion": "v1", "kind": "Node", "name": self._node}
        binding = {"apiVersion": "v1", "kind": "Binding", "target": target}
        ask("POST", f"{path}/binding", {**binding, "metadata": {"name": metadata["name"]}})


def main() -> None:
    """Play one of the two programs until told to end."""
    signal.signal(signal.SIGTERM, lambda *_: _ended.set())
    if sys.argv[1] == "plugin":
        plugin()
    else:
        repeat(Scheduler(os.environ["NODE_NAME"]).look, _LOOK_S)


if __name__ == "__main__":
    main()
