"""What a larger cluster takes of the extender: bytes, memory, reports, and cycles of the queue.

Each number of nodes, with 8 GPUs and 8 running pods a node: first the extender as it is run in a
cluster, against recorded lists; then anew at each rate of reports, with a single serial client that
asks filter about one node; then the queue controller in a process of its own, all GPUs taken and 20
waiting jobs for each three nodes. Next to the rate that is wanted is the one that was sent.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.recorded_api import GPUS_PER_NODE, PLANNED, Recorded, node_name
from benchmarks.tables import markdown
from benchmarks.verbs import (
    ROOT,
    Client,
    body,
    cpu_s,
    extender,
    machine,
    measure,
    recorded_api,
    rss_mib,
)
from tandem.cli.output import err, out

SEED = 1
WAITING_PER_NODE = 20 / 3
#: How often an agent reports: where nothing changes, and at most (docs/node-agent.md).
HEARTBEAT_S, CHANGED_S = 60, 10
_ASKED_PER_S = 20


@dataclass(frozen=True)
class Reports:
    """The extender while agents report: what it takes, and what one node's answer takes."""

    wanted_per_s: float
    sent_per_s: float
    cores: float
    one_node_p50_ms: float
    one_node_p99_ms: float
    memory_mib: float


@dataclass(frozen=True)
class Size:
    """What was measured at one number of nodes."""

    nodes: int
    listed: int
    listed_bytes: int
    report_bytes: int
    verbs: dict[str, Any]
    reports: list[Reports]
    queue: dict[str, Any] = field(default_factory=dict)


def reports(nodes: int, per_s: float, seconds: float) -> Reports:
    """Measure the extender while this many agents report a second."""
    with (
        recorded_api(nodes, GPUS_PER_NODE, SEED, per_s) as api,
        extender(api) as (port, pid, _),
    ):
        client = Client(port)
        for number in range(_ASKED_PER_S):
            client.post("/filter", body(f"ask-{number % PLANNED}", [node_name(0)]))
        sent, before, began = _sent(api), cpu_s(pid), time.perf_counter()
        times, due = [], began
        while due < began + seconds:
            time.sleep(max(0.0, due - time.perf_counter()))
            which = len(times) % PLANNED
            asked = body(f"ask-{which}", [node_name(len(times) * 7919 % nodes)])
            times.append(client.post("/filter", asked)[1] * 1e3)
            due += 1 / _ASKED_PER_S
        took = time.perf_counter() - began
        p50, p99 = np.percentile(times, (50, 99))
        return Reports(
            per_s,
            round((_sent(api) - sent) / took, 1),
            round((cpu_s(pid) - before) / took, 3),
            round(float(p50), 2),
            round(float(p99), 2),
            rss_mib(pid),
        )


def _sent(api_port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{api_port}/sent") as answer:
        return int(json.load(answer).get("gpunodes", 0))


def queue(nodes: int, seconds: float, limit_s: float) -> dict[str, Any]:
    """Measure the queue controller in a process of its own; nothing where it takes too long."""
    waiting = round(nodes * WAITING_PER_NODE)
    with suppress(subprocess.TimeoutExpired):
        answer = subprocess.run(
            [sys.executable, "-m", "benchmarks.queue", "--gpus", str(nodes * GPUS_PER_NODE),
             "--queued", str(waiting), "--seconds", str(seconds), "--json"],
            cwd=ROOT, text=True, capture_output=True, check=True, timeout=limit_s,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(answer.stdout)
        return found
    err.print(f"{waiting:,} waiting jobs: no figures in {limit_s:g} s")
    return {"queued": waiting}


def size(nodes: int, requests: int, seconds: float, limit_s: float) -> Size:
    """Measure one number of nodes."""
    err.print(f"{nodes:,} nodes")
    lists = Recorded(nodes, GPUS_PER_NODE, SEED).lists
    listed = sum(map(len, lists.values()))
    listed_bytes = sum(len(item) for items in lists.values() for item in items)
    report_bytes = len(lists["gpunodes"][0])
    del lists
    (cell,) = measure(nodes, [GPUS_PER_NODE], requests, SEED)
    rates = (0.0, nodes / HEARTBEAT_S, nodes / CHANGED_S)
    reported = [reports(nodes, rate, seconds) for rate in rates]
    verbs = {key: getattr(cell, key) for key in cell.__dataclass_fields__}
    waits = queue(nodes, seconds, limit_s)
    return Size(nodes, listed, listed_bytes, report_bytes, verbs, reported, waits)


def table(sizes: list[Size]) -> str:
    """Return the figures, a size a column."""

    def row(name: str, *values: object) -> tuple[object, ...]:
        return (name, *values)

    def waits(key: str, factor: float = 1.0) -> list[str]:
        return [
            f"{each.queue[key] * factor:,.3g}" if key in each.queue else "none" for each in sizes
        ]

    rows = [
        row("objects listed at the start", *(f"{each.listed:,}" for each in sizes)),
        row("their JSON, MB", *(f"{each.listed_bytes / 1e6:,.0f}" for each in sizes)),
        row("start to ready, s", *(each.verbs["cold_start_s"] for each in sizes)),
        row("memory, MiB", *(f"{each.verbs['rss_mib']:.0f}" for each in sizes)),
        row(
            "filter + prioritize of all nodes, p50 / p99, ms",
            *(f"{each.verbs['sum_p50_ms']} / {each.verbs['sum_p99_ms']}" for each in sizes),
        ),
    ]
    for index, when in enumerate(
        ("no reports", f"a report a node each {HEARTBEAT_S} s", f"each {CHANGED_S} s")
    ):
        found = [each.reports[index] for each in sizes]
        if index:
            rows += [
                row(
                    f"{when}: a second, sent",
                    *(f"{r.wanted_per_s:,.0f}, {r.sent_per_s:,.0f}" for r in found),
                ),
                row(
                    f"{when}: MB a second",
                    *(
                        f"{r.sent_per_s * s.report_bytes / 1e6:.2f}"
                        for r, s in zip(found, sizes, strict=True)
                    ),
                ),
            ]
        rows += [
            row(f"{when}: CPU, cores", *(r.cores for r in found)),
            row(
                f"{when}: filter of one node, p50 / p99, ms",
                *(f"{r.one_node_p50_ms} / {r.one_node_p99_ms}" for r in found),
            ),
            row(f"{when}: memory, MiB", *(f"{r.memory_mib:.0f}" for r in found)),
        ]
    rows += [
        row("waiting jobs, all GPUs taken", *(f"{each.queue['queued']:,}" for each in sizes)),
        row("a cycle, p50, s", *waits("plan_p50_s")),
        row("a cycle, p99, s", *waits("plan_p99_s")),
        row("its question, on the loop, at most, ms", *waits("question_max_s", 1e3)),
        row("carrying out, on the loop, at most, ms", *waits("carry_out_max_s", 1e3)),
        row("loop lag, p99, ms", *waits("lag_p99_s", 1e3)),
        row("loop lag, at most, ms", *waits("lag_max_s", 1e3)),
    ]
    return markdown(("nodes", *(f"{each.nodes:,}" for each in sizes)), rows)


def main() -> None:
    """Measure all sizes asked for, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 5000, 15_000])
    parser.add_argument("--requests", type=int, default=200, help="measured pairs of verbs")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each rate and queue")
    parser.add_argument("--limit-s", type=float, default=900.0, help="of one size's queue at most")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    given = parser.parse_args()
    about = machine() | {"seed": SEED}
    out.print(", ".join(f"{key} {value}" for key, value in about.items()), highlight=False)
    sizes = []
    for nodes in given.nodes:
        sizes.append(size(nodes, given.requests, given.seconds, given.limit_s))
        if given.json:
            document = {"machine": about, "sizes": sizes}
            given.json.write_text(json.dumps(document, default=vars, indent=2) + "\n")
    print(table(sizes))


if __name__ == "__main__":
    main()
