"""Starts one container: the kubelet's last checks, then the work of a container runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from vgpu_local.kubelet.cdi import BindMount, CdiError, Edits, resolve
from vgpu_local.kubelet.environment import ConfigError, command_line, container_environment
from vgpu_local.kubelet.holdings import Holdings
from vgpu_local.kubelet.plugins import PluginError, PluginRegistry
from vgpu_local.kubelet.podspec import Container, Pod
from vgpu_local.kubelet.process import ContainerProcess
from vgpu_local.kubelet.resource_claims import ResourceClaims
from vgpu_nodeagent.kubelet.api import deviceplugin_pb2 as dp


class StartError(Exception):
    """A container could not be started, and will be tried again.

    Attributes:
        reason: The reason in the container's waiting state.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Runtime:
    """The container runtime of a node, which runs containers as processes."""

    def __init__(
        self,
        registry: PluginRegistry,
        holdings: Holdings,
        claims: ResourceClaims,
        *,
        cdi_folders: Sequence[Path],
        image: Mapping[str, str],
        folder: Path,
    ) -> None:
        """Create the runtime of a node.

        Args:
            registry: The node's plugins.
            holdings: The devices of each container.
            claims: The prepared ResourceClaims.
            cdi_folders: The folders with CDI spec files.
            image: The environment of every container, as if from its image.
            folder: The working directory of all containers, with their logs below it.
        """
        self._registry = registry
        self._holdings = holdings
        self._claims = claims
        self._cdi_folders = cdi_folders
        self._image = image
        self._folder = folder
        self.is_up = True
        """True while it answers; containers run on when it does not."""

    async def start(self, pod: Pod, container: Container) -> ContainerProcess:
        """Start a container: PreStartContainer, then CDI names, then the process.

        Raises:
            StartError: It does not run, and nothing is left behind.
        """
        try:
            await self._pre_start(pod, container)
        except PluginError as error:
            raise StartError("CreateContainerConfigError", str(error)) from error
        if not self.is_up:
            raise StartError("CreateContainerError", "containerd: connection refused")
        try:
            environment = self._environment(pod, container)
            command = command_line(container, environment)
        except ConfigError as error:
            raise StartError("CreateContainerConfigError", str(error)) from error
        except (CdiError, OSError) as error:
            raise StartError("CreateContainerError", str(error)) from error
        try:
            return await ContainerProcess.start(
                command, environment, folder=self._folder, log=self.log_file(pod, container.name)
            )
        except OSError as error:
            raise StartError(
                "RunContainerError",
                f'failed to create containerd task: exec: "{command[0]}": {error.strerror}',
            ) from error

    def log_file(self, pod: Pod, container: str) -> Path:
        """Return the file with the output of all runs of a container."""
        return self._folder / "logs" / f"{pod.namespace}_{pod.name}_{pod.uid}" / f"{container}.log"

    async def _pre_start(self, pod: Pod, container: Container) -> None:
        for name, needed in container.devices:
            resource = self._registry.resources.get(name)
            if resource is None or needed <= 0:
                continue
            holding = self._holdings.find(pod.uid, container.name, name)
            if holding is None:
                raise PluginError(
                    f"no devices found allocated in local cache for pod {pod.uid}, "
                    f"container {container.name}, resource {name}"
                )
            await self._registry.pre_start(resource, holding.device_ids)

    def _environment(self, pod: Pod, container: Container) -> dict[str, str]:
        allocated, names = Edits(), list[str]()
        for holding in self._holdings.of_container(pod.uid, container.name):
            answer = dp.ContainerAllocateResponse.FromString(holding.response)
            allocated += _edits(answer)
            names.extend(device.name for device in answer.cdi_devices)
        names.extend(self._claims.devices_of(pod, container.name))
        injected = resolve(names, self._cdi_folders)
        for mount in allocated.mounts + injected.mounts:
            if not os.path.exists(mount.host_path):
                raise CdiError(
                    f'error mounting "{mount.host_path}" to rootfs at "{mount.container_path}": '
                    "no such file or directory"
                )
        return container_environment(
            pod,
            container,
            image={"HOSTNAME": pod.name, **self._image},
            allocated=allocated,
            injected=injected,
        )


def _edits(answer: dp.ContainerAllocateResponse) -> Edits:
    return Edits(
        env=tuple(sorted(answer.envs.items())),
        mounts=tuple(BindMount(m.container_path, m.host_path) for m in answer.mounts),
        device_nodes=tuple(device.container_path for device in answer.devices),
    )
