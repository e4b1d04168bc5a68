"""Which of a node's empty GPUs a pod gets that has several: those that are best connected.

To the policies, empty GPUs of one type on a node are equal. Once a round is decided, those of each
pod that starts on such GPUs are exchanged for better connected ones: of one NVLink domain, else of
one NUMA node. Nothing else of the decision changes, and where no place of a GPU is known, nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Sequence

import numpy as np

from tandem.policy.board import Board, Start
from tandem.policy.cluster import GpuArrays, Links
from tandem.policy.pipeline import Pipeline
from tandem.policy.units import Bools, Ints

#: Columns in which GPUs are equal that are exchanged for one another.
_ALIKE = (
    "gpu_type", "memory_capacity_gib", "shares", "sliced", "compute", "guarded", "fresh",
    "healthy",
)  # fmt: skip


def nearest(wanted: int, nvlink: Sequence[int], numa: Sequence[int]) -> list[int] | None:
    """Return which `wanted` of equal GPUs are best connected; None where no domain has so many.

    `nvlink` and `numa` are the domains of the GPUs, -1 where unknown. The smallest domain that
    suffices is taken, so that larger ones stay whole; of GPUs that are equal in this, the first.
    """
    linked = _smallest(nvlink, wanted)
    if linked is not None:
        within = _smallest([numa[at] for at in linked], wanted)
        return (linked if within is None else [linked[at] for at in within])[:wanted]
    near = _smallest(numa, wanted)
    if near is None:
        return None
    return [near[at] for at in _few_domains([nvlink[at] for at in near], wanted)]


def _smallest(domain: Sequence[int], wanted: int) -> list[int] | None:
    """Return the GPUs of the domain that has the fewest, but as many as are wanted."""
    sizes = Counter(number for number in domain if number >= 0)
    enough = [(size, number) for number, size in sizes.items() if size >= wanted]
    if not enough:
        return None
    smallest = min(enough)[1]
    return [at for at, number in enumerate(domain) if number == smallest]


def _few_domains(domain: Sequence[int], wanted: int) -> list[int]:
    """Return `wanted` GPUs of few domains, each with fewer: whole ones as long as these fit."""
    groups: dict[int, list[int]] = defaultdict(list)
    for at, number in enumerate(domain):
        groups[number if number >= 0 else -1 - at].append(at)
    left, found = sorted(groups.values(), key=lambda group: (-len(group), group)), list[int]()
    while len(found) < wanted:
        missing = wanted - len(found)
        group = next((each for each in left if len(each) <= missing), left[-1])
        left.remove(group)
        found += group[:missing]
    return sorted(found)


def connect(
    board: Board,
    links: Links | None,
    pipeline: Pipeline,
    closed: Bools | None = None,
    fixed: Container[int] = (),
) -> None:
    """Give the jobs that a round has started, in order, the best connected of equal empty GPUs.

    Call it before the actions of the round are taken. GPUs (gpus,) that are `closed` are given to
    no job and taken from none; `fixed` jobs keep theirs. Jobs do not take GPUs of one another; one
    that found no domain tries again among those that the others have left.
    """
    if links is None:
        return
    last = {action.job: at for at, action in enumerate(board.actions)}
    tried = [
        job
        for job, at in sorted(last.items(), key=lambda item: item[1])
        if isinstance(board.actions[at], Start) and board.jobs[job].gpus_per_pod > 1
    ]
    for _ in range(2):
        unconnected = []
        for job in tried:
            if job in fixed:
                continue
            before: list[int] = board.rows_of[job].tolist()
            rows, connected = _connected(board, job, before, links, pipeline, closed)
            if not connected:
                unconnected.append(job)
            if rows != before:
                board.exchange(job, np.array(rows, dtype=np.int64))
                board.actions[last[job]] = Start(job, tuple(rows))
        tried = unconnected


def _connected(
    board: Board,
    job: int,
    rows: list[int],
    links: Links,
    pipeline: Pipeline,
    closed: Bools | None,
) -> tuple[list[int], bool]:
    """Return the GPUs that a job gets in place of `rows`, in the same order of pods.

    The second value is False where one of its pods found no domain.
    """
    gpus, size = board.gpus, board.jobs[job].gpus_per_pod
    found, connected = list(rows), True
    of_node: dict[int, list[int]] = defaultdict(list)  # places in `rows`
    for at, node in enumerate(gpus.node[rows].tolist()):
        of_node[node].append(at)
    for node, there in of_node.items():
        near = _Node(board, node, links, closed)
        if not near.known:
            continue
        pods: dict[tuple[float, ...], list[list[int]]] = defaultdict(list)  # by kind of GPU
        for first in range(0, len(there) - size + 1, size):
            pod = there[first : first + size]
            kinds = {near.kind(rows[at]) if rows[at] in near.alone else None for at in pod}
            kind = kinds.pop()
            if kind is not None and not kinds:
                pods[kind].append(pod)
        for kind, alike in pods.items():
            connected &= _share_out(near, job, pipeline, kind, alike, found)
    return found, connected


def connected_rows(chosen: Ints, gpus: GpuArrays, allowed: Bools, links: Links | None) -> Ints:
    """Return the best connected GPUs of one node for one pod, in place of those `chosen`.

    They equal these, and are `allowed` (gpus,) and empty. Where one of those chosen is in use or
    differs from another, or no domain has so many, those chosen stay.
    """
    if links is None or len(chosen) < 2 or gpus.jobs[chosen].any():
        return chosen
    kinds = {_kind(gpus, row) for row in chosen.tolist()}
    free = np.flatnonzero(allowed & (gpus.jobs == 0))
    free = free[[_kind(gpus, row) in kinds for row in free.tolist()]]
    best = nearest(len(chosen), links.nvlink[free].tolist(), links.numa[free].tolist())
    return chosen if best is None or len(kinds) > 1 else free[best]


def _kind(gpus: GpuArrays, row: int) -> tuple[float, ...]:
    return tuple(getattr(gpus, name).item(row) for name in _ALIKE)


class _Node:
    """The GPUs (rows) of a node on which one job is alone, and those that are empty."""

    def __init__(self, board: Board, node: int, links: Links, closed: Bools | None) -> None:
        there = np.flatnonzero(board.gpus.node == node)
        self._board = board
        self.nvlink = dict(zip(there.tolist(), links.nvlink[there].tolist(), strict=True))
        self.numa = dict(zip(there.tolist(), links.numa[there].tolist(), strict=True))
        self.known = max(self.nvlink.values()) >= 0 or max(self.numa.values()) >= 0
        if closed is not None:
            there = there[~closed[there]]
        jobs = board.gpus.jobs[there]
        self.alone = frozenset(there[jobs == 1].tolist())
        self.empty: list[int] = there[jobs == 0].tolist()

    def kind(self, row: int) -> tuple[float, ...]:
        """Return in what a GPU differs from those that it is not exchanged for."""
        return _kind(self._board.gpus, row)

    def allowed(self, job: int, pipeline: Pipeline) -> list[int]:
        """Return the empty GPUs that a job may have."""
        if not self.empty:
            return []
        gpus = self._board.gpus.take(np.array(self.empty, dtype=np.int64))
        may = pipeline.narrowed(np.ones(len(gpus), dtype=np.bool_), self._board.jobs[job], gpus)
        return [row for row, fine in zip(self.empty, may.tolist(), strict=True) if fine]


def _share_out(
    node: _Node,
    job: int,
    pipeline: Pipeline,
    kind: tuple[float, ...],
    pods: list[list[int]],
    rows: list[int],
) -> bool:
    """Write the GPUs of pods (places in `rows`) that have GPUs of one kind; say if all found some.

    Pods of the job that are next to one another exchange GPUs as well. Whether the job may have
    the empty ones is looked at when one of them is chosen: most often, a pod has the best already.
    """
    own = [rows[at] for pod in pods for at in pod]
    checked = False
    empty = [row for row in node.empty if node.kind(row) == kind]
    while True:
        chosen, connected = _chosen(node, sorted(own + empty), pods, rows)
        if checked or set(chosen) <= set(own):
            break
        allowed = frozenset(node.allowed(job, pipeline))
        checked, empty = True, [row for row in empty if row in allowed]
    for at, row in zip((at for pod in pods for at in pod), chosen, strict=True):
        rows[at] = row
    return connected


def _chosen(
    node: _Node, free: list[int], pods: list[list[int]], rows: list[int]
) -> tuple[list[int], bool]:
    """Return GPUs for pods, one after another, out of those that are `free`."""
    found, connected = list[int](), True
    for pod in pods:
        best = nearest(
            len(pod), [node.nvlink[row] for row in free], [node.numa[row] for row in free]
        )
        if best is None:
            connected = False
            has = [rows[at] for at in pod]
            # What it has, unless a pod before it has got some of that.
            got = [row for row in has if row in free]
            got += [row for row in free if row not in has][: len(pod) - len(got)]
        else:
            got = [free[at] for at in best]
        found += got
        free = [row for row in free if row not in got]
    return found, connected
