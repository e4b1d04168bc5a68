"""Reaches the extender's read-only API, by the options with which users say where it is.

Without an address they go through the API server of the kubeconfig (`tandem.kube.tunnel`). A
command that reads is decorated with `reads`, which adds the options and hands it a `Reader`.
"""

from __future__ import annotations

import inspect
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tandem.cli.complete import context_names
from tandem.cli.output import err, out
from tandem.contracts import names
from tandem.errors import TandemError, UsageError

if TYPE_CHECKING:
    from tandem.kube.client import KubeClient
    from tandem.kube.tunnel import Answer, Tunnel

_TIMEOUT_S = 30.0
SHORTEST_INTERVAL_S = 0.5

KubeconfigOption = Annotated[
    Path | None, typer.Option("--kubeconfig", help="A kubeconfig file. [that of kubectl]")
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context", help="A context of the kubeconfig file.", autocompletion=context_names
    ),
]
SystemOption = Annotated[
    str, typer.Option("--tandem-namespace", help="The namespace of Tandem's services.")
]
AccountOption = Annotated[
    str,
    typer.Option(
        "--account",
        envvar="TANDEM_ACCOUNT",
        help="Ask as this service account, NAMESPACE/NAME, of which you may make a token.",
    ),
]
TokenOption = Annotated[
    str,
    typer.Option("--token", envvar="TANDEM_TOKEN", help="A token. [that of the kubeconfig]"),
]


class Reader:
    """Reads /v1, at an address or through the API server of a kubeconfig."""

    def __init__(
        self,
        *,
        server: str = "",
        ca_file: Path | None = None,
        token: str = "",
        account: str = "",
        kubeconfig: Path | None = None,
        context: str | None = None,
        system: str = names.NAMESPACE,
    ) -> None:
        self.server = server
        token = token.strip()
        if not (token.isascii() and token.isprintable()):
            # An error of the request would quote it.
            raise UsageError("A token has printable ASCII characters only.")
        self._ca_file, self._token = ca_file, token
        self._kubeconfig, self._context, self._system = kubeconfig, context, system
        self._account: tuple[str, str] | None = None
        #: The context's namespace, where the caller may not read all and has named none.
        self.fell_back_to = ""
        if account:
            namespace, _, name = account.partition("/")
            if not namespace or not name:
                raise UsageError(f"{account!r} names no account", "write NAMESPACE/NAME")
            self._account = namespace, name

    @property
    def system(self) -> str:
        """The namespace of Tandem's services."""
        return self._system

    @cached_property
    def client(self) -> KubeClient:
        """The API server of the kubeconfig."""
        from tandem.kube.client import KubeClient

        return KubeClient.load(self._kubeconfig, self._context)

    @cached_property
    def own_namespace(self) -> str:
        """The namespace of the kubeconfig's context."""
        from tandem.kube.credentials import context_namespace

        return context_namespace(self._kubeconfig, self._context)

    @cached_property
    def tunnel(self) -> Tunnel:
        """The way to the extender."""
        from tandem.kube.tunnel import Tunnel

        return Tunnel(self.client, self._system, self._account, self._token)

    def check_namespace(self, namespace: str | None) -> None:
        """Raise MissingError where the named namespace does not exist, as far as the caller sees.

        For an answer without rows: a misspelt namespace has none either.
        """
        if not namespace or self.server:
            return
        from tandem.kube.errors import KubeError, NotFound
        from tandem.kube.resource import NAMESPACES

        try:
            self.client.get(NAMESPACES, namespace)
        except NotFound as error:
            raise MissingError(
                f"there is no namespace {namespace!r}", "`kubectl get namespaces` lists them"
            ) from error
        except KubeError:
            return  # who may not read it has been answered, and that is all there is to know

    def get(self, path: str, query: dict[str, str] | None = None) -> Any:  # noqa: ANN401 - JSON
        """Return what /v1 answers; raises as `request` does."""
        return self.request("GET", path, query)

    def request(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: bytes | None = None,
        kind: str = "application/json",
    ) -> Any:  # noqa: ANN401 - JSON
        """Return what is answered to a request, None for an answer without a body.

        Raises:
            RefusedError: it answers that the caller may not do this.
            MissingError: there is no such object.
            MisdirectedError: another replica has the answer.
            TandemError: there is no such answer; the hint says what to do.
        """
        answer = self._answer(method, path, query or {}, body, kind)
        if answer.status == 204:
            return None
        try:
            found = answer.json()
        except ValueError as error:
            raise TandemError(f"{path}: the answer is no JSON", "see `tandem doctor`") from error
        if answer.status in (200, 201):
            return found
        said = found if isinstance(found, dict) else {}
        words = str(said.get("error") or said.get("detail") or f"HTTP {answer.status}")
        if answer.status == 401:
            raise TandemError(words, "log in again, or give another token with --token")
        if answer.status == 403:
            role = "view" if method == "GET" else "edit"
            raise RefusedError(
                words, f"ask for the role `{role}` in the namespace, or name another: -n"
            )
        if answer.status == 421:
            raise MisdirectedError(words, "try again soon")
        if answer.status == 404 and said.get("detail") == "Not Found":
            raise TandemError(
                f"the extender knows no {path}",
                "it may be older than this command: tandem --version",
            )
        hint = said.get("hint") or ("try again soon" if answer.status == 503 else "")
        raise MissingError(words, hint) if answer.status == 404 else TandemError(words, str(hint))

    def _answer(
        self, method: str, path: str, query: dict[str, str], body: bytes | None, kind: str
    ) -> Answer:
        if self.server:
            return self._direct(method, path, query, body, kind)
        from tandem.kube.errors import Forbidden, KubeError, NotFound

        try:
            return self.tunnel.ask(method, path, query, body, kind)
        except Forbidden as error:
            if error.status == 401:
                raise TandemError(
                    "the API server does not accept your credentials", "log in again"
                ) from error
            raise TandemError(
                f"the API server does not let you reach Tandem: {error.message}",
                "an administrator names your group in the chart's value access.groups",
            ) from error
        except NotFound as error:
            raise TandemError(
                f"there is no Tandem in {self._system}, or an older one: {error.message}",
                "name its namespace with --tandem-namespace; `tandem doctor` says more",
            ) from error
        except KubeError as error:
            raise TandemError(
                f"no answer from Tandem: {error.message}", "`tandem doctor` says what is wrong"
            ) from error

    def _direct(
        self, method: str, path: str, query: dict[str, str], body: bytes | None, kind: str
    ) -> Answer:
        import httpx

        from tandem.kube.tunnel import Answer

        try:
            file = str(self._ca_file) if self._ca_file else None
            context = ssl.create_default_context(cafile=file)
        except OSError as error:
            raise TandemError(
                f"{self._ca_file}: {error}", "give a PEM file with --ca-file"
            ) from error
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        if body is not None:
            headers["content-type"] = kind
        try:
            with httpx.Client(
                base_url=self.server, verify=context, timeout=_TIMEOUT_S, headers=headers
            ) as client:
                answer = client.request(method, path, params=query, content=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TandemError(
                f"no usable answer from {self.server}: {error}",
                "leave --server out to go through the API server of your kubeconfig",
            ) from error
        return Answer(answer.status_code, answer.content)

    def of_namespace(
        self, path: str, namespace: str | None, query: dict[str, str] | None = None
    ) -> Any:  # noqa: ANN401 - JSON
        """Return what /v1 answers for a namespace; None: for all, or else for the context's own."""
        query = dict(query or {})
        if namespace:
            return self.get(path, {**query, "namespace": namespace})
        try:
            return self.get(path, query)
        except RefusedError:
            if self.server:
                raise
            own = self.own_namespace
            found = self.get(path, {**query, "namespace": own})
            self.fell_back_to = own
            return found


class RefusedError(TandemError):
    """The caller may not read this."""


class MissingError(TandemError):
    """There is no such object."""


class MisdirectedError(TandemError):
    """Another replica has the answer: the next request may reach it."""


def reads(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options of a `Reader`, which `command` takes first, and --watch."""

    def watched(
        read: Reader,
        *args: Any,  # noqa: ANN401 - those of the command
        watch: bool,
        interval: float,
        **kwargs: Any,  # noqa: ANN401 - those of the command
    ) -> None:
        if watch:
            repeated(lambda: command(read, *args, **kwargs), interval)
        else:
            command(read, *args, **kwargs)

    _sign(watched, command, _watching)
    return reads_once(watched)


def with_options(
    added: Callable[..., None], made_of: Callable[..., AbstractContextManager[Any]]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the parameters of `added` to a command.

    The command takes first what `made_of` makes of them.
    """
    names_added = tuple(inspect.signature(added).parameters)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def connected(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - those of the command
            options = {name: kwargs.pop(name) for name in names_added}
            with made_of(**options) as first:
                command(first, *args, **kwargs)

        _sign(connected, command, added, skip=1)
        return connected

    return decorate


@contextmanager
def reader(**options: Any) -> Iterator[Reader]:  # noqa: ANN401 - those of a Reader
    """Give a `Reader`; say afterwards where it looked, if it was not where it was asked to."""
    read = Reader(**options)
    yield read
    if read.fell_back_to:
        err.print(f"Namespace {read.fell_back_to}; name another with -n.", highlight=False)


def _sign(
    made: Callable[..., None],
    command: Callable[..., None],
    added: Callable[..., None],
    skip: int = 0,
) -> None:
    """Give a function the name, the docstring and the parameters of `command`, and more."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())
    more = list(inspect.signature(added, eval_str=True).parameters.values())
    first, rest = own[: 1 - skip], own[1:]
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*rest, *more)]
    parameters = [*first, *keywords]
    made.__name__, made.__doc__ = command.__name__, command.__doc__
    made.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    made.__annotations__ = {each.name: each.annotation for each in parameters}


def _watching(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat it until Ctrl+C.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0, max=86400.0, help="Seconds between repetitions.")
    ] = 2.0,
) -> None:
    """Have the parameters that `reads` adds."""


def _connection(
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    system: SystemOption = names.NAMESPACE,
    account: AccountOption = "",
    token: TokenOption = "",
    server: Annotated[
        str,
        typer.Option(
            "--server", envvar="TANDEM_SERVER",
            help="URL of the extender. [through the API server of the kubeconfig]",
        ),
    ] = "",
    ca_file: Annotated[
        Path | None,
        typer.Option("--ca-file", envvar="TANDEM_CA_FILE", help="CA of the certificate there."),
    ] = None,
) -> None:  # fmt: skip
    """Have the parameters of a `Reader`."""


#: Decorates a command that takes a `Reader` first; adds the options of one.
reads_once = with_options(_connection, reader)


def repeated(show: Callable[[], None], interval_s: float) -> None:
    """Show something again and again until Ctrl+C.

    On a terminal, each time in place of the last; elsewhere, when it has changed. An error is shown
    in its place, since what is away may come back.
    """
    before = ""
    interval_s = max(SHORTEST_INTERVAL_S, interval_s)
    try:
        while True:
            begun_s = monotonic()
            with out.capture() as captured:
                try:
                    show()
                except UsageError:
                    raise
                except TandemError as error:
                    from tandem.cli.output import clean_lines, err

                    # In a pipe, what reads on expects rows or JSON.
                    screen = out if out.is_terminal else err
                    said = f"error: {clean_lines(error.message)}"
                    screen.print(said, markup=False, highlight=False)
            text = captured.get()
            if out.is_terminal:
                height = max(1, out.size.height - 1)
                lines = text.splitlines()[:height]
                sys.stdout.write("\x1b[H\x1b[2J" + "\n".join(lines) + "\n")
            elif text != before:
                sys.stdout.write(text)
            sys.stdout.flush()
            before = text
            # A large cluster is not asked for more than a fifth of the time.
            took_s = monotonic() - begun_s
            sleep(max(interval_s - took_s, 4 * took_s, 0))
    except KeyboardInterrupt:
        return
