"""Issues certificates: authorities, and the pairs that they sign.

All functions are pure except for random keys and serial numbers; the time is an argument. All keys
are EC P-256. A pair never outlives its authority, so an expired authority can be forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from vgpu_operator.errors import CertificateUnreadable

BACKDATE = timedelta(hours=1)
"""Certificates become valid this long before they are issued, because other clocks may be behind.
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """The owner of a pair.

    Attributes:
        name: Its common name.
        hosts: The DNS names of the server. Empty for a client.
    """

    name: str
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, both as PEM."""

    certificate: bytes
    key: bytes

    def parsed(self) -> x509.Certificate:
        """Return the parsed certificate."""
        return x509.load_pem_x509_certificate(self.certificate)


def read_pair(certificate: bytes, key: bytes) -> Pair:
    """Read a stored pair.

    Raises:
        CertificateUnreadable: Certificate or key is not valid PEM, or they do not belong together.
    """
    try:
        public = x509.load_pem_x509_certificate(certificate).public_key()
        private = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError) as error:
        raise CertificateUnreadable(str(error)) from error
    if private.public_key() != public:
        raise CertificateUnreadable("the key does not match the certificate")
    return Pair(certificate, key)


def read_bundle(bundle: bytes) -> tuple[x509.Certificate, ...]:
    """Return all certificates in a PEM text.

    Raises:
        CertificateUnreadable: A certificate is invalid.
    """
    if b"-----BEGIN CERTIFICATE-----" not in bundle:
        return ()
    try:
        return tuple(x509.load_pem_x509_certificates(bundle))
    except ValueError as error:
        raise CertificateUnreadable(str(error)) from error


def write_bundle(certificates: Sequence[x509.Certificate]) -> bytes:
    """Return the certificates as one PEM text."""
    return b"".join(c.public_bytes(serialization.Encoding.PEM) for c in certificates)


def new_authority(*, now: datetime, life: timedelta) -> Pair:
    """Create a certificate authority that can sign only leaf certificates."""
    key = ec.generate_private_key(ec.SECP256R1())
    # Give each authority its own name: verifiers look up issuers by name, and two authorities are
    # trusted at the same time for a while.
    serial = x509.random_serial_number()
    name = _name(f"vgpu authority {serial:x}"[:64])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        _builder(name, name, key.public_key(), serial, now, now + life)
        # Path length 0: a pair that it signed cannot sign another.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pair(certificate, key)


def issue(authority: Pair, subject: Subject, *, now: datetime, life: timedelta) -> Pair:
    """Sign a new pair for a subject, valid no longer than the authority."""
    issuer = authority.parsed()
    signer = serialization.load_pem_private_key(authority.key, password=None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey), "authorities are made here alone"
    key = ec.generate_private_key(ec.SECP256R1())
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if subject.hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    ends = min(now + life, issuer.not_valid_after_utc)
    builder = (
        _builder(
            _name(subject.name),
            issuer.subject,
            key.public_key(),
            x509.random_serial_number(),
            now,
            ends,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
    )
    if subject.hosts:
        names = x509.SubjectAlternativeName([x509.DNSName(host) for host in subject.hosts])
        builder = builder.add_extension(names, critical=False)
    return _pair(builder.sign(signer, hashes.SHA256()), key)


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return True if the certificate was signed with the authority's key."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def is_for(certificate: x509.Certificate, subject: Subject) -> bool:
    """Return True if a certificate has the current names of the subject."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        hosts: tuple[str, ...] = ()
    else:
        hosts = tuple(extension.value.get_values_for_type(x509.DNSName))
    return certificate.subject == _name(subject.name) and hosts == subject.hosts


def is_worn(certificate: x509.Certificate, now: datetime) -> bool:
    """Return True if two thirds of the certificate's lifetime are over."""
    begins, ends = certificate.not_valid_before_utc + BACKDATE, certificate.not_valid_after_utc
    return now >= begins + (ends - begins) * 2 / 3


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    serial: int,
    now: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(now - BACKDATE)
        .not_valid_after(ends)
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
