"""A connection to our service through the API server, encrypted from end to end.

The API server's proxy does not check the certificate of the service that it leads to, and it keeps
the caller's Authorization header to itself. So it only carries bytes here: the caller opens a
stream by an HTTP upgrade, which the API server allows by the caller's own rights
(`get services/proxy`), and speaks TLS within it. The service shows the webhook's certificate, whose
authority the API server itself trusts and tells. Only then does the caller send a token.
docs/decisions/0020 has the reasons.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import urllib3
from urllib3.util.ssltransport import SSLTransport

from tandem.contracts.names import (
    API_AUDIENCE,
    API_SERVICE,
    EDITOR_ACCOUNT,
    NAMESPACE,
    READER_ACCOUNT,
    UPGRADE,
)
from tandem.errors import TandemError
from tandem.kube.client import CONNECT_TIMEOUT_S, KubeClient
from tandem.kube.credentials import Credentials
from tandem.kube.errors import Forbidden, KubeError, NotFound, from_response, unreachable
from tandem.kube.resource import MUTATING_WEBHOOKS

_READ_TIMEOUT_S = 30.0
_TOKEN_LIFE_S = 600  # the shortest that the API server gives
_LARGEST_ANSWER = 64 * 2**20
_EDITED = "/v1/models"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of the service."""

    status: int
    body: bytes

    def json(self) -> Any:  # noqa: ANN401 - JSON
        """Return the body as JSON; ValueError where it is none."""
        return json.loads(self.body)


def trusting_webhook(client: KubeClient) -> ssl.SSLContext:
    """Return what trusts the webhook's authority, as the API server knows it, and no other.

    Raises:
        KubeError: the API server does not say.
        TandemError: it does not know the authority.
    """
    try:
        found = client.get(MUTATING_WEBHOOKS, "tandem")
        bundle = base64.b64decode(found["webhooks"][0]["clientConfig"]["caBundle"])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(cadata=bundle.decode("ascii"))
    except (LookupError, TypeError, ValueError, binascii.Error, ssl.SSLError) as error:
        raise TandemError(
            "the API server does not know the certificate of Tandem's webhook",
            "`tandem doctor` says why",
        ) from error
    return context


class Tunnel:
    """Requests to what the extender answers to users, each on a connection of its own.

    `account` is (namespace, name) of a service account in whose name to ask; by default the
    kubeconfig's own token is sent, and where it has none, a token of the account `tandem-reader`
    that the caller may mint, or of `tandem-editor` to push or delete a model.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str = NAMESPACE,
        account: tuple[str, str] | None = None,
        token: str = "",
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._account = account
        self._token = token
        self._context: ssl.SSLContext | None = None
        self._minted: dict[tuple[str, str], str] = {}  # by account

    def get(self, path: str, query: dict[str, str] | None = None) -> Answer:
        """Return the answer to a GET of `path`; raises as `ask` does."""
        return self.ask("GET", path, query)

    def ask(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: bytes | None = None,
        kind: str = "application/json",
    ) -> Answer:
        """Return the answer to a request; `kind` is the media type of its body.

        Raises:
            KubeError: the API server refused, or the service does not answer.
            TandemError: the service cannot be trusted, or the caller has nothing to show it.
        """
        target = path + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = kind
        with self.answering(method, target, headers, body) as answer:
            content = answer.read(_LARGEST_ANSWER + 1)
            if len(content) > _LARGEST_ANSWER:
                raise TandemError(
                    "the answer is too large", "ask for one namespace (-n), or one node"
                )
            return Answer(answer.status, content)

    @contextmanager
    def answering(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        """Give the answer to a request, whose body is read meanwhile; `target` has the query.

        Raises:
            KubeError: the API server refused, or the service does not answer, or no further.
            TandemError: the service cannot be trusted, or the caller has nothing to show it.
        """
        with self._sent(method, target, headers, body) as answer:
            if answer.status != 401 or not self._minted:
                yield answer
                return
        self._minted.clear()  # it has ended meanwhile
        with self._sent(method, target, headers, body) as answer:
            yield answer

    @contextmanager
    def _sent(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> Iterator[http.client.HTTPResponse]:
        headers = {**headers, "Authorization": f"Bearer {self._bearer(method, target)}"}
        stream = self._open()
        connection = http.client.HTTPConnection(self._server_name)
        try:
            # `SSLTransport` has what http.client needs of a socket.
            connection.sock = SSLTransport(stream, self._tls(), self._server_name)
            connection.request(method, target, body, headers)
            yield connection.getresponse()
        except ssl.SSLCertVerificationError as error:
            raise TandemError(
                f"the service behind {API_SERVICE} is not trusted: {error.verify_message}",
                "nothing was sent to it; `tandem doctor` says what is wrong with the certificate",
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(f"{method} {target}: {error!r}", maybe_done=True) from error
        finally:
            connection.close()
            stream.close()

    @property
    def _server_name(self) -> str:
        return f"tandem-webhook.{self._namespace}.svc"

    def _tls(self) -> ssl.SSLContext:
        """Return what trusts the webhook's authority, as the API server knows it, and no other."""
        if self._context is None:
            self._context = trusting_webhook(self._client)
        return self._context

    def _bearer(self, method: str, target: str) -> str:
        if self._token:
            return self._token
        if self._account is None and (own := self._client.bearer_token()):
            return own
        edits = method in ("POST", "DELETE") and target.startswith(_EDITED)
        ours = self._namespace, EDITOR_ACCOUNT if edits else READER_ACCOUNT
        account = self._account or ours
        if account not in self._minted:
            self._minted[account] = self._mint(*account)
        return self._minted[account]

    def _mint(self, namespace: str, name: str) -> str:
        """Return a token of a service account that is worth nothing at any other service."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        spec = {"audiences": [API_AUDIENCE], "expirationSeconds": _TOKEN_LIFE_S}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": spec,
        }
        try:
            return str(self._client.request("POST", path, body=body)["status"]["token"])
        except (Forbidden, NotFound) as error:
            if isinstance(error, Forbidden) and error.status == 401:
                raise
            why = (
                f"you may not make a token of {namespace}/{name}"
                if isinstance(error, Forbidden)
                else f"there is no service account {namespace}/{name}"
            )
            if self._account is None:
                why = f"your kubeconfig has a certificate and no token, and {why}"
            raise TandemError(
                why,
                "name a service account for which you may `kubectl create token` and that has the"
                " rights: --account NAMESPACE/NAME; or give a token with --token",
            ) from error

    def _open(self) -> socket.socket:
        """Return a stream to the service, by an upgrade of a request to the API server."""
        path = f"/api/v1/namespaces/{self._namespace}/services/{API_SERVICE}/proxy/tunnel"
        return upgraded(self._client.credentials, path)


def upgraded(credentials: Credentials, path: str) -> socket.socket:
    """Return the stream that the API server opens to the service behind `path`.

    Raises:
        KubeError: the API server refused, or the service does not answer.
    """
    headers = {"Connection": "Upgrade", "Upgrade": UPGRADE, "User-Agent": "tandem"}
    authorization = credentials.authorization()
    if authorization:
        headers["Authorization"] = authorization
    try:
        response = credentials.pool.request(
            "GET",
            credentials.host + path,
            headers=headers,
            timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=_READ_TIMEOUT_S),
            preload_content=False,
            redirect=False,
        )
        if response.status != http.client.SWITCHING_PROTOCOLS:
            content = response.read(65536)
            response.release_conn()
            raise _refused(response.status, content)
    except (
        urllib3.exceptions.NewConnectionError,
        urllib3.exceptions.ConnectTimeoutError,
    ) as error:
        raise unreachable(f"GET {path}: {error}", maybe_done=False) from error
    except urllib3.exceptions.HTTPError as error:
        raise unreachable(f"GET {path}: {error}", maybe_done=True) from error
    connection = getattr(response, "connection", None)
    stream = getattr(connection, "sock", None)
    if connection is None or stream is None:
        raise unreachable(f"GET {path}: the connection was closed", maybe_done=False)
    connection.sock = None  # it is ours from now on, and goes back to no pool
    stream.settimeout(_READ_TIMEOUT_S)
    return stream  # type: ignore[no-any-return] # a socket, or TLS over one


def _refused(status: int, content: bytes) -> KubeError:
    if 200 <= status < 400:
        return unreachable(
            f"HTTP {status} in place of an upgrade: something between here and the API server does"
            " not carry streams",
            maybe_done=False,
        )
    return from_response(status, content)
