"""The TLS identity of a server, which can change while the server is running.

When an `ssl.SSLContext` loads another pair, it uses that pair for every later handshake, so a
renewed certificate needs no restart and drops no connection.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from cryptography import x509

from vgpu_api.resources import SECRETS
from vgpu_client.api import Api
from vgpu_client.errors import ClientError
from vgpu_operator.certificates import names
from vgpu_operator.config import Tls
from vgpu_operator.metrics import CERTIFICATE_EXPIRY

logger = logging.getLogger(__name__)

LOOK_S = 5.0
RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class Material:
    """A certificate, its key, and the authorities that may sign client certificates, as PEM."""

    certificate: bytes
    key: bytes
    trust: bytes


class PairSource(Protocol):
    """A source of a certificate and its key."""

    async def read(self) -> Material | None:
        """Return the current pair, or None if there is none yet.

        Raises:
            ClientError, OSError: The pair cannot be read.
        """


class InSecret:
    """A pair in a Secret that the keeper writes."""

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name

    async def read(self) -> Material | None:
        """Return the pair in the Secret, or None if it is incomplete."""
        secret = await self._api.get(SECRETS, self._name, namespace=self._namespace)
        data = secret.get("data") or {}
        keys = (names.CERTIFICATE, names.KEY, names.TRUST)
        if not all(data.get(key) for key in keys):
            return None
        return Material(*(base64.b64decode(data[key]) for key in keys))


class InFiles:
    """A pair in files, renewed by cert-manager or an administrator."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls

    async def read(self) -> Material | None:
        """Return the pair in the files."""
        tls = self._tls
        trust = b"" if tls.client_ca is None else tls.client_ca.read_bytes()
        return Material(tls.certificate.read_bytes(), tls.key.read_bytes(), trust)


class Identity:
    """A server's TLS context, kept up to date.

    Args:
        name: The name of the server in metrics and messages.
        source: The source of the pair.
        verifies_clients: True if clients must present a certificate of a trusted authority.
        sleep: Waits between two reads.

    Attributes:
        context: The context of the server; it has no pair until `ready` is set.
        anonymous: A context with the same pair that requires no client certificates.
        ready: Set once a pair is loaded.
    """

    def __init__(
        self,
        name: str,
        source: PairSource,
        *,
        verifies_clients: bool,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.context, self.anonymous = _context(), _context()
        if verifies_clients:
            self.context.verify_mode = ssl.CERT_REQUIRED
        self.ready = asyncio.Event()
        self._name = name
        self._source = source
        self._sleep = sleep
        self._current: Material | None = None

    async def run(self) -> NoReturn:
        """Load each new pair; never returns.

        The first pair is read twice before it counts as unusable, because certificate and key are
        two files and may be read in the middle of a renewal.

        Raises:
            OSError: The first pair is unusable. Unusable later pairs are logged and skipped.
        """
        refused: Material | None = None
        while True:
            material: Material | None = None
            try:
                material = await self._source.read()
                if material is not None and material != self._current:
                    self._take(material)
            except ClientError as error:
                logger.warning("cannot read the certificate of the %s: %s", self._name, error)
            except OSError as error:  # also catches ssl.SSLError
                if not self.ready.is_set():
                    if material is None or material == refused:
                        raise
                    refused = material
                logger.error("cannot use the new certificate of the %s: %s", self._name, error)
            await self._sleep(LOOK_S if self.ready.is_set() else RETRY_S)

    def _take(self, material: Material) -> None:
        with tempfile.TemporaryDirectory(prefix="vgpu-tls-") as folder:
            certificate, key = _write(material, Path(folder))
            # A pair that does not match would be loaded halfway, so try it in another context
            # first.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
            for context in (self.context, self.anonymous):
                context.load_cert_chain(certificate, key)
        if material.trust and self.context.verify_mode is ssl.CERT_REQUIRED:
            # Authorities can be added to a context but not removed. Expired ones verify no caller,
            # so they do no harm.
            self.context.load_verify_locations(cadata=material.trust.decode())
        self._current = material
        self.ready.set()
        ends = x509.load_pem_x509_certificate(material.certificate).not_valid_after_utc
        CERTIFICATE_EXPIRY.labels(name=self._name).set(ends.timestamp())
        logger.info("the %s uses a certificate that is valid until %s", self._name, ends)


def _context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # None of our clients resumes sessions: Go clients need a cache for that, and Kubernetes sets
    # none. Two tickets with the client's certificate in them are a third of the cost of a handshake
    # (docs/design/loop-and-cost.md).
    context.num_tickets = 0
    return context


def _write(material: Material, folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / names.CERTIFICATE, folder / names.KEY
    certificate.write_bytes(material.certificate)
    key.touch(mode=0o600)
    key.write_bytes(material.key)
    return certificate, key
