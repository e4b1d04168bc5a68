"""Rows that several views show."""

from __future__ import annotations

from scheduler_extender.serving.status.model import Cluster
from scheduler_extender.serving.status.objects import Gpu, Holder, Job, Key, Raw, Scope
from scheduler_extender.serving.status.selection import Selection, promised_bytes
from scheduler_extender.serving.status.views.query import Document

GIB = 2**30
_PLACES = 8  # of one job in a list


def named(key: Key) -> Document:
    """Return the name of an object."""
    return {"namespace": key[0], "name": key[1]}


def picked(raw: Raw, *names: str) -> Document:
    """Return some fields of an object; null where it does not have them."""
    return {name: raw.get(name) for name in names}


def gpu_row(cluster: Cluster, gpu: Gpu) -> Document:
    """Return a GPU as lists show it."""
    return {
        "node": gpu.node,
        "gpu": gpu.uuid,
        "index": gpu.index,
        "model": gpu.model,
        "state": gpu.state,
        "reason": gpu.reason,
        "shares": gpu.shares,
        "jobs": [holder_row(cluster, each) for each in gpu.holders],
        "memoryCapacityBytes": round(gpu.capacity_gib * GIB),
        "memoryUsedBytes": gpu.used_bytes,
        "memoryPromisedBytes": promised_bytes(gpu),
        "utilisationPercent": gpu.utilisation,
        "utilisationPromisedPercent": round(sum(each.utilisation for each in gpu.holders), 1),
        "temperatureCelsius": gpu.temperature,
    }


def holder_row(cluster: Cluster, holder: Holder) -> Document:
    """Return a job that holds a GPU."""
    job = cluster.jobs.get(holder.job)
    return {
        **named(holder.job),
        "pod": holder.pod,
        "hold": holder.hold,
        "exclusive": holder.exclusive,
        "slowdown": job.slowdown if job is not None else None,
    }


def job_row(selection: Selection, job: Job) -> Document:
    """Return a job as lists show it."""
    return {
        **named(job.key),
        "phase": job.phase,
        "reason": job.kind or None,
        "message": job.message,
        "position": _position(selection, job),
        "expectedStart": job.expected if job.waits else None,
        "queuedAt": job.queued_at or None,
        "waitingSince": job.waiting_since or None,
        "startedAt": job.started_at or None,
        "finishedAt": job.finished_at or None,
        "gpus": job.gpus,
        "model": job.model or None,
        "exclusive": job.exclusive,
        "places": [{"node": node, "gpu": gpu} for node, gpu in job.places[:_PLACES]],
        "placesInAll": len(job.places),
        "slowdown": job.slowdown,
    }


def _position(selection: Selection, job: Job) -> int | None:
    """Return the place in the queue, 0 first: among the jobs that the reader sees."""
    if selection.scope.namespace is None or job.position is None:
        return job.position
    return selection.line.below((float(job.position),))


def run_row(run: Raw) -> Document:
    """Return an ended run."""
    return picked(run, "namespace", "job", "pod", "node", "gpus", "startedAt", "endedAt")


def out_of_memory_rows(report: Raw, scope: Scope, gpu: str = "") -> list[Document]:
    """Return the containers of the reader that ran out of memory, on one GPU or on all."""
    found = []
    for event in report.get("outOfMemory") or ():
        if not scope.sees(event["namespace"]) or gpu not in ("", event["gpu"]):
            continue
        blamed = event.get("blamed")
        if blamed is not None and not scope.sees(blamed["namespace"]):
            blamed = None
        found.append({**event, "blamed": blamed})
    return found
