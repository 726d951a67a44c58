"""Credentials from a program that a kubeconfig names (`exec`), as for EKS, GKE and AKS.

The protocol is that of client-go: the program gets an `ExecCredential` in its environment and
prints one with a token, a client certificate or both. It is run again before its token expires,
and after the API server has refused it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from vgpu_client.credentials import ClientCertificate
from vgpu_client.errors import LoginError
from vgpu_client.kubeconfig import ServerEntry, pem

_GROUP = "client.authentication.k8s.io"
_VERSIONS = (f"{_GROUP}/v1", f"{_GROUP}/v1beta1")
_EXTENSION = f"{_GROUP}/exec"
"""The extension of a cluster whose content the program gets as its configuration."""
_EARLY = timedelta(seconds=10)


class _ExecEntry(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, defer_build=True)


class _ExecVariable(_ExecEntry):
    name: str
    value: str = ""


class _ExecPlugin(_ExecEntry):
    api_version: str
    command: str = Field(min_length=1)
    args: list[str] | None = None
    env: list[_ExecVariable] | None = None
    install_hint: str = ""
    interactive_mode: str = "IfAvailable"
    provide_cluster_info: bool = False


class _ExecStatus(_ExecEntry):
    expiration_timestamp: datetime | None = None
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""


class _ExecCredential(_ExecEntry):
    api_version: str
    status: _ExecStatus


class ExecPlugin:
    """The credentials that a program gives.

    Args:
        entry: The user's entry `exec`.
        cluster: The cluster that they are for.
    """

    def __init__(self, entry: Mapping[str, Any], cluster: ServerEntry) -> None:
        self._entry = entry
        self._cluster = cluster
        self._found = _ExecStatus()

    async def headers(self) -> Mapping[str, str]:
        """Return the authorization header, with a new token if the last one is about to expire."""
        until = self._found.expiration_timestamp
        if until is not None and until - _EARLY < datetime.now(UTC):
            await self.renew()
        token = self._found.token
        return {"Authorization": f"Bearer {token}"} if token else {}

    def certificate(self) -> ClientCertificate | None:
        """Return the client certificate that the program gave, if it gave one."""
        certificate, key = self._found.client_certificate_data, self._found.client_key_data
        return ClientCertificate(certificate.encode(), key.encode()) if certificate else None

    async def renew(self) -> None:
        """Run the program.

        Raises:
            LoginError: It gave no usable credentials.
        """
        try:
            plugin = _ExecPlugin.model_validate(self._entry)
        except ValidationError as error:
            raise LoginError(f"user.exec: {_first(error)}") from error
        if plugin.api_version not in _VERSIONS:
            raise LoginError(
                f"user.exec.apiVersion: Unsupported value: {plugin.api_version!r}: supported "
                f"values: {', '.join(_VERSIONS)}"
            )
        printed = await _output(plugin, self._cluster)
        try:
            found = _ExecCredential.model_validate_json(printed)
        except ValidationError as error:
            raise LoginError(f"{plugin.command}: ExecCredential: {_first(error)}") from error
        if found.api_version != plugin.api_version:
            raise LoginError(
                f"{plugin.command}: apiVersion: Invalid value: {found.api_version!r}: must be "
                f"{plugin.api_version!r}, as in the kubeconfig"
            )
        self._found = found.status
        if not self._found.token and self.certificate() is None:
            raise LoginError(f"{plugin.command}: it gave no token and no client certificate")


async def _output(plugin: _ExecPlugin, cluster: ServerEntry) -> bytes:
    """Return what the program prints. It may ask the user on a terminal."""
    has_terminal = sys.stdin.isatty() and plugin.interactive_mode != "Never"
    if plugin.interactive_mode == "Always" and not has_terminal:
        raise LoginError(f"{plugin.command}: it needs a terminal (interactiveMode: Always)")
    spec: dict[str, Any] = {"interactive": has_terminal}
    if plugin.provide_cluster_info:
        spec["cluster"] = _cluster_info(cluster)
    told = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    environment = {each.name: each.value for each in plugin.env or ()}
    environment["KUBERNETES_EXEC_INFO"] = json.dumps(told)
    return await _run(plugin, {**os.environ, **environment}, has_terminal=has_terminal)


async def _run(plugin: _ExecPlugin, env: Mapping[str, str], *, has_terminal: bool) -> bytes:
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *(plugin.args or ()),
            env=env,
            stdin=None if has_terminal else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        hint = f"; {plugin.install_hint.strip()}" if plugin.install_hint else ""
        raise LoginError(f"{plugin.command}: {error.strerror or error}{hint}") from error
    printed, _ = await process.communicate()
    if process.returncode:
        raise LoginError(f"{plugin.command}: it failed with status {process.returncode}")
    return printed


def _cluster_info(cluster: ServerEntry) -> dict[str, Any]:
    authority = pem(
        cluster.certificate_authority_data,
        cluster.certificate_authority,
        where="cluster.certificate-authority",
    )
    info = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": b64encode(authority).decode(),
        "proxy-url": cluster.proxy_url,
        "config": next(
            (
                each.get("extension")
                for each in cluster.extensions
                if each.get("name") == _EXTENSION
            ),
            None,
        ),
    }
    return {name: value for name, value in info.items() if value}


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
