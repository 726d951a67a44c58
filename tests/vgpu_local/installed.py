"""A cluster as manifests/ installs it, with its accounts, rights and certificates.

It runs on a real control plane. Our programs run as processes of this machine, but with the tokens
of their own service accounts, the certificates that the operator issues, and all policies. An
overlay has the two differences: Services lead to this machine, and no pod is started from an image.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import ssl
import tempfile
import time
import urllib.request
from base64 import b64decode
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from vgpu_api.resources import GPU_DEVICES, NODES, SECRETS, Resource
from vgpu_client.api import Api
from vgpu_client.transport import Object
from vgpu_local.accounts import (
    AGENT,
    OPERATOR,
    SCHEDULER,
    WEB,
    WEBHOOK,
    kubeconfig_with,
    token,
    user,
)
from vgpu_local.background import BackgroundLoop
from vgpu_local.control_plane import ControlPlane, Options
from vgpu_local.daemon import Daemon
from vgpu_local.daemons import Daemons
from vgpu_local.installation import install
from vgpu_local.nodes import GpuNode
from vgpu_local.operators import Operators
from vgpu_local.page import Page, start_page
from vgpu_local.programs import (
    NAMESPACE,
    ROOT,
    Replica,
    WebhookReplica,
    issued_operator_command,
    issued_webhook_command,
)
from vgpu_local.readiness import missing, plural
from vgpu_local.simulated_nodes import NodeSettings, SimulatedNodes
from vgpu_local.started import Started
from vgpu_local.waiting import wait_for

T = TypeVar("T")

COUNT = "nvidia.com/gpu"
LEASE_S = 45
"""Long, because tests suspend a leader for a while on busy machines."""


class NotInTime(Exception):
    """A wait has timed out; the text shows the last state."""


class InstalledCluster(Started):
    """A context manager in whose block an installed cluster is running and ready.

    Args:
        nodes: The nodes, each with a kubelet and an agent.
        operators: The number of the operator's replicas.
        webhooks: The number of the admission webhooks' replicas.
        lease_s: The duration of the Lease.
        ready_s: The longest time to wait for the start.
        plane: A running control plane, which keeps running afterwards; None for a new one, whose
            API server audits the requests of our accounts.
        scheduler_client: More fields of kube-scheduler's `clientConnection`, such as `qps`.
        overlay: The overlay in manifests/overlays: `default`, `gate` or `claims`.
        components: The components in manifests/components.
        prepares_claims: Kubelets have agents prepare ResourceClaims.
    """

    def __init__(
        self,
        nodes: Sequence[GpuNode],
        *,
        operators: int = 2,
        webhooks: int = 2,
        lease_s: int = LEASE_S,
        ready_s: float = 120.0,
        plane: ControlPlane | None = None,
        scheduler_client: Mapping[str, object] | None = None,
        overlay: str = "default",
        components: Sequence[str] = (),
        prepares_claims: bool = False,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="vgpu-installed-"))
        self._nodes = nodes
        self._operators = Operators(operators, webhooks)
        self._lease_s = lease_s
        self._ready_s = ready_s
        self._given_plane = plane
        self._scheduler_client = dict(scheduler_client or {})
        self._overlay = overlay
        self._components = components
        self._prepares_claims = prepares_claims
        self._config = self.folder / "config.yaml"
        self._configure(overlay)
        self._audit = self.folder / "audit.log"
        self._undo = contextlib.ExitStack()
        self._undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._daemons = Daemons(self._undo)
        self._simulated = SimulatedNodes(self._daemons, self._undo)

    # What tests do with it

    @property
    def agents(self) -> Mapping[str, Daemon]:
        """Return the agents' processes by node name."""
        return self._simulated.agents

    @property
    def operators(self) -> list[Daemon]:
        """Return the processes of the operator's replicas."""
        return self._operators.daemons

    def pids(self) -> dict[str, int]:
        """Return the process id of each of our programs, by its name."""
        return self._daemons.pids()

    def leader(self) -> Daemon:
        """Return the operator that reports that it leads."""
        found = self._operators.leader(self._tls())
        assert found is not None, "no operator leads"
        return found

    def await_leader(self, limit: float) -> Daemon:
        """Wait until an operator leads, and return it.

        Raises:
            NotInTime: None did within `limit` seconds.
        """
        self.until(
            lambda: self._operators.leader(self._tls()), lambda: "no operator leads", limit=limit
        )
        return self.leader()

    def shown(self) -> list[str]:
        """Return the certificates in PEM that the processes of webhooks and operator show."""
        extenders = [place.extender for place in self._operators.places()]
        ports = [*extenders, *self._operators.webhook_ports()]
        return [ssl.get_server_certificate(("127.0.0.1", port)) for port in ports]

    def ask_extender(self, verb: str, request: Object) -> Object:
        """Call the extender as kube-scheduler does; return the answer."""
        asked = urllib.request.Request(
            f"{self._operators.front.extender_url}/{verb}",
            data=json.dumps(request).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=30, context=self._tls()) as answer:
            found: Object = json.load(answer)
        return found

    def start_page(self) -> Page:
        """Start the web page, which needs the component `web`, and wait until it is ready.

        Raises:
            TimeoutError: It is not ready after 30 s.
            DaemonDied: Its process has ended.
        """
        kubeconfig = self._kubeconfig(WEB, "vgpu-web")
        return start_page(
            self._daemons, folder=self.folder, kubeconfig=kubeconfig, config=self._config
        )

    def run(self, work: Coroutine[Any, Any, T], *, limit: float = 60.0) -> T:
        """Run a coroutine on the cluster's loop, from any other thread."""
        return self._loop.run(work, limit=limit)

    def objects(self, resource: Resource, namespace: str | None = "default") -> list[Object]:
        """Return the objects of a fresh list."""
        space = namespace if resource.namespaced else None
        return list(self.run(self.api.list(resource, namespace=space)).items)

    def wait_for(
        self,
        resource: Resource,
        name: str,
        holds: Callable[[Object], object],
        *,
        namespace: str = "default",
        limit: float = 60.0,
    ) -> Object:
        """Wait until `holds` is true for an object, and return the object.

        Raises:
            NotInTime: It was not within `limit` seconds.
        """
        try:
            return wait_for(
                lambda: self.objects(resource, namespace),
                name,
                holds,
                check=self.check,
                limit=limit,
            )
        except TimeoutError as error:
            raise NotInTime(f"{resource.kind} {name} is not as wanted {error}") from None

    def until(
        self, holds: Callable[[], object], otherwise: Callable[[], object], *, limit: float = 60.0
    ) -> None:
        """Wait until `holds` is true.

        Raises:
            NotInTime: It was not in time; the text has the result of `otherwise`.
        """
        deadline = time.monotonic() + limit
        while not holds():
            self.check()
            if time.monotonic() > deadline:
                raise NotInTime(f"after {limit:g} s: {otherwise()}")
            time.sleep(0.05)

    def check(self) -> None:
        """Check that every process is running.

        Raises:
            DaemonDied: One has ended; the text has the end of its log.
        """
        self._daemons.check()
        self._plane.check()

    def audit(self) -> list[Object]:
        """Return the API server's audit of our accounts' requests, in order."""
        return [json.loads(line) for line in self._audit.read_text().splitlines()]

    # Starting and the end

    def start(self) -> None:
        """Install and start everything, and wait until it is ready.

        Raises:
            NotInTime: Something is missing after `ready_s`.
            RuntimeError: Kubernetes is not built.
        """
        self._plane = self._given_plane or self._audited_plane()
        self._loop = BackgroundLoop("installed")
        self._undo.callback(self._loop.stop)
        self.api = self._loop.enter(Api.connect(str(self._plane.kubeconfig)), self._undo)
        self._install(self.folder)
        self._start_operators()
        self._start_nodes()
        self._start_scheduler()
        self.until(lambda: not self._gaps(), self._gaps, limit=self._ready_s)

    def change_overlay(self, overlay: str) -> None:
        """Apply another overlay on top of this one, and restart our programs and kube-scheduler.

        Raises:
            NotInTime: Something is missing after `ready_s`.
        """
        daemons = [*self._operators.daemons, *self._operators.webhooks, *self.agents.values()]
        for daemon in daemons:
            daemon.stop()
        self._overlay = overlay
        self._configure(overlay)
        folder = self.folder / f"to-{overlay}"
        folder.mkdir()
        self._install(folder)
        for daemon in daemons:
            daemon.start()
        self._plane.stop_scheduler()
        self._start_scheduler()
        self.until(lambda: not self._gaps(), self._gaps, limit=self._ready_s)

    def _configure(self, overlay: str) -> None:
        folder = "base" if overlay == "default" else f"overlays/{overlay}"
        shutil.copy(ROOT / "manifests" / folder / "config.yaml", self._config)

    def _install(self, folder: Path) -> None:
        install(
            self._plane,
            folder,
            webhook_port=self._operators.front.webhook,
            overlay_name=self._overlay,
            components=self._components,
        )

    def stop(self) -> None:
        """End every process and thread and remove all files."""
        self._daemons.terminate()
        self._undo.close()

    def _audited_plane(self) -> ControlPlane:
        """Start and return a control plane whose audit is complete whenever it is read."""
        policy = self.folder / "audit.yaml"
        accounts = [user(account) for account in (OPERATOR, WEBHOOK, WEB, AGENT, SCHEDULER)]
        rule = {"level": "Metadata", "users": accounts, "omitStages": ["RequestReceived"]}
        document = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "rules": [rule, {"level": "None"}],
        }
        policy.write_text(yaml.safe_dump(document))
        arguments = (f"--audit-policy-file={policy}", f"--audit-log-path={self._audit}")
        plane = ControlPlane(
            Options(
                controllers=True,
                apiserver_args=(*arguments, "--audit-log-mode=blocking-strict"),
            )
        )
        self._undo.callback(plane.stop)
        plane.start()
        return plane

    def _start_operators(self) -> None:
        self.run(self._operators.open_services(self.api))
        self._undo.callback(lambda: self._loop.run(self._operators.close_services(), limit=10))
        config = self._config

        def operator(replica: Replica) -> Daemon:
            command = issued_operator_command(
                replica,
                kubeconfig=self._kubeconfig(OPERATOR, replica.name),
                config=config,
                lease_s=self._lease_s,
            )
            return self._daemons.start(replica.name, command, {}, folder=self.folder)

        def webhook(replica: WebhookReplica) -> Daemon:
            command = issued_webhook_command(
                replica, kubeconfig=self._kubeconfig(WEBHOOK, replica.name), config=config
            )
            return self._daemons.start(replica.name, command, {}, folder=self.folder)

        self._operators.start(operator, webhook)

    def _start_nodes(self) -> None:
        settings = NodeSettings(
            folder=self.folder,
            config=self._config,
            kubeconfig_of=lambda node: self._kubeconfig(AGENT, f"agent-{node}", node=node),
            prepares_claims=self._prepares_claims,
            publishes_slices="resource-slices" in self._components,
        )
        for node in self._nodes:
            self._simulated.start(node, settings, self.api, self._loop)

    def _start_scheduler(self) -> None:
        """Start kube-scheduler as its Deployment does, with files in place of a mounted Secret."""
        secret = self.wait_for(
            SECRETS,
            "vgpu-scheduler-tls",
            lambda found: "tls.crt" in found.get("data", {}),
            namespace=NAMESPACE,
            limit=self._ready_s,
        )
        for key, value in secret["data"].items():
            (self.folder / key).write_bytes(b64decode(value))
        if self._overlay != "default":  # the cluster's own, which cannot be configured
            self._plane.start_scheduler({"clientConnection": self._scheduler_client})
            return
        text = (ROOT / "manifests" / "base" / "scheduler" / "scheduler.yaml").read_text()
        config = yaml.safe_load(text)
        (extender,) = config["extenders"]
        extender["urlPrefix"] = self._operators.front.extender_url
        for field in ("caFile", "certFile", "keyFile"):
            extender["tlsConfig"][field] = str(
                self.folder / Path(extender["tlsConfig"][field]).name
            )
        kubeconfig = self._kubeconfig(SCHEDULER, "scheduler")
        config["clientConnection"] = {"kubeconfig": str(kubeconfig), **self._scheduler_client}
        self._plane.start_scheduler(config)

    def _kubeconfig(self, account: tuple[str, str], name: str, *, node: str | None = None) -> Path:
        path = self.folder / f"{name}.kubeconfig"
        return kubeconfig_with(self._plane.kubeconfig, path, self.token(account, node=node))

    def token(self, account: tuple[str, str], *, node: str | None = None) -> str:
        """Return a token as the kubelet would mount it."""
        return self.run(token(self.api, account, node=node))

    def _tls(self) -> ssl.SSLContext:
        """Return a TLS context like kube-scheduler's, but without a check of the server's name."""
        context = ssl.create_default_context(cafile=self.folder / "ca.crt")
        context.load_cert_chain(self.folder / "tls.crt", self.folder / "tls.key")
        context.check_hostname = False
        return context

    def _gaps(self) -> str:
        kinds = {plural(resource): resource for resource in (NODES, GPU_DEVICES)}
        return missing(
            lambda name: self.objects(kinds[name]),
            self._nodes,
            self._operators.front,
            self._operators.webhook_ports(),
            trust=self._tls(),
            count_resource=COUNT,
        )
