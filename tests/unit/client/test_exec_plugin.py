"""Credential plugins are run with the protocol of client-go."""

from __future__ import annotations

import json
import ssl
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from vgpu_client.connection import Connection, login
from vgpu_client.errors import LoginError
from vgpu_local.pki import Authority

VERSION = "client.authentication.k8s.io/v1"
AUTHORITY = Authority()


class Plugin:
    """A program in the folder of a kubeconfig. It keeps what it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "plugin"
        self.told = folder / "told"

    def prints(self, status: dict[str, Any], *, version: str = VERSION) -> None:
        credential = {"kind": "ExecCredential", "apiVersion": version, "status": status}
        (self.folder / "credential").write_text(json.dumps(credential))
        self.does(f"cat {self.folder}/credential")

    def does(self, script: str) -> None:
        told = f'echo "$KUBERNETES_EXEC_INFO|$WHO|$*" >>{self.told}'
        self.path.write_text(f"#!/bin/sh\n{told}\n{script}\n")
        self.path.chmod(0o755)

    async def login(self, *, cluster: dict[str, Any] | None = None, **entry: Any) -> Connection:
        content = {
            "clusters": [{"name": "c", "cluster": {"server": "https://one", **(cluster or {})}}],
            "users": [
                {
                    "name": "u",
                    "user": {"exec": {"apiVersion": VERSION, "command": "./plugin", **entry}},
                }
            ],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path = self.folder / "config"
        path.write_text(yaml.safe_dump(content))
        return await login(str(path))

    def runs(self) -> list[list[str]]:
        return [line.split("|") for line in self.told.read_text().splitlines()]


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


async def token(connection: Connection) -> str | None:
    return (await connection.credentials.headers()).get("Authorization")


async def test_a_program_beside_the_kubeconfig_gets_its_arguments_and_variables(
    plugin: Plugin,
) -> None:
    plugin.prints({"token": "a"})
    env = [{"name": "WHO", "value": "me"}]
    found = await plugin.login(args=["get", "token"], env=env)
    assert await token(found) == "Bearer a"
    ((told, who, arguments),) = plugin.runs()
    assert (who, arguments) == ("me", "get token")
    assert json.loads(told) == {
        "apiVersion": VERSION,
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }


async def test_it_is_told_of_the_cluster_if_it_wants(plugin: Plugin) -> None:
    plugin.prints({"token": "a"})
    (plugin.folder / "ca.crt").write_bytes(AUTHORITY.certificate)
    cluster = {
        "certificate-authority": "ca.crt",
        "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"a": 1}}],
    }
    await plugin.login(cluster=cluster, provideClusterInfo=True)
    assert json.loads(plugin.runs()[0][0])["spec"]["cluster"] == {
        "server": "https://one",
        "certificate-authority-data": b64encode(AUTHORITY.certificate).decode(),
        "config": {"a": 1},
    }


@pytest.mark.parametrize(("left_s", "runs"), [(3600, 1), (5, 2)])
async def test_it_is_run_again_when_its_token_is_about_to_expire(
    plugin: Plugin, left_s: int, runs: int
) -> None:
    until = datetime.now(UTC) + timedelta(seconds=left_s)
    plugin.prints({"token": "a", "expirationTimestamp": until.isoformat()})
    found = await plugin.login()
    assert await token(found) == "Bearer a"
    assert len(plugin.runs()) == runs


async def test_it_is_run_again_once_the_server_refuses_its_token(plugin: Plugin) -> None:
    plugin.prints({"token": "a"})
    found = await plugin.login()
    plugin.prints({"token": "b"})
    assert await token(found) == "Bearer a"
    await found.credentials.renew()
    assert await token(found) == "Bearer b"


async def test_its_client_certificate_is_presented(
    plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaf, presented = AUTHORITY.leaf(), list[bytes]()

    def load(self: ssl.SSLContext, certificate: Path, key: Path) -> None:
        presented.extend((certificate.read_bytes(), key.read_bytes()))

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", load)
    text = {"clientCertificateData": leaf.certificate.decode(), "clientKeyData": leaf.key.decode()}
    plugin.prints(text)
    found = await plugin.login()
    assert presented == [leaf.certificate, leaf.key]
    assert await token(found) is None


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"command": "no-such-program", "installHint": "get it"}, "no-such-program: .*; get it"),
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "apiVersion: Unsupported value"),
        ({"interactiveMode": "Always"}, "it needs a terminal"),
        ({"command": ""}, "user.exec: command"),
        ({"apiVersion": "client.authentication.k8s.io/v1beta1"}, "apiVersion: Invalid value"),
    ],
)
async def test_an_entry_that_cannot_be_used_is_refused(
    plugin: Plugin, entry: dict[str, Any], why: str
) -> None:
    plugin.prints({"token": "a"})
    with pytest.raises(LoginError, match=why):
        await plugin.login(**entry)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 3", "it failed with status 3"),
        ("echo hello", "ExecCredential"),
        ("""echo '{"apiVersion": "%s", "status": {}}'""" % VERSION, "gave no token"),  # noqa: UP031
    ],
)
async def test_a_program_that_gives_nothing_usable_is_named(
    plugin: Plugin, script: str, why: str
) -> None:
    plugin.does(script)
    with pytest.raises(LoginError, match=f"plugin: .*{why}"):
        await plugin.login()
