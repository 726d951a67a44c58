"""A whole cluster on this machine: API server, scheduler, kubelets, and our programs as processes.

The stand-in for Kubernetes runs in threads of this process. The operator and one agent per node are
started against it as in production. All files are in one run folder. When the `with` block is left,
in whatever way, every started process has ended and the folder is gone.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime as dt
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from vgpu_api import resources
from vgpu_api.config import ClusterConfig
from vgpu_api.config.cluster import read_cluster_config
from vgpu_api.resources import Resource
from vgpu_client.api import Api
from vgpu_client.transport import Object
from vgpu_local.apiserver import ApiServer
from vgpu_local.assembly import admit_through, furnish, leave_on_terminate
from vgpu_local.background import BackgroundLoop
from vgpu_local.daemon import Daemon, Spawn, execute
from vgpu_local.daemons import Daemons
from vgpu_local.foundation import ExtenderAccess, Foundation, Server, StandIn
from vgpu_local.kubelet.kubelet import Kubelet
from vgpu_local.kubelet.process import ExecResult
from vgpu_local.nodes import GpuNode
from vgpu_local.operators import Operators
from vgpu_local.options import ClusterOptions
from vgpu_local.page import Page, start_page
from vgpu_local.pki import LIFETIME, Authority
from vgpu_local.programs import (
    FAKE_CTL,
    LIBRARY,
    Replica,
    WebhookReplica,
    install_tools,
    operator_command,
    webhook_command,
)
from vgpu_local.readiness import missing, plural
from vgpu_local.simulated_nodes import NodeSettings, SimulatedNodes
from vgpu_local.small_disk import empty_disk, fill_disk
from vgpu_local.started import Started
from vgpu_local.waiting import wait_for

T = TypeVar("T")

_KINDS: Mapping[str, Resource] = {
    resource.kind: resource
    for resource in vars(resources).values()
    if isinstance(resource, Resource)
}


class NotReady(Exception):
    """The cluster did not become ready in time; the text names what is missing."""


class LocalCluster(Started):
    """A context manager in whose block a whole cluster is running and ready.

    Attributes:
        folder: The run folder with `kubeconfig`, a log file per process and a folder per node.
        kubeconfig: An administrator's kubeconfig.
        spawn: Starts our programs: by executing them, or by forking a `ForkServer`.
    """

    def __init__(
        self,
        nodes: Sequence[GpuNode],
        options: ClusterOptions = ClusterOptions(),  # noqa: B008 - immutable
        foundation: Foundation | None = None,
        spawn: Spawn = execute,
    ) -> None:
        """Describe a cluster; nothing is started yet.

        Args:
            nodes: The nodes, each with a kubelet and an agent.
            options: The options of the cluster.
            foundation: The API server and scheduler; None for the stand-in.
            spawn: Starts our programs: by executing them, or by forking a `ForkServer`.
        """
        self.folder = Path()
        self.kubeconfig = Path()
        self._nodes = nodes
        self._options = options
        self._operators = Operators(options.operators, options.webhooks)
        self._authority = Authority()
        self._foundation: Foundation = foundation or StandIn(
            server=ApiServer(authority=self._authority),
            scheduler_names=options.scheduler_names,
            backoff=options.backoff,
        )
        self._undo = contextlib.ExitStack()
        self._api: Api | None = None
        self._daemons = Daemons(self._undo)
        self._simulated = SimulatedNodes(self._daemons, self._undo)
        self.spawn = spawn
        self._settings: ClusterConfig = read_cluster_config(dict(options.config))

    def start(self, *, limit: float = 60.0) -> None:
        """Start everything and wait until it is ready.

        Raises:
            NotReady: Something is missing after `limit` seconds.
            DaemonDied: A process has ended.
            FileNotFoundError: The native library has not been built.
        """
        if not LIBRARY.exists():
            raise FileNotFoundError(f"{LIBRARY} is not built: run `make native`")
        atexit.register(self.stop)  # for what an interrupted `stop` left to do
        self._undo.callback(atexit.unregister, self.stop)
        leave_on_terminate(self._undo)
        self.folder = Path(tempfile.mkdtemp(prefix="vgpu-local-"))
        self._undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._undo.callback(self._foundation.stop)
        self.kubeconfig = self._foundation.start(self.folder)
        self._loop = BackgroundLoop("cluster")
        self._undo.callback(self._loop.stop)
        self._api = self._loop.enter(Api.connect(str(self.kubeconfig)), self._undo)
        self._foundation.connected(self.api, self._loop)
        self.run(furnish(self.api, self._settings))
        self._foundation.furnished()
        self._config = self.folder / "config.yaml"
        self._config.write_text(yaml.safe_dump(dict(self._options.config)))
        self._start_operators()
        self._start_nodes()
        self._start_scheduler()
        self.wait_ready(limit)
        if self._options.webhooks:
            front, authority = self._operators.front, self._authority
            self.run(admit_through(self.api, front, authority, self._settings))

    def stop(self) -> None:
        """End every process and thread and remove the run folder; may be called again."""
        self._daemons.terminate()
        self._undo.close()

    @property
    def api(self) -> Api:
        """Return a client; pass its coroutines to `run`."""
        assert self._api is not None, "the cluster was not started"
        return self._api

    @property
    def server(self) -> Server:
        """Return the API server, with its faults and history."""
        return self._foundation.server

    def kubeconfig_of(self, user: str) -> Path:
        """Return a kubeconfig for `user`, to whom the server's faults may be limited."""
        return self._foundation.kubeconfig_of(user)

    @property
    def agents(self) -> Mapping[str, Daemon]:
        """Return the agents' processes by node name."""
        return self._simulated.agents

    @property
    def kubelets(self) -> Mapping[str, Kubelet]:
        """Return the kubelets by node name. Use the methods here: they run in another thread."""
        return self._simulated.kubelets

    @property
    def operators(self) -> list[Daemon]:
        """Return the processes of the operator's replicas; each has its name as its user."""
        return self._operators.daemons

    def metrics_ports(self) -> Mapping[str, list[int]]:
        """Return the metrics ports of each component: operator, webhook and nodeagent."""
        agents = list(self._simulated.metrics_ports.values())
        return {**self._operators.metrics_ports(), "nodeagent": agents}

    @property
    def webhooks(self) -> list[Daemon]:
        """Return the processes of the admission webhooks' replicas."""
        return self._operators.webhooks

    @property
    def operator(self) -> Daemon:
        """Return the process of the only operator."""
        (only,) = self.operators
        return only

    def leader(self) -> Daemon:
        """Return the operator that leads.

        Raises:
            NotReady: None of those that should run leads.
        """
        daemon = self._operators.leader(self._extender.tls())
        if daemon is None:
            raise NotReady("no operator leads")
        return daemon

    def extender_url(self, operator: Daemon) -> str:
        """Return the URL of one replica's extender."""
        return self._operators.place_of(operator).extender_url

    def tls(self) -> ssl.SSLContext:
        """Return the scheduler's TLS context, with its client certificate."""
        return self._extender.tls()

    def run(self, work: Coroutine[Any, Any, T], *, limit: float = 60.0) -> T:
        """Run a coroutine on the cluster's loop, from any other thread."""
        return self._loop.run(work, limit=limit)

    # What tests and the demo do with it

    def apply(self, path: Path) -> list[Object]:
        """Apply every document of a YAML file; return the objects as the server has them then."""
        return [self.apply_object(obj) for obj in yaml.safe_load_all(path.read_text()) if obj]

    def apply_object(self, obj: Object) -> Object:
        """Apply one object, in the namespace `default` unless it names another."""
        resource = _KINDS[obj["kind"]]
        if resource.namespaced:
            metadata = {"namespace": "default", **obj["metadata"]}
            obj = {**obj, "metadata": metadata}
        return self.run(self.api.apply(resource, obj, field_manager="local", force=True))

    def wait_for(
        self,
        resource: Resource,
        name: str,
        holds: Callable[[Object], object],
        *,
        namespace: str | None = "default",
        limit: float = 30.0,
    ) -> Object:
        """Wait until `holds` is true for an object, and return the object.

        Raises:
            NotReady: It was not within `limit` seconds.
        """
        kind, space = plural(resource), namespace if resource.namespaced else None
        try:
            return wait_for(
                lambda: self.objects(kind, space), name, holds, check=self.check, limit=limit
            )
        except TimeoutError as error:
            raise NotReady(f"{resource.kind} {name} is not as wanted {error}") from None

    def objects(self, resource: str, namespace: str | None = None) -> list[Object]:
        """Return the present objects of a kind, named as kubectl does: `vgpuclaims.vgpu.dev`."""
        return self.server.objects(resource, namespace)

    def exec(
        self,
        pod: str,
        command: Sequence[str],
        *,
        container: str | None = None,
        namespace: str = "default",
        environment: Mapping[str, str] | None = None,
        limit: float = 30.0,
    ) -> ExecResult:
        """Run a command in a running container (the pod's first, if none is named)."""
        kubelet, name = self._container(namespace, pod, container)
        work = kubelet.exec(namespace, pod, name, command, environment=environment, limit=limit)
        return self.run(work, limit=limit + 5)

    def logs(self, pod: str, *, container: str | None = None, namespace: str = "default") -> str:
        """Return what a container has written."""
        kubelet, name = self._container(namespace, pod, container)
        return kubelet.logs(namespace, pod, name)

    def start_page(self) -> Page:
        """Start the web page, and wait until it has read the cluster.

        Raises:
            NotReady: It has not after 30 s.
            DaemonDied: Its process has ended.
        """
        try:
            return start_page(
                self._daemons,
                folder=self.folder,
                kubeconfig=self.kubeconfig_of("vgpu-web"),
                config=self._config,
                spawn=self.spawn,
            )
        except TimeoutError as error:
            raise NotReady(str(error)) from None

    def restart_kubelet(self, node: str) -> None:
        """Restart a node's kubelet; its containers keep running."""
        self.run(self.kubelets[node].restart())

    def reboot_node(self, node: str, *, away_s: float) -> None:
        """Power a node off and on, except for its agent, which the caller kills."""
        self.run(self.kubelets[node].reboot(away_s))

    def slow_driver(self, node: str, milliseconds: int) -> None:
        """Delay every answer of NVML about a node's first device."""
        machine = self.folder / node / "machine"
        command = list(map(str, (FAKE_CTL, machine, "slow", 0, milliseconds)))
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    @contextlib.contextmanager
    def full_disk(self, node: str) -> Iterator[bool]:
        """Fill the disk of an agent's state inside the block; yield False if it has no own disk."""
        state = self._simulated.disks.get(node)
        if state is None:
            yield False
            return
        fill_disk(state)
        try:
            yield True
        finally:
            empty_disk(state)

    def renew_certificates(self, good_for: dt.timedelta = LIFETIME) -> None:
        """Write new certificates to the files from which operators and webhooks read them."""
        for daemon in (*self.operators, *self.webhooks):
            self._authority.leaf(good_for=good_for).write(self.folder, name=daemon.name)

    # Starting

    def _start_operators(self) -> None:
        self.run(self._operators.open_services(self.api))
        self._undo.callback(lambda: self._loop.run(self._operators.close_services(), limit=10))

        def operator(replica: Replica) -> Daemon:
            command = operator_command(
                replica,
                kubeconfig=self.kubeconfig_of(replica.name),
                config=self._config,
                authority=self._authority,
                folder=self.folder,
                lease_s=self._options.lease_s,
                linger_s=self._options.linger_s,
                standbys_first_s=self._options.standbys_first_s,
                agent_gone_s=self._options.agent_gone_s,
                on_violation=self._options.on_violation,
                log_level=self._options.log_level,
            )
            return self._daemons.start(
                replica.name, command, {}, folder=self.folder, spawn=self.spawn
            )

        def webhook(replica: WebhookReplica) -> Daemon:
            command = webhook_command(
                replica,
                kubeconfig=self.kubeconfig_of(replica.name),
                config=self._config,
                authority=self._authority,
                folder=self.folder,
                drain_s=self._options.drain_s,
                log_level=self._options.log_level,
            )
            return self._daemons.start(
                replica.name, command, {}, folder=self.folder, spawn=self.spawn
            )

        self._operators.start(operator, webhook)

    def _start_nodes(self) -> None:
        tools = self.folder / "bin"
        install_tools(tools)
        settings = NodeSettings(
            folder=self.folder,
            config=self._config,
            kubeconfig_of=lambda node: self.kubeconfig_of(f"agent-{node}"),
            spawn=self.spawn,
            tools=tools,
            pace=self._options.pace,
            unused_lease_s=self._options.unused_lease_s,
            log_level=self._options.log_level,
            state_disk_bytes=self._options.state_disk_bytes,
            prepares_claims=self._settings.scheduling.mode == "Claims",
        )
        for node in self._nodes:
            self._simulated.start(node, settings, self.api, self._loop)

    def _start_scheduler(self) -> None:
        certificate, key = self._authority.leaf().write(self.folder, name="scheduler")
        self._extender = ExtenderAccess(
            place=self._operators.front,
            trust=self.folder / "operator-ca.crt",
            certificate=certificate,
            key=key,
            settings=self._settings,
        )
        self._undo.callback(self._foundation.unschedule)
        self._foundation.schedule(self._extender)

    # Readiness and the end

    def wait_ready(self, limit: float = 60.0) -> None:
        """Wait until the operator leads and every node offers its slots and devices.

        Raises:
            NotReady: Something is missing after `limit` seconds.
            DaemonDied: A process has ended.
        """
        deadline = time.monotonic() + limit
        while gaps := missing(
            self.objects,
            self._nodes,
            self._operators.front,
            self._operators.webhook_ports(),
            trust=self._extender.tls(),
            count_resource=self._settings.nvidia.resource_count_name,
        ):
            self.check()
            if time.monotonic() > deadline:
                raise NotReady(f"after {limit:g} s: {gaps}")
            time.sleep(0.05)

    def check(self) -> None:
        """Make sure that everything still runs.

        Raises:
            DaemonDied: A process has ended.
            Exception: The error that ended the scheduler, or a part of Kubernetes.
        """
        self._daemons.check()
        self._foundation.check()

    def _container(self, namespace: str, pod: str, container: str | None) -> tuple[Kubelet, str]:
        for found in self.objects("pods", namespace):
            if found["metadata"]["name"] == pod and found["spec"].get("nodeName"):
                first = found["spec"]["containers"][0]["name"]
                return self.kubelets[found["spec"]["nodeName"]], container or first
        raise LookupError(f"no pod {namespace}/{pod} is on any node")
