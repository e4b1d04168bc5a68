"""`python -m proof.real_jobs`: short jobs through two real nodes, with and without Tandem.

Jobs of both kinds alternate, so that both see the same load of the machine. A plain job has no
GPU, goes to the cluster's default kube-scheduler and meets neither webhook, queue nor extender.
Few enough run at a time that none waits for a GPU. The time is that from before the request to
the API server to the creation of the container by the runtime.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from proof.real_faults import keep, kept

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "realnode"))

from real_cluster import RealCluster, job, why_not

ARGUMENTS = ["--iterations=2", "--seconds=0"]
LOAD = {"tandem.gpu/memory": "8Gi", "tandem.gpu/utilization": "20"}
_POLL_S = 0.3


def manifest(kind: str, number: int) -> dict[str, Any]:
    """Return one short job."""
    if kind == "tandem":
        return job(f"t{number}", *ARGUMENTS, annotations=LOAD)
    plain = job(f"p{number}", *ARGUMENTS, gpus=0)
    # The runtime of this class writes down when it creates a container.
    plain["spec"]["template"]["spec"]["runtimeClassName"] = "nvidia"
    return plain


def unfinished(cluster: RealCluster, namespace: str) -> int:
    """Return how many Jobs of a namespace have not completed; fail where one has failed."""
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    jobs = cluster.plane.http.get(path).raise_for_status().json()["items"]
    failed = [each["metadata"]["name"] for each in jobs if each["status"].get("failed")]
    assert not failed, f"failed: {failed}"
    return sum(not each["status"].get("completionTime") for each in jobs)


def submit(cluster: RealCluster, namespace: str, job_manifest: dict[str, Any]) -> int:
    """Create a Job, and try again as clients do while a webhook does not answer.

    Returns how many requests failed; their time is part of the job's.
    """
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    failed = 0
    while (answer := cluster.plane.http.post(path, json=job_manifest)).is_server_error:
        failed += 1
        print(answer.json().get("message", answer.text), flush=True)
    answer.raise_for_status()
    return failed


def run(cluster: RealCluster, count: int, in_flight: int) -> tuple[dict[str, list[float]], int]:
    """Run `count` jobs of each kind.

    Returns the times of each kind in seconds, and how many requests failed and were made again.
    """
    namespaces = {kind: cluster.namespace() for kind in ("tandem", "plain")}
    applied: dict[tuple[str, str], float] = {}
    failed = 0
    for number in range(count):
        for kind, namespace in namespaces.items():
            while unfinished(cluster, namespace) >= in_flight:
                time.sleep(_POLL_S)
            each = manifest(kind, number)
            applied[namespace, each["metadata"]["name"]] = time.time()
            failed += submit(cluster, namespace, each)
        if number % 20 == 19:
            print(f"{number + 1} of {count}, load {os.getloadavg()[0]:.1f}", flush=True)
    while any(unfinished(cluster, namespace) for namespace in namespaces.values()):
        time.sleep(_POLL_S)
    created = {
        each["pod_uid"]: each["time"]
        for each in cluster.containers_created()
        if each["kind"] == "container"
    }
    times: dict[str, list[float]] = {}
    for kind, namespace in namespaces.items():
        times[kind] = [
            created[pod["metadata"]["uid"]]
            - applied[namespace, pod["metadata"]["labels"]["job-name"]]
            for pod in cluster.pods(namespace)
        ]
        assert len(times[kind]) == count
    for namespace in namespaces.values():
        cluster.empty(namespace)
    assert not cluster.holders(), "no pod holds a GPU afterwards"
    return times, failed


def main() -> None:
    """Print the percentiles of both kinds; with `--keep`, write them into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--in-flight", type=int, default=4, help="of each kind at a time")
    parser.add_argument("--keep", action="store_true", help="write docs/evidence/real-node.md")
    arguments = parser.parse_args()
    if reason := why_not():
        sys.exit(f"no real nodes: {reason}")
    with RealCluster.start(2) as cluster:
        times, failed = run(cluster, arguments.jobs, arguments.in_flight)
    figures: dict[str, Any] = {"jobs": arguments.jobs, "in_flight": arguments.in_flight}
    figures["failed_requests"] = failed
    for kind, values in times.items():
        figures[kind] = {f"p{q}": round(float(np.percentile(values, q)), 3) for q in (50, 99)}
        print(kind, figures[kind])
    for name in ("p50", "p99"):
        print(f"{name}: {figures['tandem'][name] / figures['plain'][name]:.2f} times (bar 1.5)")
    figures["load"] = round(os.getloadavg()[2], 1)  # mean of the last quarter of an hour
    if arguments.keep:
        keep({**kept(), "jobs": figures})


if __name__ == "__main__":
    main()
