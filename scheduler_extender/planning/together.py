"""Places for a gang of several roles: all of them or none.

The policies place one role at a time: pods that ask for the same number of GPUs and put the same
load on each. The roles of a gang are placed one after another, those first that are hardest to
place, each on GPUs that the others have left, and on nodes that have what it asks besides GPUs left
as well. Nothing is done where one of them finds no place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from scheduler_extender.cluster.nodes import NodesPicture
from scheduler_extender.planning.questions import Part
from tandem.policy.board import Board
from tandem.policy.gather import whole_pods
from tandem.policy.job import Job
from tandem.policy.pipeline import Pipeline
from tandem.policy.units import Floats, Ints

#: Returns rows for all pods of a job, or None.
Choose = Callable[[Job], Ints | None]


class OtherResources:
    """Free resources of nodes besides GPUs for each of several roles, earlier roles subtracted.

    A job of one role is kept to what a node holds of it by `Job.where`; no number there stands for
    pods that ask for different things. `node` (gpus,) is the node of each GPU; with `empty`,
    nothing else runs.
    """

    def __init__(
        self, nodes: NodesPicture | None, parts: Sequence[Part], node: Ints, *, empty: bool = False
    ) -> None:
        self._nodes = nodes
        self._parts = parts
        self._node = node
        self._empty = empty
        self._taken: dict[str, Floats] = {}

    def begin(self) -> None:
        """Let all roles go."""
        self._taken = {}

    def most(self, at: int) -> Ints | None:
        """Return (nodes,) on how many GPUs the role at a position may be, None for any number."""
        job = self._parts[at].job
        pods = None if self._nodes is None else self._nodes.holds(
            job.where, self._taken, empty=self._empty
        )  # fmt: skip
        if pods is None:
            return None
        gpus = np.bincount(self._node, minlength=len(pods))
        return None if (pods >= gpus // job.gpus_per_pod).all() else pods * job.gpus_per_pod

    def within(self, at: int, rows: Ints) -> Ints:
        """Return the first of `rows` on each node, as many as the role may have there."""
        most = self.most(at)
        if most is None:
            return rows
        there = self._node[rows]
        order = np.argsort(there, kind="stable")
        place = np.empty(len(rows), dtype=np.int64)
        place[order] = np.arange(len(rows)) - np.searchsorted(there[order], there[order])
        return rows[place < most[there]]

    def take(self, at: int, rows: Ints) -> None:
        """Note that a role has GPUs (rows)."""
        job = self._parts[at].job
        if self._nodes is not None and job.where in self._nodes.asks:
            gpus = np.bincount(self._node[rows], minlength=len(self._nodes.names))
            self._nodes.take(job.where, gpus // job.gpus_per_pod, self._taken)


def start_together(
    board: Board, roles: Sequence[int], pipeline: Pipeline, resources: OtherResources
) -> bool:
    """Start all `roles` (rows of `board.jobs`), each worker on its own GPU, or none of them."""
    places = places_for([board.jobs[role] for role in roles], board, pipeline, resources)
    if places is None:
        return False
    for role, rows in zip(roles, places, strict=True):
        board.start(role, rows)
    return True


def places_for(
    jobs: Sequence[Job], board: Board, pipeline: Pipeline, resources: OtherResources
) -> list[Ints] | None:
    """Return rows for each of the jobs, no GPU twice, or None where one of them finds no place.

    Where the places that the profile would choose leave none for a later role, the first that do
    are taken, from the nodes with the least room.
    """

    def as_profile(job: Job) -> Ints | None:
        # A refusal next to the other roles holds for no other job: it is not remembered.
        return Pipeline.choose(pipeline, job, board.gpus)

    def tightest(job: Job) -> Ints | None:
        rows = np.flatnonzero(pipeline.allowed(job, board.gpus))
        room = np.bincount(board.gpus.node[rows], minlength=1)[board.gpus.node[rows]]
        return whole_pods(job, board.gpus.node, rows[np.argsort(room, kind="stable")])

    def first(job: Job) -> Ints | None:
        rows = np.flatnonzero(pipeline.allowed(job, board.gpus))
        return whole_pods(job, board.gpus.node, rows)

    for choose in (as_profile, tightest, first):
        found = _one_by_one(jobs, board, choose, pipeline, resources)
        if len(found) == len(jobs):
            return found
        if not found:
            return None  # there is no place for the first, whichever comes after it
    return None


def _one_by_one(
    jobs: Sequence[Job], board: Board, choose: Choose, pipeline: Pipeline, resources: OtherResources
) -> list[Ints]:
    """Return the places of the jobs up to the first that finds none."""
    shares, count = board.columns["shares"], board.columns["jobs"]
    before, found = shares.copy(), list[Ints]()
    resources.begin()
    try:
        for at, job in enumerate(jobs):
            if at and resources.most(at) is not None:
                allowed = np.flatnonzero(pipeline.allowed(job, board.gpus))
                beyond = np.setdiff1d(allowed, resources.within(at, allowed))
                shares[beyond] = count[beyond]
            rows = choose(job)
            if rows is None:
                break
            found.append(rows)
            resources.take(at, rows)
            shares[:] = before
            for taken in found:
                shares[taken] = count[taken]  # they take no other job
    finally:
        shares[:] = before
    return found


def rows_for(
    jobs: Sequence[Job], node: Ints, rows_of: Callable[[int], Ints], resources: OtherResources
) -> Ints | None:
    """Return GPUs for all jobs, each of its own, from those in order of preference, or None.

    `rows_of` returns the rows that the job at a position may have, `node` (gpus,) is their nodes.
    """
    taken: Ints = np.zeros(0, dtype=np.int64)
    resources.begin()
    for position, job in enumerate(jobs):
        rows = rows_of(position)
        if len(taken):
            rows = resources.within(position, rows[~np.isin(rows, taken)])
        found = whole_pods(job, node, rows)
        if found is None:
            return None
        resources.take(position, found)
        taken = np.concatenate((taken, found))
    return taken
