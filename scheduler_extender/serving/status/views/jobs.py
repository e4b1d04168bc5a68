"""The list of jobs; one job: what happened to it, why it waits, and who its neighbours are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from scheduler_extender.serving.status.model import Cluster
from scheduler_extender.serving.status.objects import PHASES, Gpu, Job, Key, Raw, Scope
from scheduler_extender.serving.status.selection import ORDERS, Order, Selection, Stretch
from scheduler_extender.serving.status.views.query import (
    PAGE_ROWS,
    BadQueryError,
    Document,
    MissingError,
    Query,
    job_row,
    named,
    page_of,
    picked,
    run_row,
)
from tandem.contracts.names import API_VERSION
from tandem.reasons.words import KINDS, sentence

_ENDED = ("Completed", "Failed")
_RUNS = 200  # that ended, of one job
_FILTERS = ("reason", "model", "node", "gpu", "sharing", "q")


def jobs(cluster: Cluster, scope: Scope, query: Query) -> Document:
    """Return the jobs that a query describes, and how many there are in each phase."""
    phase, reason, sort = query.get("phase"), query.get("reason"), query.get("sort") or "queue"
    if phase and phase not in (*PHASES, "Waiting"):
        raise BadQueryError(f"phase: one of {', '.join(PHASES)}, Waiting")
    if reason and reason not in KINDS:
        raise BadQueryError(f"reason: one of {', '.join(KINDS)}")
    if sort not in ORDERS:
        raise BadQueryError(f"sort: one of {', '.join(ORDERS)}")
    selection = cluster.selection(scope, query.get("namespace"))
    by_phase = {each: selection.phases[each] for each in PHASES}
    found: Order | Stretch | list[Job] = selection.order(sort)
    if phase and sort == "queue":
        found = selection.in_phase(phase)
    elif phase:
        found = [
            job for job in found[:] if job.phase == phase or (phase == "Waiting" and job.waits)
        ]
    if any(query.get(name) for name in _FILTERS):
        found = _matching(cluster, selection, query, found[:])

    def row(job: Job) -> Document:
        shown = job_row(selection, job)
        return shown | _ending(cluster, scope, job) if phase in _ENDED else shown

    return page_of(query, found, row) | {"byPhase": by_phase}


def _ending(cluster: Cluster, scope: Scope, job: Job) -> Document:
    """Return what the list of ended jobs shows besides: its service, and what was last measured."""
    status = for_reader(cluster, scope, job.whole()["status"])
    seen = _with_models(cluster, scope, job.namespace, status.get("observed") or {})
    return {
        **picked(status, "attainedGpuSeconds"),
        "slowdown": (seen.get("slowdown") or {}).get("value"),
        "neighbours": [picked(each, "kind", "model", "slowdown") for each in seen["neighbours"]],
    }


def _matching(cluster: Cluster, selection: Selection, query: Query, found: list[Job]) -> list[Job]:
    """Return those of the jobs that pass all filters."""
    reason, model, text = query.get("reason"), query.get("model"), query.get("q").lower()
    if reason:
        found = [job for job in found if job.kind == reason]
    if model:
        found = [job for job in found if job.model == model]
    if query.get("node") or query.get("gpu"):
        there = _holders(cluster, selection, query.get("node"), query.get("gpu"))
        found = [job for job in found if job.key in there]
    if query.get("sharing") == "true":
        sharing = cluster.selection(selection.scope).sums.sharing
        found = [job for job in found if job.key in sharing]
    if text:
        found = [job for job in found if text in job.name or text in job.model.lower()]
    return found


def _holders(cluster: Cluster, selection: Selection, node: str, uuid: str) -> set[Key]:
    """Return the jobs that hold a GPU of a node, one GPU or any."""
    return {
        holder.job
        for gpu in cluster.selection(selection.scope).gpus(node)
        if uuid in ("", gpu.uuid)
        for holder in gpu.holders
    }


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
        "why": [sentence(each) for each in found.causes] or list(filter(None, [found.message])),
        "words": KINDS[found.kind] if found.kind else None,
        "workload": spec.get("suspends") or spec["workload"],
        "demand": spec["demand"],
        "roles": spec["roles"],
        "hold": spec["hold"],
        "prioritizedAt": spec.get("prioritizedAt"),
        "timeline": _timeline(status),
        **picked(status, "attempts", "attainedGpuSeconds", "queue", "load", "subBatches", "plan"),
        **picked(status, "conditions", "preemption"),
        "observed": _with_models(cluster, scope, key[0], status["observed"])
        if status.get("observed")
        else None,
        "predictedSlowdown": max(predicted, default=None),
        "decisions": list(reversed(status["decisions"])),
        "pods": [
            {"pod": name, "phase": phase, "node": node or None, "gpus": devices,
             "startedAt": started or None, "endedAt": ended or None, "memoryLimitGib": limit}
            for name, _, phase, node, devices, started, ended, limit in whole["facts"]["pods"]
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
    if not status.get("startedAt") and not status.get("admittedAt"):
        first.add(status.get("waitingSince"))  # it has never had a place
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
        own = scope.namespace
        neighbours = [
            each
            if each["kind"] in models or cluster.model_of(scope, own, each["kind"])
            else {**each, "kind": ""}
            for each in observed["neighbours"]
        ]
        status["observed"] = {**observed, "neighbours": neighbours}
    return status


def _with_models(cluster: Cluster, scope: Scope, namespace: str, observed: Raw) -> Document:
    """Return what was observed of a job, with the names of the models that slowed it down."""
    neighbours = [
        {**each, "model": cluster.model_of(scope, namespace, each["kind"]) or None}
        for each in observed.get("neighbours") or ()
    ]
    return {**observed, "neighbours": neighbours}


def name_neighbours(cluster: Cluster, scope: Scope, jobs: Iterable[Document]) -> None:
    """Add to the jobs of a report the models next to which they ran, by name; '' where unknown.

    By what the runs of other namespaces are known, a reader of one namespace is not shown.
    """
    for job in jobs:
        named = [cluster.model_of(scope, job["namespace"], kind) for kind, _ in job["neighbours"]]
        if scope.namespace is not None:
            job["neighbours"] = [
                [kind if name else "", slower]
                for name, (kind, slower) in zip(named, job["neighbours"], strict=True)
            ]
        job["neighbourModels"] = named


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
        raise MissingError(f"job of the model {namespace}/{name}")
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
            {
                "kind": kind,
                "model": cluster.model_of(scope, namespace, kind) or None,
                "slowdown": round(sum(seen) / len(seen), 3),
                "runs": len(seen),
            }
            for kind, seen in sorted(pairs.items())
        ],
    }
