"""The list of jobs."""

from __future__ import annotations

from scheduler_extender.serving.status.model import Cluster
from scheduler_extender.serving.status.objects import PHASES, Job, Key, Scope
from scheduler_extender.serving.status.reasons import WORDS
from scheduler_extender.serving.status.selection import ORDERS, Order, Selection, Stretch
from scheduler_extender.serving.status.views.query import BadQueryError, Document, Query, page_of
from scheduler_extender.serving.status.views.rows import job_row

_FILTERS = ("reason", "model", "node", "gpu", "sharing", "q")


def jobs(cluster: Cluster, scope: Scope, query: Query) -> Document:
    """Return the jobs that a query describes, and how many there are in each phase."""
    phase, reason, sort = query.get("phase"), query.get("reason"), query.get("sort") or "queue"
    if phase and phase not in (*PHASES, "Waiting"):
        raise BadQueryError(f"phase: one of {', '.join(PHASES)}, Waiting")
    if reason and reason not in WORDS:
        raise BadQueryError(f"reason: one of {', '.join(WORDS)}")
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
    return page_of(query, found, lambda job: job_row(selection, job)) | {"byPhase": by_phase}


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
