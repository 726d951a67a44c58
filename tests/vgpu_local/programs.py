"""Command lines, environments and ports of the operator, the webhooks and the agents."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vgpu_local.kubelet.folders import NodeFolders
from vgpu_local.pki import Authority
from vgpu_local.ports import free_ports

ROOT = Path(__file__).parents[2]
DRIVER_FOLDER = ROOT / "libvgpu" / "build" / "fake"
PROBE = ROOT / "libvgpu" / "build" / "vgpu-probe"
LIBRARY = ROOT / "libvgpu" / "build" / "libvgpu.so"
FAKE_CTL = ROOT / "libvgpu" / "build" / "vgpu-fake-ctl"
NVIDIA_SMI = ROOT / "tests" / "workload" / "nvidia_smi.py"
# The loader reads it when a process begins, and never again.
DRIVER_LOADER = {"LD_LIBRARY_PATH": str(DRIVER_FOLDER)}
NAMESPACE = "vgpu-system"
SERVICE = "vgpu-extender"


@dataclass(frozen=True, slots=True)
class OperatorPlace:
    """The ports of one operator."""

    extender: int
    metrics: int
    liveness: int

    @property
    def extender_url(self) -> str:
        """Return the URL of this replica's extender."""
        return f"https://localhost:{self.extender}"


@dataclass(frozen=True, slots=True)
class Front:
    """The ports of the Services of extender and webhooks."""

    extender: int
    webhook: int

    @property
    def extender_url(self) -> str:
        """Return the URL that the scheduler calls."""
        return f"https://localhost:{self.extender}"

    @property
    def webhook_url(self) -> str:
        """Return the URL that the API server calls."""
        return f"https://localhost:{self.webhook}"


def free_front() -> Front:
    """Find two free ports."""
    return Front(*free_ports(2))


@dataclass(frozen=True, slots=True)
class WebhookReplica:
    """A replica of the admission webhooks.

    Attributes:
        name: The user of its kubeconfig.
        webhook: The port of its reviews.
        metrics: The port of its metrics.
        liveness: The port of its probe.
    """

    name: str
    webhook: int
    metrics: int
    liveness: int


def free_webhook_replica(number: int) -> WebhookReplica:
    """Return a replica of the webhooks on free ports."""
    return WebhookReplica(f"webhook-{number}", *free_ports(3))


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica of the operator.

    Attributes:
        name: The prefix of its identity in the Lease, and the user of its kubeconfig.
        address: Its address in the extender's EndpointSlice.
        place: Its ports on this machine.
    """

    name: str
    address: str
    place: OperatorPlace


def free_replica(number: int) -> Replica:
    """Return an operator on free ports with an address from RFC 5737."""
    place = OperatorPlace(*free_ports(3))
    return Replica(f"operator-{number}", f"192.0.2.{number + 1}", place)


def operator_command(
    replica: Replica,
    *,
    kubeconfig: Path,
    config: Path,
    authority: Authority,
    folder: Path,
    lease_s: int,
    linger_s: int = 0,
    standbys_first_s: int = 0,
    agent_gone_s: int = 300,
    on_violation: str = "Report",
    log_level: str,
) -> list[str]:
    """Return the operator's command line, and write its certificate into `folder`.

    Only clients with a certificate of `authority` may call the extender.
    """
    certificate, key = authority.leaf().write(folder, name=replica.name)
    trust = folder / "operator-ca.crt"
    trust.write_bytes(authority.certificate)
    arguments = {
        **_of_replica(replica, kubeconfig=kubeconfig, config=config, lease_s=lease_s),
        "extender-cert": certificate,
        "extender-key": key,
        "extender-client-ca": trust,
        "linger": f"{linger_s}s",
        "standbys-first": f"{standbys_first_s}s",
        "agent-gone-after": f"{agent_gone_s}s",
        "on-violation": on_violation,
        "log-level": log_level,
    }
    return _module("vgpu_operator", arguments)


def webhook_command(
    replica: WebhookReplica,
    *,
    kubeconfig: Path,
    config: Path,
    authority: Authority,
    folder: Path,
    drain_s: int,
    log_level: str,
) -> list[str]:
    """Return the command line of a webhook replica, and write its certificate into `folder`."""
    certificate, key = authority.leaf().write(folder, name=replica.name)
    arguments = {
        **_of_webhook(replica, kubeconfig=kubeconfig, config=config),
        "webhook-cert": certificate,
        "webhook-key": key,
        "drain": f"{drain_s}s",
        "log-level": log_level,
    }
    return _module("vgpu_operator.admission", arguments)


def issued_webhook_command(replica: WebhookReplica, *, kubeconfig: Path, config: Path) -> list[str]:
    """Return the command line of a webhook replica whose certificate the operator issues."""
    common = _of_webhook(replica, kubeconfig=kubeconfig, config=config)
    return _module("vgpu_operator.admission", {**common, "certificates": "secrets", "drain": "0s"})


def _of_webhook(replica: WebhookReplica, *, kubeconfig: Path, config: Path) -> dict[str, object]:
    return {
        "kubeconfig": kubeconfig,
        "config": config,
        "namespace": NAMESPACE,
        "identity": replica.name,
        "webhook": f"127.0.0.1:{replica.webhook}",
        "metrics": f"127.0.0.1:{replica.metrics}",
        "metrics-access": "open",
        "liveness": f"127.0.0.1:{replica.liveness}",
    }


def issued_operator_command(
    replica: Replica, *, kubeconfig: Path, config: Path, lease_s: int
) -> list[str]:
    """Return the command line of an operator that issues its own certificates."""
    common = _of_replica(replica, kubeconfig=kubeconfig, config=config, lease_s=lease_s)
    return _module("vgpu_operator", {**common, "certificates": "secrets"})


def _of_replica(
    replica: Replica, *, kubeconfig: Path, config: Path, lease_s: int
) -> dict[str, object]:
    place = replica.place
    return {
        "kubeconfig": kubeconfig,
        "config": config,
        "namespace": NAMESPACE,
        "identity": replica.name,
        "lease-duration": lease_s,
        "extender": f"127.0.0.1:{place.extender}",
        "service-name": SERVICE,
        "advertise-address": replica.address,
        "metrics": f"127.0.0.1:{place.metrics}",
        "metrics-access": "open",
        "liveness": f"127.0.0.1:{place.liveness}",
    }


def web_command(port: int, *, kubeconfig: Path, config: Path, tls: tuple[Path, Path]) -> list[str]:
    """Return the command line of the web page; `tls` has the files of certificate and key."""
    certificate, key = tls
    arguments = {
        "kubeconfig": kubeconfig,
        "config": config,
        "identity": "localhost",
        "web": f"127.0.0.1:{port}",
        "web-cert": certificate,
        "web-key": key,
    }
    return _module("vgpu_operator.web", arguments)


def agent_command(
    node: str,
    folders: NodeFolders,
    *,
    kubeconfig: Path,
    config: Path,
    unused_lease_s: float,
    log_level: str,
    ports: tuple[int, int] = (0, 0),
    flags: Sequence[str] = (),
) -> list[str]:
    """Return the command line of a node's agent; `ports` are those of its metrics and probes."""
    arguments = {
        "node-name": node,
        "kubeconfig": kubeconfig,
        "config": config,
        "state-dir": folders.root / "agent",
        "kubelet-dir": folders.sockets,
        "device-plugins-dir": folders.device_plugins,
        "cdi-dir": folders.cdi,
        "sysfs-dir": folders.root / "sysfs",
        "library": LIBRARY,
        "usage-regions": "disk",  # not every user may mount
        "metrics-port": ports[0],
        "metrics-access": "open",
        "health-port": ports[1],
        "hang-limit-seconds": 0,  # tests suspend agents for longer, and resume them
        "unused-lease-seconds": unused_lease_s,
        "log-level": log_level,
    }
    return [*_module("vgpu_nodeagent", arguments), *flags]


def driver_environment(machine: Path) -> Mapping[str, str]:
    """Return the environment with which a process finds the simulated driver and its machine."""
    return {"VGPU_FAKE_MACHINE": str(machine), **DRIVER_LOADER}


def install_tools(folder: Path) -> None:
    """Create the commands that images of GPU workloads contain, in a folder for the PATH."""
    folder.mkdir(exist_ok=True)
    command = folder / "nvidia-smi"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{NVIDIA_SMI}" "$@"\n')
    command.chmod(0o755)


def program_environment(folder: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without variables that point to another cluster.

    Temporary files go below `folder`, so that those of killed programs are removed with it.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "KUBECONFIG" and not name.startswith(("KUBERNETES_", "VGPU_", "NVIDIA_"))
    }
    return {**kept, "PYTHONUNBUFFERED": "1", "TMPDIR": str(folder), **extra}


def _module(name: str, arguments: Mapping[str, object]) -> list[str]:
    options = [word for key, value in arguments.items() for word in (f"--{key}", str(value))]
    return [sys.executable, "-m", name, *options]
