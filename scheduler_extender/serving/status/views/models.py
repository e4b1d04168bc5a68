"""The list of models, and one model."""

from __future__ import annotations

from collections.abc import Collection

from scheduler_extender.serving.status.model import Cluster
from scheduler_extender.serving.status.objects import Job, Key, Scope
from scheduler_extender.serving.status.selection import Selection
from scheduler_extender.serving.status.views.query import (
    PAGE_ROWS,
    Document,
    MissingError,
    Query,
    page_of,
)
from scheduler_extender.serving.status.views.reader import for_reader
from scheduler_extender.serving.status.views.rows import named


def models(cluster: Cluster, scope: Scope, query: Query) -> Document:
    """Return the models of the jobs that exist."""
    text, selection = query.get("q").lower(), cluster.selection(scope, query.get("namespace"))
    found = sorted(key for key in selection.models if text in key[1].lower())
    return page_of(query, found, lambda key: _kept_row(selection, key))


def _kept_row(selection: Selection, key: Key) -> Document:
    """Return a row, which is made anew once a job of the model has changed."""
    row: Document | None = selection.rows.get(key)
    if row is None:
        row = selection.rows[key] = _row(key, selection.models[key].values())
    return row


def _row(key: Key, jobs: Collection[Job]) -> Document:
    known = [job for job in jobs if job.predicted_bytes is not None]
    latest = max(known, key=lambda job: (job.queued_at, job.key), default=None)
    measured = [job.measured_bytes for job in jobs if job.measured_bytes is not None]
    slowdowns = [job.slowdown for job in jobs if job.slowdown is not None]
    return {
        "namespace": key[0],
        "model": key[1],
        "jobs": len(jobs),
        "waiting": sum(job.waits for job in jobs),
        "running": sum(job.phase == "Running" for job in jobs),
        "source": latest.source if latest is not None else None,
        "unfamiliar": any(job.unfamiliar for job in jobs),
        "predictedMemoryBytes": latest.predicted_bytes if latest is not None else None,
        "predictedUtilisationPercent": latest.predicted_utilisation if latest is not None else None,
        "measuredMemoryBytes": max(measured, default=None),
        "worstSlowdown": max(slowdowns, default=None),
    }


def model(cluster: Cluster, scope: Scope, query: Query) -> Document:
    """Return one model: its jobs, and the slowdowns that were measured next to other models."""
    namespace, name = query.names
    jobs = cluster.selection(scope).models.get((namespace, name))
    if not jobs:
        raise MissingError(f"a job of model {namespace}/{name}")
    rows: list[Document] = []
    pairs: dict[str, list[float]] = {}
    for _, job in sorted(jobs.items())[-PAGE_ROWS:]:
        status = for_reader(cluster, scope, job.whole()["status"])
        observed = status.get("observed") or {}
        rows.append(
            {
                **named(job.key),
                "phase": job.phase,
                "batchSize": job.batch_size,
                "gpuModel": observed.get("gpuModel") or None,
                "predictedMemoryBytes": job.predicted_bytes,
                "measuredMemoryBytes": job.measured_bytes,
                "predictedUtilisationPercent": job.predicted_utilisation,
                "measuredUtilisationPercent": job.measured_utilisation,
                "slowdown": job.slowdown,
                "source": job.source or None,
            }
        )
        for each in observed.get("neighbours") or ():
            pairs.setdefault(each["kind"], []).append(each["slowdown"])
    return {
        **_row((namespace, name), jobs.values()),
        "rows": rows,
        "pairs": [
            {"kind": kind, "slowdown": round(sum(seen) / len(seen), 3), "runs": len(seen)}
            for kind, seen in sorted(pairs.items())
        ],
    }
