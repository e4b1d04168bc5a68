"""Which of a node's empty GPUs a pod gets that has several: those that are best connected.

To the policies, empty GPUs of one type on a node are equal. Once a round is decided, those of each
pod that starts on such GPUs are exchanged for better connected ones: of one NVLink domain, else of
one NUMA node. Nothing else of the decision changes, and where no place of a GPU is known, nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container

import numpy as np

from tandem.policy.board import Board, Start
from tandem.policy.cluster import GpuArrays, Links
from tandem.policy.pipeline import Pipeline
from tandem.policy.units import Bools, Ints

#: Columns in which GPUs are equal that are exchanged for one another.
_ALIKE = (
    "node", "gpu_type", "memory_capacity_gib", "shares", "sliced", "compute", "guarded", "fresh",
    "healthy",
)  # fmt: skip


def nearest(wanted: int, nvlink: Ints, numa: Ints) -> Ints | None:
    """Return which `wanted` of equal GPUs are best connected; None where no domain has so many.

    `nvlink` and `numa` are the domains of the GPUs, -1 where unknown. The smallest domain that
    suffices is taken, so that larger ones stay whole; of GPUs that are equal in this, the first.
    """
    linked = _smallest(nvlink, wanted)
    if linked is not None:
        within = _smallest(numa[linked], wanted)
        return (linked if within is None else linked[within])[:wanted]
    near = _smallest(numa, wanted)
    return None if near is None else near[_few_domains(nvlink[near], wanted)]


def _smallest(domain: Ints, wanted: int) -> Ints | None:
    """Return the GPUs of the domain that has the fewest, but as many as are wanted."""
    sizes = np.bincount(domain[domain >= 0])
    enough = np.flatnonzero(sizes >= wanted)
    return np.flatnonzero(domain == enough[sizes[enough].argmin()]) if len(enough) else None


def _few_domains(domain: Ints, wanted: int) -> Ints:
    """Return `wanted` GPUs of few domains, each with fewer: whole ones as long as these fit."""
    groups: dict[int, list[int]] = defaultdict(list)
    for index, number in enumerate(domain.tolist()):
        groups[number if number >= 0 else -1 - index].append(index)
    left, found = sorted(groups.values(), key=lambda group: (-len(group), group)), list[int]()
    while len(found) < wanted:
        missing = wanted - len(found)
        group = next((each for each in left if len(each) <= missing), left[-1])
        left.remove(group)
        found += group[:missing]
    return np.array(sorted(found), dtype=np.int64)


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
            before = board.rows_of[job]
            rows, connected = _connected(board, job, before, links, pipeline, closed)
            if not connected:
                unconnected.append(job)
            if (rows != before).any():
                board.exchange(job, rows)
                board.actions[last[job]] = Start(job, tuple(rows.tolist()))
        tried = unconnected


def _connected(
    board: Board, job: int, rows: Ints, links: Links, pipeline: Pipeline, closed: Bools | None
) -> tuple[Ints, bool]:
    """Return the GPUs that a job gets in place of `rows`, in the same order of pods.

    The second value is False where one of its pods found no domain.
    """
    gpus, size = board.gpus, board.jobs[job].gpus_per_pod
    found, connected = rows.copy(), True
    for node in np.unique(gpus.node[rows]).tolist():
        there = np.flatnonzero(gpus.node == node)
        if (links.nvlink[there] < 0).all() and (links.numa[there] < 0).all():
            continue
        if closed is not None:
            there = there[~closed[there]]
        empty = there[gpus.jobs[there] == 0]
        empty = empty[pipeline.evaluate(board.jobs[job], gpus.take(empty)).allowed]
        alone = there[(gpus.jobs[there] == 1) & np.isin(there, rows)]
        at = np.flatnonzero(gpus.node[rows] == node)
        pods = [pod for pod in at[: len(at) - len(at) % size].reshape(-1, size)
                if np.isin(rows[pod], alone).all() and _alike(gpus, rows[pod], rows[pod[0]]).all()
                ]  # fmt: skip
        # Pods of the job that are next to one another exchange GPUs as well.
        free = np.sort(np.concatenate((empty, *(rows[pod] for pod in pods))))
        for pod in pods:
            pool = free[_alike(gpus, free, rows[pod[0]])]
            best = nearest(size, links.nvlink[pool], links.numa[pool])
            if best is None:  # what it has, unless a pod before it has got some of that
                connected = False
                best = np.argsort(~np.isin(pool, rows[pod]), kind="stable")[:size]
            found[pod] = pool[best]
            free = np.setdiff1d(free, found[pod])
    return found, connected


def _alike(gpus: GpuArrays, rows: Ints, row: int) -> Bools:
    """Return (rows,), True of those that equal one GPU in all but who is there."""
    found = np.ones(len(rows), dtype=np.bool_)
    for name in _ALIKE:
        column = getattr(gpus, name)
        found &= column[rows] == column[row]
    return found
