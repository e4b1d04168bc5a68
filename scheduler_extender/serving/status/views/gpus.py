"""The lists of nodes and GPUs, and one of each."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from scheduler_extender.serving.status.model import Cluster
from scheduler_extender.serving.status.objects import GPU_STATES, Gpu, Holder, Key, Node, Raw, Scope
from scheduler_extender.serving.status.views.query import (
    GIB,
    PAGE_ROWS,
    BadQueryError,
    Document,
    MissingError,
    Query,
    gpu_row,
    holder_row,
    out_of_memory_rows,
    page_of,
    picked,
    run_row,
)

_RUNS = 200
#: Up to this page, the GPUs of a list are not all sorted.
_FIRST_PAGES = 5
#: Orders of the list; `node` is the order in which a selection has them.
_ORDERS: Mapping[str, Callable[[Gpu], float] | None] = {
    "node": None,
    "utilisation": lambda gpu: -(-1.0 if gpu.utilisation is None else gpu.utilisation),
    "memory": lambda gpu: -(gpu.used_bytes or 0),
    "temperature": lambda gpu: -(gpu.temperature or 0.0),
    "jobs": lambda gpu: -len(gpu.holders),
}


def gpus(cluster: Cluster, scope: Scope, query: Query) -> Document:
    """Return the GPUs that a query describes, and how many there are in each state."""
    state, sort = query.get("state"), query.get("sort") or "node"
    if state and state not in (*GPU_STATES, "busy", "sharing"):
        raise BadQueryError(f"state: one of {', '.join(GPU_STATES)}, busy, sharing")
    if sort not in _ORDERS:
        raise BadQueryError(f"sort: one of {', '.join(_ORDERS)}")
    selection, node = cluster.selection(scope, query.get("namespace")), query.get("node")
    all_of_them = selection.gpus(node)
    states = Counter(each.state for each in all_of_them) if node else selection.sums.states
    found = _matching(all_of_them, query)
    total, key = len(found), _ORDERS[sort]
    if key is not None and query.page <= _FIRST_PAGES:
        found = heapq.nsmallest(query.page * PAGE_ROWS, found, key)
    elif key is not None:
        found = sorted(found, key=key)
    return page_of(query, found, lambda each: gpu_row(cluster, each), total) | {
        "byState": {each: states[each] for each in GPU_STATES}
    }


def _matching(found: Sequence[Gpu], query: Query) -> Sequence[Gpu]:
    state, model, text = query.get("state"), query.get("model"), query.get("q").lower()
    if state == "busy":
        found = [gpu for gpu in found if gpu.holders]
    elif state == "sharing":
        found = [gpu for gpu in found if len(gpu.holders) > 1]
    elif state:
        found = [gpu for gpu in found if gpu.state == state]
    if model:
        found = [gpu for gpu in found if gpu.model == model]
    if query.get("job"):
        namespace, _, name = query.get("job").partition("/")
        job: Key = (namespace, name)
        found = [gpu for gpu in found if any(each.job == job for each in gpu.holders)]
    if text:
        found = [gpu for gpu in found if text in gpu.node or text in gpu.uuid.lower()]
    return found


def gpu(cluster: Cluster, scope: Scope, query: Query) -> Document:
    """Return one GPU: its jobs with predictions next to measurements, ended runs, health."""
    node_name, uuid = query.names
    found = cluster.gpu(scope, node_name, uuid)
    if found is None:
        raise MissingError(f"GPU {uuid} of node {node_name}")
    node = cluster.nodes[node_name]
    report = node.report()
    raw = next(each for each in report["gpus"] if each["uuid"] == uuid)
    uses = {use["uid"]: use for use in raw.get("pods") or () if use.get("uid")}
    operator = scope.namespace is None
    device = picked(
        raw,
        *("memoryBytes", "memoryReservedBytes", "computeMode", "mig", "mps", "slice"),
        *("eccUncorrectedErrors", "health"),
    )
    measured = picked(
        raw if operator else {},
        *("memoryForeignBytes", "memoryActivityPercent", "powerWatts", "utilisationSource"),
    )
    return {
        **gpu_row(cluster, found),
        **device,
        **measured,
        "observedAt": node.observed_at,
        "residents": [_resident(cluster, each, uses.get(each.uid)) for each in found.holders],
        "runs": [run_row(run) for run in cluster.runs_of(scope, node_name, uuid)[:_RUNS]],
        "outOfMemoryEvents": out_of_memory_rows(report, scope, uuid),
    }


def _resident(cluster: Cluster, holder: Holder, use: Raw | None) -> Document:
    job, use = cluster.jobs.get(holder.job), use or {}
    return {
        **holder_row(cluster, holder),
        "startedAt": holder.started_at,
        "predicted": {
            "memoryBaseBytes": round(holder.memory_base_gib * GIB),
            "memoryPeakBytes": round((holder.memory_base_gib + holder.memory_extra_gib) * GIB),
            "peakProbability": holder.peak_probability,
            "utilisationPercent": holder.utilisation,
            "slowdown": holder.predicted_slowdown,
        },
        "measured": {
            **picked(
                use,
                *("memoryBytes", "memoryBaseBytes", "memoryPeakBytes", "peakProbability"),
                *("utilisationPercent", "iterationsPerSecond"),
            ),
            "slowdown": job.slowdown if job is not None else None,
            "slowdownEstimated": job.estimated if job is not None else None,
        },
    }


def nodes(cluster: Cluster, scope: Scope, query: Query) -> Document:
    """Return the nodes with a name like `q` and a GPU in a state."""
    text, state = query.get("q").lower(), query.get("state")
    if state and state not in (*GPU_STATES, "outOfMemory"):
        raise BadQueryError(f"state: one of {', '.join(GPU_STATES)}, outOfMemory")
    if scope.namespace is None:
        found = cluster.all_nodes()
        if text or state:
            found = [each for each in found if text in each.name and _is_operators(each, state)]
        return page_of(query, found, lambda each: _row(each, each.states, None))
    selection = cluster.selection(scope)
    rows = []
    for name in selection.nodes():
        states = Counter(gpu.state for gpu in selection.gpus(name))
        if text in name and (not state or states[state]):
            rows.append((cluster.nodes[name], states))
    return page_of(query, rows, lambda row: _row(*row, selection.gpus(row[0].name)))


def _is_operators(node: Node, state: str) -> bool:
    if state == "outOfMemory":
        return bool(node.out_of_memory)
    return not state or bool(node.states[state])


def _row(node: Node, states: Counter[str], own: Sequence[Gpu] | None) -> Document:
    gpus = node.gpus if own is None else own
    return {
        "node": node.name,
        "gpus": len(gpus),
        "byState": {state: states[state] for state in GPU_STATES if states[state]},
        "models": sorted({gpu.model for gpu in gpus}),
        "jobs": len({holder.job for gpu in gpus for holder in gpu.holders}),
        "observedAt": node.observed_at,
        "outOfMemory": node.out_of_memory if own is None else None,
    }


def node(cluster: Cluster, scope: Scope, query: Query) -> Document:
    """Return one node: its agent, its GPUs, and containers that ran out of memory."""
    (name,) = query.names
    found, gpus = cluster.nodes.get(name), cluster.selection(scope).gpus(name)
    if found is None or (scope.namespace is not None and not gpus):
        raise MissingError(f"node {name}")
    report = found.report()
    states = Counter(gpu.state for gpu in gpus)
    return {
        **_row(found, states, None if scope.namespace is None else gpus),
        "agentVersion": report.get("agentVersion") or "",
        "driverVersion": report.get("driverVersion") or "",
        "conditions": (report.get("conditions") or []) if scope.namespace is None else [],
        "outOfMemoryEvents": out_of_memory_rows(report, scope),
        "rows": [gpu_row(cluster, gpu) for gpu in gpus],
    }
