"""Credentials for an API server, and how each kind of them is kept fresh."""

from __future__ import annotations

import ssl
import time
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from vgpu_client.errors import LoginError
from vgpu_client.kubeconfig import UserEntry, pem

_READ_AGAIN_S = 60.0
"""The interval between two reads: the kubelet renews a token when a fifth of its life is left."""


class Credentials(Protocol):
    """Credentials for one API server, which may expire."""

    async def headers(self) -> Mapping[str, str]:
        """Return the authorization header for a request, renewed if about to expire."""

    async def renew(self) -> None:
        """Load everything again after the server refused it.

        Raises:
            LoginError: No usable credentials.
        """


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A certificate with its key, both in PEM."""

    certificate: bytes
    key: bytes

    def load_into(self, tls: ssl.SSLContext) -> None:
        """Present this certificate in connections that are opened from now on.

        Raises:
            LoginError: The certificate and the key do not belong together, or are none.
        """
        # Python's ssl module loads a certificate and a key only from files. Only this user can
        # read the folder.
        with TemporaryDirectory(prefix="vgpu-") as folder:
            certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
            certificate.write_bytes(self.certificate)
            key.write_bytes(self.key)
            try:
                tls.load_cert_chain(certificate, key)
            except OSError as error:  # ssl.SSLError included
                raise LoginError(f"client certificate: {error}") from error


def client_certificate(user: UserEntry) -> ClientCertificate | None:
    """Return the certificate of a kubeconfig's user; None if it has none.

    Raises:
        LoginError: It cannot be read, or the key is missing.
    """
    certificate = pem(
        user.client_certificate_data, user.client_certificate, where="user.client-certificate"
    )
    key = pem(user.client_key_data, user.client_key, where="user.client-key")
    if not certificate and not key:
        return None
    if not key or not certificate:
        raise LoginError("user: client-certificate and client-key must be given together")
    return ClientCertificate(certificate, key)


class FixedHeaders:
    """A token, a password or nothing, which only its owner renews."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    async def headers(self) -> Mapping[str, str]:
        """Return the header that was given."""
        return self._headers

    async def renew(self) -> None:
        """Do nothing: the creator of these credentials reads them again."""


class TokenFile:
    """A bearer token in a file that somebody else renews, such as a service account's.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token = ""
        self._read_at = -_READ_AGAIN_S

    async def headers(self) -> Mapping[str, str]:
        """Return the token, read at most a minute ago if the file can be read."""
        if time.monotonic() - self._read_at >= _READ_AGAIN_S:
            try:
                self.read()
            except LoginError:
                if not self._token:
                    raise
                # The token in hand may be valid for longer. If not, the server answers 401.
                self._read_at = time.monotonic()
        return {"Authorization": f"Bearer {self._token}"}

    async def renew(self) -> None:
        """Read the file now."""
        self.read()

    def read(self) -> None:
        """Read the file now.

        Raises:
            LoginError: It cannot be read, or is empty.
        """
        try:
            token = self._path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise LoginError(f"token file: {error}") from error
        if not token:
            raise LoginError(f"token file {self._path} is empty")
        self._token, self._read_at = token, time.monotonic()


def in_kubeconfig(user: UserEntry) -> Credentials:
    """Return the credentials that a kubeconfig's user has in itself, without a plugin.

    Raises:
        LoginError: A token file cannot be read.
    """
    if user.token_file:
        file = TokenFile(Path(user.token_file))
        file.read()
        return file
    if user.token:
        return FixedHeaders({"Authorization": f"Bearer {user.token.strip()}"})
    if user.username:
        pair = b64encode(f"{user.username}:{user.password}".encode()).decode()
        return FixedHeaders({"Authorization": f"Basic {pair}"})
    return FixedHeaders({})
