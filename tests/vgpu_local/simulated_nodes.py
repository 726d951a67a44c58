"""The nodes of a running cluster: for each a kubelet that stands in, and our agent as a process.

The same whatever runs the API server, and however the agents log in to it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vgpu_client.api import Api
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
    """What kubelets and agents are given.

    Attributes:
        folder: each node gets a folder of its own in it.
        config: the cluster configuration document.
        kubeconfig_of: what the agent of a node (by name) logs in with.
        spawn: how the agents come to be.
        tools: a folder that containers find programs in; None: they have what their image has.
        pace: the kubelets' waiting times.
        unused_lease_s: how long an agent keeps slots that its kubelet has no record of.
        log_level: of the agents.
        state_disk_bytes: of a disk of its own for each agent's state; 0: that of `folder`.
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


class SimulatedNodes:
    """All nodes that were started.

    Args:
        daemons: the agents are among them.
        undo: gets what ends the kubelets.

    Attributes:
        agents: one process for each node, by node name.
        kubelets: by node name; they live in the loop, call them through it.
        disks: by node name, the agent's state where it has a disk of its own.
        metrics_ports: by node name, where the agent's metrics are.
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
            node: what it is like.
            settings: see there.
            api: the kubelet's client.
            loop: where the client lives, and the kubelet.
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
        kubelet = Kubelet(api, node.shape, folders, environment=image, pace=settings.pace)
        self._undo.callback(lambda: loop.run(kubelet.stop(), limit=30))
        loop.run(kubelet.start(), limit=60)
        self.kubelets[node.name] = kubelet
        (self.metrics_ports[node.name],) = free_ports(1)
        command = agent_command(
            node.name,
            folders,
            kubeconfig=settings.kubeconfig_of(node.name),
            config=settings.config,
            unused_lease_s=settings.unused_lease_s,
            log_level=settings.log_level,
            metrics_port=self.metrics_ports[node.name],
        )
        self.agents[node.name] = self._daemons.start(
            f"agent-{node.name}", command, driver, folder=settings.folder, spawn=settings.spawn
        )
