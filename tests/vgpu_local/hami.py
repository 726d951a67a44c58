"""A simulated HAMi on one node next to ours: its device plugin, DaemonSet and scheduler.

What it writes has the form of HAMi v2.10: the register and the handshake of a node, the records of
a pod, and the variables of a container. Its DaemonSet and ours follow the node's labels, as the
controllers of a cluster would make them.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from vgpu_api import names
from vgpu_api.resources import (
    CONFIG_MAPS,
    GPU_DEVICES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    Resource,
)
from vgpu_client.errors import AlreadyExists, NotFound
from vgpu_client.transport import Object
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import GpuNode
from vgpu_local.steps import a_container, a_pod, running, until
from vgpu_nodeagent.kubelet.api import deviceplugin_pb2 as dp
from vgpu_nodeagent.kubelet.api import deviceplugin_pb2_grpc as dp_grpc
from vgpu_operator.cli.uninstall import DAEMON_SETS, DEPLOYMENTS

NAMESPACE, TENANTS = "hami-system", "team-hami"
RESOURCE, SPLIT = "nvidia.com/gpu", 10
_SOCKET = "nvidia-gpu.sock"
_LOOK_S = 0.1
_COMPONENT = "app.kubernetes.io/component"
_SCHEDULER, _PLUGIN = "hami-scheduler", "hami-device-plugin"
_DEVICE_CONFIG_MAP, _DEVICE_CONFIG_KEY = "hami-scheduler-device", "device-config.yaml"
_PART_OF = "app.kubernetes.io/part-of"
_OURS = {_PART_OF: "vgpu", _COMPONENT: "nodeagent"}
_UNTIL_TOLD = "f=%s; until [ -e $f ]; do sleep 0.1; done; rm $f"
DEVICE_CONFIG = """\
nvidia:
  resourceCountName: nvidia.com/gpu
  resourceMemoryName: nvidia.com/gpumem
  resourceCoreName: nvidia.com/gpucores
  overwriteEnv: false
  deviceSplitCount: 10
  deviceMemoryScaling: 1
  deviceCoreScaling: 1
"""


class _Plugin(dp_grpc.DevicePluginServicer):
    """HAMi's device plugin: it offers some ids for each GPU, and needs no PreStartContainer."""

    def __init__(self, node: GpuNode) -> None:
        self._ids = [f"{gpu.uuid}-{number}" for gpu in node.devices for number in range(SPLIT)]
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """End the streams."""
        self._stopped.set()

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return the options."""
        return dp.DevicePluginOptions()

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Send the ids until the plugin ends."""
        devices = [dp.Device(ID=each, health="Healthy") for each in self._ids]
        yield dp.ListAndWatchResponse(devices=devices)
        await self._stopped.wait()

    async def GetPreferredAllocation(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Prefer nothing."""
        return dp.PreferredAllocationResponse()

    async def PreStartContainer(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Do nothing: the options do not ask for this call."""
        return dp.PreStartContainerResponse()

    async def Allocate(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answer with environment variables, as HAMi does."""
        answer = dp.AllocateResponse()
        for container in request.container_requests:
            (first, *_) = container.devices_ids
            uuid = first.rpartition("-")[0]
            response = dp.ContainerAllocateResponse(
                envs={"NVIDIA_VISIBLE_DEVICES": uuid, "CUDA_DEVICE_MEMORY_LIMIT_0": "4096m"}
            )
            answer.container_responses.append(response)
        return answer


@dataclass(slots=True)
class _Serving:
    server: grpc.aio.Server
    plugin: _Plugin


class BesideHami:
    """HAMi on one node of a cluster, and the controllers of both DaemonSets.

    Args:
        cluster: The cluster, whose agent on the node is stopped first.
        node: The node.
        config: Our configuration, as it is installed.
    """

    def __init__(self, cluster: LocalCluster, node: GpuNode, config: Path) -> None:
        self._cluster = cluster
        self._node = node
        self._config = config
        self._serving: _Serving | None = None
        self._is_known = False
        self._scaling = 1
        self._ours = True
        self._stopped = False
        self.extender_arguments = [
            *("scheduler", "--http_bind=0.0.0.0:443", "--scheduler-name=hami-scheduler"),
            *("--node-scheduler-policy=binpack", "--gpu-scheduler-policy=spread"),
            *("--force-overwrite-default-scheduler=true", "--node-label-selector=gpu=on", "-v=4"),
        ]

    def install(self) -> None:
        """Give the node to HAMi, with the objects of HAMi's chart and ours for side by side."""
        api, run = self._cluster.api, self._cluster.run
        labels = {"gpu": "on", names.LABEL_NODE_AGENT: None}
        run(api.merge_patch(NODES, self._node.name, {"metadata": {"labels": labels}}))
        for name in (NAMESPACE, TENANTS, "vgpu-node", "vgpu-system"):
            metadata: dict[str, Any] = {"name": name}
            if name == TENANTS:
                metadata["labels"] = {names.HAMI_WEBHOOK_LABEL: "ignore"}
            with suppress(AlreadyExists):
                run(api.create(NAMESPACES, {"metadata": metadata}))
        for resource, obj in self._objects():
            run(api.create(resource, obj))
        self._select_namespaces()
        until(self._cluster, self._is_served)

    def stop(self) -> None:
        """End HAMi's device plugin."""
        self._stopped = True
        if self._serving is not None:
            self._cluster.run(self._end())

    def _is_served(self) -> bool:
        self.reconcile()
        node = self._cluster.run(self._cluster.api.get(NODES, self._node.name))
        return str(node["status"]["allocatable"].get(RESOURCE)) == str(
            SPLIT * len(self._node.devices)
        )

    def _objects(self) -> Sequence[tuple[Resource, Object]]:
        """Return the objects that the migration reads: of HAMi's chart, and our DaemonSet."""
        expression = {"key": names.LABEL_NODE_AGENT, "operator": "In", "values": [names.ON]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        extender = {"name": "vgpu-scheduler-extender", "command": self.extender_arguments}
        hook: Object = {
            "name": "vgpu.hami.io",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
        }
        hook |= {"clientConfig": {"url": "https://127.0.0.1:1/webhook"}, "rules": []}
        return [
            (
                DAEMON_SETS,
                _workload(_PLUGIN, NAMESPACE, {_COMPONENT: _PLUGIN}, nodeSelector={"gpu": "on"}),
            ),
            (
                DEPLOYMENTS,
                _workload(_SCHEDULER, NAMESPACE, {_COMPONENT: _SCHEDULER}, containers=[extender]),
            ),
            (DAEMON_SETS, _workload("vgpu-nodeagent", "vgpu-node", _OURS, affinity=affinity)),
            (
                MUTATING_WEBHOOKS,
                {"metadata": {"name": "hami-webhook"}, "webhooks": [hook]},
            ),
            (
                CONFIG_MAPS,
                _config_map(
                    *(_DEVICE_CONFIG_MAP, NAMESPACE, {_COMPONENT: _SCHEDULER}),
                    *(_DEVICE_CONFIG_KEY, DEVICE_CONFIG),
                ),
            ),
            (
                CONFIG_MAPS,
                _config_map(
                    *("vgpu-config", "vgpu-system", {_PART_OF: "vgpu"}),
                    *("config.yaml", self._config.read_text()),
                ),
            ),
        ]

    def _select_namespaces(self) -> None:
        """Make our webhooks read only namespaces with our label, as the component does."""
        api, run = self._cluster.api, self._cluster.run
        expression = {"key": names.LABEL_ADMISSION, "operator": "In", "values": [names.ON]}
        for configuration in run(api.list(MUTATING_WEBHOOKS)).items:
            if configuration["metadata"]["name"] == "hami-webhook":
                continue
            hooks = configuration["webhooks"]
            for hook in hooks:
                selector = hook.setdefault("namespaceSelector", {})
                selector.setdefault("matchExpressions", []).append(expression)
            run(
                api.merge_patch(
                    MUTATING_WEBHOOKS, configuration["metadata"]["name"], {"webhooks": hooks}
                )
            )
        labels = {names.LABEL_ADMISSION: names.ON}
        run(api.merge_patch(NAMESPACES, "default", {"metadata": {"labels": labels}}))

    # What HAMi does.

    def run_pod(self, name: str, mib: int, *, cores: int = 0, record: str = "") -> Object:
        """Run a pod as HAMi runs it: with its records, and devices from its plugin.

        Args:
            name: Its name.
            mib: The memory that it asks for.
            cores: The compute that it asks for.
            record: Another record than that of the node's first GPU.
        """
        uuid = self._node.devices[0].uuid
        limits = {RESOURCE: 1, "nvidia.com/gpumem": mib}
        pod = a_pod(
            name,
            a_container(limits=limits, command=["sh", "-c", _UNTIL_TOLD % self._told(name)]),
            schedulerName=_SCHEDULER,
        )
        pod["metadata"] |= {
            "namespace": TENANTS,
            "annotations": {
                names.HAMI_DEVICES_ALLOCATED: record or f"{uuid},NVIDIA,{mib},{cores}:;",
                names.HAMI_NODE: self._node.name,
                names.HAMI_TIME: str(int(time.time())),
                names.HAMI_BIND_TIME: str(int(time.time())),
                names.HAMI_BIND_PHASE: "success",
                names.HAMI_DEVICES_TO_ALLOCATE: ";",
            },
        }
        pod["spec"]["nodeName"] = self._node.name
        self._cluster.run(self._cluster.api.create(PODS, pod))
        return running(self._cluster, name, namespace=TENANTS)

    def configure(self, device_config: str) -> None:
        """Replace the configuration of HAMi's devices."""
        if scaling := re.search("deviceMemoryScaling: ([0-9]+)", device_config):
            self._scaling = int(scaling[1])
            self._annotate({names.HAMI_NODE_REGISTER: json.dumps(self._register())})
        changes = {"data": {_DEVICE_CONFIG_KEY: device_config}}
        self._cluster.run(
            self._cluster.api.merge_patch(
                CONFIG_MAPS, _DEVICE_CONFIG_MAP, changes, namespace=NAMESPACE
            )
        )

    def restart(self, name: str) -> None:
        """End the container of a pod of HAMi's once, and wait until it runs again."""
        self._told(name).touch()

        def has_started_again() -> bool:
            found = self._cluster.objects("pods", TENANTS)
            (pod,) = (each for each in found if each["metadata"]["name"] == name)
            (status,) = pod["status"]["containerStatuses"]
            return int(status["restartCount"]) > 0 and "running" in status["state"]

        until(self._cluster, has_started_again)

    def _told(self, name: str) -> Path:
        """Return the file whose appearance ends a pod's container."""
        return self._cluster.folder / f"{name}-ends"

    def run_forever(self) -> None:
        """Do what the DaemonSets' controllers and HAMi's scheduler do, until stopped."""
        while not self._stopped:
            self.reconcile()
            time.sleep(_LOOK_S)

    def reconcile(self) -> None:
        """Let each of the two DaemonSets run where the node's labels select it."""
        node = self._cluster.run(self._cluster.api.get(NODES, self._node.name))
        labels = node["metadata"].get("labels") or {}
        self._follow_ours(labels.get(names.LABEL_NODE_AGENT) == names.ON)
        self._follow_hamis(labels.get("gpu") == "on")
        self._schedule(node)

    def _follow_ours(self, wanted: bool) -> None:
        if wanted == self._ours:
            return
        agent = self._cluster.agents[self._node.name]
        if wanted:
            agent.start()
            self._pod("vgpu-nodeagent-x", "vgpu-node", _OURS)
        else:
            agent.stop()
            self._no_pod("vgpu-nodeagent-x", "vgpu-node")
            # as if it had never been installed, at first
            if not self._is_known and self._serving is None:
                self._forget_our_devices()
        self._ours = wanted

    def _forget_our_devices(self) -> None:
        for device in self._cluster.objects("gpudevices.vgpu.dev"):
            if device["spec"]["nodeName"] == self._node.name:
                with suppress(NotFound):
                    self._cluster.run(
                        self._cluster.api.delete(GPU_DEVICES, device["metadata"]["name"])
                    )

    def _follow_hamis(self, wanted: bool) -> None:
        if wanted and self._serving is None:
            self._cluster.run(self._begin())
            self._pod("hami-device-plugin-x", NAMESPACE, {_COMPONENT: _PLUGIN})
            self._annotate({names.HAMI_NODE_REGISTER: json.dumps(self._register())})
        elif not wanted and self._serving is not None:
            self._cluster.run(self._end())
            self._no_pod("hami-device-plugin-x", NAMESPACE)

    def _register(self) -> Sequence[Mapping[str, Any]]:
        return [
            {
                "id": gpu.uuid,
                "index": index,
                "count": SPLIT,
                "devmem": gpu.model.memory_mib * self._scaling,
                "devcore": 100,
                "type": f"NVIDIA-{gpu.model.name}",
                "mode": "hami-core",
                "health": True,
            }
            for index, gpu in enumerate(self._node.devices)
        ]

    def _schedule(self, node: Object) -> None:
        """Note the node's GPUs, and forget them when the kubelet offers none any more."""
        offered = str(node["status"].get("allocatable", {}).get(RESOURCE, "0"))
        registered = names.HAMI_NODE_REGISTER in (node["metadata"].get("annotations") or {})
        if self._is_known and offered == "0":
            self._annotate({names.HAMI_NODE_HANDSHAKE: None})
            self._is_known = False
        elif not self._is_known and offered != "0" and registered:
            self._annotate({names.HAMI_NODE_HANDSHAKE: "Requesting_2026-11-27 10:00:00"})
            self._is_known = True

    @property
    def knows_the_node(self) -> bool:
        """True while HAMi's scheduler would place pods on the node."""
        return self._is_known

    # Parts.

    async def _begin(self) -> None:
        folders = self._cluster.kubelets[self._node.name].folders
        plugin, server = _Plugin(self._node), grpc.aio.server()
        dp_grpc.add_DevicePluginServicer_to_server(plugin, server)
        socket = folders.device_plugins / _SOCKET
        socket.unlink(missing_ok=True)
        server.add_insecure_port(f"unix://{socket}")
        await server.start()
        await self._register_with(folders.device_plugins / "kubelet.sock")
        self._serving = _Serving(server, plugin)

    async def _register_with(self, kubelet: Path) -> None:
        options = (("grpc.default_authority", "localhost"),)
        async with grpc.aio.insecure_channel(f"unix://{kubelet}", options=options) as channel:
            request = dp.RegisterRequest(
                version="v1beta1", endpoint=_SOCKET, resource_name=RESOURCE
            )
            await dp_grpc.RegistrationStub(channel).Register(request)

    async def _end(self) -> None:
        assert self._serving is not None
        self._serving.plugin.stop()
        await self._serving.server.stop(0.1)
        self._serving = None

    def _annotate(self, annotations: Mapping[str, str | None]) -> None:
        changes = {"metadata": {"annotations": annotations}}
        self._cluster.run(self._cluster.api.merge_patch(NODES, self._node.name, changes))

    def _pod(self, name: str, namespace: str, labels: Mapping[str, str]) -> None:
        pod = a_pod(name, a_container(), nodeName=self._node.name)
        pod["metadata"] |= {"namespace": namespace, "labels": dict(labels)}
        with suppress(AlreadyExists):
            self._cluster.run(self._cluster.api.create(PODS, pod))

    def _no_pod(self, name: str, namespace: str) -> None:
        with suppress(NotFound):
            self._cluster.run(self._cluster.api.delete(PODS, name, namespace=namespace, grace_s=0))


def _workload(name: str, namespace: str, labels: Mapping[str, str], **spec: Any) -> Object:
    """Return a workload whose pods `BesideHami` makes itself.

    On a real control plane its controller makes pods, too. Those have other labels, so that nobody
    waits until they end: the simulated kubelet leaves the pods of the agents' namespace alone, so
    they would be terminating for ever.
    """
    selected = {"played-by": name}
    containers = [{"name": "main", "image": "none"}]
    template = {"metadata": {"labels": selected}, "spec": {"containers": containers, **spec}}
    for container in template["spec"]["containers"]:
        container.setdefault("image", "none")
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        "spec": {"selector": {"matchLabels": selected}, "template": template},
    }


def _config_map(
    name: str, namespace: str, labels: Mapping[str, str], key: str, text: str
) -> Object:
    metadata = {"name": name, "namespace": namespace, "labels": dict(labels)}
    return {"metadata": metadata, "data": {key: text}}
