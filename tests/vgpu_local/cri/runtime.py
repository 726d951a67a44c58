"""Plays a container runtime for a real kubelet; sandboxes and containers are only records.

A container runs until it is stopped or `finish` ends it. As in a real runtime, it is created only
if each of its CDI devices has a spec.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from vgpu_local.cri import cri_pb2 as cri
from vgpu_local.cri import cri_pb2_grpc as cri_grpc
from vgpu_local.kubelet.cdi import CdiError, Edits, resolve

Context = grpc.aio.ServicerContext[Any, Any]
_POD, _NAMESPACE = "io.kubernetes.pod.name", "io.kubernetes.pod.namespace"
_NAME = "io.kubernetes.container.name"
_KILLED = 137


@dataclass(slots=True)
class PlayedSandbox:
    """A pod sandbox."""

    id: str
    config: cri.PodSandboxConfig
    created_at: int
    is_ready: bool = True


@dataclass(slots=True)
class PlayedContainer:
    """A container, and the edits of its CDI devices."""

    id: str
    sandbox: str
    config: cri.ContainerConfig
    edits: Edits
    created_at: int
    state: cri.ContainerState.ValueType
    started_at: int = 0
    finished_at: int = 0
    exit_code: int = 0

    @property
    def place(self) -> tuple[str, str, str]:
        """Return namespace, pod and container."""
        labels = self.config.labels
        return labels[_NAMESPACE], labels[_POD], labels[_NAME]


@dataclass(slots=True)
class PlayedRuntime(cri_grpc.RuntimeServiceServicer, cri_grpc.ImageServiceServicer):
    """The runtime of one node.

    Attributes:
        cdi_folder: The folder of CDI specs.
        stop_s: The seconds that a container takes to end.
        failures: The reasons why containers could not be created.
    """

    cdi_folder: Path
    stop_s: float = 0.0
    failures: list[str] = field(default_factory=list)
    _sandboxes: dict[str, PlayedSandbox] = field(default_factory=dict)
    _containers: dict[str, PlayedContainer] = field(default_factory=dict)
    _ids: Any = field(default_factory=lambda: itertools.count(1))
    _server: grpc.aio.Server | None = None

    async def start(self, socket: Path) -> None:
        """Serve on a socket."""
        self._server = server = grpc.aio.server()
        cri_grpc.add_RuntimeServiceServicer_to_server(self, server)
        cri_grpc.add_ImageServiceServicer_to_server(self, server)
        server.add_insecure_port(f"unix://{socket}")
        await server.start()

    async def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            await self._server.stop(0.1)

    def running(self, namespace: str, pod: str) -> Sequence[PlayedContainer]:
        """Return the running containers of a pod."""
        return [
            each
            for each in self._containers.values()
            if each.place[:2] == (namespace, pod) and each.state == cri.CONTAINER_RUNNING
        ]

    def reboot(self) -> None:
        """Lose everything, as a machine does when it is switched off."""
        self._sandboxes.clear()
        self._containers.clear()

    def lose_sandbox(self, namespace: str, pod: str) -> None:
        """End a pod's sandbox and its containers; the kubelet creates another one."""
        for sandbox in self._sandboxes.values():
            metadata = sandbox.config.metadata
            if (metadata.namespace, metadata.name) == (namespace, pod):
                sandbox.is_ready = False
                for each in self._of(sandbox.id):
                    self._end(each, _KILLED)

    def _of(self, sandbox: str) -> list[PlayedContainer]:
        return [each for each in self._containers.values() if each.sandbox == sandbox]

    def _end(self, container: PlayedContainer, code: int) -> None:
        if container.state == cri.CONTAINER_EXITED:
            return
        container.state = cri.CONTAINER_EXITED
        container.finished_at, container.exit_code = time.time_ns(), code

    def _next(self, word: str) -> str:
        return f"{word}{next(self._ids):060d}"

    async def Version(  # noqa: N802
        self, request: cri.VersionRequest, context: Context
    ) -> cri.VersionResponse:
        return cri.VersionResponse(
            version="0.1.0",
            runtime_name="played",
            runtime_version="1.0.0",
            runtime_api_version="v1",
        )

    async def Status(  # noqa: N802
        self, request: cri.StatusRequest, context: Context
    ) -> cri.StatusResponse:
        ready = [
            cri.RuntimeCondition(type=each, status=True)
            for each in ("RuntimeReady", "NetworkReady")
        ]
        return cri.StatusResponse(status=cri.RuntimeStatus(conditions=ready))

    async def RuntimeConfig(  # noqa: N802
        self, request: cri.Nothing, context: Context
    ) -> cri.RuntimeConfigResponse:
        linux = cri.LinuxRuntimeConfiguration(cgroup_driver=cri.CGROUPFS)
        return cri.RuntimeConfigResponse(linux=linux)

    async def UpdateRuntimeConfig(  # noqa: N802
        self, request: cri.Nothing, context: Context
    ) -> cri.Nothing:
        return cri.Nothing()

    async def RunPodSandbox(  # noqa: N802
        self, request: cri.RunPodSandboxRequest, context: Context
    ) -> cri.RunPodSandboxResponse:
        sandbox = PlayedSandbox(self._next("5a"), request.config, time.time_ns())
        self._sandboxes[sandbox.id] = sandbox
        return cri.RunPodSandboxResponse(pod_sandbox_id=sandbox.id)

    async def StopPodSandbox(  # noqa: N802
        self, request: cri.SandboxRequest, context: Context
    ) -> cri.Nothing:
        if (sandbox := self._sandboxes.get(request.pod_sandbox_id)) is not None:
            for each in self._of(sandbox.id):
                self._end(each, _KILLED)
            sandbox.is_ready = False
        return cri.Nothing()

    async def RemovePodSandbox(  # noqa: N802
        self, request: cri.SandboxRequest, context: Context
    ) -> cri.Nothing:
        for each in self._of(request.pod_sandbox_id):
            del self._containers[each.id]
        self._sandboxes.pop(request.pod_sandbox_id, None)
        return cri.Nothing()

    async def PodSandboxStatus(  # noqa: N802
        self, request: cri.SandboxRequest, context: Context
    ) -> cri.PodSandboxStatusResponse:
        sandbox = self._sandboxes.get(request.pod_sandbox_id)
        if sandbox is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such sandbox")
        config = sandbox.config
        return cri.PodSandboxStatusResponse(
            status=cri.PodSandboxStatus(
                id=sandbox.id,
                metadata=config.metadata,
                state=_state(sandbox),
                created_at=sandbox.created_at,
                network=cri.PodSandboxNetworkStatus(ip="10.1.1.1"),
                labels=config.labels,
                annotations=config.annotations,
            )
        )

    async def ListPodSandbox(  # noqa: N802
        self, request: cri.ListPodSandboxRequest, context: Context
    ) -> cri.ListPodSandboxResponse:
        wanted = request.filter
        return cri.ListPodSandboxResponse(
            items=[
                cri.PodSandbox(
                    id=each.id,
                    metadata=each.config.metadata,
                    state=_state(each),
                    created_at=each.created_at,
                    labels=each.config.labels,
                    annotations=each.config.annotations,
                )
                for each in self._sandboxes.values()
                if wanted.id in ("", each.id)
                and (not wanted.HasField("state") or wanted.state.state == _state(each))
                and _has(each.config.labels, wanted.label_selector)
            ]
        )

    async def CreateContainer(  # noqa: N802
        self, request: cri.CreateContainerRequest, context: Context
    ) -> cri.CreateContainerResponse:
        names = [device.name for device in request.config.CDI_devices]
        try:
            edits = resolve(names, [self.cdi_folder])
        except CdiError as error:
            self.failures.append(str(error))
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        container = PlayedContainer(
            self._next("c0"),
            request.pod_sandbox_id,
            request.config,
            edits,
            time.time_ns(),
            cri.CONTAINER_CREATED,
        )
        self._containers[container.id] = container
        return cri.CreateContainerResponse(container_id=container.id)

    async def StartContainer(  # noqa: N802
        self, request: cri.ContainerRequest, context: Context
    ) -> cri.Nothing:
        container = self._containers[request.container_id]
        container.state, container.started_at = cri.CONTAINER_RUNNING, time.time_ns()
        return cri.Nothing()

    async def StopContainer(  # noqa: N802
        self, request: cri.ContainerRequest, context: Context
    ) -> cri.Nothing:
        await asyncio.sleep(self.stop_s)
        if (container := self._containers.get(request.container_id)) is not None:
            self._end(container, _KILLED)
        return cri.Nothing()

    async def RemoveContainer(  # noqa: N802
        self, request: cri.ContainerRequest, context: Context
    ) -> cri.Nothing:
        self._containers.pop(request.container_id, None)
        return cri.Nothing()

    async def ContainerStatus(  # noqa: N802
        self, request: cri.ContainerRequest, context: Context
    ) -> cri.ContainerStatusResponse:
        each = self._containers.get(request.container_id)
        if each is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such container")
        return cri.ContainerStatusResponse(
            status=cri.ContainerStatus(
                id=each.id,
                metadata=each.config.metadata,
                state=each.state,
                created_at=each.created_at,
                started_at=each.started_at,
                finished_at=each.finished_at,
                exit_code=each.exit_code,
                image=each.config.image,
                image_ref="played",
                image_id="played",
                reason="Error" if each.exit_code else "Completed",
                labels=each.config.labels,
                annotations=each.config.annotations,
            )
        )

    async def ListContainers(  # noqa: N802
        self, request: cri.ListContainersRequest, context: Context
    ) -> cri.ListContainersResponse:
        wanted = request.filter
        return cri.ListContainersResponse(
            containers=[
                cri.Container(
                    id=each.id,
                    pod_sandbox_id=each.sandbox,
                    metadata=each.config.metadata,
                    image=each.config.image,
                    image_ref="played",
                    image_id="played",
                    state=each.state,
                    created_at=each.created_at,
                    labels=each.config.labels,
                    annotations=each.config.annotations,
                )
                for each in self._containers.values()
                if wanted.id in ("", each.id)
                and wanted.pod_sandbox_id in ("", each.sandbox)
                and (not wanted.HasField("state") or wanted.state.state == each.state)
                and _has(each.config.labels, wanted.label_selector)
            ]
        )

    async def ListContainerStats(  # noqa: N802
        self, request: cri.Nothing, context: Context
    ) -> cri.Nothing:
        return cri.Nothing()

    async def ListPodSandboxStats(  # noqa: N802
        self, request: cri.Nothing, context: Context
    ) -> cri.Nothing:
        return cri.Nothing()

    async def ListImages(  # noqa: N802
        self, request: cri.Nothing, context: Context
    ) -> cri.Nothing:
        return cri.Nothing()

    async def ImageStatus(  # noqa: N802
        self, request: cri.ImageStatusRequest, context: Context
    ) -> cri.ImageStatusResponse:
        image = cri.Image(id="played", repo_tags=[request.image.image], size=1, spec=request.image)
        return cri.ImageStatusResponse(image=image)

    async def PullImage(  # noqa: N802
        self, request: cri.ImageStatusRequest, context: Context
    ) -> cri.PullImageResponse:
        return cri.PullImageResponse(image_ref="played")

    async def ImageFsInfo(  # noqa: N802
        self, request: cri.Nothing, context: Context
    ) -> cri.ImageFsInfoResponse:
        usage = cri.FilesystemUsage(
            timestamp=time.time_ns(),
            fs_id=cri.FilesystemIdentifier(mountpoint="/"),
            used_bytes=cri.UInt64Value(value=1),
            inodes_used=cri.UInt64Value(value=1),
        )
        return cri.ImageFsInfoResponse(image_filesystems=[usage], container_filesystems=[usage])


def _state(sandbox: PlayedSandbox) -> cri.PodSandboxState.ValueType:
    return cri.SANDBOX_READY if sandbox.is_ready else cri.SANDBOX_NOTREADY


def _has(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in wanted.items())
