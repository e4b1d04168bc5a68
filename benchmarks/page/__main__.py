"""What the status page costs at 5,000 nodes: extender, process in front, browser.

    python -m benchmarks.page [--nodes 5000] [--waiting 10000] [--updates 20]

The cluster is made up (`fleet.py`, seed 1). First paint and updates are those of Chromium on the
same machine; an update is the time from a change of the state to the frame that shows it, while 20
nodes report a second. Extender, process in front and benchmark share one interpreter here.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from typing import Any

from pydantic_core import to_json

from benchmarks.page.browser import absent, chromium
from benchmarks.page.fleet import Fleet
from benchmarks.page.site import PageSite, page_site
from controlplane.usage import resident_mib
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.serving.status.changes import Changes
from scheduler_extender.serving.status.model import Cluster
from scheduler_extender.serving.status.objects import Scope
from scheduler_extender.serving.status.views import document, query_of

_VIEWS: tuple[tuple[str, dict[str, str]], ...] = (
    ("overview", {}), ("gpus", {}), ("gpus", {"state": "slowed"}), ("gpus", {"sort": "memory"}),
    ("jobs", {}),
    ("jobs", {"phase": "Waiting"}), ("nodes", {}), ("models", {}),
)  # fmt: skip


def of_data(fleet: Fleet, state: ClusterState) -> dict[str, Any]:
    """Return what encoding, taking in and viewing take, in milliseconds of CPU and MiB."""
    changes, cluster = Changes(state), Cluster()
    gc.collect()
    gc.freeze()  # as the extender does once it has read the cluster
    before = resident_mib(os.getpid())
    longest, size, lines = 0.0, 0, []
    began = time.thread_time()
    for piece in changes.pieces():
        longest = max(longest, time.thread_time() - began)
        lines.append(piece)
        size += len(piece)
        began = time.thread_time()
    found: dict[str, Any] = {"whole_mib": round(size / 2**20, 1)}
    start = time.process_time()
    for _ in changes.pieces():
        pass
    found["encode_whole_ms"] = _cpu_ms(start)
    found["longest_piece_ms"] = round(longest * 1000, 2)
    start = time.process_time()
    cluster.apply(b"".join(lines))
    found["apply_whole_ms"] = _cpu_ms(start)
    del lines
    found["memory_mib"] = round(resident_mib(os.getpid()) - before, 1)
    for name, given in _VIEWS:
        found[f"first {_label(name, given)}_ms"] = _view_ms(cluster, name, given)
    for number in range(50):
        state.upsert("gpunodes", fleet.node(number))
        state.upsert("gpujobs", fleet.waiting_job(number))
    start = time.process_time()
    delta = b"".join(changes.pieces(cluster.version))
    found["encode_50_nodes_50_jobs_ms"] = _cpu_ms(start)
    start = time.process_time()
    cluster.apply(delta)
    found["apply_50_nodes_50_jobs_ms"] = _cpu_ms(start)
    for name, given in _VIEWS:
        found[f"again {_label(name, given)}_ms"] = _view_ms(cluster, name, given)
    return found


def _label(name: str, given: dict[str, str]) -> str:
    return " ".join((name, *given.values()))


def _view_ms(cluster: Cluster, name: str, given: dict[str, str]) -> float:
    start = time.process_time()
    to_json(document(cluster, Scope(), query_of(name, (), given.items())))
    return _cpu_ms(start)


def of_browser(fleet: Fleet, site: PageSite, updates: int) -> dict[str, Any]:
    """Return first paint and updates."""
    found: dict[str, Any] = {}
    with chromium() as browser:
        for attempt in ("cold", "warm"):
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            start = time.perf_counter()
            page.goto(f"{site.url}/status/?view=jobs&sort=name&q=comes-late")
            page.wait_for_selector(".live:has-text('Live')", timeout=120_000)
            found[f"first_view_{attempt}_ms"] = _ms(start)
            found[f"first_paint_{attempt}_ms"] = round(
                page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            )
            if attempt == "cold":
                page.close()
        page.evaluate(
            """() => { window.seen = [];
            new MutationObserver(() => requestAnimationFrame(() => window.seen.push(Date.now())))
              .observe(document.querySelector('main'), {childList: true, subtree: true}); }"""
        )
        took = []
        for number in range(updates):
            for reports in range(20):
                made = fleet.node((number * 20 + reports) % fleet.nodes)
                site.change(lambda state, made=made: state.upsert("gpunodes", made))
                page.wait_for_timeout(50)
            made = fleet.waiting_job(0)
            name = f"job-comes-late-{number:03}"
            made["metadata"] |= {"name": name, "uid": name}
            changed = time.time()
            site.change(lambda state, made=made: state.upsert("gpujobs", made))
            page.wait_for_selector(f"table >> text={name}", timeout=30_000)
            seen = page.evaluate("window.seen.at(-1)") / 1000
            took.append((seen - changed) * 1000)
        found["update_ms_from_change"] = {
            "p50": round(statistics.median(took)), "most": round(max(took)),
        }  # fmt: skip
    return found


def _cpu_ms(start: float) -> float:
    return round((time.process_time() - start) * 1000, 1)


def _ms(start: float) -> float:
    return round((time.perf_counter() - start) * 1000, 1)


def main(arguments: list[str]) -> int:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page")
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--updates", type=int, default=20)
    given = parser.parse_args(arguments)
    now_s = time.time()
    fleet = Fleet(given.nodes, given.waiting, 1, now_s)
    state = ClusterState(now_s=now_s)
    fleet.fill(state)
    found = {"nodes": given.nodes, "gpu_jobs": len(state.gpu_jobs()), **of_data(fleet, state)}
    print(json.dumps(found, indent=2), flush=True)
    if why := absent():
        print(f"no browser: {why}", file=sys.stderr)
        return 0
    with page_site(lambda _: None, state=state) as site:
        found = of_browser(fleet, site, given.updates)
    found["load_1min"] = f"{os.getloadavg()[0]:.1f}"
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
