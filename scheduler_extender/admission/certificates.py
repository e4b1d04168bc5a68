"""A certificate for the webhook, made here, and the API server's configuration to trust it.

A certificate authority is made for each certificate and its key is thrown away, so that nothing
else can ever be signed by it. `rotation.py` keeps it in a Secret and replaces it in time.
"""

from __future__ import annotations

import base64
import ipaddress
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tandem.errors import TandemError
from tandem.kube.api import ClusterApi
from tandem.kube.errors import NotFound
from tandem.kube.resource import MUTATING_WEBHOOKS

log = logging.getLogger(__name__)

SECRET_NAME = "tandem-webhook"  # noqa: S105 - the name of it, not what is in it
CONFIGURATION_NAME = "tandem"
VALID_FOR = timedelta(days=365)
#: Clocks of API servers may be behind ours.
_EARLIER = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Serving:
    """A certificate with its key, and the authorities to trust at it; all PEM.

    While one certificate follows another, there are two authorities, the newer one last.
    """

    ca: bytes
    certificate: bytes
    key: bytes

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write certificate and key, readable by us alone, and return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        certificate, key = folder / "tls.crt", folder / "tls.key"
        certificate.write_bytes(self.certificate)
        key.touch(mode=0o600)
        key.write_bytes(self.key)
        return certificate, key


def ends(certificate: bytes) -> datetime:
    """Return when a certificate ends; ValueError where it is none."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def not_for(certificate: bytes, names: Sequence[str]) -> list[str]:
    """Return those of `names` that a certificate does not bear; ValueError where it is none."""
    parsed = x509.load_pem_x509_certificate(certificate)
    try:
        borne = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return list(names)
    return [name for name in names if _general_name(name) not in borne]


def trusted_authorities(api: ClusterApi) -> bytes:
    """Return what the API server trusts at our webhooks, as PEM; empty where it is nothing. Blocks.

    Raises:
        KubeError: the API server refused, or could not be reached.
    """
    try:
        webhooks: list[dict[str, Any]] = api.get(MUTATING_WEBHOOKS, CONFIGURATION_NAME)["webhooks"]
        bundle = base64.b64decode(webhooks[0]["clientConfig"]["caBundle"], validate=True)
        x509.load_pem_x509_certificates(bundle)
    except (NotFound, LookupError, TypeError, ValueError):
        return b""
    return bundle


def install_authority(api: ClusterApi, ca: bytes) -> int:
    """Tell the API server to trust `ca` at our webhooks; return the number of changes. Blocks.

    Raises:
        TandemError: there is no such configuration.
        KubeError: the API server refused, or could not be reached.
    """
    try:
        found = api.get(MUTATING_WEBHOOKS, CONFIGURATION_NAME)
    except NotFound as error:
        raise TandemError(
            f"there is no MutatingWebhookConfiguration {CONFIGURATION_NAME}",
            "Install the manifests before the extender starts.",
        ) from error
    bundle = base64.b64encode(ca).decode()
    patch: list[dict[str, Any]] = []
    stale = 0
    for index, webhook in enumerate(found.get("webhooks") or ()):
        if webhook["clientConfig"].get("caBundle") == bundle:
            continue
        stale += 1
        # The test holds the index to its webhook, should somebody edit the list meanwhile.
        patch += [
            {"op": "test", "path": f"/webhooks/{index}/name", "value": webhook["name"]},
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle},
        ]
    if patch:
        api.patch(MUTATING_WEBHOOKS, CONFIGURATION_NAME, patch, kind="json")
        log.info("authority installed configuration=%s webhooks=%d", CONFIGURATION_NAME, stale)
    return stale


def generate(names: Sequence[str], now: datetime, valid_for: timedelta = VALID_FOR) -> Serving:
    """Return a new certificate for `names`, signed by a new authority."""
    authority = _Authority(now, valid_for)
    return authority.signed("tandem-webhook", ExtendedKeyUsageOID.SERVER_AUTH, names)


def generate_pair(
    names: Sequence[str], client: str, now: datetime, valid_for: timedelta
) -> tuple[Serving, Serving]:
    """Return new certificates of a server at `names` and of its only client, of one authority."""
    authority = _Authority(now, valid_for)
    return (
        authority.signed("tandem-extender", ExtendedKeyUsageOID.SERVER_AUTH, names),
        authority.signed(client, ExtendedKeyUsageOID.CLIENT_AUTH, ()),
    )


class _Authority:
    """Signs certificates for as long as this object lives; nothing keeps its key."""

    def __init__(self, now: datetime, valid_for: timedelta) -> None:
        self._now, self._valid_for = now, valid_for
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("tandem-webhook-authority")
        self._id = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        made = (
            _builder(self._name, self._name, self._key.public_key(), now, valid_for)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(self._id, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self._pem = made.public_bytes(serialization.Encoding.PEM)

    def signed(self, subject: str, usage: x509.ObjectIdentifier, names: Sequence[str]) -> Serving:
        """Return a new certificate with its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(_name(subject), self._name, key.public_key(), self._now, self._valid_for)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._id),
                critical=False,
            )
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
            )
        return Serving(
            self._pem,
            builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    valid_for: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + valid_for)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
