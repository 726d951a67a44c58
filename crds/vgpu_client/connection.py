"""Connect to the API server: address, trust and credentials, from wherever the cluster has them.

Reading kubeconfigs (contexts, exec plugins, cloud providers) and service accounts is left to
kubernetes-asyncio's loaders. This module turns their results into the three things an HTTP session
needs, and keeps the credentials fresh: it reads service account tokens from their file every
minute, renews plugin tokens before they expire, and loads everything again when the server answers
401.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import yaml
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import (
    ConfigException,
    list_kube_config_contexts,
    load_kube_config,
)
from kubernetes_asyncio.config.incluster_config import (
    SERVICE_CERT_FILENAME,
    SERVICE_TOKEN_FILENAME,
    InClusterConfigLoader,
)
from kubernetes_asyncio.config.kube_config import KubeConfigLoader

from vgpu_client.errors import LoginError
from vgpu_client.server_time import ServerTime

_DEFAULT_NAMESPACE = "default"
_SERVICE_NAMESPACE = Path(SERVICE_TOKEN_FILENAME).with_name("namespace")


class Credentials(Protocol):
    """Credentials for one API server, which may expire."""

    async def headers(self) -> Mapping[str, str]:
        """Return the authorization header for a request, renewed if about to expire."""

    async def renew(self) -> None:
        """Load everything again after the server refused it.

        Raises:
            LoginError: No usable credentials.
        """


@dataclass(slots=True)
class Connection:
    """The address of one API server and the credentials for it.

    Attributes:
        server: The URL without a trailing slash.
        tls: Trust and client certificate; None for plain HTTP.
        server_name: The name expected in the server's certificate, if it is not the host's.
        proxy: URL of an HTTP proxy to go through.
        credentials: Our credentials for it.
        time: The server's time of day.
    """

    server: str
    tls: ssl.SSLContext | None
    server_name: str | None
    proxy: str | None
    credentials: Credentials
    time: ServerTime = field(default_factory=ServerTime)


async def login(kubeconfig: str | None = None, context: str | None = None) -> Connection:
    """Find the API server and our credentials.

    Without a kubeconfig, try the files of `KUBECONFIG`, then the pod's service account, then
    `~/.kube/config`.

    Args:
        kubeconfig: Path of a kubeconfig.
        context: The context in it; None for its current one.

    Raises:
        LoginError: No usable credentials; the message lists the places searched.
    """
    files = kubeconfig or os.environ.get("KUBECONFIG")
    if not files and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return await _from_service_account()
    return await _from_kubeconfig(files or str(Path.home() / ".kube" / "config"), context)


def namespace_of(kubeconfig: str | None = None, context: str | None = None) -> str:
    """Return kubectl's default namespace: the context's, the pod's or `default`.

    Args:
        kubeconfig: Path of a kubeconfig; None as in `login`.
        context: The context in it; None for its current one.

    Raises:
        LoginError: The kubeconfig cannot be read, or has no such context.
    """
    files = kubeconfig or os.environ.get("KUBECONFIG")
    if not files and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return _service_namespace()
    files = files or str(Path.home() / ".kube" / "config")
    if not _any_exists(files):
        raise LoginError(f"kubeconfig {files} does not exist, and this is not a pod")
    try:
        contexts, current = list_kube_config_contexts(files)
    except (ConfigException, OSError, yaml.YAMLError, TypeError, KeyError, ValueError) as error:
        raise LoginError(f"kubeconfig {files}: {error}") from error
    by_name = {each["name"]: each for each in contexts}
    desired = current if context is None else by_name.get(context)
    if desired is None:
        raise LoginError(f"kubeconfig {files}: no context {context}")
    return str((desired.get("context") or {}).get("namespace") or _DEFAULT_NAMESPACE)


def _service_namespace() -> str:
    try:
        return _SERVICE_NAMESPACE.read_text().strip() or _DEFAULT_NAMESPACE
    except OSError:
        return _DEFAULT_NAMESPACE


async def _from_service_account() -> Connection:
    account = _ServiceAccount()
    await account.renew()
    return _connection(account.found, _tls(account.found), account)


async def _from_kubeconfig(files: str, context: str | None) -> Connection:
    if not _any_exists(files):
        raise LoginError(f"kubeconfig {files} does not exist, and this is not a pod")
    found = Configuration()
    loader = await _load(files, context, found)
    tls = _tls(found)
    return _connection(found, tls, _Kubeconfig(files, context, found, loader, tls))


class _ServiceAccount:
    """The credentials of the pod that we run in."""

    def __init__(self) -> None:
        self.found = Configuration()
        self._loader = InClusterConfigLoader(SERVICE_TOKEN_FILENAME, SERVICE_CERT_FILENAME)

    async def headers(self) -> Mapping[str, str]:
        return await _authorization(self.found)

    async def renew(self) -> None:
        try:
            self._loader.load_and_set(self.found)
        except (ConfigException, OSError) as error:
            raise LoginError(f"service account: {error}") from error


@dataclass(slots=True)
class _Kubeconfig:
    """The credentials of a context of a kubeconfig."""

    files: str
    context: str | None
    found: Configuration
    loader: KubeConfigLoader
    tls: ssl.SSLContext | None

    async def headers(self) -> Mapping[str, str]:
        if self.loader.provider == "gcp":
            self.found.api_key["BearerToken"] = await self.loader.load_gcp_token()
        elif hasattr(self.loader, "exec_plugin_expiry"):
            # Returns at once while the plugin's token is valid. A plugin that reports no expiry is
            # only asked again after a 401.
            await self.loader.load_from_exec_plugin()
            self.found.api_key["BearerToken"] = self.loader.token
        return await _authorization(self.found)

    async def renew(self) -> None:
        self.loader = await _load(self.files, self.context, self.found)
        if self.tls is not None and self.found.cert_file:
            self.tls.load_cert_chain(self.found.cert_file, self.found.key_file)


def _any_exists(files: str) -> bool:
    return any(Path(file).expanduser().is_file() for file in files.split(os.pathsep))


async def _load(files: str, context: str | None, into: Configuration) -> KubeConfigLoader:
    try:
        return await load_kube_config(files, context, client_configuration=into)
    except (ConfigException, OSError, yaml.YAMLError, TypeError, KeyError, ValueError) as error:
        # The loader raises whatever Python raises on a malformed file.
        raise LoginError(f"kubeconfig {files}: {error}") from error


async def _authorization(found: Configuration) -> Mapping[str, str]:
    value = await found.get_api_key_with_prefix("BearerToken")
    return {"Authorization": value.strip()} if value else {}


def _server(found: Configuration) -> str:
    if not found.host:
        raise LoginError("the kubeconfig's cluster names no server")
    return found.host.rstrip("/")


def _tls(found: Configuration) -> ssl.SSLContext | None:
    if not _server(found).startswith("https"):
        return None
    try:
        tls = ssl.create_default_context(cafile=found.ssl_ca_cert)
        if found.cert_file:
            tls.load_cert_chain(found.cert_file, found.key_file)
    except OSError as error:  # ssl.SSLError included
        raise LoginError(f"certificates for {found.host}: {error}") from error
    if not found.verify_ssl:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    return tls


def _connection(
    found: Configuration, tls: ssl.SSLContext | None, credentials: Credentials
) -> Connection:
    return Connection(
        server=_server(found),
        tls=tls,
        server_name=found.tls_server_name,
        proxy=found.proxy,
        credentials=credentials,
    )
