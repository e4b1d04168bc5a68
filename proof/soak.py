"""`make soak`: a day of jobs in an hour, and the services' memory and descriptors meanwhile.

A real control plane, the services as processes, and a stream of short Jobs of one and two GPUs that
end, are preempted, and vanish with their GPUJobs. The stream has as many jobs as a cluster that
gets one each ten seconds has in a day. Sampled from /proc, each service with the
processes that it starts; the first sixth is warming up.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import tempfile
import threading
import time
from dataclasses import astuple
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.tables import commit, markdown
from controlplane import ControlPlane, Node, Process, wait_until
from controlplane.installation import Installation
from controlplane.usage import usage
from node_agent.stub import StubGpu, StubState, build, environment
from tandem.contracts import names

ROOT = Path(__file__).parent.parent
SAMPLE_S = 5.0
JOBS_PER_S = 2.4
GPUS = 40  # enough that the jobs do not pile up: a queue that grows takes memory
WARM_UP = 1 / 6


def sample(process: Process) -> tuple[float, int, int]:
    """Return resident MiB, open descriptors and threads of a service with its children."""
    return astuple(usage(process))


class Stream:
    """Submits Jobs at a steady rate; they end by themselves and are cleared away."""

    def __init__(self, plane: ControlPlane, namespace: str, rate: float, seed: int) -> None:
        self._plane, self._rate = plane, rate
        self._path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self._random = random.Random(seed)
        self.submitted = 0
        self.refused = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._submit, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Submit no more."""
        self._over.set()
        self._thread.join()

    def _submit(self) -> None:
        due = time.monotonic()
        while not self._over.wait(max(0.0, due - time.monotonic())):
            due = max(due + 1 / self._rate, time.monotonic() - 5)
            try:
                answer = self._plane.http.post(self._path, json=self._job())
            except httpx.HTTPError:
                self.refused += 1
                continue
            self.submitted += answer.is_success
            self.refused += answer.is_error

    def _job(self) -> dict[str, Any]:
        seconds = min(10.0, self._random.lognormvariate(0.6, 0.7))
        annotations = {
            "kwok.tandem.gpu/run-duration": f"{seconds:.1f}s",
            names.CHECKPOINT: "true",
            **self._random.choice([{}, {names.MEMORY: "20Gi", names.UTILIZATION: "30"}]),
        }
        limits = {names.RESOURCE: self._random.choice([1, 1, 1, 2])}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"generateName": "soak-"},
            "spec": {
                "ttlSecondsAfterFinished": 10,
                "template": {
                    "metadata": {"annotations": annotations},
                    "spec": {
                        "restartPolicy": "Never",
                        "containers": [
                            {"name": "c", "image": "i:1", "resources": {"limits": limits}}
                        ],
                    },
                },
            },
        }


def soak(seconds: float, rate: float, seed: int) -> dict[str, Any]:
    """Run for `seconds`; return the samples and what was submitted."""
    with (
        tempfile.TemporaryDirectory() as name,
        ControlPlane.start([Node("n0", cpu=256, pods=1000)]) as plane,
    ):
        folder = Path(name)
        installation = Installation(plane, folder)
        installation.install({"queue": {"min_run_s": 1}})
        state = folder / "gpus"
        StubState(gpus=[StubGpu(uuid=f"GPU-{i}") for i in range(GPUS)]).write(state)
        installation.start_agent("n0", environment(build(folder), state))
        plane.kubectl("create", "namespace", "soak")
        account = "/api/v1/namespaces/soak/serviceaccounts/default"
        wait_until(lambda: plane.http.get(account).is_success, "the namespace is set up")
        services = {one: plane.processes[one] for one in ("extender", "predictor", "agent-n0")}
        samples: dict[str, list[tuple[float, ...]]] = {one: [] for one in services}
        backlog: list[int] = []
        path = "/apis/batch/v1/namespaces/soak/jobs"

        def listed() -> list[dict[str, Any]]:
            items: list[dict[str, Any]] = plane.http.get(path).json()["items"]
            return items

        def unfinished() -> int:
            return sum(not job["status"].get("completionTime") for job in listed())

        began = time.monotonic()
        stream = Stream(plane, "soak", rate, seed)
        while (now := time.monotonic() - began) < seconds:
            for one, process in services.items():
                samples[one].append((now, *sample(process)))
            if len(samples["extender"]) % 12 == 0:
                backlog.append(unfinished())
            time.sleep(SAMPLE_S)
        stream.stop()
        wait_until(lambda: not listed(), "all jobs have ended", timeout_s=900, poll_s=2)
        return {
            "seconds": seconds,
            "submitted": stream.submitted,
            "refused": stream.refused,
            "seed": seed,
            "samples": samples,
            "backlog": backlog,
        }


def table(found: dict[str, Any]) -> str:
    """Return a row for each service: after warming up, at the end, and the slope."""
    rows = []
    for service, samples in found["samples"].items():
        array = np.array(samples)
        steady = array[array[:, 0] >= found["seconds"] * WARM_UP]
        sixth = max(1, len(steady) // 6)
        cells = []
        for column in (1, 2, 3):
            early, late = steady[:sixth, column].mean(), steady[-sixth:, column].mean()
            slope = np.polyfit(steady[:, 0], steady[:, column], 1)[0] * 3600
            level = steady[:, column].mean()
            cells.append(f"{early:.1f} -> {late:.1f} ({slope / level:+.1%}/h)")
        rows.append([service, *cells, f"{array[:, 1].max():.0f}"])
    return markdown(["service", "resident MiB", "descriptors", "threads", "most MiB"], rows)


def page(found: dict[str, Any], rate: float) -> str:
    """Return the report."""
    return (
        "# Soak\n\nWritten by `make soak` (`python -m proof.soak`): "
        f"{found['seconds']:.0f} s of {found['submitted']} Jobs ({rate:g} a second, seed "
        f"{found['seed']}; {found['refused']} refused) on {GPUS} simulated GPUs, all of which came "
        f"to their end; {min(found['backlog'])} to {max(found['backlog'])} Jobs were there "
        f"unfinished at a time; commit {commit()}, {os.cpu_count()} cores, "
        f"{platform.machine()}. "
        "First and last sixth of what follows the warming up (a sixth of the time), and the slope "
        f"of a line through all samples after it, as a share of their mean.\n\n{table(found)}\n"
    )


def main() -> None:
    """Soak, print the table, and write the page where that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m proof.soak")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--rate", type=float, default=JOBS_PER_S, help="jobs a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path, help="such as docs/evidence/soak.md")
    options = parser.parse_args()
    found = soak(options.seconds, options.rate, options.seed)
    text = page(found, options.rate)
    print(text)
    if options.json:
        options.json.write_text(json.dumps(found) + "\n")
    if options.page:
        options.page.write_text(text)


if __name__ == "__main__":
    main()
