"""Finds the API server, its connections and the credentials, wherever this process runs."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import urllib3

from tandem.errors import TandemError

#: Enough for a gang's Bindings at once besides the watches; more connections are made, not kept.
POOL_SIZE = 48
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: kubelet replaces the token of a service account long before it ends.
_TOKEN_AGE_S = 60.0


class Credentials(Protocol):
    """The API server's address `host`, the connections to it, and who asks."""

    @property
    def host(self) -> str:
        """The API server's URL."""

    @property
    def pool(self) -> urllib3.PoolManager:
        """The connections, which trust the API server's certificate."""

    def authorization(self) -> str | None:
        """Return the header `Authorization` as of now, or None."""


def _pool(ca_file: Path | None) -> urllib3.PoolManager:
    return urllib3.PoolManager(
        maxsize=POOL_SIZE,
        retries=False,
        cert_reqs="CERT_REQUIRED",
        ca_certs=str(ca_file) if ca_file else None,
    )


class TokenCredentials:
    """A token that does not change."""

    def __init__(self, host: str, token: str, ca_file: Path | None) -> None:
        self.host = host.rstrip("/")
        self.pool = _pool(ca_file)
        self._header = f"Bearer {token}"

    def authorization(self) -> str:
        """Return the header `Authorization`."""
        return self._header


@dataclass
class ServiceAccount:
    """The service account of the pod that this process runs in; the token is read as it changes."""

    folder: Path = ACCOUNT
    host: str = ""
    pool: urllib3.PoolManager = field(init=False)
    _header: str = field(init=False, default="")
    _read_at: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        """Read the environment and the files that kubelet gives every container."""
        try:
            name, port = (os.environ[f"KUBERNETES_SERVICE_{key}"] for key in ("HOST", "PORT"))
        except KeyError as error:
            raise TandemError(f"no usable Kubernetes credentials: {error} is not set") from error
        self.host = f"https://[{name}]:{port}" if ":" in name else f"https://{name}:{port}"
        self.pool = _pool(self.folder / "ca.crt")
        self.authorization()

    def authorization(self) -> str:
        """Return the header `Authorization` with the token of at most a minute ago."""
        now = time.monotonic()
        if not self._header or now - self._read_at >= _TOKEN_AGE_S:
            self._header = f"Bearer {(self.folder / 'token').read_text().strip()}"
            self._read_at = now
        return self._header


def load_credentials(kubeconfig: Path | None, context: str | None) -> Credentials:
    """Return what a kubeconfig file says, or the service account of the pod that we run in.

    Without a file: the pod's service account where there is one, else what kubectl would use.

    Raises:
        TandemError: there are no usable credentials.
    """
    if kubeconfig is None and (ACCOUNT / "token").exists():
        return ServiceAccount()
    from tandem.kube.kubeconfig import Kubeconfig

    return Kubeconfig(kubeconfig, context, POOL_SIZE)


def context_namespace(kubeconfig: Path | None = None, context: str | None = None) -> str:
    """Return the namespace of the kubeconfig's context, or of the pod; `default` for none."""
    if kubeconfig is None and (ACCOUNT / "token").exists():
        return (ACCOUNT / "namespace").read_text().strip() or "default"
    from tandem.kube.kubeconfig import UNUSABLE, Files

    try:
        return str(Files(kubeconfig).context(context).said.get("namespace") or "default")
    except UNUSABLE:
        return "default"


def bearer_token(credentials: Credentials) -> str:
    """Return the token that the credentials bear at present, '' where they have none."""
    scheme, _, token = (credentials.authorization() or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def user_token(kubeconfig: Path | None = None, context: str | None = None) -> str:
    """Return the user's token, as kubectl would send it; '' where the user has none.

    Raises:
        TandemError: there are no usable credentials.
    """
    return bearer_token(load_credentials(kubeconfig, context))
