"""The webhook's certificate: in one Secret, made by the first replica, replaced in time by any.

All replicas look at the Secret again and again, serve what it says and have the API server trust
the authorities that it names. A new certificate comes in three steps, each once the one before has
had `Rotation.overlap_s` to reach every replica and every API server: its authority is trusted as
well as the old one; it is served; the old authority is dropped. So at any moment whatever any
replica serves is trusted by every API server. A step is one write with the Secret's
resourceVersion: of two replicas that take it together, one fails and reads what the other has
written.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from scheduler_extender.admission.certificates import (
    SECRET_NAME,
    Serving,
    ends,
    generate,
    install_authority,
    not_for,
    trusted_authorities,
)
from scheduler_extender.admission.config import Rotation
from tandem.errors import TandemError
from tandem.kube.api import ClusterApi
from tandem.kube.errors import AlreadyExists, Conflict, NotFound
from tandem.kube.resource import SECRETS

log = logging.getLogger(__name__)

SINCE = "tandem.gpu/since"
_LOOKS = 5  # for the Secret, while somebody else makes it or deletes it


@dataclass(frozen=True, slots=True)
class Held:
    """The content of the Secret: the certificate in use, its successor, and since when.

    `version` is the Secret's resourceVersion, empty where there is none yet.
    """

    serving: Serving
    following: Serving | None
    since: datetime
    version: str = ""


def unusable(held: Held, names: Sequence[str], now: datetime) -> bool:
    """Tell whether a caller at one of `names` refuses the served certificate."""
    certificate = held.serving.certificate
    return ends(certificate) <= now or bool(not_for(certificate, names))


def stepped(held: Held, names: Sequence[str], now: datetime, settings: Rotation) -> Held | None:
    """Return the next step that is due, None where none is. What is served stays trusted."""
    serving = held.serving
    if unusable(held, names, now):  # nothing is gained by waiting
        made = _made(names, now, settings)
        trusted = replace(made, ca=serving.ca + made.ca)
        return replace(held, serving=trusted, following=None, since=now)
    if (now - held.since).total_seconds() < settings.overlap_s:
        return None
    if held.following is not None:
        promoted = replace(held.following, ca=serving.ca)
        return replace(held, serving=promoted, following=None, since=now)
    if len(authorities := _authorities(serving.ca)) > 1:
        return replace(held, serving=replace(serving, ca=authorities[-1]), since=now)
    if ends(serving.certificate) - now < timedelta(days=settings.renew_days):
        return begun(held, names, now, settings)
    return None


def begun(held: Held, names: Sequence[str], now: datetime, settings: Rotation) -> Held:
    """Return the first step towards a new certificate: its authority is trusted as well."""
    made = _made(names, now, settings)
    trusted = replace(held.serving, ca=held.serving.ca + made.ca)
    return replace(held, serving=trusted, following=made, since=now)


def _made(names: Sequence[str], now: datetime, settings: Rotation) -> Serving:
    return generate(names, now, timedelta(days=settings.valid_days))


@dataclass(eq=False)
class Keeper:
    """Keeps one replica at what the Secret says, and takes the steps that are due.

    `_names`: DNS names and IP addresses at which the API server calls us. Methods block.
    """

    _api: ClusterApi
    _namespace: str
    _names: Sequence[str]
    _settings: Rotation
    _clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    _held: Held | None = None

    def begin(self) -> Serving:
        """Return what is to be served, made if we are the first.

        Raises:
            TandemError: the Secret holds no certificate, or does not stay.
            KubeError: the API server refused, or could not be reached.
        """
        held = self._look()
        now = self._clock()
        # Other steps wait until we can answer, and have them trusted.
        if unusable(held, self._names, now):
            due = stepped(held, self._names, now, self._settings)
            held = self._write(due) if due is not None else held
        self._held = held
        return held.serving

    def look(self) -> Serving:
        """Return what is to be served by now; have it trusted, and take the step that is due.

        Raises:
            TandemError: the Secret holds no certificate or does not stay, or there is no webhook.
            KubeError: the API server refused, or could not be reached.
        """
        held = self._look()
        updated = install_authority(self._api, held.serving.ca)
        if not updated:  # what is held has been trusted for a while
            due = stepped(held, self._names, self._clock(), self._settings)
            if due is not None:
                held = self._write(due)
                install_authority(self._api, held.serving.ca)
        self._held = held
        return held.serving

    def _look(self) -> Held:
        """Read the Secret. Where there is none, what we hold begins to be replaced.

        Raises:
            TandemError: the Secret holds no certificate, or is gone whenever we have made it.
        """
        name = f"{self._namespace}/{SECRET_NAME}"
        for _ in range(_LOOKS):
            try:
                return _read(self._api.get(SECRETS, SECRET_NAME, self._namespace), name)
            except NotFound:
                held = self._first()
            try:
                self._api.create(
                    SECRETS, _manifest(self._namespace, SECRET_NAME, held), self._namespace
                )
            except AlreadyExists:
                continue
            log.info("certificate made secret=%s", name)
        raise TandemError(
            f"Secret {name} was written and cannot be read back",
            "See who deletes it: `kubectl get secret -w` in that namespace, and the audit log.",
        )

    def _first(self) -> Held:
        now = self._clock()
        if self._held is not None:
            return begun(replace(self._held, version=""), self._names, now, self._settings)
        made = _made(self._names, now, self._settings)
        # Replicas that still serve an older one stay trusted for a while.
        trusted = trusted_authorities(self._api)
        return Held(replace(made, ca=trusted + made.ca), None, now)

    def _write(self, held: Held) -> Held:
        body = _manifest(self._namespace, SECRET_NAME, held)
        try:
            self._api.replace(SECRETS, body, self._namespace)
        except (Conflict, NotFound):
            return self._look()  # another replica was first
        log.info(
            "certificate secret=%s/%s ends=%s authorities=%d follows=%s",
            self._namespace,
            SECRET_NAME,
            ends(held.serving.certificate).isoformat(),
            len(_authorities(held.serving.ca)),
            held.following is not None,
        )
        return self._look()


def _authorities(bundle: bytes) -> list[bytes]:
    parsed = x509.load_pem_x509_certificates(bundle)
    return [one.public_bytes(serialization.Encoding.PEM) for one in parsed]


def _manifest(namespace: str, name: str, held: Held) -> dict[str, Any]:
    parts = {
        "ca.crt": held.serving.ca,
        "tls.crt": held.serving.certificate,
        "tls.key": held.serving.key,
    }
    if held.following is not None:
        parts |= {"next.crt": held.following.certificate, "next.key": held.following.key}
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "annotations": {SINCE: held.since.isoformat()},
    }
    if held.version:
        metadata["resourceVersion"] = held.version
    return {
        "metadata": metadata,
        "type": "kubernetes.io/tls",
        "data": {key: base64.b64encode(part).decode() for key, part in parts.items()},
    }


def _read(secret: Mapping[str, Any], name: str) -> Held:
    data = secret.get("data") or {}
    metadata = secret["metadata"]
    try:
        parts = {key: base64.b64decode(part, validate=True) for key, part in data.items()}
        serving = Serving(parts["ca.crt"], parts["tls.crt"], parts["tls.key"])
        following = None
        if "next.crt" in parts:
            following = Serving(serving.ca, parts["next.crt"], parts["next.key"])
        for one in (serving, following):
            if one is not None:
                not_for(one.certificate, ())
        _authorities(serving.ca)
        # One of an earlier version bears no time; it has been trusted ever since.
        since = datetime.fromisoformat(
            (metadata.get("annotations") or {}).get(SINCE) or "2000-01-01T00:00:00+00:00"
        )
    except (KeyError, binascii.Error, ValueError) as error:
        raise TandemError(
            f"Secret {name} holds no certificate that can serve ({error})",
            "Delete the Secret: a new one is made.",
        ) from error
    return Held(serving, following, since, metadata.get("resourceVersion", ""))
