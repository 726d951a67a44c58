"""Reads from a certificate when it ends, which is all that the doctor looks at.

The package that reads whole certificates is compiled, and needs two more packages.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from datetime import UTC, datetime

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
_VERSION = 0xA0
"""The tag of the field that certificates before X.509v3 leave out."""
_LONG = 0x80


def end_of(pem: bytes) -> datetime:
    """Return the end of the first certificate in a text, which is in UTC.

    Raises:
        ValueError: There is no certificate.
    """
    found = _PEM.search(pem)
    if found is None:
        raise ValueError("there is no certificate")
    try:
        return _end_of(b64decode(found[1]))
    except IndexError as error:
        raise ValueError("the certificate is cut short") from error


def _end_of(der: bytes) -> datetime:
    (_, certificate), *_ = _parts(der)
    (_, signed), *_ = _parts(certificate)
    parts = list(_parts(signed))
    # version, serialNumber, signature, issuer, validity (RFC 5280, 4.1)
    _, validity = parts[4 if parts[0][0] == _VERSION else 3]
    _, (tag, text) = _parts(validity)
    if tag == _UTC_TIME:  # of the years 1950 to 2049
        text = (b"19" if text[:2] >= b"50" else b"20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"a time has the tag {tag}")
    return datetime.strptime(text.decode(), "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _parts(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and the content of each element."""
    at = 0
    while at < len(der):
        tag, size, start = der[at], der[at + 1], at + 2
        if size & _LONG:
            start += size - _LONG
            size = int.from_bytes(der[at + 2 : start])
        at = start + size
        if at > len(der):
            raise ValueError("the certificate is cut short")
        yield tag, der[start:at]
