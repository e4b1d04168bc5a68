"""`tandem page`: the status page in a browser, through the API server of the kubeconfig.

A server on a port of this machine hands requests of the page on to the extender, by the verified
tunnel and with the caller's own token. Others on this machine reach the port, but not the page:
its address has a secret, which no other page learns (the page sends no referrer).
"""

from __future__ import annotations

import json
import secrets
import sys
import webbrowser
from collections.abc import Sequence
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Annotated, Any
from urllib.parse import parse_qs, urlencode, urlsplit

import typer

from tandem.cli.forms import Form, reports
from tandem.cli.output import err, out, print_json
from tandem.cli.reach import Reader, RefusedError, reads_once
from tandem.errors import TandemError, UsageError
from tandem.kube.errors import KubeError
from tandem.kube.tunnel import Tunnel

_HOST = "127.0.0.1"
_FILES, _VIEWS = "/status/", "/v1/status/"
#: Of what a browser sends: what the extender distinguishes. Its cookies and its token are not ours.
_ASKED = ("Accept", "Accept-Encoding", "If-None-Match")
#: Of what the extender answers: what belongs to its connection, and not to the one of the browser.
_OF_A_CONNECTION = {"connection", "transfer-encoding", "keep-alive", "date", "server"}
_PIECE = 65536


@reads_once
@reports
def page(
    read: Reader,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Of 127.0.0.1; 0 for a free one.")
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open it in a browser.")
    ] = True,
    form: Form = Form.TABLE,
) -> None:
    """Show the status page in a browser, until Ctrl+C."""
    if read.server:
        if not _is_address(read.server):
            raise UsageError(f"--server {read.server!r} is no address", "Write https://HOST:PORT.")
        _show(form, f"{read.server.rstrip('/')}{_FILES}", browser=browser)
        return
    try:
        read.get(f"{_VIEWS}scope")
        namespace = ""
    except RefusedError:  # who sees one namespace gets the page of that of the context
        namespace = read.own_namespace
        read.get(f"{_VIEWS}scope", {"namespace": namespace})
    if read.tunnel.get(_FILES).status != 200:
        raise TandemError(
            "the extender answers, but not with its page",
            "It is older than this command: reach the page as its docs/status-page.md says.",
        )
    with PageServer(read.tunnel, port, namespace) as server:
        server.start()
        _show(form, server.address, server.first_address, browser=browser)
        try:
            Event().wait()
        except KeyboardInterrupt:
            err.print("The page is closed.")


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _show(form: Form, address: str, first: str = "", *, browser: bool) -> None:
    if form is Form.JSON:
        print_json({"url": address})
        sys.stdout.flush()  # the reader of the pipe waits for it
    else:
        out.print(address, soft_wrap=True, highlight=False)
        if first:
            err.print("The page is there until Ctrl+C.", highlight=False)
    if browser and not webbrowser.open(first or address):
        err.print("No browser could be opened: open the address in one.", highlight=False)


class PageServer(ThreadingHTTPServer):
    """Serves the page at `address`; a view without a namespace is that of `namespace`.

    Raises:
        UsageError: the port is taken.
    """

    daemon_threads = True

    def __init__(self, tunnel: Tunnel, port: int = 0, namespace: str = "") -> None:
        try:
            super().__init__((_HOST, port), _Handler)
        except OSError as error:
            raise UsageError(f"--port {port}: {error.strerror}", "Leave it out.") from error
        self.tunnel, self.namespace = tunnel, namespace
        self.secret = secrets.token_urlsafe(24)
        #: Leads to the page once. It is for the browser, whose arguments others here may read.
        self.once: str | None = secrets.token_urlsafe(24)
        self._once_lock = Lock()

    @property
    def place(self) -> str:
        """The host and port of every request."""
        return f"{_HOST}:{self.server_port}"

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{self.place}/{self.secret}{_FILES}"

    @property
    def first_address(self) -> str:
        """An address that leads to the page the first time that it is asked for."""
        return f"http://{self.place}/{self.once}"

    def used(self, once: str) -> bool:
        """Say whether a path is that of the first address; it is none from then on."""
        with self._once_lock:
            fits = self.once is not None and compare_digest(once.encode(), self.once.encode())
            if fits:
                self.once = None
            return fits

    def start(self) -> None:
        """Serve in a thread of its own."""
        Thread(target=self.serve_forever, name="page", daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - of the class
        """Say nothing of a caller that has gone away: any user of this machine may be one."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def __exit__(self, *_: object) -> None:
        """Serve no more."""
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = 60.0

    def do_GET(self) -> None:
        """Hand a request of the page on."""
        secret, slash, rest = self.path[1:].partition("/")
        if self.headers.get("Host") != self.server.place or not self.path.isascii():
            self._say(404, "there is no such address")
        elif not slash and self.server.used(secret):
            self._lead(self.server.address)
        elif not compare_digest(secret.encode(), self.server.secret.encode()):
            self._say(404, "there is no such address; `tandem page` has printed the right one")
        elif not rest:
            self._lead(self.server.address)
        elif f"/{rest}".startswith((_FILES, _VIEWS)):
            self._hand_on(self._target(f"/{rest}"))
        else:
            self._say(404, "only the status page is here")

    do_HEAD = do_GET  # noqa: N815 - the base class's name

    def _target(self, path: str) -> str:
        parts = urlsplit(path)
        namespace = self.server.namespace
        if not namespace or not path.startswith(_VIEWS) or "namespace" in parse_qs(parts.query):
            return path
        added = urlencode({"namespace": namespace})
        return f"{parts.path}?{parts.query + '&' if parts.query else ''}{added}"

    def _hand_on(self, target: str) -> None:
        asked = {name: value for name in _ASKED if (value := self.headers.get(name))}
        begun = False
        try:
            with self.server.tunnel.answering(self.command, target, asked) as answer:
                headers = [
                    each for each in answer.getheaders() if each[0].lower() not in _OF_A_CONNECTION
                ]
                begun = self._sent(answer.status, headers)
                while begun and (piece := answer.read1(_PIECE)) and self._written(piece):
                    pass
        except (KubeError, TandemError) as error:
            if not begun:
                self._say(502, error.message)

    def _lead(self, address: str) -> None:
        self._sent(303, [("Location", address), ("Content-Length", "0")])

    def _say(self, status: int, words: str) -> None:
        content = json.dumps({"detail": words}).encode()
        length = str(len(content))
        kind = ("Content-Type", "application/json")
        if self._sent(status, [kind, ("Content-Length", length)]):
            self._written(content)

    def _sent(self, status: int, headers: Sequence[tuple[str, str]]) -> bool:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        try:
            self.end_headers()
        except OSError:
            return False
        return True

    def _written(self, piece: bytes) -> bool:
        """Write to the browser; False where it has gone."""
        try:
            self.wfile.write(piece)
        except OSError:
            return False
        return True

    def log_message(self, *_: object) -> None:
        """Say nothing: the terminal has the address alone."""
