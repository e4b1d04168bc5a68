"""The memory of open tabs: JavaScript heap and DOM after a garbage collection, once a minute.

    python -m benchmarks.page.tab [--minutes 60] [--nodes 50] [--json FILE]

Two tabs of one Chromium follow a made-up cluster (`fleet.py`, seed 1) in which one node reports,
one job changes and one job comes or goes each second. One tab shows the list of jobs all the time.
The other tab opens the next view every ten seconds. The figures are those of the DevTools protocol:
`HeapProfiler.collectGarbage`, then `Runtime.getHeapUsage` and `Memory.getDOMCounters`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.page.browser import absent, chromium
from benchmarks.page.fleet import Fleet
from benchmarks.page.site import PageSite, page_site
from scheduler_extender.cluster.state import ClusterState

_VIEWS = (
    "", "?view=jobs", "?view=gpus", "?view=nodes", "?view=models", "?view=node&node=gpu-0000",
    "?view=gpu&node=gpu-0000&gpu=GPU-0000-1",
)  # fmt: skip
_NEXT_VIEW_S = 10
_COMING = 100  # jobs that come and go


class _Changing:
    """Changes the cluster, a little at each step."""

    def __init__(self, fleet: Fleet, site: PageSite) -> None:
        self._fleet, self._site, self._number = fleet, site, 0

    def step(self) -> None:
        """Let a node report, a job change, and a job come or go."""
        number, fleet = self._number, self._fleet
        self._number += 1
        job = fleet.waiting_job(number % fleet.waiting)
        job["metadata"]["namespace"] = "vision"
        coming = fleet.waiting_job(0)
        name = f"job-comes-{number // 2 % _COMING:03}"
        coming["metadata"] |= {"name": name, "uid": f"{name}-{number // 2}", "namespace": "vision"}

        def work(state: ClusterState) -> None:
            state.upsert("gpunodes", fleet.node(number % fleet.nodes))
            state.upsert("gpujobs", job)
            if number % 2:
                state.delete("gpujobs", coming)
            else:
                state.upsert("gpujobs", coming)

        self._site.change(work)


def _sample(page: Any) -> dict[str, float]:  # noqa: ANN401 - a page of Playwright
    session = page.context.new_cdp_session(page)
    try:
        session.send("HeapProfiler.collectGarbage")
        used = session.send("Runtime.getHeapUsage")["usedSize"]
        dom = session.send("Memory.getDOMCounters")
    finally:
        session.detach()
    return {
        "heap_mib": round(used / 2**20, 2),
        "dom_nodes": dom["nodes"],
        "listeners": dom["jsEventListeners"],
    }


def slope(values: list[float]) -> float:
    """Return the slope of a line through one value a minute, in parts of their mean per hour."""
    if len(values) < 2:
        return 0.0
    line = statistics.linear_regression(range(len(values)), values)
    return round(line.slope * 60 / statistics.fmean(values), 4)


def measure(nodes: int, minutes: int, report: Path | None) -> dict[str, Any]:
    """Return the samples of both tabs; `report` gets them after each minute."""
    fleet = Fleet(nodes, 10 * nodes, 1, time.time())
    found: dict[str, Any] = {"nodes": nodes, "jobs": [], "views": []}
    with page_site(fleet.fill) as site, chromium() as browser:
        changing = _Changing(fleet, site)
        tabs = {name: browser.new_page() for name in ("jobs", "views")}
        tabs["jobs"].goto(f"{site.url}/status/?view=jobs")
        tabs["views"].goto(f"{site.url}/status/")
        began = time.monotonic()
        for second in range(minutes * 60):
            changing.step()
            if second % _NEXT_VIEW_S == 0:
                # A click on a link: the tab keeps its page, as for a person.
                view = _VIEWS[second // _NEXT_VIEW_S % len(_VIEWS)]
                tabs["views"].evaluate(
                    """(view) => { history.pushState(null, "", view || location.pathname);
                    dispatchEvent(new PopStateEvent("popstate")); }""",
                    view,
                )
            if second % 60 == 59:
                for name, page in tabs.items():
                    found[name].append(_sample(page))
                found["load"] = round(os.getloadavg()[0], 1)
                if report is not None:
                    report.write_text(json.dumps(found, indent=1))
            tabs["jobs"].wait_for_timeout(max(0.0, (began + second + 1 - time.monotonic()) * 1000))
        for name, page in tabs.items():
            assert page.inner_text(".live") == "Live", f"the tab {name} follows no view"
    return found


def main(arguments: list[str]) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page.tab")
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    if why := absent():
        print(why, file=sys.stderr)
        return 1
    found = measure(given.nodes, given.minutes, given.json)
    for name in ("jobs", "views"):
        # The first ten minutes compile the code and fill the caches.
        heaps = [each["heap_mib"] for each in found[name]][10:]
        print(f"{name}: {heaps[0]} -> {heaps[-1]} MiB, {slope(heaps):+.1%} an hour")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
