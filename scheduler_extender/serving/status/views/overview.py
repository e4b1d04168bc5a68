"""The overview: GPUs by state, why jobs wait, what sharing brings, and what needs attention."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler_extender.serving.status.model import Cluster
from scheduler_extender.serving.status.objects import GPU_STATES, PHASES, Raw, Scope
from scheduler_extender.serving.status.selection import MICRO, Selection
from scheduler_extender.serving.status.views.query import Document, Query, job_row, named
from tandem.reasons.words import KINDS

_NAMESPACES = 50
_WORST = 5
_NEXT = 8


def overview(cluster: Cluster, scope: Scope, query: Query) -> Document:
    """Return sums of what the reader sees, each with what leads to the objects."""
    found = cluster.selection(scope, query.get("namespace"))
    return {
        "gpus": _gpus(cluster, found),
        "memory": {
            "capacityBytes": found.sums.capacity_bytes,
            "promisedBytes": found.sums.promised_bytes,
            "usedBytes": None if scope.namespace is not None else found.sums.used_bytes,
        },
        "jobs": _jobs(found),
        "sharing": sharing(found),
        "namespaces": _namespaces(cluster, found),
        "attention": _attention(cluster, found),
    }


def _gpus(cluster: Cluster, found: Selection) -> Document:
    sums = found.sums
    models = sorted(sums.models.items(), key=lambda item: (-item[1], item[0]))
    return {
        "total": sums.gpus,
        # A node whose agent reports no GPU is a node of the cluster, and of no namespace.
        "nodes": len(cluster.nodes) if found.namespace is None else sums.nodes,
        "byState": {state: sums.states[state] for state in GPU_STATES},
        "models": [{"model": name, "count": count} for name, count in models],
    }


def _jobs(found: Selection) -> Document:
    reasons = sorted(found.reasons.items(), key=lambda item: (-item[1], item[0]))
    longest = next(iter(found.since[:1]), None)
    return {
        "total": len(found),
        "byPhase": {phase: found.phases[phase] for phase in PHASES},
        "waiting": len(found.line),
        "byReason": [
            {"reason": kind, "words": KINDS[kind], "count": count} for kind, count in reasons
        ],
        "longestWait": None
        if longest is None
        else {**named(longest.key), "waitingSince": longest.waiting_since},
        "next": [job_row(found, job) for job in found.line[:_NEXT]],
    }


def sharing(found: Selection) -> Document:
    """Return what sharing brings and costs.

    On a GPU that jobs share, each job runs at the speed 1 / (1 + slowdown) of a GPU of its own. The
    gain is the sum of these speeds less one: so many GPUs more would be needed for the same work.
    A GPU counts only where the slowdown of all its jobs is measured or predicted, and as measured
    where none of them is predicted.
    """
    sums, measured = found.sums, len(found.slowdowns)
    return {
        "gpus": sums.shared,
        "jobs": len(sums.sharing),
        "gainGpus": round(sums.gain_micro / MICRO, 2) if sums.gain_gpus else None,
        "gpusCounted": sums.gain_gpus,
        "gainMeasuredGpus": round(sums.measured_micro / MICRO, 2) if sums.measured_gpus else None,
        "gpusMeasured": sums.measured_gpus,
        "jobsMeasured": measured,
        "meanSlowdown": round(found.slowdown_micro / MICRO / measured, 3) if measured else None,
        "slowest": [job_row(found, job) for job in found.slowest(_WORST)],
    }


def _namespaces(cluster: Cluster, found: Selection) -> Document:
    """Return each namespace; a share of a GPU counts as one GPU held, as it does for quotas."""
    quotas = {
        quota["namespace"]: quota
        for quota in cluster.quotas
        if found.scope.sees(quota["namespace"])
    }
    names = sorted(
        {*found.waiting, *found.running, *found.sums.held, *quotas},
        key=lambda name: (-found.sums.held[name], -found.waiting[name], name),
    )
    rows = [_namespace(found, name, quotas.get(name) or {}) for name in names]
    rows.sort(key=lambda row: not row["overQuota"])
    return {"total": len(rows), "rows": rows[:_NAMESPACES]}


def _namespace(found: Selection, name: str, quota: Raw) -> Document:
    share, most = quota.get("gpus"), quota.get("gpuSeconds")
    used = quota.get("gpuSecondsUsed")
    return {
        "namespace": name,
        "waiting": found.waiting[name],
        "running": found.running[name],
        "gpus": found.sums.on[name],
        "gpusHeld": found.sums.held[name],
        "quotaGpus": share,
        "maxGpus": quota.get("maxGpus"),
        "quotaGpuSeconds": most,
        "gpuSecondsUsed": used,
        "overQuota": (share is not None and found.sums.held[name] > share)
        or (most is not None and (used or 0.0) >= most),
    }


def _attention(cluster: Cluster, found: Selection) -> list[Document]:
    """Return what is broken or needs a look: kind, count and the list that shows the objects."""
    states = found.sums.states
    counts: list[tuple[str, int, str, Mapping[str, str]]] = [
        *((f"{kind}Silent", 1, "overview", {}) for kind in cluster.silent if kind != "replica"),
        ("quarantined", states["quarantined"], "gpus", {"state": "quarantined"}),
        ("unavailable", states["unavailable"], "gpus", {"state": "unavailable"}),
        *_of_nodes(cluster, found.scope),
        ("slowed", states["slowed"], "gpus", {"state": "slowed"}),
        ("failed", found.phases["Failed"], "jobs", {"phase": "Failed"}),
        ("preempting", found.phases["Preempting"], "jobs", {"phase": "Preempting"}),
        ("held", found.reasons["held"], "jobs", {"reason": "held"}),
        ("deleted", _deleted(cluster, found), "gpus", {}),
    ]
    rows: list[Document] = [
        {"kind": kind, "count": count, "view": view, "filter": chosen}
        for kind, count, view, chosen in counts
        if count
    ]
    return [*_replicas(cluster, found.scope), *rows]


def _replicas(cluster: Cluster, scope: Scope) -> list[Document]:
    """Return the pods of Tandem that do not answer, by name, for a reader that sees all nodes."""
    pods = cluster.silent.get("replica")
    if not pods or scope.namespace is not None:
        return []
    row = {"kind": "replicaSilent", "count": len(pods), "view": "overview", "filter": {}}
    return [{**row, "names": pods[:_WORST]}]


def _deleted(cluster: Cluster, found: Selection) -> int:
    """Count the pods that hold GPUs long after their deletion."""
    return sum(
        count
        for namespace, count in cluster.deleted.items()
        if found.scope.sees(namespace) and found.namespace in (None, namespace)
    )


def _of_nodes(cluster: Cluster, scope: Scope) -> list[tuple[str, int, str, Mapping[str, str]]]:
    """Return what is wrong with nodes, for a reader that sees all of them."""
    if scope.namespace is not None:
        return []
    sums = cluster.selection(scope).sums
    return [
        ("silent", sums.silent_nodes, "nodes", {"state": "silent"}),
        ("outOfMemory", sums.out_of_memory_nodes, "nodes", {"state": "outOfMemory"}),
    ]
