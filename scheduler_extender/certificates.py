"""The webhook's certificate: in one Secret, made by the first replica, served by all of them.

A certificate authority is made for this one certificate and its key is thrown away, so that
nothing else can ever be signed by it.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tandem.contracts.names import NAMESPACE
from tandem.errors import TandemError
from tandem.kube.api import ClusterApi
from tandem.kube.errors import AlreadyExists, NotFound
from tandem.kube.resource import MUTATING_WEBHOOKS, SECRETS

log = logging.getLogger(__name__)

SECRET_NAME = "tandem-webhook"  # noqa: S105 - the name of it, not what is in it
CONFIGURATION_NAME = "tandem"
#: At what name the API server calls the Service of the webhook.
SERVICE_HOST = f"tandem-webhook.{NAMESPACE}.svc"
VALID_FOR = timedelta(days=3650)
#: Clocks of API servers may be behind ours.
_EARLIER = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Serving:
    """A certificate with its key, and the authority that vouches for it; all PEM."""

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


def expires_s(certificate: Path) -> float:
    """Return when the certificate in a PEM file ends (Unix time).

    Raises:
        TandemError: the file cannot be read, or holds no certificate.
    """
    try:
        parsed = x509.load_pem_x509_certificate(certificate.read_bytes())
    except (OSError, ValueError) as error:
        raise TandemError(
            f"{certificate} holds no certificate ({error})", "Name a file in PEM format."
        ) from error
    return parsed.not_valid_after_utc.timestamp()


def ensure_certificate(
    api: ClusterApi,
    namespace: str,
    names: Sequence[str],
    now: datetime,
    *,
    secret: str = SECRET_NAME,
) -> Serving:
    """Return the certificate of the Secret; make it if we are the first. Blocks.

    `names`: DNS names and IP addresses at which the API server calls us (`SERVICE_HOST`).

    Raises:
        TandemError: the Secret holds no certificate, or one that has expired or is for others.
        KubeError: the API server refused, or could not be reached.
    """
    try:
        found = api.get(SECRETS, secret, namespace)
    except NotFound:
        serving = generate(names, now)
        try:
            api.create(SECRETS, _manifest(secret, serving), namespace)
        except AlreadyExists:
            found = api.get(SECRETS, secret, namespace)
        else:
            log.info("certificate made secret=%s/%s", namespace, secret)
            return serving
    return _read(found, f"{namespace}/{secret}", names, now)


def install_authority(
    api: ClusterApi, ca: bytes, *, configuration: str = CONFIGURATION_NAME
) -> int:
    """Tell the API server to trust `ca` at our webhooks; return how many had to be told. Blocks.

    Raises:
        TandemError: there is no such configuration.
        KubeError: the API server refused, or could not be reached.
    """
    try:
        found = api.get(MUTATING_WEBHOOKS, configuration)
    except NotFound as error:
        raise TandemError(
            f"there is no MutatingWebhookConfiguration {configuration}",
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
        api.patch(MUTATING_WEBHOOKS, configuration, patch, kind="json")
        log.info("authority installed configuration=%s webhooks=%d", configuration, stale)
    return stale


def generate(names: Sequence[str], now: datetime) -> Serving:
    """Return a new certificate for `names`, signed by a new authority."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = _name("tandem-webhook-authority")
    authority_id = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    authority = (
        _builder(issuer, issuer, authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(authority_id, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        _builder(_name("tandem-webhook"), issuer, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority_id),
            critical=False,
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    return Serving(
        authority.public_bytes(serialization.Encoding.PEM),
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + VALID_FOR)
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


def _manifest(name: str, serving: Serving) -> dict[str, Any]:
    parts = {"ca.crt": serving.ca, "tls.crt": serving.certificate, "tls.key": serving.key}
    return {
        "metadata": {"name": name},
        "type": "kubernetes.io/tls",
        "data": {key: base64.b64encode(part).decode() for key, part in parts.items()},
    }


def _read(secret: Mapping[str, Any], name: str, hosts: Sequence[str], now: datetime) -> Serving:
    data = secret.get("data") or {}
    try:
        ca, certificate, key = (
            base64.b64decode(data[part], validate=True) for part in ("ca.crt", "tls.crt", "tls.key")
        )
        parsed = x509.load_pem_x509_certificate(certificate)
        alternatives = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (KeyError, binascii.Error, ValueError, x509.ExtensionNotFound) as error:
        raise _unusable(f"Secret {name} holds no certificate that can serve ({error})") from error
    if parsed.not_valid_after_utc <= now.astimezone(UTC):
        raise _unusable(
            f"the certificate of Secret {name} expired at {parsed.not_valid_after_utc:%Y-%m-%d}"
        )
    missing = [host for host in hosts if _general_name(host) not in alternatives]
    if missing:
        raise _unusable(f"the certificate of Secret {name} is not for {', '.join(missing)}")
    return Serving(ca, certificate, key)


def _unusable(message: str) -> TandemError:
    return TandemError(
        message, "Delete the Secret and restart the scheduler's pods: a new one is made."
    )
