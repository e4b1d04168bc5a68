"""The list of models, and one model."""

from __future__ import annotations

from scheduler_extender.serving.status.model import Cluster
from scheduler_extender.serving.status.objects import Key, Scope
from scheduler_extender.serving.status.selection import Selection
from scheduler_extender.serving.status.views.jobs import for_reader
from scheduler_extender.serving.status.views.query import (
    PAGE_ROWS,
    Document,
    MissingError,
    Query,
    page_of,
)
from scheduler_extender.serving.status.views.rows import named


def models(cluster: Cluster, scope: Scope, query: Query) -> Document:
    """Return the models of the jobs that exist."""
    text, selection = query.get("q").lower(), cluster.selection(scope, query.get("namespace"))
    found = sorted(key for key in selection.models if text in key[1].lower())
    return page_of(query, found, lambda key: _row(selection, key))


def _row(selection: Selection, key: Key) -> Document:
    sums, latest = selection.model_sums(key), None
    if sums.predicted:
        latest = selection.models[key][sums.predicted[-1][1]]
    return {
        "namespace": key[0],
        "model": key[1],
        "jobs": sums.jobs,
        "waiting": sums.waiting,
        "running": sums.running,
        "source": latest.source if latest is not None else None,
        "unfamiliar": sums.unfamiliar > 0,
        "predictedMemoryBytes": latest.predicted_bytes if latest is not None else None,
        "predictedUtilisationPercent": latest.predicted_utilisation if latest is not None else None,
        "measuredMemoryBytes": sums.measured_bytes[-1] if sums.measured_bytes else None,
        "worstSlowdown": sums.slowdowns[-1] if sums.slowdowns else None,
    }


def model(cluster: Cluster, scope: Scope, query: Query) -> Document:
    """Return one model: its jobs, and the slowdowns that were measured next to other models."""
    namespace, name = query.names
    selection = cluster.selection(scope)
    jobs = selection.models.get((namespace, name))
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
        **_row(selection, (namespace, name)),
        "rows": rows,
        "pairs": [
            {"kind": kind, "slowdown": round(sum(seen) / len(seen), 3), "runs": len(seen)}
            for kind, seen in sorted(pairs.items())
        ],
    }
