"""The certificates of one control plane: a CA of its own, kept in memory, and what it signs."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: A plane lives for minutes or days, never longer; the margin before it covers a clock that jumps.
_VALID_BEFORE = dt.timedelta(hours=1)
_VALID_FOR = dt.timedelta(days=30)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a fresh P-256 key (an RSA key would take a tenth of a second each)."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return `key` as unencrypted PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def write_secret(path: Path, content: bytes) -> Path:
    """Write `content` to `path`, readable by its owner only."""
    path.touch(mode=0o600)
    path.write_bytes(content)
    return path


class Authority:
    """A certificate authority whose key never leaves this process."""

    def __init__(self, name: str) -> None:
        self._key = new_key()
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _VALID_BEFORE)
            .not_valid_after(now + _VALID_FOR)
        )

    def serving(self, dns_names: Sequence[str], addresses: Sequence[str]) -> tuple[bytes, bytes]:
        """Return (certificate, key) in PEM for a server with these names and IP addresses."""
        key = new_key()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, dns_names[0])])
        names: list[x509.GeneralName] = [x509.DNSName(name) for name in dns_names]
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        certificate = (
            self._builder(subject, key)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM), key_pem(key)

    def client(self, user: str, groups: Sequence[str] = ()) -> tuple[bytes, bytes]:
        """Return (certificate, key) in PEM that the API server takes for `user` in `groups`."""
        key = new_key()
        subject = x509.Name(
            [
                *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
                x509.NameAttribute(NameOID.COMMON_NAME, user),
            ]
        )
        certificate = (
            self._builder(subject, key)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM), key_pem(key)


def encode(content: bytes) -> str:
    """Return `content` in base64, as kubeconfig's `*-data` fields want it."""
    return base64.b64encode(content).decode()
