"""The logins of a kubeconfig file that are more than a field: programs and OpenID Connect."""

from __future__ import annotations

import binascii
import json
import os
import ssl
import subprocess
import sys
from base64 import b64decode, urlsafe_b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import urllib3
import yaml

from tandem.errors import TandemError
from tandem.kube.entries import Entry

_EXEC = "client.authentication.k8s.io/exec"
_TIMEOUT_S = 30.0
#: A login is renewed this long before it ends. Some providers give tokens for five minutes, and a
#: program is not to run for each request.
EARLY = timedelta(minutes=1)


@dataclass(frozen=True)
class Login:
    """A login at the API server; `ends` is when it expires."""

    header: str | None = None
    certificate: bytes | None = None
    key: bytes | None = None
    ends: datetime | None = None

    @classmethod
    def of_token(cls, token: str, ends: datetime | None = None) -> Self:
        """Return the login of a token.

        Raises:
            ValueError: it is none. An error of the request would quote it.
        """
        text = str(token).strip()
        if not (text.isascii() and text.isprintable()):
            raise ValueError("the token has characters that a token cannot have")
        return cls(f"Bearer {text}", ends=ends)


def by_program(spec: Mapping[str, Any], folder: Path, cluster: Mapping[str, Any]) -> Login:
    """Run the program of `users[].user.exec` as kubectl does; return what it logs in with.

    Raises:
        TandemError: there is no such program, or it gives no login.
    """
    command, version = str(spec["command"]), spec["apiVersion"]
    interactive = sys.stdout.isatty() and spec.get("interactiveMode") != "Never"
    asked: dict[str, Any] = {"interactive": interactive}
    if spec.get("provideClusterInfo"):
        asked["cluster"] = dict(cluster)
        for each in cluster.get("extensions") or ():
            if each["name"] == _EXEC:
                asked["cluster"]["config"] = each["extension"]
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": asked}
    more = {each["name"]: each["value"] for each in spec.get("env") or ()}
    answer = _run(
        [command, *(spec.get("args") or ())],
        folder,
        {**os.environ, **more, "KUBERNETES_EXEC_INFO": json.dumps(info)},
        interactive=interactive,
        hint=str(spec.get("installHint") or ""),
    )
    if answer.get("apiVersion") != version:
        raise TandemError(
            f"{command} answers with the version {answer.get('apiVersion')} of a login",
            f"The kubeconfig file asks it for {version}.",
        )
    status = answer.get("status") or {}
    token, certificate = status.get("token"), status.get("clientCertificateData")
    if not token and not (certificate and status.get("clientKeyData")):
        raise TandemError(f"{command} gives neither a token nor a certificate with its key")
    ends = status.get("expirationTimestamp")
    return Login(
        Login.of_token(token).header if token else None,
        certificate.encode() if certificate else None,
        status["clientKeyData"].encode() if certificate else None,
        _time(ends) if ends else None,
    )


def by_gcp(user: Entry) -> Login | None:
    """Return the login of the old provider `gcp`: its token, or that of its program."""
    config = user.said["auth-provider"].get("config") or {}
    token, ends = config.get("access-token"), config.get("expiry")
    if token and not (ends and over(_time(ends))):
        return Login.of_token(token, _time(ends) if ends else None)
    if not config.get("cmd-path"):
        raise TandemError(
            "the kubeconfig file logs in by `gcp`, which has no token that lasts",
            "Log in by gke-gcloud-auth-plugin, as kubectl needs it too.",
        )
    words = str(config["cmd-path"]).split()
    if "cmd-args" in config:
        words = [str(config["cmd-path"]), *str(config["cmd-args"]).split()]
    found = _run(words, None, dict(os.environ))["credential"]
    return Login.of_token(found["access_token"], _time(found["token_expiry"]))


def by_oidc(user: Entry) -> Login | None:
    """Return the login by OpenID Connect; None where the file has no such token.

    A token that has ended is renewed, and the new ones are written to the file, since a provider
    may take each refresh token but once.

    Raises:
        TandemError: it has ended and cannot be renewed.
    """
    config = user.said["auth-provider"].get("config")
    if not config:
        return None
    ends = _end_of(config["id-token"])
    if ends is None:
        return None
    if ends and over(ends[0]):
        _renew(user, config)
        ends = _end_of(config["id-token"])
    return Login.of_token(config["id-token"], ends[0] if ends else None)


def _end_of(token: str) -> tuple[()] | tuple[datetime] | None:
    """Return when a JWT ends, () for never; None for what is no JWT."""
    parts = token.split(".")
    if len(parts) != 3 or set(token) & set("=+/"):
        return None
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error):
        return None
    end = claims.get("exp")
    try:
        return () if end is None else (datetime.fromtimestamp(end, UTC),)
    except OverflowError:
        return ()


def _renew(user: Entry, config: dict[str, str]) -> None:
    issuer = config["idp-issuer-url"]
    tls = ssl.create_default_context()
    authority = config.get("idp-certificate-authority-data")
    if authority:
        tls.load_verify_locations(cadata=b64decode(authority).decode())
    elif config.get("idp-certificate-authority"):
        tls.load_verify_locations(user.path(config["idp-certificate-authority"]))
    fields = {"grant_type": "refresh_token", "refresh_token": config["refresh-token"]}
    headers = {}
    if config.get("client-secret"):
        basic = f"{config['client-id']}:{config['client-secret']}"
        headers = urllib3.util.make_headers(basic_auth=basic)
    else:
        fields["client_id"] = config["client-id"]
    with urllib3.PoolManager(ssl_context=tls, retries=False, timeout=_TIMEOUT_S) as pool:
        place = pool.request("GET", issuer.rstrip("/") + "/.well-known/openid-configuration")
        found = pool.request(
            "POST",
            place.json()["token_endpoint"],
            fields=fields,
            headers=dict(headers),
            encode_multipart=False,
        )
    if found.status != 200:
        raise TandemError(
            f"{issuer} does not renew your login (HTTP {found.status})", "Log in again."
        )
    answer = found.json()
    config["id-token"] = answer["id_token"]
    config["refresh-token"] = answer.get("refresh_token") or config["refresh-token"]
    _write(user, config)


def _write(user: Entry, config: Mapping[str, str]) -> None:
    """Put what was renewed into the file; without a right to write it, it counts for this run."""
    file = user.file.resolve()  # a link stays one
    said = yaml.safe_load(file.read_text())
    mine = next(each for each in said["users"] if each["name"] == user.name)
    mine["user"]["auth-provider"]["config"].update(config)
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        fresh.touch(file.stat().st_mode & 0o777)
        fresh.write_text(yaml.safe_dump(said, sort_keys=False))
        fresh.replace(file)
    except OSError:
        fresh.unlink(missing_ok=True)


def _run(
    words: Sequence[str],
    folder: Path | None,
    environment: Mapping[str, str],
    *,
    interactive: bool = False,
    hint: str = "",
) -> dict[str, Any]:
    """Return the JSON that a program prints.

    Raises:
        TandemError: there is no such program, it fails, or prints something else.
    """
    try:
        done = subprocess.run(
            [str(word) for word in words],
            cwd=folder,
            env=environment,
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if interactive else subprocess.PIPE,
            text=True,
            check=False,
        )
    except OSError as error:
        raise TandemError(
            f"the login by {words[0]} cannot be run: {error.strerror}",
            hint or "Install the program that your kubeconfig file names, or log in another way.",
        ) from error
    if done.returncode:
        said = (done.stderr or "").strip()
        raise TandemError(
            f"the login by {words[0]} fails (exit code {done.returncode})"
            + (f": {said}" if said else ""),
            "Run it by hand, or log in another way.",
        )
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        raise TandemError(f"{words[0]} prints no JSON, so no login") from error
    if not isinstance(answer, dict):
        raise TandemError(f"{words[0]} prints no JSON object, and so no login")
    return answer


def _time(text: object) -> datetime:
    """Return a time of RFC 3339; PyYAML may have read it already."""
    found = text if isinstance(text, datetime) else datetime.fromisoformat(str(text))
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def over(ends: datetime) -> bool:
    """Say whether a login that ends then is to be renewed."""
    return ends - EARLY <= datetime.now(UTC)
