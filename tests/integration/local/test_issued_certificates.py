"""Operators and webhooks start at once on a cluster without certificates, and are trusted."""

from __future__ import annotations

import base64
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from vgpu_api.resources import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS
from vgpu_client.api import Api
from vgpu_client.errors import AlreadyExists
from vgpu_local.apiserver import ApiServer
from vgpu_local.assembly import furnish
from vgpu_local.background import BackgroundLoop
from vgpu_local.daemon import Daemon
from vgpu_local.programs import (
    NAMESPACE,
    ROOT,
    Replica,
    WebhookReplica,
    free_replica,
    free_webhook_replica,
    issued_operator_command,
    issued_webhook_command,
    program_environment,
)

BASE = ROOT / "manifests" / "base"


class Cluster:
    """An API server with the Secrets and webhooks of manifests/, two replicas of each process."""

    def __init__(self, folder: Path, undo: ExitStack) -> None:
        self.server = undo.enter_context(ApiServer())
        self.loop = BackgroundLoop("test")
        undo.callback(self.loop.stop)
        self.replicas = [free_replica(number) for number in range(2)]
        self.webhooks = [free_webhook_replica(number) for number in range(2)]
        self.daemons = [
            *(self._operator(replica, folder) for replica in self.replicas),
            *(self._webhook(replica, folder) for replica in self.webhooks),
        ]
        self._admin = str(self.server.kubeconfig(folder / "admin.kubeconfig"))
        self.loop.run(self._furnish())
        for daemon in self.daemons:
            undo.callback(daemon.stop)
            daemon.start()

    async def without(self, secret: str) -> None:
        """Remove a serving pair, as an administrator does to have a new one issued."""
        nothing = {"data": {"tls.crt": None, "tls.key": None}}
        async with Api.connect(self._admin) as api:
            await api.merge_patch(SECRETS, secret, nothing, namespace=NAMESPACE)

    async def delete(self, secret: str) -> None:
        """Delete a Secret, as an administrator might by mistake."""
        async with Api.connect(self._admin) as api:
            await api.delete(SECRETS, secret, namespace=NAMESPACE)

    async def apply_secrets(self) -> None:
        """Create the Secrets of manifests/ that are missing, empty as they are installed."""
        async with Api.connect(self._admin) as api:
            for obj in yaml.safe_load_all((BASE / "operator/certificates.yaml").read_text()):
                with suppress(AlreadyExists):
                    await api.create(SECRETS, obj)

    async def _furnish(self) -> None:
        async with Api.connect(self._admin) as api:
            await furnish(api)
            for resource, path in (
                (SECRETS, "operator/certificates.yaml"),
                (MUTATING_WEBHOOKS, "webhook/configurations.yaml"),
                (VALIDATING_WEBHOOKS, "webhook/configurations.yaml"),
            ):
                for obj in yaml.safe_load_all((BASE / path).read_text()):
                    if obj["kind"] == resource.kind:
                        await api.create(resource, obj)

    def _webhook(self, replica: WebhookReplica, folder: Path) -> Daemon:
        command = issued_webhook_command(
            replica,
            kubeconfig=self.server.kubeconfig(folder / f"{replica.name}.kubeconfig"),
            config=BASE / "config.yaml",
        )
        log = folder / f"{replica.name}.log"
        return Daemon(replica.name, command, program_environment(folder, {}), log)

    def _operator(self, replica: Replica, folder: Path) -> Daemon:
        command = issued_operator_command(
            replica,
            kubeconfig=self.server.kubeconfig(folder / f"{replica.name}.kubeconfig"),
            config=BASE / "config.yaml",
            lease_s=15,
        )
        log = folder / f"{replica.name}.log"
        return Daemon(replica.name, command, program_environment(folder, {}), log)

    def bundles(self) -> set[str]:
        """Return the webhooks' caBundles."""
        return {
            hook["clientConfig"].get("caBundle", "")
            for kind in ("mutating", "validating")
            for found in self.server.objects(
                f"{kind}webhookconfigurations.admissionregistration.k8s.io"
            )
            for hook in found["webhooks"]
        }

    def secret(self, name: str) -> dict[str, bytes]:
        (found,) = (
            s for s in self.server.objects("secrets", NAMESPACE) if s["metadata"]["name"] == name
        )
        return {key: base64.b64decode(value) for key, value in found.get("data", {}).items()}

    def until(self, holds: Any) -> None:
        deadline = time.monotonic() + 60
        while not holds():
            for daemon in self.daemons:
                daemon.check()
            assert time.monotonic() < deadline, [daemon.tail() for daemon in self.daemons]
            time.sleep(0.05)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as undo:
        yield Cluster(tmp_path, undo)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def is_let_in(port: int, context: ssl.SSLContext, name: str) -> bool:
    """Return True if the server answers a client.

    It may close the connection of a client without a certificate.
    """
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname=name) as tls,
        ):
            tls.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return tls.recv(4) == b"HTTP"
    except (ssl.SSLError, ConnectionError):
        return False


def test_two_replicas_on_an_empty_cluster_come_up_by_themselves(
    cluster: Cluster, tmp_path: Path
) -> None:
    ports = [r.place.extender for r in cluster.replicas]
    ports += [r.webhook for r in cluster.webhooks]
    cluster.until(lambda: all(listens(port) for port in ports))
    (bundle,) = cluster.bundles()
    api_server = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
    pair = cluster.secret("vgpu-scheduler-tls")
    (tmp_path / "pair").write_bytes(pair["tls.crt"] + pair["tls.key"])
    scheduler = ssl.create_default_context(cadata=pair["ca.crt"].decode())
    scheduler.load_cert_chain(tmp_path / "pair")
    for webhook in cluster.webhooks:
        assert is_let_in(webhook.webhook, api_server, "vgpu-webhook.vgpu-system.svc")
    for replica in cluster.replicas:
        extender = replica.place.extender
        assert is_let_in(extender, scheduler, "vgpu-extender.vgpu-system.svc")
        assert not is_let_in(extender, api_server, "vgpu-extender.vgpu-system.svc")


def shown(cluster: Cluster) -> set[str]:
    """Return the certificates that the webhooks present, in PEM."""
    ports = [replica.webhook for replica in cluster.webhooks]
    return {ssl.get_server_certificate(("127.0.0.1", port)) for port in ports}


def test_a_pair_that_is_issued_anew_is_shown_by_webhooks_that_go_on_running(
    cluster: Cluster,
) -> None:
    ports = [replica.webhook for replica in cluster.webhooks]
    cluster.until(lambda: all(listens(port) for port in ports))
    before, pids = shown(cluster), [daemon.pid for daemon in cluster.daemons]
    assert len(before) == 1
    cluster.loop.run(cluster.without("vgpu-webhook-tls"))
    cluster.until(lambda: not before & shown(cluster))
    (bundle,) = cluster.bundles()
    api_server = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
    assert all(is_let_in(port, api_server, "vgpu-webhook.vgpu-system.svc") for port in ports)
    assert [daemon.pid for daemon in cluster.daemons] == pids


def test_deleted_secrets_are_named_and_filled_anew_once_they_are_there(cluster: Cluster) -> None:
    """Meanwhile the webhooks keep the certificate that they have."""
    ports = [replica.webhook for replica in cluster.webhooks]
    cluster.until(lambda: all(listens(port) for port in ports))
    before, pids = shown(cluster), [daemon.pid for daemon in cluster.daemons]
    for name in ("vgpu-webhook-tls", "vgpu-authority"):
        cluster.loop.run(cluster.delete(name))
    missing = 'secrets "vgpu-authority" not found'
    cluster.until(lambda: any(missing in daemon.tail() for daemon in cluster.daemons))
    assert shown(cluster) == before
    cluster.loop.run(cluster.apply_secrets())
    cluster.until(lambda: not before & shown(cluster))
    for bundle in cluster.bundles():
        api_server = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
        assert all(is_let_in(port, api_server, "vgpu-webhook.vgpu-system.svc") for port in ports)
    assert [daemon.pid for daemon in cluster.daemons] == pids
