"""`tandem top`: GPUs and queue, live in a terminal."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from dataclasses import replace
from time import monotonic
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console

from tandem.cli.forms import Form, reports
from tandem.cli.output import endless, out, print_json
from tandem.cli.reach import SHORTEST_INTERVAL_S, Reader, RefusedError, reads_once
from tandem.cli.screen import SORTS, Snapshot, View, frame, scrolled, whole
from tandem.cli.views import NamespaceOption
from tandem.errors import TandemError, UsageError

_TICK_S = 0.25
_LEAST_WIDTH = 20
_ENDLESS = 1 << 16  # the width of a pipe: nothing is cut
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_KEYS = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[5~": "page up", b"\x1b[6~": "page down",
    b"\x1bOA": "up", b"\x1bOB": "down", b"k": "up", b"j": "down", b" ": "page down",
    b"q": "quit", b"Q": "quit", b"\x03": "quit", b"s": "sort", b"n": "namespace",
}  # fmt: skip


@reads_once
@reports
def top(
    read: Reader,
    namespace: NamespaceOption = None,
    sort: Annotated[
        str, typer.Option("--sort", help=f"Order of the GPUs: {', '.join(SORTS)}.")
    ] = "node",
    once: Annotated[bool, typer.Option("--once", help="Print it once and end.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0, max=86400.0, help="Seconds between two reads.")
    ] = 2.0,
    form: Form = Form.TABLE,
) -> None:
    """Show GPUs, what runs on them, and the queue, live.

    The key q ends it.
    """
    if sort not in SORTS:
        raise UsageError(f"--sort {sort}", f"one of {', '.join(SORTS)}")
    read.check_namespace(namespace)  # a screen without jobs would not say that it is misspelt
    view = View(_ENDLESS, 0, sort, namespace or "", plain=not _speaks_unicode())
    if form is Form.JSON:
        found = taken(read, view)
        print_json({"overview": found.overview, "gpus": found.gpus, "queue": found.queue})
    elif once or not (sys.stdin.isatty() and out.is_terminal):
        width = _ENDLESS if endless(out) else out.size.width
        for line in whole(taken(read, view), replace(view, width=width)):
            out.print(line, soft_wrap=True, highlight=False)
    else:
        _Live(read, view, max(SHORTEST_INTERVAL_S, interval), sys.stdin, sys.stdout).run()


def taken(read: Reader, view: View) -> Snapshot:
    """Read what is drawn: at most a page of GPUs and of jobs, however large the cluster is."""
    chosen = view.namespace or None
    overview = read.of_namespace("/v1/status/overview", chosen)
    try:
        gpus = read.of_namespace("/v1/status/gpus", chosen, {"sort": view.sort})["view"]
    except RefusedError as error:
        gpus = {"refused": error.message, "rows": []}
    waiting = {"phase": "Waiting", "sort": "queue"}
    queue = read.of_namespace("/v1/status/jobs", chosen, waiting)["view"]
    return Snapshot(str(overview["time"]), overview["view"], gpus, queue, read.fell_back_to)


def _speaks_unicode() -> bool:
    return (out.encoding or "").lower().startswith("utf")


class _Live:
    """The loop: one thread reads, this one draws and listens to keys."""

    def __init__(
        self, read: Reader, view: View, every_s: float, keyboard: TextIO, screen: TextIO
    ) -> None:
        self._read, self._view, self._every_s = read, view, every_s
        self._keyboard, self._screen = keyboard.fileno(), screen
        self._latest: Snapshot | None = None
        self._error = ""
        self._bug: BaseException | None = None
        self._again, self._end = threading.Event(), threading.Event()
        self._drawn: tuple[object, ...] = ()

    def run(self) -> None:
        """Draw until q or Ctrl+C, then leave the terminal as it was."""
        self._take()  # an error at the start is printed as one, and not drawn
        threading.Thread(target=self._keep_reading, daemon=True).start()
        with _terminal(self._keyboard, self._screen):
            try:
                while not self._end.is_set():
                    self._draw()
                    self._listen()
                    if self._bug is not None:
                        raise self._bug
            except KeyboardInterrupt:
                pass
            finally:
                self._end.set()
                self._again.set()

    def _take(self) -> None:
        view = self._view
        found = taken(self._read, view)
        if view == self._view or self._latest is None:
            self._latest, self._error = found, ""

    def _keep_reading(self) -> None:
        while not self._end.is_set():
            begun_s = monotonic()
            try:
                self._take()
            except TandemError as error:
                self._error = error.message
            except BaseException as error:
                self._bug = error  # raised where it is seen
                raise
            # A large cluster is asked at most a fifth of the time.
            took_s = monotonic() - begun_s
            self._again.wait(max(self._every_s - took_s, 4 * took_s))
            self._again.clear()

    def _draw(self) -> None:
        size = os.terminal_size((80, 24))
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(self._screen.fileno())
        latest, error = self._latest, self._error
        assert latest is not None
        view = replace(self._view, width=max(_LEAST_WIDTH, size.columns), height=size.lines)
        state = (id(latest), error, view)
        if state == self._drawn:
            return
        self._drawn = state
        lines = frame(replace(latest, error=error), view)
        self._screen.write(drawn(lines, view.width))
        self._screen.flush()

    def _listen(self) -> None:
        ready, _, _ = select.select([self._keyboard], [], [], _TICK_S)
        if not ready:
            return
        for key in keys(os.read(self._keyboard, 64)):
            self._press(key)

    def _press(self, key: str) -> None:
        latest, view = self._latest, self._view
        rows = latest.gpus.get("rows") or [] if latest else []
        page = max(1, os.get_terminal_size(self._screen.fileno()).lines // 2)
        if key == "quit":
            self._end.set()
        elif key == "sort":
            index = (SORTS.index(view.sort) + 1) % len(SORTS)
            self._view = replace(view, sort=SORTS[index], first=0)
            self._again.set()
        elif key == "namespace":
            known = ["", *namespaces(latest)] if latest else [""]
            index = known.index(view.namespace) + 1 if view.namespace in known else 0
            self._view = replace(view, namespace=known[index % len(known)], first=0)
            self._again.set()
        else:
            by = {"up": -1, "down": 1, "page up": -page, "page down": page}[key]
            self._view = scrolled(view, by, rows)


def namespaces(shown: Snapshot) -> list[str]:
    """Return the namespaces that have jobs, by name."""
    rows: list[dict[str, Any]] = (shown.overview.get("namespaces") or {}).get("rows") or []
    return sorted(str(row["namespace"]) for row in rows)


def keys(pressed: bytes) -> Iterator[str]:
    """Return what the bytes of a terminal mean; what has no meaning here is left out."""
    while pressed:
        known = next((each for each in _KEYS if pressed.startswith(each)), None)
        if known is not None:
            yield _KEYS[known]
            pressed = pressed[len(known) :]
        elif pressed.startswith(b"\x1b"):
            return  # a key of several bytes that we do not use
        else:
            pressed = pressed[1:]


def drawn(lines: list[Any], width: int) -> str:
    """Return what is written to draw the lines in place of the ones before."""
    console = Console(
        width=width,
        force_terminal=True,
        color_system=out.color_system,  # type: ignore[arg-type] # a name of one
        legacy_windows=False,
    )
    text = []
    for line in lines:
        with console.capture() as captured:
            console.print(line, end="", soft_wrap=True, highlight=False)
        text.append(captured.get() + "\x1b[K")
    return "\x1b[H" + "\r\n".join(text) + "\x1b[J"


@contextlib.contextmanager
def _terminal(keyboard: int, screen: TextIO) -> Iterator[None]:
    """Take keys as they are pressed and draw on a screen of our own, for a while."""
    before = termios.tcgetattr(keyboard)

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGTERM, end)
    try:
        tty.setcbreak(keyboard)
        screen.write(_ENTER)
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        screen.write(_LEAVE)
        screen.flush()
        signal.signal(signal.SIGTERM, handler)
