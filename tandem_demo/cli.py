"""`tandem demo`: twelve jobs on simulated GPUs, without a cluster."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.cli.output import err, out, print_json
from tandem.errors import UsageError

if TYPE_CHECKING:
    from tandem_demo.result import Result
    from tandem_demo.view import View

MAX_GPUS = 16
#: Where there is no terminal whose width counts.
PIPE_WIDTH = 120


def demo(
    gpus: Annotated[int, typer.Option(min=1, max=MAX_GPUS, help="How many GPUs there are.")] = 4,
    speed: Annotated[
        float, typer.Option(min=0.1, max=50, help="How much faster than real time jobs run.")
    ] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    live: Annotated[
        bool, typer.Option("--live/--no-live", help="Show tables that move, on a terminal.")
    ] = True,
    keep_logs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the services' logs and configuration there."),
    ] = None,
) -> None:
    """Run twelve jobs on simulated GPUs through the real services."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if keep_logs is None:
        from tandem.local.scratch import Scratch

        # In shared memory, its usual place, a library may not be executable.
        scratch = Scratch(Path(tempfile.gettempdir()))
        try:
            _run(gpus, speed, scratch.path, live=live, as_json=as_json)
        finally:
            scratch.remove()
    else:
        if keep_logs.exists() and (not keep_logs.is_dir() or any(keep_logs.iterdir())):
            raise UsageError(f"{keep_logs} is not an empty folder.", "Name one that is not there.")
        keep_logs.mkdir(parents=True, exist_ok=True)
        _run(gpus, speed, keep_logs.resolve(), live=live, as_json=as_json)
        _say(f"Logs and configuration: {keep_logs}")


def _run(gpus: int, speed: float, folder: Path, *, live: bool, as_json: bool) -> None:
    from tandem_demo.run import run
    from tandem_demo.screen import moment

    on_terminal = out.is_terminal and not as_json
    keep = _kept if on_terminal else lambda result, _: _print(result, as_json=as_json)
    if not (live and on_terminal):
        run(gpus, speed, folder, _say, lambda _: None, _say_page, keep)
        return

    from rich.live import Live

    began = False

    def show(view: View) -> None:
        nonlocal began
        began = True
        screen.update(moment(view, out.width))

    def say_until_then(line: str) -> None:
        if not began:
            screen.update(line)

    def above(page: str) -> None:
        for line in _addresses(page):
            screen.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def keep_after(result: Result, page: str) -> None:
        screen.stop()
        keep(result, page)

    with Live(console=out, refresh_per_second=5, transient=True) as screen:
        run(gpus, speed, folder, say_until_then, show, above, keep_after)


def _print(result: Result, *, as_json: bool) -> None:
    if as_json:
        print_json(result.wire())
        return
    from rich.console import Console

    from tandem_demo.screen import outcome

    console = out if out.is_terminal else Console(width=PIPE_WIDTH)
    console.print(outcome(result))


def _kept(result: Result, page: str) -> None:
    """Print the result, and keep the status page until Ctrl+C."""
    _print(result, as_json=False)
    _say(f"The status page stays at {page} until Ctrl+C.")
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        _say("Ending the services.")


def _say_page(page: str) -> None:
    for line in _addresses(page):
        _say(line)


def _addresses(page: str) -> Iterator[str]:
    """Yield where the jobs of the demo are seen, in a browser and in another terminal."""
    from tandem_demo.workload import NAMESPACE

    yield f"Status page: {page}"
    server = page.removesuffix("/status/")
    command = _command(Path(sys.argv[0]))
    yield f"In another terminal: {command} why resnet50-final -n {NAMESPACE} --server {server}"


def _command(called: Path) -> str:
    """Return how `tandem` is called from the present folder; it may not be on the PATH."""
    if shutil.which("tandem") or called.name != "tandem":
        return "tandem"
    path = called.absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _say(line: str) -> None:
    err.print(line, highlight=False, markup=False, soft_wrap=True)
