"""The views of the page as JSON: pure functions of a `Cluster`, a scope and a query.

A list is filtered, sorted and cut into pages here, so that an answer has at most `PAGE_ROWS` rows
however large the cluster is. Memory is in bytes, utilisation in percent (0..100), a slowdown is the
part by which an iteration takes longer (0.2: 20 % longer). What is not known is null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scheduler_extender.serving.status.model import Cluster
from scheduler_extender.serving.status.objects import Scope
from scheduler_extender.serving.status.views.gpus import gpu, gpus, node, nodes
from scheduler_extender.serving.status.views.jobs import (
    job,
    jobs,
    model,
    models,
    name_neighbours,
    object_of,
)
from scheduler_extender.serving.status.views.overview import overview
from scheduler_extender.serving.status.views.query import (
    PAGE_ROWS,
    PARAMETERS,
    BadQueryError,
    Document,
    MissingError,
    Query,
    query_of,
)

__all__ = [
    "PAGE_ROWS",
    "PARAMETERS",
    "BadQueryError",
    "MissingError",
    "Query",
    "document",
    "name_neighbours",
    "object_of",
    "query_of",
    "revision_of",
]

_VIEWS: Mapping[str, Callable[[Cluster, Scope, Query], Document]] = {
    "overview": overview,
    "nodes": nodes,
    "node": node,
    "gpus": gpus,
    "gpu": gpu,
    "jobs": jobs,
    "job": job,
    "models": models,
    "model": model,
}
#: Views that show nothing of nodes, unless a filter names some.
_OF_JOBS = ("jobs", "models", "model")
_BY_NODES = ("node", "gpu", "sharing")


def document(cluster: Cluster, scope: Scope, query: Query) -> Document:
    """Return what a view shows to a reader.

    Raises:
        MissingError: it is the view of one object, which the reader does not see.
        BadQueryError: a parameter has no meaning.
    """
    return _VIEWS[query.view](cluster, scope, query)


def revision_of(cluster: Cluster, query: Query) -> int:
    """Return a number that is another one once something has changed that a view could show."""
    of_jobs = query.view in _OF_JOBS and not any(query.get(name) for name in _BY_NODES)
    return cluster.job_revision if of_jobs else cluster.revision
