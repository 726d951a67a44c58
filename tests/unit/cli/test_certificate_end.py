"""The expiry of a certificate is the one that a certificate library reads."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from vgpu_operator.cli.certificate_end import end_of

KEY = ec.generate_private_key(ec.SECP256R1())
BEGIN = datetime(1951, 1, 1, tzinfo=UTC)


def certificate(
    end: datetime, *, name: str = "a", serial: int = 1, key: CertificateIssuerPrivateKeyTypes = KEY
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())  # type: ignore[arg-type]
        .serial_number(serial)
        .not_valid_before(BEGIN)
        .not_valid_after(end)
        .sign(key, hashes.SHA256())
    )


def pem(found: x509.Certificate) -> bytes:
    return found.public_bytes(serialization.Encoding.PEM)


@given(
    st.datetimes(datetime(1952, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),
    st.text(st.characters(categories=("L", "N")), min_size=1, max_size=16),  # X.509 allows 64 bytes
    st.integers(1, 2**150),
)
def test_it_is_read_in_both_forms_of_time(end: datetime, name: str, serial: int) -> None:
    found = certificate(end, name=name, serial=serial)
    assert end_of(pem(found)) == found.not_valid_after_utc


def test_the_first_of_a_chain_with_long_keys_counts() -> None:
    long = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    first = certificate(datetime(2030, 1, 1, tzinfo=UTC), key=long)
    second = certificate(datetime(2040, 1, 1, tzinfo=UTC))
    assert end_of(b"a note\n" + pem(first) + pem(second)) == datetime(2030, 1, 1, tzinfo=UTC)


DER = certificate(BEGIN + timedelta(days=999)).public_bytes(serialization.Encoding.DER)


@given(st.integers(0, len(DER) - 1))
def test_a_certificate_that_is_cut_short_is_refused(size: int) -> None:
    text = ssl.DER_cert_to_PEM_cert(DER[:size]).encode()
    with pytest.raises(ValueError, match=r"."):
        end_of(text)


@pytest.mark.parametrize("text", [b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\n?"])
def test_a_text_without_a_certificate_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="no certificate"):
        end_of(text)
