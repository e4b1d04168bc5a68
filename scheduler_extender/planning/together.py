"""Places for a gang of several roles: all of them or none.

The policies place one role at a time: pods that ask for the same number of GPUs and put the same
load on each. The roles of a gang are placed one after another, those first that are hardest to
place, each on GPUs that the others have left. Nothing is done where one of them finds no place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tandem.policy.board import Board
from tandem.policy.gather import whole_pods
from tandem.policy.job import Job
from tandem.policy.pipeline import Pipeline
from tandem.policy.units import Ints

#: Returns rows for all pods of a job, or None.
Choose = Callable[[Job], Ints | None]


def start_together(board: Board, roles: Sequence[int], pipeline: Pipeline) -> bool:
    """Start all `roles` (rows of `board.jobs`), each worker on its own GPU, or none of them."""
    places = places_for([board.jobs[role] for role in roles], board, pipeline)
    if places is None:
        return False
    for role, rows in zip(roles, places, strict=True):
        board.start(role, rows)
    return True


def places_for(jobs: Sequence[Job], board: Board, pipeline: Pipeline) -> list[Ints] | None:
    """Return rows for each of the jobs, no GPU twice, or None where one of them finds no place.

    Where the places that the profile would choose leave none for a later role, the first that do
    are taken, from the nodes with the least room.
    """

    def as_profile(job: Job) -> Ints | None:
        # What is refused beside the other roles is refused to nobody else: it is not remembered.
        return Pipeline.choose(pipeline, job, board.gpus)

    def tightest(job: Job) -> Ints | None:
        rows = np.flatnonzero(pipeline.allowed(job, board.gpus))
        room = np.bincount(board.gpus.node[rows], minlength=1)[board.gpus.node[rows]]
        return whole_pods(job, board.gpus.node, rows[np.argsort(room, kind="stable")])

    def first(job: Job) -> Ints | None:
        rows = np.flatnonzero(pipeline.allowed(job, board.gpus))
        return whole_pods(job, board.gpus.node, rows)

    for choose in (as_profile, tightest, first):
        found = _one_by_one(jobs, board, choose)
        if len(found) == len(jobs):
            return found
        if not found:
            return None  # there is no place for the first, whoever comes after it
    return None


def _one_by_one(jobs: Sequence[Job], board: Board, choose: Choose) -> list[Ints]:
    """Return the places of the jobs up to the first that finds none."""
    shares, count = board.columns["shares"], board.columns["jobs"]
    before, found = shares.copy(), list[Ints]()
    try:
        for job in jobs:
            rows = choose(job)
            if rows is None:
                break
            shares[rows] = count[rows]  # they take no other job
            found.append(rows)
    finally:
        shares[:] = before
    return found


def rows_for(jobs: Sequence[Job], node: Ints, rows_of: Callable[[int], Ints]) -> Ints | None:
    """Return GPUs for all jobs, each of its own, from those in order of preference, or None.

    `rows_of` returns the rows that the job at a position may have, `node` (gpus,) is their nodes.
    """
    taken: Ints = np.zeros(0, dtype=np.int64)
    for position, job in enumerate(jobs):
        rows = rows_of(position)
        found = whole_pods(job, node, rows[~np.isin(rows, taken)] if len(taken) else rows)
        if found is None:
            return None
        taken = np.concatenate((taken, found))
    return taken
