"""Kubeconfigs are read as kubectl and kubernetes-asyncio read them."""

from __future__ import annotations

import os
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import load_kube_config

from vgpu_client.connection import login, namespace_of
from vgpu_client.credentials import TokenFile
from vgpu_client.errors import LoginError
from vgpu_client.kubeconfig import read_context
from vgpu_local.pki import Authority

AUTHORITY = Authority()
CA = AUTHORITY.certificate.decode()


def data(text: str) -> str:
    return b64encode(text.encode()).decode()


def write(path: Path, *, current: str = "", **entries: dict[str, dict[str, Any]]) -> Path:
    """Write a kubeconfig with these clusters, users and contexts by name."""
    content: dict[str, Any] = {"current-context": current}
    for kind, named in entries.items():
        content[f"{kind}s"] = [{"name": name, kind: entry} for name, entry in named.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content))
    return path


def simple(path: Path, user: dict[str, Any], **cluster: Any) -> str:
    return str(
        write(
            path,
            current="x",
            cluster={"c": {"server": "https://one:6443", **cluster}},
            user={"u": user},
            context={"x": {"cluster": "c", "user": "u"}},
        )
    )


async def theirs(files: str, context: str | None = None) -> tuple[str, str | None]:
    """Return the server and the authorization header that kubernetes-asyncio would use.

    Of several files it takes the last `current-context`; kubectl takes the first.
    """
    found = Configuration()
    await load_kube_config(files, context, client_configuration=found)
    return found.host, await found.get_api_key_with_prefix("BearerToken")


async def ours(files: str, context: str | None = None) -> tuple[str, str | None]:
    connection = await login(files, context)
    return connection.server, (await connection.credentials.headers()).get("Authorization")


USERS = {
    "token": {"token": "abc"},
    "token file": {"tokenFile": "secret/token"},
    "password": {"username": "ann", "password": "b:c"},
    "none": {},
}


@pytest.mark.parametrize("user", USERS.values(), ids=USERS)
async def test_a_users_credentials_are_those_that_another_client_reads(
    tmp_path: Path, user: dict[str, Any]
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "token").write_text("from-file")
    files = simple(tmp_path / "config", user, **{"certificate-authority-data": data(CA)})
    assert await ours(files) == await theirs(files)


async def test_a_field_that_is_null_is_not_set(tmp_path: Path) -> None:
    files = simple(tmp_path / "config", {"token": "abc", "exec": None, "client-key": None})
    assert await ours(files) == ("https://one:6443", "Bearer abc")


async def test_of_several_files_the_first_that_names_an_entry_defines_it(tmp_path: Path) -> None:
    first = write(
        tmp_path / "a" / "config",
        current="x",
        cluster={"c": {"server": "http://first"}},
        context={"x": {"cluster": "c", "user": "u"}},
    )
    second = write(
        tmp_path / "b" / "config",
        current="y",
        cluster={"c": {"server": "http://second"}, "d": {"server": "http://third"}},
        user={"u": {"tokenFile": "token"}},
        context={"y": {"cluster": "d", "user": "u", "namespace": "team"}},
    )
    (tmp_path / "b" / "token").write_text("relative-to-b")
    files = os.pathsep.join([str(tmp_path / "missing"), str(first), str(second)])
    assert await ours(files) == ("http://first", "Bearer relative-to-b")
    assert await ours(files, "y") == ("http://third", "Bearer relative-to-b")
    assert await ours(files, "y") == await theirs(files, "y")
    assert (namespace_of(files), namespace_of(files, "y")) == ("default", "team")


async def test_the_servers_name_and_the_proxy_are_taken_from_the_cluster(tmp_path: Path) -> None:
    files = simple(
        tmp_path / "config", {}, **{"tls-server-name": "inner", "proxy-url": "http://proxy:3128"}
    )
    connection = await login(files)
    assert (connection.server_name, connection.proxy) == ("inner", "http://proxy:3128")


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a certificate without its key": (
        {"client-certificate-data": data(CA)},
        {},
        "client-certificate and client-key must be given together",
    ),
    "a key that is none": (
        {"client-certificate-data": data(CA), "client-key-data": data("no key")},
        {},
        "client certificate",
    ),
    "data that is not base64": ({}, {"certificate-authority-data": "%"}, "certificate-authority"),
    "an authority that is none": (
        {},
        {"certificate-authority-data": data("no certificate")},
        "certificate-authority",
    ),
    "a missing authority": ({}, {"certificate-authority": "gone.crt"}, "gone.crt"),
    "trust in all and in one": (
        {},
        {"certificate-authority-data": data(CA), "insecure-skip-tls-verify": True},
        "both set",
    ),
    "another user's name": ({"token": "t", "as": "root"}, {}, "users\\[u\\].user.as"),
    "a token that is a list": ({"token": [1]}, {}, r"users\[u\].user.token: must be a string$"),
    "an empty token file": ({"tokenFile": "/dev/null"}, {}, "is empty"),
    "an extension that is a string": (
        {},
        {"extensions": ["x"]},
        r"clusters\[c\].cluster.extensions: must be objects",
    ),
    "no server": ({}, {"server": ""}, r"clusters\[c\].cluster.server: Required value"),
}


@pytest.mark.parametrize(("user", "cluster", "why"), WRONG.values(), ids=WRONG)
async def test_what_cannot_be_used_is_refused_by_name(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], why: str
) -> None:
    files = simple(tmp_path / "config", user, **cluster)
    with pytest.raises(LoginError, match=why):
        await login(files)


@pytest.mark.parametrize("text", ["[]", "contexts: 3", "contexts: [3]", "clusters: {a: b}"])
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(LoginError, match="config"):
        read_context(str(tmp_path / "config"))


def test_a_context_without_its_cluster_still_has_a_namespace(tmp_path: Path) -> None:
    path = write(tmp_path / "config", current="x", context={"x": {"namespace": "team"}})
    assert namespace_of(str(path)) == "team"
    with pytest.raises(LoginError, match="no cluster ''"):
        read_context(str(path))


async def test_a_client_certificate_is_presented_and_no_key_stays_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    leaf = AUTHORITY.leaf()
    user = {
        "client-certificate-data": data(leaf.certificate.decode()),
        "client-key-data": data(leaf.key.decode()),
    }
    connection = await login(simple(tmp_path / "config", user))
    assert connection.tls is not None
    assert list((tmp_path / "tmp").iterdir()) == []


async def test_an_exec_plugins_token_is_used(tmp_path: Path) -> None:
    status = '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", '
    status += '"status": {"token": "of-the-plugin"}}'
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\necho '{status}'\n")
    plugin.chmod(0o755)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}
    files = simple(tmp_path / "config", user, server="http://one")
    assert await ours(files) == ("http://one", "Bearer of-the-plugin")


async def test_a_token_that_cannot_be_read_again_is_kept_until_the_server_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("vgpu_client.credentials.time.monotonic", lambda: now)
    path = tmp_path / "token"
    path.write_text("old\n")
    file = TokenFile(path)
    assert await file.headers() == {"Authorization": "Bearer old"}
    path.write_text("new")
    assert await file.headers() == {"Authorization": "Bearer old"}
    now += 61
    assert await file.headers() == {"Authorization": "Bearer new"}
    path.unlink()
    now += 61
    assert await file.headers() == {"Authorization": "Bearer new"}
    with pytest.raises(LoginError, match="token file"):
        await file.renew()


@pytest.mark.programs
@pytest.mark.parametrize(
    "program",
    ["vgpu_nodeagent.__main__", "vgpu_operator.cli.__main__", "vgpu_client.api"],
)
def test_agents_and_the_cli_start_without_the_library_for_plugins(program: str) -> None:
    """It costs each of thousands of agents 37 MiB, and each start half a second."""
    code = f"import sys, {program}; sys.exit('kubernetes_asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
