"""What a view is asked for, the page of a list that answers it, and rows of several views."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from scheduler_extender.serving.status.model import Cluster
from scheduler_extender.serving.status.objects import Gpu, Holder, Job, Key, Raw, Scope
from scheduler_extender.serving.status.selection import Selection, promised_bytes

PAGE_ROWS = 100
GIB = 2**30
_PLACES = 8  # of one job in a list
_LONGEST_PARAMETER = 253

Document = dict[str, Any]


Row = TypeVar("Row")
_Given = TypeVar("_Given", covariant=True)


class Listed(Protocol[_Given]):
    """A list of which one page is looked at."""

    def __len__(self) -> int: ...

    def __getitem__(self, places: slice, /) -> Iterable[_Given]: ...


class MissingError(Exception):
    """There is no such object, or the reader does not see it."""


class BadQueryError(ValueError):
    """A parameter is not understood; the text says which values are."""


@dataclass(frozen=True, slots=True)
class Query:
    """A view, the names in its path, and its parameters in the order of their names."""

    view: str
    names: tuple[str, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()

    def get(self, name: str) -> str:
        """Return a parameter, '' where it is not given."""
        return dict(self.parameters).get(name, "")

    @property
    def page(self) -> int:
        """The page of a list, 1 first."""
        text = self.get("page") or "1"
        if not (text.isascii() and text.isdigit()) or int(text[:7]) < 1:
            raise BadQueryError("page: a number from 1 on")
        return int(text[:7])


#: The parameters by which the view of a path differs; that of an object has none.
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "overview": ("namespace",),
    "nodes": ("namespace", "page", "q", "state"),
    "node": (),
    "gpus": ("job", "model", "namespace", "node", "page", "q", "sort", "state"),
    "gpu": (),
    "jobs": (
        "gpu",
        "model",
        "namespace",
        "node",
        "page",
        "phase",
        "q",
        "reason",
        "sharing",
        "sort",
    ),
    "job": (),
    "models": ("namespace", "page", "q"),
    "model": (),
}


def query_of(view: str, names: Iterable[str], given: Iterable[tuple[str, str]]) -> Query:
    """Return the query of a request.

    Raises:
        BadQueryError: a parameter is too long.
    """
    known = PARAMETERS[view]
    found = {name: value for name, value in given if name in known and value}
    for name, value in found.items():
        if len(value) > _LONGEST_PARAMETER:
            raise BadQueryError(f"{name}: at most {_LONGEST_PARAMETER} characters")
    return Query(view, tuple(names), tuple(sorted(found.items())))


def page_of(
    query: Query, found: Listed[Row], row: Callable[[Row], Document], total: int | None = None
) -> Document:
    """Return one page of what was found; a page beyond the last one is empty.

    `total` is given where `found` ends with the page.
    """
    first = (query.page - 1) * PAGE_ROWS
    total = len(found) if total is None else total
    return {
        "total": total,
        "page": query.page,
        "pages": max(1, -(-total // PAGE_ROWS)),
        "rows": [row(each) for each in found[first : first + PAGE_ROWS]],
    }


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
        "number": gpu.number,
        "model": gpu.model,
        "state": gpu.state,
        "reason": gpu.reason,
        "shares": gpu.shares,
        "jobs": [holder_row(cluster, each) for each in gpu.holders],
        "memoryCapacityBytes": round(gpu.capacity_gib * GIB),
        "memoryUsedBytes": gpu.used_bytes,
        "memoryForeignBytes": gpu.foreign_bytes,
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
        "short": job.short or job.message,
        "foundAt": job.found_at or None,
        "position": _position(selection, job),
        "expectedStart": job.expected if job.waits else None,
        "queuedAt": job.queued_at or None,
        "waitingSince": job.waiting_since or None,
        "startedAt": job.started_at or None,
        "finishedAt": job.finished_at or None,
        "gpus": job.gpus,
        "model": job.model or None,
        "exclusive": job.exclusive,
        "places": [
            {"node": node, "gpu": gpu, **selection.numbers_of(node, gpu)}
            for node, gpu in job.places[:_PLACES]
        ],
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
