"""[OJPP] workers are placed one by one, on GPUs in use if they all fit there."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from tandem.policy.board import Board
from tandem.policy.cluster import LOAD_COLUMNS, GpuArrays, add_worker
from tandem.policy.job import Job, Placing
from tandem.policy.pipeline import Pipeline
from tandem.policy.ports import Dispatch
from tandem.policy.units import Bools, Floats, Ints


# Paper: [OJPP] Alg. 1, 2 | best fit decreasing, devices in use first | test:
#   tests/policy/test_policy_ojpp.py
#   test_ojpp_packs_workers_of_one_job_together_where_all_bounds_allow | live: yes | deviation:
#   a job that fits nowhere waits: a cluster has no further device to open
class Greedy(Dispatch):
    """Each job in order: first on GPUs in use only, then with empty ones, or it waits.

    Each worker takes the best scored GPU that all constraints allow, those of its own job already
    placed counted in; several of one job may share a GPU. With the order `decreasing` it is [OJPP]
    Alg. 1, with `gregarious` Alg. 3; the placement of one job is Alg. 2.

    Differs: a job that fits nowhere waits and blocks no other job, since a real cluster has no
    further GPU to open.
    """

    kind: Literal["greedy"] = "greedy"

    def __call__(self, board: Board, ranked: Ints, pipeline: Pipeline, blocks: bool) -> None:
        """Start what fits of `ranked`, waiting jobs in order; equal demands are tried once."""
        refused: set[tuple[object, ...]] = set()
        for index in ranked.tolist():
            demand = board.jobs[index].demand
            if demand in refused:
                continue
            rows = _place_all(board.jobs[index], index, board.gpus, pipeline)
            if rows is not None:
                board.start(index, rows)
            elif blocks:
                return
            else:
                refused.add(demand)


def _place_all(job: Job, handle: int, gpus: GpuArrays, pipeline: Pipeline) -> Ints | None:
    """Return the rows of all workers of `job`, or None."""
    if job.gpus_per_pod > 1:  # the GPUs of a pod are distinct and of one node: ours
        return pipeline.choose(job, gpus)
    trying = replace(job, placing=Placing(handle))
    rows = _place(trying, gpus, pipeline, empty=False)
    if rows is None:
        # Some worker will be alone, so that the others may be slowed down by the bound: line 11.
        alone = Placing(handle, least_slowdown=0.0)
        rows = _place(replace(job, placing=alone), gpus, pipeline, empty=True)
    return rows


def _place(job: Job, gpus: GpuArrays, pipeline: Pipeline, *, empty: bool) -> Ints | None:
    """Return the rows of all workers of `job`, or None; on empty GPUs only if `empty`."""
    assert job.placing is not None
    trial, columns = gpus, None
    rows: list[int] = []
    while True:
        in_use = trial.jobs > 0
        among = np.ones(len(gpus), dtype=np.bool_) if empty else in_use
        allowed = pipeline.narrowed(among, job, trial)
        if not allowed.any():
            return None
        score = pipeline.score(job, trial)
        used = allowed & in_use
        rows.append(_best(used if used.any() else allowed, score))
        if len(rows) == job.gpus:
            return np.array(rows, dtype=np.int64)
        if columns is None:
            columns = {name: getattr(gpus, name).copy() for name in LOAD_COLUMNS}
            trial = replace(gpus, **{name: column.view() for name, column in columns.items()})
        add_worker(columns, job, np.array(rows[-1:]), job.placing.handle)


def _best(allowed: Bools, score: Floats) -> int:
    """Return the best scored of the allowed rows, (gpus,), at least one; ties: first."""
    rows = np.flatnonzero(allowed)
    return int(rows[np.argmax(score[rows])])
