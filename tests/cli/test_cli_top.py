"""What `tandem top` draws, and how it behaves in a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import struct
import termios
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tandem.cli import output, top
from tandem.cli.reach import Reader, RefusedError
from tandem.cli.screen import SORTS, Snapshot, View, bar, frame, in_words, starts_in, whole
from tandem.cli.top import keys, namespaces, taken
from tandem.errors import TandemError

GIB = 2**30
NOW = "2026-11-22T10:00:00.000Z"


def gpu(index: int = 0, node: str = "gpu-0", **more: Any) -> dict[str, Any]:
    return {
        "node": node, "gpu": f"GPU-{node}-{index}", "index": index, "model": "V100",
        "state": "idle", "reason": "", "shares": 2, "jobs": [], "temperatureCelsius": 40.0,
        "memoryCapacityBytes": 16 * GIB, "memoryUsedBytes": 0, "memoryPromisedBytes": 0,
        "utilisationPercent": 0.0, "utilisationPromisedPercent": 0.0, **more,
    }  # fmt: skip


def waiting(name: str, position: int | None = 0, **more: Any) -> dict[str, Any]:
    return {
        "namespace": "team-a", "name": name, "phase": "Queued", "position": position,
        "reason": "memory", "message": "needs 17.4 GiB of memory; 15.6 GiB there",
        "expectedStart": {"earliest": "2026-11-22T10:05:00Z", "latest": "2026-11-22T10:12:00Z"},
        "queuedAt": "2026-11-22T09:48:00Z", "waitingSince": None, **more,
    }  # fmt: skip


SHARED = gpu(
    state="shared",
    jobs=[
        {"namespace": "team-a", "name": "job-bert", "slowdown": 0.12},
        {"namespace": "team-b", "name": "job-vgg", "slowdown": None},
    ],
    memoryUsedBytes=8 * GIB,
    memoryPromisedBytes=12 * GIB,
    utilisationPercent=70.0,
    utilisationPromisedPercent=80.0,
)


def snapshot(gpus: list[dict], queue: list[dict], **more: Any) -> Snapshot:
    overview = {
        "gpus": {"total": 2, "nodes": 1, "byState": {"shared": 1, "idle": 1, "silent": 0}},
        "jobs": {"total": 3, "byPhase": {"Queued": 1, "Running": 2, "Failed": 0}},
        "sharing": {
            "gpus": 1,
            "jobs": 2,
            "gainGpus": 0.7,
            "gpusCounted": 2,
            "meanSlowdown": 0.12,
            "jobsMeasured": 1,
            "gainMeasuredGpus": 0.2,
            "gpusMeasured": 1,
        },
        "namespaces": {"total": 2, "rows": [{"namespace": "team-b"}, {"namespace": "team-a"}]},
    }
    found = {"rows": gpus, "total": len(gpus), "pages": 1}
    return Snapshot(NOW, overview, found, {"rows": queue, "total": len(queue)}, **more)


def text(lines: list[Any]) -> str:
    return "\n".join(line.plain for line in lines)


def test_a_frame_shows_gpus_with_their_jobs_and_the_queue_with_its_reasons() -> None:
    drawn = text(frame(snapshot([SHARED, gpu(1)], [waiting("job-gpt")]), View(150, 30)))
    assert "10:00:00 UTC" in drawn
    assert "1 shared  1 idle" in drawn
    worth = "worth +0.7 GPUs (+0.2 measured, +0.5 predicted)"
    assert f"1 GPU by 2 jobs, {worth}, jobs 12% slower on average (measured of 1)" in drawn
    line = next(line for line in drawn.splitlines() if line.startswith("gpu-0/0"))
    assert "8/12/16" in line
    assert "70/80" in line
    assert line.endswith("team-a/job-bert (+12%), team-b/job-vgg")
    queued = next(line for line in drawn.splitlines() if "job-gpt" in line)
    assert queued.split()[:4] == ["1", "team-a/job-gpt", "12m", "5m..12m"]
    assert queued.endswith("15.6 GiB there")


def test_a_bar_is_filled_as_far_as_measured_and_marked_where_predicted() -> None:
    assert bar(50, 75, 100).plain == "██████··┃···"
    assert bar(50, 25, 100, plain=True).plain == "##|###......"
    assert bar(None, 0, 100).plain == "·" * 12, "not measured is not zero, and no guess"
    assert bar(200, 300, 100).plain == "███████████┃"
    assert bar(1, 1, 0).plain[1:] == "·" * 11, "a capacity that is not known"
    over = bar(90, 50, 100).spans
    assert any(span.style == "yellow" for span in over), "more than predicted stands out"


def test_what_is_not_measured_is_a_question_mark() -> None:
    silent = gpu(memoryUsedBytes=None, utilisationPercent=None, state="silent", reason="no report")
    drawn = text(frame(snapshot([silent], []), View(150, 30)))
    assert "?/0/16" in drawn
    assert "no report" in drawn


@given(
    width=st.integers(1, 250),
    height=st.integers(1, 60),
    gpus=st.integers(0, 40),
    jobs=st.integers(0, 40),
    first=st.integers(0, 100),
)
def test_no_terminal_is_too_small(
    width: int, height: int, gpus: int, jobs: int, first: int
) -> None:
    rows = [gpu(index, node="a-node-with-quite-a-long-name.example.com") for index in range(gpus)]
    queue = [waiting(f"job-{index}", index) for index in range(jobs)]
    lines = frame(snapshot(rows, queue), View(width, height, first=first))
    assert 1 <= len(lines) <= height
    assert all(cell_len(line.plain) <= width for line in lines)


@pytest.mark.parametrize("job", ["job-train", "job-resnet50-of-the-second-try"])
def test_at_80_columns_the_name_of_a_job_is_whole(job: str) -> None:
    """Bars took its place."""
    row = gpu(0, node="n0") | {"jobs": [{"namespace": "team-4", "name": job}]}
    assert f"team-4/{job}" in text(frame(snapshot([row], []), View(80, 24)))
    wide = text(frame(snapshot([row], []), View(120, 24)))
    assert f"team-4/{job}" in wide
    assert "MEMORY GiB" in wide


def test_a_small_terminal_keeps_the_head_and_then_the_gpus() -> None:
    many = snapshot([gpu(index) for index in range(30)], [waiting("job-gpt")])
    assert "tandem top" in text(frame(many, View(80, 1)))
    small = text(frame(many, View(80, 10)))
    assert "gpu-0/0" in small
    assert "job-gpt" not in small
    assert "job-gpt" in text(frame(many, View(80, 24)))


def test_rows_beyond_the_height_are_reached_by_scrolling() -> None:
    many = snapshot([gpu(index) for index in range(60)], [])
    assert "gpu-0/59" not in text(frame(many, View(80, 24)))
    assert "gpu-0/59" in text(frame(many, View(80, 24, first=1000)))


def test_a_page_of_many_gpus_says_how_many_there_are() -> None:
    shown = snapshot([gpu(index) for index in range(100)], [])
    shown.gpus["total"] = 40_000
    assert "JOBS (100 of 40,000 GPUs)" in text(frame(shown, View(120, 30)))
    assert text(whole(shown, View(120, 0))).count("gpu-0/") == 100


def test_names_of_tenants_draw_nothing_of_their_own() -> None:
    hostile = "\x1b[2J\x1b]0;x\x07\r\n\u202e[red]"
    job = {"namespace": "a", "name": hostile, "slowdown": None}
    shown = snapshot([gpu(jobs=[job], reason=hostile)], [waiting(hostile, message=hostile)],
                     error=hostile, scope=hostile)  # fmt: skip
    drawn = top.drawn(frame(shown, View(150, 30)), 150)
    assert not set(re.sub(r"\x1b\[[0-9;]*[mHKJ]|\r\n", "", drawn)) & set("\x1b\x07\r\u202e")
    assert "\x1b[2J" not in drawn
    assert "[red]" in drawn


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0s"), (-5, "0s"), (89, "89s"), (90, "2m"), (3600, "60m"), (11_100, "3h05m"),
     (187_200, "2d04h")],
)  # fmt: skip
def test_times_are_short(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_a_start_without_a_latest_time_is_that_or_later() -> None:
    assert starts_in({"earliest": "2026-11-22T10:05:00Z"}, NOW) == "5m or later"
    assert starts_in(None, NOW) == "-"
    assert starts_in({"earliest": "soon"}, NOW) == "-"


def test_keys_are_distinguished() -> None:
    assert list(keys(b"s\x1b[Bq")) == ["sort", "down", "quit"]
    assert list(keys(b"xyz\x1b[24~q")) == [], "keys that mean nothing here"
    assert list(keys(b"\x1b[5~\x1b[6~n\x03")) == ["page up", "page down", "namespace", "quit"]


class Fake(Reader):
    """A reader of fixed answers; `refused` are paths that this caller may not read."""

    def __init__(self, refused: str = "") -> None:
        super().__init__()
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.refused = refused
        self.error = ""

    def get(self, path: str, query: dict[str, str] | None = None) -> Any:
        self.asked.append((path, dict(query or {})))
        if self.error:
            raise TandemError(self.error)
        if self.refused and path.endswith(self.refused):
            raise RefusedError("you may not list gpunodes")
        shown = snapshot([SHARED, gpu(1)], [waiting("job-gpt")])
        view = {"overview": shown.overview, "gpus": shown.gpus, "jobs": shown.queue}
        return {"time": NOW, "view": view[path.rpartition("/")[2]]}


def test_reading_is_bounded_and_follows_what_was_chosen() -> None:
    read = Fake()
    taken(read, View(80, 24, sort="memory", namespace="team-a"))
    assert read.asked == [
        ("/v1/status/overview", {"namespace": "team-a"}),
        ("/v1/status/gpus", {"sort": "memory", "namespace": "team-a"}),
        ("/v1/status/jobs", {"phase": "Waiting", "sort": "queue", "namespace": "team-a"}),
    ]


def test_who_may_not_see_gpus_sees_the_queue() -> None:
    read = Fake(refused="gpus")
    shown = taken(read, View(80, 24, namespace="team-a"))
    drawn = text(frame(shown, View(100, 30)))
    assert "you may not list gpunodes" in drawn
    assert "job-gpt" in drawn


class Terminal:
    """A pseudo-terminal, and what was drawn on it."""

    def __init__(self) -> None:
        self.master, self.slave = os.openpty()
        self.resize(100, 30)
        self.screen = b""
        self.keyboard = os.fdopen(os.dup(self.slave), "r")
        self.display = os.fdopen(os.dup(self.slave), "w")
        threading.Thread(target=self._read, daemon=True).start()

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self.master, 65536):
                self.screen += data

    def until(self, words: str) -> None:
        end = time.monotonic() + 60
        while words.encode() not in self.screen:
            assert time.monotonic() < end, (words, self.screen[-2000:])
            time.sleep(0.02)

    def press(self, pressed: bytes) -> None:
        os.write(self.master, pressed)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.keyboard.close()
    made.display.close()
    os.close(made.slave)
    os.close(made.master)


def live_top(read: Reader, every_s: float, terminal: Terminal) -> top._Live:
    return top._Live(read, View(0, 0), every_s, terminal.keyboard, terminal.display)


def play(terminal: Terminal, steps: Any) -> threading.Thread:
    """Play a user in a thread; an error there ends the loop, and is raised at the end."""
    player = threading.Thread(target=steps, daemon=True)
    player.start()
    return player


def test_it_draws_sorts_filters_resizes_and_leaves_the_terminal_as_it_was(
    terminal: Terminal,
) -> None:
    before = termios.tcgetattr(terminal.slave)
    read = Fake()
    live = live_top(read, 0.05, terminal)
    wrong: list[BaseException] = []

    def steps() -> None:
        try:
            terminal.until("\x1b[?1049h")
            terminal.until("job-gpt")
            assert termios.tcgetattr(terminal.slave) != before
            terminal.press(b"s")
            terminal.until("s sort (memory)")
            terminal.press(b"n")
            terminal.until("namespace team-a")
            terminal.screen = b""
            terminal.resize(40, 8)
            terminal.until("tandem top")
            read.error = "the extender does not answer"
            terminal.resize(100, 30)
            terminal.until("not up to date: the extender does not answer")
        except BaseException as error:
            wrong.append(error)
        terminal.press(b"q")

    player = play(terminal, steps)
    live.run()
    player.join(10)
    assert wrong == []
    assert termios.tcgetattr(terminal.slave) == before
    terminal.until("\x1b[?25h\x1b[?1049l")
    assert ("/v1/status/gpus", {"sort": "memory", "namespace": "team-a"}) in read.asked


def test_ctrl_c_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    before = termios.tcgetattr(terminal.slave)

    def steps() -> None:
        terminal.until("job-gpt")
        os.kill(os.getpid(), signal.SIGINT)  # as the terminal does

    # The workers of pytest-xdist ignore SIGINT.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        play(terminal, steps)
        live = live_top(Fake(), 1.0, terminal)
        live.run()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert termios.tcgetattr(terminal.slave) == before


def test_an_error_at_the_start_is_an_error_and_draws_nothing(terminal: Terminal) -> None:
    read = Fake()
    read.error = "there is no Tandem in tandem-system"
    with pytest.raises(TandemError, match="no Tandem"):
        live_top(read, 1.0, terminal).run()
    assert b"\x1b[?1049h" not in terminal.screen


def test_without_a_terminal_it_prints_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from typer.testing import CliRunner

    from tandem.cli.main import build_app

    read = Fake()
    monkeypatch.setattr(Reader, "get", read.get)
    answer = CliRunner().invoke(build_app(), ["top"])
    assert answer.exit_code == 0
    assert answer.stdout.count("gpu-0/0") == 1
    assert "\x1b" not in answer.stdout
    said = json.loads(CliRunner().invoke(build_app(), ["top", "--json"]).stdout)
    assert set(said) == {"overview", "gpus", "queue"}
    assert CliRunner().invoke(build_app(), ["top", "--sort", "x"]).exit_code != 0


def test_in_a_pipe_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from tandem.cli.main import build_app

    monkeypatch.delenv("COLUMNS", raising=False)
    name, why = "a-job-with-a-long-name" * 4, "a reason of many words " * 20
    waits = waiting(name, short=why)
    shown = snapshot([SHARED], [waits])
    views = {"overview": shown.overview, "gpus": shown.gpus, "jobs": shown.queue}
    monkeypatch.setattr(
        Reader, "get", lambda _, path, *__: {"time": NOW, "view": views[path.rpartition("/")[2]]}
    )
    printed = CliRunner().invoke(build_app(), ["top"]).stdout
    assert f"team-a/{name}" in printed
    assert why.strip() in printed
    monkeypatch.setenv("COLUMNS", "100")
    printed = CliRunner().invoke(build_app(), ["top"]).stdout
    assert max(map(len, printed.splitlines())) <= 100


def test_namespaces_are_those_with_jobs() -> None:
    assert namespaces(snapshot([], [])) == ["team-a", "team-b"]


def test_every_order_is_one_that_the_extender_knows() -> None:
    from scheduler_extender.serving.status.model import Cluster
    from scheduler_extender.serving.status.objects import Scope
    from scheduler_extender.serving.status.views import document, query_of

    for sort in SORTS:
        document(Cluster(), Scope(), query_of("gpus", (), [("sort", sort)]))


def test_a_terminal_without_unicode_gets_ascii() -> None:
    view = replace(View(150, 30), plain=True)
    drawn = text(frame(snapshot([SHARED], [waiting("job-gpt")]), view))
    assert drawn.isascii()
    assert output.out is not None
