"""Credentials for the API server: certificates for users, tokens for accounts."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml

from controlplane.certificates import Authority, encode, key_pem, new_key, write_secret
from controlplane.components import Layout
from tandem.errors import TandemError

ADMIN = "admin"
_ADMIN_GROUP = "system:masters"
_API_SERVER_NAMES = ["localhost", "kubernetes", "kubernetes.default.svc"]
_REQUEST_TIMEOUT_S = 30.0


class Access:
    """Writes the plane's credentials into its folder, and makes more on demand.

    `http` is an `httpx.Client` that speaks to the API server as administrator.
    """

    def __init__(self, layout: Layout, addresses: Sequence[str] = ()) -> None:
        """`addresses`: at which the API server is reached, besides 127.0.0.1."""
        self._layout = layout
        self._authority = Authority("tandem-controlplane")
        self.ca_file = layout.file("ca.crt")
        self.ca_file.write_bytes(self._authority.pem)
        certificate, key = self._authority.serving(_API_SERVER_NAMES, ["127.0.0.1", *addresses])
        layout.file("apiserver.crt").write_bytes(certificate)
        write_secret(layout.file("apiserver.key"), key)
        write_secret(layout.file("service-accounts.key"), key_pem(new_key()))
        self.admin_kubeconfig = self.kubeconfig(ADMIN, [_ADMIN_GROUP])
        self.http = self._client()

    def _client(self) -> httpx.Client:
        certificate, key = self._authority.client(ADMIN, [_ADMIN_GROUP])
        pem = write_secret(self._layout.file("admin.pem"), certificate + key)
        context = ssl.create_default_context(cafile=str(self.ca_file))
        context.load_cert_chain(pem)
        return httpx.Client(
            base_url=self._layout.url,
            verify=context,
            timeout=_REQUEST_TIMEOUT_S,
            trust_env=False,  # a proxy of the machine's would be asked for 127.0.0.1
        )

    def write_serving(self, folder: Path, address: str) -> None:
        """Write `tls.crt` and `tls.key` of a server at `address`, signed by the plane's CA."""
        folder.mkdir(parents=True)
        certificate, key = self._authority.serving(["localhost"], [address])
        (folder / "tls.crt").write_bytes(certificate)
        write_secret(folder / "tls.key", key)

    def kubeconfig(self, user: str, groups: Sequence[str]) -> Path:
        """Return the path of a kubeconfig with a client certificate for `user` in `groups`."""
        certificate, key = self._authority.client(user, groups)
        credentials = {
            "client-certificate-data": encode(certificate),
            "client-key-data": encode(key),
        }
        return self._write(user.replace(":", "_"), credentials)

    def serving(self, names: Sequence[str], addresses: Sequence[str]) -> tuple[bytes, bytes]:
        """Return (certificate, key) in PEM for a server that the plane's clients trust."""
        return self._authority.serving(names, addresses)

    def write_kubelet_client(self) -> None:
        """Write the certificate by which kubelets know the API server, as for `kubectl logs`."""
        certificate, key = self._authority.client("kube-apiserver", [_ADMIN_GROUP])
        self._layout.file("kubelet-client.crt").write_bytes(certificate)
        write_secret(self._layout.file("kubelet-client.key"), key)

    def token(self, namespace: str, name: str, pod: Mapping[str, Any] | None) -> str:
        """Return a fresh token of a service account, valid for a day, bound to `pod` if given."""
        spec: dict[str, Any] = {"expirationSeconds": 86_400}
        if pod is not None:
            spec["boundObjectRef"] = {
                "kind": "Pod",
                "apiVersion": "v1",
                "name": pod["metadata"]["name"],
                "uid": pod["metadata"]["uid"],
            }
        answer = self.http.post(
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            json={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
        )
        if answer.is_error:
            reason = answer.json()["message"]
            raise TandemError(f"no token for service account {namespace}/{name}: {reason}")
        token: str = answer.json()["status"]["token"]
        return token

    def token_kubeconfig(self, namespace: str, name: str, pod: Mapping[str, Any] | None) -> Path:
        """Return the path of a kubeconfig that bears such a token."""
        parts = [namespace, name] + ([pod["metadata"]["name"]] if pod else [])
        return self._write("_".join(parts), {"token": self.token(namespace, name, pod)})

    def _write(self, name: str, credentials: Mapping[str, str]) -> Path:
        cluster = {
            "server": self._layout.url,
            "certificate-authority-data": encode(self._authority.pem),
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tandem", "cluster": cluster}],
            "users": [{"name": name, "user": dict(credentials)}],
            "contexts": [{"name": "tandem", "context": {"cluster": "tandem", "user": name}}],
            "current-context": "tandem",
        }
        content = yaml.safe_dump(document, sort_keys=False).encode()
        return write_secret(self._layout.file(f"{name}.kubeconfig"), content)
