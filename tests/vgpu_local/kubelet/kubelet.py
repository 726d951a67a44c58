"""The stand-in kubelet itself, with its sockets, its pods and its node."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path

import grpc

from vgpu_api.names import AGENT_NAMESPACE
from vgpu_api.resources import PODS
from vgpu_client.api import Api
from vgpu_client.errors import ClientError
from vgpu_client.reflector import ObjectIdentity, Reflector, Scope
from vgpu_client.transport import Object
from vgpu_local.kubelet.admission import Admission
from vgpu_local.kubelet.folders import NodeFolders
from vgpu_local.kubelet.heartbeat import keep_lease
from vgpu_local.kubelet.holdings import Holdings
from vgpu_local.kubelet.node import NodeShape, register_node, write_node_status
from vgpu_local.kubelet.pace import Pace
from vgpu_local.kubelet.plugins import PluginRegistry
from vgpu_local.kubelet.podresources import PodResources
from vgpu_local.kubelet.podspec import Pod
from vgpu_local.kubelet.process import ExecResult
from vgpu_local.kubelet.resource_claims import ResourceClaims
from vgpu_local.kubelet.runtime import Runtime
from vgpu_local.kubelet.worker import PodWorker
from vgpu_local.podwriter import PodWriter
from vgpu_nodeagent.kubelet.api import deviceplugin_pb2_grpc as dp_grpc
from vgpu_nodeagent.kubelet.api import podresources_pb2_grpc as pr_grpc

HEARTBEAT = 300.0

log = logging.getLogger(__name__)


class Kubelet:
    """The kubelet of one node. It belongs to the loop on which `start` was awaited."""

    def __init__(
        self,
        api: Api,
        shape: NodeShape,
        folders: NodeFolders,
        *,
        environment: Mapping[str, str],
        pace: Pace = Pace(),  # noqa: B008 - immutable
        order: random.Random | None = None,
        prepares_claims: bool = False,
    ) -> None:
        """Create a kubelet; nothing happens before `start`.

        Args:
            api: The cluster's client.
            shape: The node to register.
            folders: The node's folders.
            environment: The variables that every container has, as if from its image.
            pace: The waiting times.
            order: Chooses among free devices; None for a random seed.
            prepares_claims: Have DRA drivers prepare ResourceClaims; otherwise pods that name one
                start without its devices.
        """
        self.shape = shape
        self.folders = folders
        self._api = api
        self._pace = pace
        self._workers: dict[str, PodWorker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[grpc.aio.Server] = []
        self._devices_changed = asyncio.Event()
        self._holdings = Holdings()
        self._registry = PluginRegistry(folders.device_plugins, self._devices_changed.set)
        self._admission = Admission(
            self._registry,
            self._holdings,
            checkpoint=folders.checkpoint,
            active=lambda: {pod.uid for pod in self._active_pods()},
            order=order or random.Random(),
        )
        self._prepares_claims = prepares_claims
        self._claims = ResourceClaims(api, folders.plugins_registry, folders.claims_record)
        self._runtime = Runtime(
            self._registry,
            self._holdings,
            self._claims,
            cdi_folders=[folders.cdi],
            image={"PATH": os.environ.get("PATH", os.defpath), **environment},
            folder=folders.root,
        )
        self._writer = PodWriter(api, f"kubelet/{shape.name}")
        self._pods = Reflector(
            api,
            PODS,
            _PodSink(self),
            decode=lambda raw: raw,
            scope=Scope(field_selector=f"spec.nodeName={shape.name}"),
        )

    async def start(self) -> None:
        """Open the sockets, register the node and start its pods."""
        await self._serve()
        await register_node(self._api, self.shape)
        self._devices_changed.set()
        self._spawn(self._keep_node_status())
        if self._prepares_claims:
            self._spawn(self._claims.find_drivers())
        self._spawn(keep_lease(self._api, self.shape.name))
        self._spawn(self._pods.run())
        await self._pods.synced.wait()

    async def stop(self) -> None:
        """Kill every container and close everything; the Node and Pod objects stay."""
        try:
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.gather(*(worker.kill() for worker in tuple(self._workers.values())))
            await self._close_sockets()
            await self._registry.forget()
        finally:
            self.folders.remove_link()

    async def restart(self) -> None:
        """Restart the kubelet's process: it loses sockets and plugin options, but no containers.

        Without its checkpoint it starts with no allocated devices. Running containers continue, and
        get no new devices (`devicesToAllocate`, the second flow).
        """
        await self._close_sockets()
        self._claims.restarted()
        if not self.folders.checkpoint.exists():
            self._holdings.clear()
        await self._registry.forget()
        for path in self.folders.device_plugins.iterdir():
            if path.name != self.folders.checkpoint.name:
                path.unlink()
        await self._serve()

    async def lose_plugin(self, resource: str) -> None:
        """End ListAndWatch and keep the kubelet's socket, as after a message it cannot read."""
        await self._registry.disconnect(resource)

    async def restart_runtime(self, away_s: float) -> None:
        """Restart the container runtime: no container starts until it is back.

        Running containers continue. As in a real kubelet, PreStart is called before each start that
        fails.
        """
        self._runtime.is_up = False
        await asyncio.sleep(away_s)
        self._runtime.is_up = True

    async def reboot(self, away_s: float) -> None:
        """Power the node off and on: containers and the files in /run are gone, the disk stays.

        Pods continue by their restart policies. The caller must kill all other processes.
        """
        self._runtime.is_up = False
        await self._close_sockets()
        await asyncio.sleep(away_s)
        for worker in tuple(self._workers.values()):  # after every pending start
            worker.crash()
        for spec in self.folders.cdi.iterdir():
            spec.unlink()
        await self.restart()
        self._runtime.is_up = True

    async def exec(
        self,
        namespace: str,
        pod: str,
        container: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        limit: float = 30.0,
    ) -> ExecResult:
        """Run a command in a running container, as `kubectl exec` does.

        Raises:
            LookupError: there is no such pod here, or the container is not running.
            TimeoutError: it took more than `limit` seconds.
        """
        process = self._worker(namespace, pod).process(container)
        return await process.exec(command, environment or {}, limit)

    async def kill_container(self, namespace: str, pod: str, container: str) -> None:
        """Kill a running container, as the kernel does to one that ran out of memory.

        Raises:
            LookupError: there is no such pod here, or the container is not running.
        """
        process = self._worker(namespace, pod).process(container)
        process.kill()
        await process.wait()

    async def remake_sandbox(self, namespace: str, pod: str) -> None:
        """Restart all containers of a pod, init containers first, as after the loss of its sandbox.

        Raises:
            LookupError: there is no such pod here.
        """
        await self._worker(namespace, pod).remake_sandbox()

    def environment(self, namespace: str, pod: str, container: str) -> Mapping[str, str]:
        """Return the environment that a running container was started with.

        Raises:
            LookupError: there is no such pod here, or the container is not running.
        """
        return self._worker(namespace, pod).process(container).environment

    def logs(self, namespace: str, pod: str, container: str) -> str:
        """Return the output of all runs of a container, also after its end.

        Raises:
            LookupError: this node never had such a pod.
        """
        found = sorted((self.folders.root / "logs").glob(f"{namespace}_{pod}_*"), key=_age)
        if not found:
            raise LookupError(f"no pod {namespace}/{pod} was on {self.shape.name}")
        path = found[-1] / f"{container}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # The pods

    def take(self, raw: Object) -> None:
        """Start a pod, or apply a newer version of it; agents run as processes of their own."""
        if raw["metadata"]["namespace"] == AGENT_NAMESPACE:
            return
        uid = raw["metadata"]["uid"]
        worker = self._workers.get(uid)
        if worker is None:
            worker = self._workers[uid] = PodWorker(
                raw,
                admission=self._admission,
                runtime=self._runtime,
                claims=self._claims if self._prepares_claims else None,
                writer=self._writer,
                pace=self._pace,
                folder=self.folders.of_pod(uid),
            )
            if (raw.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                worker.active = False
            elif not worker.pod.deletion_timestamp:
                self._spawn(worker.run())
        else:
            worker.update(raw)
        if worker.pod.deletion_timestamp and not worker.terminating:
            worker.terminating = True
            self._spawn(worker.terminate())

    def drop(self, uid: str) -> None:
        """End a pod whose object is gone, perhaps because it was deleted by force."""
        worker = self._workers.get(uid)
        if worker is not None:
            self._spawn(self._forget(worker))

    async def _forget(self, worker: PodWorker) -> None:
        await worker.kill(self._pace.gone_grace)
        await self._claims.unprepare(worker.pod.uid)
        self._workers.pop(worker.pod.uid, None)

    def _active_pods(self) -> Iterator[Pod]:
        return (worker.pod for worker in self._workers.values() if worker.active)

    def _worker(self, namespace: str, name: str) -> PodWorker:
        for worker in reversed(self._workers.values()):  # the newest of that name
            if (worker.pod.namespace, worker.pod.name) == (namespace, name):
                return worker
        raise LookupError(f"no pod {namespace}/{name} on {self.shape.name}")

    # The sockets and the node

    async def _serve(self) -> None:
        registration, resources = grpc.aio.server(), grpc.aio.server()
        dp_grpc.add_RegistrationServicer_to_server(self._registry, registration)
        pr_grpc.add_PodResourcesListerServicer_to_server(
            PodResources(self._holdings, self._active_pods, self._registry.resources), resources
        )
        for server, folder in (
            (registration, self.folders.device_plugins),
            (resources, self.folders.pod_resources),
        ):
            socket = folder / "kubelet.sock"
            socket.unlink(missing_ok=True)
            server.add_insecure_port(f"unix://{socket}")
            await server.start()
            self._servers.append(server)

    async def _close_sockets(self) -> None:
        servers, self._servers = self._servers, []
        await asyncio.gather(*(server.stop(None) for server in servers))

    async def _keep_node_status(self) -> None:
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT):
                    await self._devices_changed.wait()
            except TimeoutError:
                pass  # time for a heartbeat
            self._devices_changed.clear()
            self._admission.save()
            for worker in self._workers.values():
                worker.devices_changed()
            devices = {
                name: (len(resource.devices), len(resource.healthy))
                for name, resource in self._registry.resources.items()
            }
            try:
                await write_node_status(self._api, self.shape, devices)
            except ClientError as error:
                log.info("node %s: %s", self.shape.name, error)
                self._devices_changed.set()
                await asyncio.sleep(self._pace.write_retry)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("kubelet of %s: %s", self.shape.name, error, exc_info=error)


class _PodSink:
    """A reflector's handler that forwards to the kubelet."""

    def __init__(self, kubelet: Kubelet) -> None:
        self._kubelet = kubelet

    def added(self, obj: Object) -> None:
        self._kubelet.take(obj)

    def modified(self, obj: Object) -> None:
        self._kubelet.take(obj)

    def deleted(self, identity: ObjectIdentity) -> None:
        self._kubelet.drop(identity.uid)

    def unreadable(self, identity: ObjectIdentity, raw: Object, error: Exception) -> None:
        raise AssertionError("objects are taken as they are") from error


def _age(path: Path) -> float:
    return path.stat().st_mtime
