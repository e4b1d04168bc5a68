"""What open pages cost the verbs: filter and prioritize with and without fifty pages.

    python -m benchmarks.page.verbs [--nodes 5000] [--pages 50] [--turns 10] [--json FILE]

One extender with its process in front, a recorded API server whose agents report all the time, one
serial client that asks for 20 pairs of verbs a second, and pages in a process of their own: each
follows a view over TLS as a browser does, reads at once, and opens the next stream when one ends.
Turns without and with pages follow each other, so that both have the same of what else the machine
does. The first opening sends the whole cluster to the process in front; it is a turn of its own. So
are the three seconds after fifty pages have opened at once: the process in front takes in what has
changed while no page was open, and the pages' own process ends fifty handshakes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.recorded_api import PLANNED, node_name
from benchmarks.verbs import (
    ROOT,
    Client,
    body,
    cpu_s,
    extender,
    free_ports,
    percentiles,
    recorded_api,
)

_VIEWS = (
    "overview", "jobs", "jobs?phase=Waiting", "jobs?sort=started", "gpus", "gpus?state=busy",
    "gpus?sort=utilisation", "nodes", "models", "jobs?namespace=research",
)  # fmt: skip
_PAIRS_PER_S = 20
_PAIRS = 100  # of one turn


async def _follow(port: int, path: str, counts: list[int], number: int) -> None:
    """Read a view again and again; count its events."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(
                f"GET /v1/status/{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\n"
                "Accept: text/event-stream\r\nConnection: close\r\n\r\n".encode()
            )
            while part := await reader.read(2**18):
                counts[number] += part.count(b"event: view")
            writer.close()
        await asyncio.sleep(0.1)


async def _open(port: int, pages: int) -> None:
    """Follow views until the input is closed; say once each page has its first view."""
    counts = [0] * pages
    tasks = [
        asyncio.create_task(_follow(port, _VIEWS[number % len(_VIEWS)], counts, number))
        for number in range(pages)
    ]
    while not all(counts):
        await asyncio.sleep(0.05)
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps({"views": sum(counts)}), flush=True)
    for task in tasks:
        task.cancel()


class _Pages:
    """The process that has the pages open; `views` were sent to them."""

    def __init__(self, port: int, pages: int) -> None:
        command = [sys.executable, "-m", "benchmarks.page.verbs", "--open", str(port)]
        self._process = subprocess.Popen(
            [*command, "--pages", str(pages)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.views = 0

    def wait(self) -> None:
        """Wait until each page has its first view."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "open\n"

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def close(self) -> None:
        """Close all pages."""
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.views = json.loads(self._process.stdout.readline())["views"]
        self._process.wait(10)


class _Verbs:
    """Asks for pairs of verbs at a fixed rate."""

    def __init__(self, port: int, nodes: int) -> None:
        self._client = Client(port)
        self._names = [node_name(index) for index in range(nodes)]
        self._number = 0

    def ask(self) -> float:
        """Return the time of one pair in seconds."""
        which = self._number % PLANNED
        self._number += 1
        filtered, first = self._client.post("/filter", body(f"ask-{which}", self._names))
        left = json.loads(filtered)["NodeNames"] or self._names
        return first + self._client.post("/prioritize", body(f"ask-{which}", left))[1]

    def turn(self, pairs: int = _PAIRS) -> list[float]:
        """Return the times of some pairs."""
        found, due = [], time.perf_counter()
        for _ in range(pairs):
            time.sleep(max(0.0, due - time.perf_counter()))
            due = max(due, time.perf_counter()) + 1 / _PAIRS_PER_S
            found.append(self.ask())
        return found


def measure(nodes: int, pages: int, turns: int, reports_per_s: float) -> dict[str, Any]:
    """Return the figures; times in ms."""
    (public,) = free_ports(1)
    with (
        recorded_api(nodes, 8, 1, reports_per_s) as api,
        extender(api, public_port=public) as (port, pid, _),
    ):
        verbs = _Verbs(port, nodes)
        _wait(f"https://127.0.0.1:{public}/v1/status/scope")
        verbs.turn(50)  # to warm up
        first = _Pages(public, 1)
        began = time.perf_counter()
        opening = list(_while_opening(verbs, first))
        opening_s = time.perf_counter() - began
        first.close()
        times: dict[str, list[float]] = {"without": [], "with": []}
        used: dict[str, Counter[str]] = {side: Counter() for side in times}
        wall, views = dict.fromkeys(times, 0.0), 0
        just_opened: list[float] = []
        for _ in range(turns):
            for side in times:
                opened = _Pages(public, pages) if side == "with" else None
                if opened is not None:
                    opened.wait()
                    just_opened += verbs.turn(3 * _PAIRS_PER_S)
                pids = {"extender": pid, "front": _child(pid)}
                if opened is not None:
                    pids["clients"] = opened.pid
                before, began = _cpu_s(pids), time.perf_counter()
                times[side] += verbs.turn()
                used[side] += _cpu_s(pids) - before
                wall[side] += time.perf_counter() - began
                if opened is not None:
                    opened.close()
                    views += opened.views
        found = {
            side: {
                "pairs": len(each),
                **_figures(each),
                "cores": {
                    name: round(each_s / wall[side], 3) for name, each_s in used[side].items()
                },
            }
            for side, each in times.items()
        }
        return {
            "nodes": nodes, "pages": pages, "reports_per_s": reports_per_s, **found,
            "views_sent": views,
            "p99_ratio": round(found["with"]["p99_ms"] / found["without"]["p99_ms"], 3),
            "just_opened": _figures(just_opened),
            "first_opening": {
                "seconds": round(opening_s, 1),
                **_figures(opening),
            },
        }  # fmt: skip


def _child(pid: int) -> int:
    """Return the process in front, which the extender starts."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _cpu_s(pids: dict[str, int]) -> Counter[str]:
    return Counter({name: cpu_s(pid) for name, pid in pids.items()})


def _figures(times: list[float]) -> dict[str, float]:
    p50, p99 = percentiles(np.array(times) * 1e3)
    return {"p50_ms": p50, "p99_ms": p99}


def _while_opening(verbs: _Verbs, page: _Pages) -> Iterator[float]:
    """Ask until the page has its first view."""
    done: list[bool] = []

    async def both() -> list[float]:
        waiting = asyncio.create_task(asyncio.to_thread(page.wait))
        waiting.add_done_callback(lambda _: done.append(True))
        found: list[float] = []
        while not done:
            found += await asyncio.to_thread(verbs.turn, 5)
        await waiting
        return found

    yield from asyncio.run(both())


def _wait(url: str) -> None:
    headers = {"authorization": "Bearer t"}
    with httpx.Client(verify=False, trust_env=False, timeout=10, headers=headers) as client:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with contextlib.suppress(httpx.HTTPError):
                if client.get(url).is_success:
                    return
            time.sleep(0.2)
    sys.exit(f"{url} does not answer")


def main(arguments: list[str]) -> int:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page.verbs")
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pages", type=int, default=50)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--reports-per-s", type=float, default=100.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--open", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.open:
        asyncio.run(_open(given.open, given.pages))
        return 0
    found = measure(given.nodes, given.pages, given.turns, given.reports_per_s)
    found["load"] = round(os.getloadavg()[0], 1)
    text = json.dumps(found, indent=2)
    if given.json:
        given.json.write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
