"""The list of nodes, and one node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from scheduler_extender.serving.status.model import Cluster
from scheduler_extender.serving.status.objects import GPU_STATES, Gpu, Node, Scope
from scheduler_extender.serving.status.views.query import (
    BadQueryError,
    Document,
    MissingError,
    Query,
    page_of,
)
from scheduler_extender.serving.status.views.rows import gpu_row, out_of_memory_rows


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
