"""The project as manifests/ installs it, on a real control plane: accounts, rights, certificates.

The programs run as processes of this machine, but with the tokens of their own service accounts,
the certificates that the operator issues, and every policy in force. What cannot be the same here
is said in the overlay: Services lead to this machine, and no pod is started from an image.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.request
from base64 import b64decode
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import yaml

from vgpu_api.resources import GPU_DEVICES, NODES, SECRETS, Resource
from vgpu_client.api import Api
from vgpu_client.transport import Object
from vgpu_local.background import BackgroundLoop
from vgpu_local.control_plane import ControlPlane, Options
from vgpu_local.daemon import Daemon
from vgpu_local.kubelet.folders import make_folders
from vgpu_local.kubelet.kubelet import Kubelet
from vgpu_local.nodes import GpuNode
from vgpu_local.operators import Operators
from vgpu_local.programs import (
    NAMESPACE,
    ROOT,
    Replica,
    agent_command,
    driver_environment,
    issued_operator_command,
    program_environment,
)
from vgpu_local.readiness import missing, plural

T = TypeVar("T")

SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", True)
OPERATOR = ("vgpu-system", "vgpu-operator")
AGENT = ("vgpu-node", "vgpu-nodeagent")
SCHEDULER = ("vgpu-system", "vgpu-scheduler")
COUNT = "nvidia.com/gpu"
LEASE_S = 45
"""Tests stop a leader for a while and start it again, on machines that are busy."""


def user(account: tuple[str, str]) -> str:
    """A service account's name as the API server knows it."""
    return "system:serviceaccount:" + ":".join(account)


class NotInTime(Exception):
    """What was waited for did not come; the text says what was there instead."""


class InstalledCluster:
    """Use as a context manager; inside, everything is running and ready.

    Args:
        nodes: Each gets a kubelet and an agent.
        operators: How many replicas.
    """

    def __init__(self, nodes: Sequence[GpuNode], *, operators: int = 2) -> None:
        self.agents: dict[str, Daemon] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="vgpu-installed-"))
        self._nodes = nodes
        self._operators = Operators(operators)
        self._audit = self.folder / "audit.log"
        self._undo = contextlib.ExitStack()
        self._undo.callback(shutil.rmtree, self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._undo.close()

    # What tests do with it

    @property
    def operators(self) -> list[Daemon]:
        """One process for each replica."""
        return self._operators.daemons

    def leader(self) -> Daemon:
        """The operator that says that it leads."""
        found = self._operators.leader(self._tls())
        assert found is not None, "no operator leads"
        return found

    def shown(self) -> list[str]:
        """The certificates that webhooks and extender of each replica show, PEM."""
        return [
            ssl.get_server_certificate(("127.0.0.1", port))
            for place in self._operators.places()
            for port in (place.webhook, place.extender)
        ]

    def ask_extender(self, verb: str, request: Object) -> Object:
        """Ask as kube-scheduler does; returns the answer."""
        asked = urllib.request.Request(
            f"{self._operators.front.extender_url}/{verb}",
            data=json.dumps(request).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=30, context=self._tls()) as answer:
            found: Object = json.load(answer)
        return found

    def run(self, work: Coroutine[Any, Any, T], *, limit: float = 60.0) -> T:
        """Run a coroutine on the cluster's loop, from any other thread."""
        return self._loop.run(work, limit=limit)

    def objects(self, resource: Resource, namespace: str | None = "default") -> list[Object]:
        """A list, as new as any."""
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
        """Return an object as soon as it is as wanted."""
        found: list[Object] = []

        def is_wanted() -> bool:
            found[:] = [
                o for o in self.objects(resource, namespace) if o["metadata"]["name"] == name
            ]
            return any(holds(o) for o in found)

        self.until(is_wanted, lambda: f"{resource.kind} {name}: {found}", limit=limit)
        return found[0]

    def until(
        self, holds: Callable[[], object], otherwise: Callable[[], object], *, limit: float = 60.0
    ) -> None:
        """Wait for something.

        Raises:
            NotInTime: It did not come; with what `otherwise` says.
        """
        deadline = time.monotonic() + limit
        while not holds():
            for daemon in (*self.operators, *self.agents.values()):
                if daemon.wanted:
                    daemon.check()
            self._plane.check()
            if time.monotonic() > deadline:
                raise NotInTime(f"after {limit:g} s: {otherwise()}")
            time.sleep(0.05)

    def audit(self) -> list[Object]:
        """What the API server noted of requests of our accounts, in order."""
        return [json.loads(line) for line in self._audit.read_text().splitlines()]

    # Starting

    def _start(self) -> None:
        policy = self.folder / "audit.yaml"
        accounts = [user(account) for account in (OPERATOR, AGENT, SCHEDULER)]
        rule = {"level": "Metadata", "users": accounts, "omitStages": ["RequestReceived"]}
        document = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "rules": [rule, {"level": "None"}],
        }
        policy.write_text(yaml.safe_dump(document))
        arguments = (f"--audit-policy-file={policy}", f"--audit-log-path={self._audit}")
        self._plane = ControlPlane(
            Options(
                controllers=True,
                apiserver_args=(*arguments, "--audit-log-mode=blocking-strict"),
            )
        )
        self._undo.callback(self._plane.stop)
        self._plane.start()
        self._loop = BackgroundLoop("installed")
        self._undo.callback(self._loop.stop)
        self.api = self.run(self._connect())
        install(self._plane, self.folder, webhook_port=self._operators.front.webhook)
        self._start_operators()
        for node in self._nodes:
            self._start_node(node)
        self._start_scheduler()
        self.until(lambda: not self._gaps(), self._gaps, limit=120)

    async def _connect(self) -> Api:
        stack = contextlib.AsyncExitStack()
        api = await stack.enter_async_context(Api.connect(str(self._plane.kubeconfig)))
        self._undo.callback(lambda: self._loop.run(stack.aclose(), limit=10))
        return api

    def _start_operators(self) -> None:
        self.run(self._operators.open_services(self.api))
        self._undo.callback(lambda: self._loop.run(self._operators.close_services(), limit=10))
        config = ROOT / "manifests" / "base" / "config.yaml"

        def start(replica: Replica) -> Daemon:
            command = issued_operator_command(
                replica,
                kubeconfig=self._kubeconfig(OPERATOR, replica.name),
                config=config,
                lease_s=LEASE_S,
            )
            return self._daemon(replica.name, command, {})

        self._operators.start(start)

    def _start_node(self, node: GpuNode) -> None:
        folders = make_folders(self.folder / node.name)
        self._undo.callback(folders.remove_link)
        environment = driver_environment(node.write_machine(folders.root))
        kubelet = Kubelet(self.api, node.shape, folders, environment=environment)
        self._undo.callback(lambda: self._loop.run(kubelet.stop(), limit=30))
        self.run(kubelet.start())
        command = agent_command(
            node.name,
            folders,
            kubeconfig=self._kubeconfig(AGENT, f"agent-{node.name}", node=node.name),
            config=ROOT / "manifests" / "base" / "config.yaml",
            log_level="INFO",
            unused_lease_s=30.0,
        )
        self.agents[node.name] = self._daemon(f"agent-{node.name}", command, environment)

    def _start_scheduler(self) -> None:
        """kube-scheduler as its Deployment has it; the Secret's files stand in for its mount."""
        secret = self.wait_for(
            SECRETS,
            "vgpu-scheduler-tls",
            lambda found: "tls.crt" in found.get("data", {}),
            namespace=NAMESPACE,
        )
        for key, value in secret["data"].items():
            (self.folder / key).write_bytes(b64decode(value))
        text = (ROOT / "manifests" / "base" / "scheduler" / "scheduler.yaml").read_text()
        config = yaml.safe_load(text)
        (extender,) = config["extenders"]
        extender["urlPrefix"] = self._operators.front.extender_url
        for field in ("caFile", "certFile", "keyFile"):
            extender["tlsConfig"][field] = str(
                self.folder / Path(extender["tlsConfig"][field]).name
            )
        config["clientConnection"] = {"kubeconfig": str(self._kubeconfig(SCHEDULER, "scheduler"))}
        self._plane.start_scheduler(config)

    def _kubeconfig(self, account: tuple[str, str], name: str, *, node: str | None = None) -> Path:
        path = self.folder / f"{name}.kubeconfig"
        return kubeconfig_with(self._plane.kubeconfig, path, self.token(account, node=node))

    def token(self, account: tuple[str, str], *, node: str | None = None) -> str:
        """A token as the kubelet would mount it."""
        return self.run(token(self.api, account, node=node))

    def _daemon(self, name: str, command: Sequence[str], environment: Any) -> Daemon:
        variables = program_environment(self.folder, environment)
        daemon = Daemon(name, command, variables, self.folder / f"{name}.log")
        self._undo.callback(daemon.stop)
        daemon.start()
        return daemon

    def _tls(self) -> ssl.SSLContext:
        """As kube-scheduler asks; but for the name, which is the Service's."""
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
            self._operators.places(),
            trust=self._tls(),
            count_resource=COUNT,
        )


async def token(api: Api, account: tuple[str, str], *, node: str | None = None) -> str:
    """A token of a service account, bound to a node as a pod's token there is.

    Args:
        api: An administrator's.
        account: Namespace and name.
        node: None: a token that says nothing of a node.
    """
    spec: Object = {"audiences": [], "expirationSeconds": 3600}
    if node is not None:
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Node", "name": node}
    namespace, name = account
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "metadata": {"namespace": namespace, "name": name},
        "spec": spec,
    }
    answer = await api.create(SERVICE_ACCOUNTS, request, subresource="token")
    return str(answer["status"]["token"])


def kubeconfig_with(of_admin: Path, path: Path, bearer: str) -> Path:
    """Write the administrator's kubeconfig with another token."""
    config = yaml.safe_load(of_admin.read_text())
    for entry in config["users"]:
        entry["user"] = {"token": bearer}
    path.write_text(yaml.safe_dump(config))
    return path


def install(plane: ControlPlane, folder: Path, *, webhook_port: int) -> None:
    """Apply the default overlay, as far as this machine can be a cluster.

    Args:
        plane: Where.
        folder: Where the overlay that adapts it is written.
        webhook_port: Where webhooks listen on this machine.

    Raises:
        AssertionError: The API server refused something or warned; with its words.
    """
    overlay = folder / "overlay"
    overlay.mkdir()
    base = os.path.relpath(ROOT / "manifests" / "overlays" / "default", overlay)
    hooks = [("Mutating", 1), ("Validating", 2)]
    patches: list[Object] = [
        {
            "target": {"kind": kind, "name": name},
            "patch": yaml.safe_dump(
                {
                    "$patch": "delete",
                    "apiVersion": "apps/v1",
                    "kind": kind,
                    "metadata": {"name": name},
                }
            ),
        }
        for kind, name in (
            ("Deployment", "vgpu-operator"),
            ("Deployment", "vgpu-scheduler"),
            ("DaemonSet", "vgpu-nodeagent"),
        )
    ]
    # The API server looks the Service up and then comes here; whom it expects stays as it is.
    spec = {"type": "ExternalName", "externalName": "localhost"}
    patches.append(
        {
            "target": {"kind": "Service", "name": "vgpu-webhook"},
            "patch": yaml.safe_dump([{"op": "replace", "path": "/spec", "value": spec}]),
        }
    )
    patches += [
        {
            "target": {"kind": f"{kind}WebhookConfiguration", "name": "vgpu"},
            "patch": yaml.safe_dump(
                [
                    {
                        "op": "add",
                        "path": f"/webhooks/{index}/clientConfig/service/port",
                        "value": webhook_port,
                    }
                    for index in range(count)
                ]
            ),
        }
        for kind, count in hooks
    ]
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [base],
        "patches": patches,
    }
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(document))
    apply(plane, overlay)


def apply(plane: ControlPlane, overlay: Path) -> None:
    """`kubectl apply -k`, strictly.

    Raises:
        AssertionError: The API server refused something or warned; with its words.
    """
    command = ["apply", "-k", str(overlay), "--validate=strict"]
    done = subprocess.run(
        [plane.programs / "kubectl", "--kubeconfig", plane.kubeconfig, *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
