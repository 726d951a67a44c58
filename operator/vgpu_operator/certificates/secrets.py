"""Reads certificates from Secrets, and writes the Secrets that have to change."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509

from vgpu_client.transport import Object
from vgpu_operator.certificates import names
from vgpu_operator.certificates.issuing import (
    Pair,
    Subject,
    read_bundle,
    read_pair,
    write_bundle,
)
from vgpu_operator.certificates.rotation import Stored
from vgpu_operator.errors import CertificateUnreadable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shelf:
    """The Secrets as they were read.

    Attributes:
        authority: The Secret of the authorities.
        pairs: The Secret of each pair, by its subject.
    """

    authority: Object
    pairs: Mapping[Subject, Object]

    def stored(self) -> Stored:
        """Return the parsed contents. Unreadable parts are logged and count as missing."""
        trust = [_content(self.authority, names.TRUST)]
        trust += [_content(secret, names.TRUST) for secret in self.pairs.values()]
        trusted = dict.fromkeys(found for bundle in trust for found in _bundle(bundle))
        pairs = {
            subject.name: _pair(secret, names.CERTIFICATE, names.KEY)
            for subject, secret in self.pairs.items()
        }
        return Stored(
            signing=_pair(self.authority, names.SIGNING_CERTIFICATE, names.SIGNING_KEY),
            announced=_pair(self.authority, names.ANNOUNCED_CERTIFICATE, names.ANNOUNCED_KEY),
            announced_since=_time(_content(self.authority, names.ANNOUNCED_SINCE)),
            trusted=tuple(trusted),
            pairs={name: pair for name, pair in pairs.items() if pair is not None},
        )

    def bundles(self) -> list[tuple[x509.Certificate, ...]]:
        """Return the trust bundle in the Secret of each pair."""
        return [_bundle(_content(secret, names.TRUST)) for secret in self.pairs.values()]

    def changes(self, desired: Stored, now: datetime) -> Iterable[Object]:
        """Return the Secrets to write so that `desired` is stored, the authority's first.

        In this order, a crash between two writes leaves unused keys, never a pair without its
        authority.
        """
        bundle = write_bundle(desired.bundle(now))
        authority = {
            names.TRUST: bundle,
            **_contents(desired.signing, names.SIGNING_CERTIFICATE, names.SIGNING_KEY),
            **_contents(desired.announced, names.ANNOUNCED_CERTIFICATE, names.ANNOUNCED_KEY),
        }
        if desired.announced_since is not None:
            authority[names.ANNOUNCED_SINCE] = desired.announced_since.isoformat().encode()
        yield from _changed(self.authority, authority)
        for subject, secret in self.pairs.items():
            pair = desired.pairs.get(subject.name)
            content = {names.TRUST: bundle, **_contents(pair, names.CERTIFICATE, names.KEY)}
            yield from _changed(secret, content)


def _content(secret: Object, key: str) -> bytes:
    try:
        return base64.b64decode((secret.get("data") or {}).get(key, ""), validate=True)
    except binascii.Error:
        return b""


def _bundle(text: bytes) -> tuple[x509.Certificate, ...]:
    try:
        return read_bundle(text)
    except CertificateUnreadable as error:
        logger.error("replacing an unreadable trust bundle: %s", error)
        return ()


def _pair(secret: Object, certificate: str, key: str) -> Pair | None:
    found = (_content(secret, certificate), _content(secret, key))
    if not any(found):
        return None
    try:
        return read_pair(*found)
    except CertificateUnreadable as error:
        name = secret["metadata"]["name"]
        logger.error("replacing the unreadable %s in Secret %s: %s", certificate, name, error)
        return None


def _time(text: bytes) -> datetime | None:
    try:
        return datetime.fromisoformat(text.decode())
    except ValueError:  # if missing or damaged, the announcement starts again
        return None


def _contents(pair: Pair | None, certificate: str, key: str) -> dict[str, bytes]:
    return {} if pair is None else {certificate: pair.certificate, key: pair.key}


def _changed(secret: Object, content: Mapping[str, bytes]) -> Iterable[Object]:
    data = {key: base64.b64encode(value).decode() for key, value in content.items()}
    if data != (secret.get("data") or {}):
        yield {**secret, "data": data}
