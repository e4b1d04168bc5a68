"""One job: what happened to it, why it waits, and who its neighbours are."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_extender.serving.status.model import Cluster
from scheduler_extender.serving.status.objects import Gpu, Key, Raw, Scope
from scheduler_extender.serving.status.reasons import WORDS
from scheduler_extender.serving.status.views.query import Document, Query
from scheduler_extender.serving.status.views.reader import for_reader, job_seen
from scheduler_extender.serving.status.views.rows import job_row, named, run_row
from tandem.contracts.names import API_VERSION

_RUNS = 200


def job(cluster: Cluster, scope: Scope, query: Query) -> Document:
    """Return one job with all that explains it."""
    key = (query.names[0], query.names[1])
    found = job_seen(cluster, scope, key)
    whole = found.whole()
    spec, status = whole["spec"], for_reader(cluster, scope, whole["status"])
    gpus = [
        gpu for node, uuid in found.places if (gpu := cluster.gpu(scope, node, uuid)) is not None
    ]
    own = [each for gpu in gpus for each in gpu.holders if each.job == key]
    predicted = [each.predicted_slowdown for each in own if each.predicted_slowdown is not None]
    return {
        **job_row(cluster.selection(scope), found),
        "why": [part.strip() for part in found.message.split(" | ") if part.strip()],
        "words": WORDS.get(found.kind) if found.kind else None,
        "workload": spec["workload"],
        "demand": spec["demand"],
        "hold": spec["hold"],
        "prioritizedAt": spec.get("prioritizedAt"),
        "timeline": _timeline(status),
        "attempts": status["attempts"],
        "attainedGpuSeconds": status["attainedGpuSeconds"],
        "queue": status.get("queue"),
        "load": status.get("load"),
        "subBatches": status["subBatches"],
        "plan": status.get("plan"),
        "observed": status.get("observed"),
        "predictedSlowdown": max(predicted, default=None),
        "decisions": list(reversed(status["decisions"])),
        "conditions": status["conditions"],
        "preemption": status.get("preemption"),
        "pods": [
            {"pod": name, "phase": phase, "node": node or None, "gpus": devices,
             "startedAt": started or None, "endedAt": ended or None}
            for name, _, phase, node, devices, started, ended in whole["facts"]["pods"]
        ],
        "neighbours": _neighbours(cluster, gpus, key),
        "runs": [run_row(run) for run in cluster.runs_of(scope, job=key)[:_RUNS]],
    }  # fmt: skip


def _timeline(status: Raw) -> list[Document]:
    """Return what happened when, the earliest first."""
    steps = [
        ("Queued", status.get("queuedAt")),
        ("Admitted", status.get("admittedAt")),
        ("Started", status.get("startedAt")),
        *(("Preempted", at) for at in status.get("preemptedAt") or ()),
        ("Running again", status.get("runningSince")),
        ("Waiting again", status.get("waitingSince")),
        ("Finished", status.get("finishedAt")),
    ]
    first = {status.get("startedAt"), status.get("queuedAt")}
    found = [
        {"what": what, "at": at}
        for what, at in steps
        if at and not (what.endswith("again") and at in first)
    ]
    return sorted(found, key=lambda step: str(step["at"]))


def _neighbours(cluster: Cluster, gpus: Sequence[Gpu], key: Key) -> list[Document]:
    found: dict[Key, list[str]] = {}
    for gpu in gpus:
        for holder in gpu.holders:
            if holder.job != key:
                found.setdefault(holder.job, []).append(gpu.uuid)
    return [
        {
            **named(other),
            "gpus": sorted(set(uuids)),
            "model": cluster.jobs[other].model or None if other in cluster.jobs else None,
            "slowdown": cluster.jobs[other].slowdown if other in cluster.jobs else None,
        }
        for other, uuids in sorted(found.items())
    ]


def object_of(cluster: Cluster, scope: Scope, key: Key) -> Document:
    """Return a GPUJob as an object of the API server, as far as the reader sees it.

    Raises:
        MissingError: the reader sees none.
    """
    whole = job_seen(cluster, scope, key).whole()
    return {
        "apiVersion": API_VERSION,
        "kind": "GPUJob",
        "metadata": {"namespace": key[0], "name": key[1], "uid": whole["facts"]["uid"]},
        "spec": whole["spec"],
        "status": for_reader(cluster, scope, whole["status"]),
    }
