"""Connect to the API server: address, trust and credentials, from wherever the cluster has them.

A pod's service account and ordinary kubeconfigs are read here, because every process of the project
starts with them, and so are the programs that give credentials (`exec_plugin.py`). The former
identity providers (`auth-provider`) are left to kubernetes-asyncio (`provider_credentials.py`).
Credentials are kept fresh: token files are read every minute, tokens of programs are renewed before
they expire, and everything is loaded again when the server answers 401.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vgpu_client.credentials import (
    ClientCertificate,
    Credentials,
    TokenFile,
    client_certificate,
    in_kubeconfig,
)
from vgpu_client.errors import LoginError
from vgpu_client.kubeconfig import (
    Context,
    ServerEntry,
    any_exists,
    default_namespace,
    pem,
    read_context,
)
from vgpu_client.server_time import ServerTime

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_DEFAULT_NAMESPACE = "default"


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
    files = _kubeconfigs(kubeconfig)
    if files is None:
        return _from_service_account()
    return await _from_kubeconfig(files, context)


def namespace_of(kubeconfig: str | None = None, context: str | None = None) -> str:
    """Return kubectl's default namespace: the context's, the pod's or `default`.

    Args:
        kubeconfig: Path of a kubeconfig; None as in `login`.
        context: The context in it; None for its current one.

    Raises:
        LoginError: The kubeconfig cannot be read, or has no such context.
    """
    files = _kubeconfigs(kubeconfig)
    if files is not None:
        return default_namespace(_existing(files), context) or _DEFAULT_NAMESPACE
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text().strip() or _DEFAULT_NAMESPACE
    except OSError:
        return _DEFAULT_NAMESPACE


def _kubeconfigs(kubeconfig: str | None) -> str | None:
    """Return the files to read; None in a pod that is given none."""
    files = kubeconfig or os.environ.get("KUBECONFIG")
    if not files and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    return files or str(Path.home() / ".kube" / "config")


def _existing(files: str) -> str:
    if not any_exists(files):
        raise LoginError(f"kubeconfig {files} does not exist, and this is not a pod")
    return files


def _from_service_account() -> Connection:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT")
    if not port:
        raise LoginError("service account: KUBERNETES_SERVICE_PORT is not set")
    token = TokenFile(SERVICE_ACCOUNT / "token")
    token.read()
    host = f"[{host}]" if ":" in host else host
    cluster = ServerEntry(
        server=f"https://{host}:{port}", certificate_authority=str(SERVICE_ACCOUNT / "ca.crt")
    )
    return _connection(cluster, _tls(cluster, None), token)


async def _from_kubeconfig(files: str, context: str | None) -> Connection:
    credentials = _KubeconfigCredentials(_existing(files), context)
    cluster, certificate = await credentials.load()
    credentials.tls = _tls(cluster, certificate)
    return _connection(cluster, credentials.tls, credentials)


class _KubeconfigCredentials:
    """The credentials of a context of kubeconfigs."""

    def __init__(self, files: str, context: str | None) -> None:
        self._files = files
        self._context = context
        self._current: Credentials | None = None
        self.tls: ssl.SSLContext | None = None

    async def load(self) -> tuple[ServerEntry, ClientCertificate | None]:
        """Read the kubeconfigs, and return the server and the client certificate if there is one.

        Raises:
            LoginError: No usable credentials.
        """
        found = read_context(self._files, self._context)
        self._current, certificate = await self._credentials(found)
        return found.cluster, certificate

    async def headers(self) -> Mapping[str, str]:
        assert self._current is not None
        return await self._current.headers()

    async def renew(self) -> None:
        _, certificate = await self.load()
        if self.tls is not None and certificate is not None:
            certificate.load_into(self.tls)

    async def _credentials(self, found: Context) -> tuple[Credentials, ClientCertificate | None]:
        own = client_certificate(found.user)
        if found.user.auth_provider is not None:
            return await _of_provider(self._files, found), own
        if found.user.exec is None:
            return in_kubeconfig(found.user), own
        from vgpu_client.exec_plugin import ExecPlugin  # few kubeconfigs need it

        plugin = ExecPlugin(found.user.exec, found.cluster)
        await plugin.renew()
        return plugin, plugin.certificate() or own


async def _of_provider(files: str, found: Context) -> Credentials:
    try:
        # takes half a second, and `kubectl vgpu` is installed without its library
        from vgpu_client.provider_credentials import ProviderCredentials
    except ModuleNotFoundError as error:
        name = (found.user.auth_provider or {}).get("name", "")
        raise LoginError(
            f"kubeconfig {files}: user.auth-provider: Unsupported value: {name!r}: use an exec "
            "plugin, such as kubelogin"
        ) from error
    provider = ProviderCredentials(files, found.name)
    await provider.renew()
    return provider


def _tls(cluster: ServerEntry, certificate: ClientCertificate | None) -> ssl.SSLContext | None:
    if not cluster.server.startswith("https"):
        return None
    authority = pem(
        cluster.certificate_authority_data,
        cluster.certificate_authority,
        where="cluster.certificate-authority",
    )
    if authority and cluster.insecure_skip_tls_verify:
        raise LoginError("cluster: certificate-authority and insecure-skip-tls-verify are both set")
    try:
        tls = ssl.create_default_context(cadata=authority.decode() or None)
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise LoginError(f"cluster.certificate-authority of {cluster.server}: {error}") from error
    if certificate is not None:
        certificate.load_into(tls)
    if cluster.insecure_skip_tls_verify:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    return tls


def _connection(
    cluster: ServerEntry, tls: ssl.SSLContext | None, credentials: Credentials
) -> Connection:
    return Connection(
        server=cluster.server.rstrip("/"),
        tls=tls,
        server_name=cluster.tls_server_name or None,
        proxy=cluster.proxy_url or None,
        credentials=credentials,
    )
