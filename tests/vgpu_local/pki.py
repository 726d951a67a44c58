"""Throw-away certificates, so that every HTTPS connection of the stand-in is verified for real.

The API server, the admission webhooks and the scheduler extender are all reached over TLS; one
authority, created at the start, signs a certificate for each. Nothing here outlives the process
that created it.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = dt.timedelta(days=2)
_BACKDATE = dt.timedelta(minutes=5)
_BOTH_ENDS = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A server's certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, *, name: str = "tls") -> tuple[Path, Path]:
        """Write `NAME.crt` and `NAME.key` into `folder`; return both paths."""
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        certificate.write_bytes(self.certificate)
        key.touch(mode=0o600)
        key.write_bytes(self.key)
        return certificate, key

    def server_context(self) -> ssl.SSLContext:
        """Return a TLS context for a server that shows this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:  # the ssl module reads only files
            context.load_cert_chain(*self.write(Path(folder)))
        return context


class Authority:
    """A certificate authority; each instance has a new EC key."""

    def __init__(self, *, name: str = "vgpu-local") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} CA")])
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self._authority_id = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
            identifier
        )
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
        certificate = (
            self._builder(self._subject, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM)
        """The authority's own certificate, PEM: what clients put into `certificate-authority`."""

    def leaf(
        self,
        *,
        names: Sequence[str] = ("localhost",),
        addresses: Sequence[str] = ("127.0.0.1",),
        good_for: dt.timedelta = LIFETIME,
    ) -> Leaf:
        """Return a certificate for these DNS names and IP addresses, for servers and clients.

        Args:
            names: DNS names, at least one.
            addresses: IP addresses.
            good_for: The validity from now on. A negative one of up to five minutes makes a
                certificate that has expired.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
        alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        alternatives += [x509.IPAddress(ipaddress.ip_address(text)) for text in addresses]
        certificate = (
            self._builder(subject, key.public_key(), good_for)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.ExtendedKeyUsage(_BOTH_ENDS), critical=False)
            .add_extension(self._authority_id, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return Leaf(
            certificate=certificate.public_bytes(serialization.Encoding.PEM),
            key=key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )

    def client_context(self) -> ssl.SSLContext:
        """Return a TLS context for a client that trusts only this authority."""
        return ssl.create_default_context(cadata=self.certificate.decode())

    def _builder(
        self,
        subject: x509.Name,
        public_key: ec.EllipticCurvePublicKey,
        good_for: dt.timedelta = LIFETIME,
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACKDATE)
            .not_valid_after(now + good_for)
        )
