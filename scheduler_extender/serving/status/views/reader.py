"""What a reader may see of a job."""

from __future__ import annotations

from typing import Any

from scheduler_extender.serving.status.model import Cluster
from scheduler_extender.serving.status.objects import Job, Key, Scope
from scheduler_extender.serving.status.views.query import MissingError


def job_seen(cluster: Cluster, scope: Scope, key: Key) -> Job:
    """Return a job that the reader sees.

    Raises:
        MissingError: the reader sees none.
    """
    job = cluster.jobs.get(key)
    if job is None or not scope.sees(job.namespace):
        raise MissingError(f"GPUJob {'/'.join(key)}")
    return job


def for_reader(cluster: Cluster, scope: Scope, status: dict[str, Any]) -> dict[str, Any]:
    """Return the status without what counts or names jobs that the reader does not see."""
    if scope.namespace is None:
        return status
    status = {name: value for name, value in status.items() if name != "position"}
    observed = status.get("observed")
    if observed and observed.get("neighbours"):
        models = {model for _, model in cluster.selection(scope).models}
        neighbours = [
            {**each, "kind": each["kind"] if each["kind"] in models else ""}
            for each in observed["neighbours"]
        ]
        status["observed"] = {**observed, "neighbours": neighbours}
    return status
