"""The simulated nodes of a running cluster: a stand-in kubelet and our agent's process for each.

They are the same on any API server and with any kind of login for the agents.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vgpu_client.api import Api
from vgpu_local.agent_pod import keep_agent_pod
from vgpu_local.background import BackgroundLoop
from vgpu_local.daemon import Daemon, Spawn, execute
from vgpu_local.daemons import Daemons
from vgpu_local.kubelet.folders import make_folders
from vgpu_local.kubelet.kubelet import Kubelet
from vgpu_local.kubelet.pace import Pace
from vgpu_local.nodes import GpuNode
from vgpu_local.ports import free_ports
from vgpu_local.programs import agent_command, driver_environment
from vgpu_local.small_disk import a_small_disk


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The settings of kubelets and agents.

    Attributes:
        folder: The folder in which each node gets its own.
        config: The cluster configuration document.
        kubeconfig_of: Returns the kubeconfig of the agent on the named node.
        spawn: Starts the agents.
        tools: A folder with programs for the containers; None if the image has them.
        pace: The kubelets' waiting times.
        unused_lease_s: The time for which an agent keeps slots that its kubelet does not know.
        log_level: The agents' log level.
        state_disk_bytes: The size of a separate disk for each agent's state; 0 for no such disk.
        prepares_claims: Kubelets have agents prepare ResourceClaims.
        publishes_slices: Agents publish their devices as ResourceSlices, too.
    """

    folder: Path
    config: Path
    kubeconfig_of: Callable[[str], Path]
    spawn: Spawn = execute
    tools: Path | None = None
    pace: Pace = Pace()  # noqa: RUF009 - immutable
    unused_lease_s: float = 30.0
    log_level: str = "INFO"
    state_disk_bytes: int = 0
    prepares_claims: bool = False
    publishes_slices: bool = False


class SimulatedNodes:
    """All nodes that were started.

    Args:
        daemons: The processes to add the agents to.
        undo: The stack to add the end of the kubelets to.

    Attributes:
        agents: The agents' processes by node name.
        kubelets: The kubelets by node name; call them only on the loop.
        disks: By node name, the folder of the agent's state if that has a disk of its own.
        metrics_ports: By node name, the port of the agent's metrics.
    """

    def __init__(self, daemons: Daemons, undo: contextlib.ExitStack) -> None:
        self._daemons = daemons
        self._undo = undo
        self.agents: dict[str, Daemon] = {}
        self.kubelets: dict[str, Kubelet] = {}
        self.disks: dict[str, Path] = {}
        self.metrics_ports: dict[str, int] = {}

    def start(self, node: GpuNode, settings: NodeSettings, api: Api, loop: BackgroundLoop) -> None:
        """Start a node's kubelet and agent.

        Args:
            node: The node and its devices.
            settings: The settings of kubelet and agent.
            api: The kubelet's client.
            loop: The loop of the client, on which the kubelet runs.
        """
        folders = make_folders(settings.folder / node.name)
        self._undo.callback(folders.remove_link)
        state, size = folders.root / "agent", settings.state_disk_bytes
        if size and self._undo.enter_context(a_small_disk(state, size)):
            self.disks[node.name] = state
        driver = driver_environment(node.write_machine(folders.root))
        image = dict(driver)
        if settings.tools is not None:
            image["PATH"] = f"{settings.tools}:{os.environ['PATH']}"
        kubelet = Kubelet(
            api,
            node.shape,
            folders,
            environment=image,
            pace=settings.pace,
            prepares_claims=settings.prepares_claims,
        )
        self._undo.callback(lambda: loop.run(kubelet.stop(), limit=30))
        loop.run(kubelet.start(), limit=60)
        self.kubelets[node.name] = kubelet
        metrics_port, health_port = free_ports(2)
        self.metrics_ports[node.name] = metrics_port
        command = agent_command(
            node.name,
            folders,
            kubeconfig=settings.kubeconfig_of(node.name),
            config=settings.config,
            unused_lease_s=settings.unused_lease_s,
            log_level=settings.log_level,
            ports=(metrics_port, health_port),
            flags=[
                *(["--dra"] if settings.prepares_claims else []),
                *(["--resource-slices"] if settings.publishes_slices else []),
            ],
        )
        self.agents[node.name] = self._daemons.start(
            f"agent-{node.name}", command, driver, folder=settings.folder, spawn=settings.spawn
        )
        loop.start(keep_agent_pod(api, node.name, health_port), self._undo)
