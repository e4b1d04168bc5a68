"""[OJPP] workers move off the GPUs on which measured interference passes the bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from tandem.policy.board import Board
from tandem.policy.equations.horus import slowdown
from tandem.policy.equations.ojpp import device_interference, ewma
from tandem.policy.job import Job, Placing
from tandem.policy.pipeline import Pipeline
from tandem.policy.ports import Policy
from tandem.policy.units import Floats


# Paper: [OJPP] 4.4, Alg. 4, Eq. (18), (19) | migration of the cheapest worker off the worst
#   device | test: tests/policy/test_policy_ojpp.py
#   test_ojpap_moves_the_cheapest_worker_off_the_worst_gpu_and_then_rests | live: yes | deviation:
#   most room decides, as in the text (the listing says least interference), and room is memory
#   alone, not all resources; a target is a device in use, as the listing says, and never an idle
#   one; devices within the bound are left alone; the next cheapest worker is tried where the
#   cheapest has nowhere to go
class Migrate(Policy):
    """Walk the worse half of the GPUs in use, worst first; move the cheapest worker of each.

    It goes to the GPU in use with the most room that meets every constraint. A look enters each
    GPU's interference into a moving average (Eq. 18), so that a short disturbance moves no job. A
    move costs seconds: those of the job's last stop and start where they were measured, else
    `seconds_per_gib` for each GiB to save and load, the worker's level outside peaks. The moves of
    one look stay within a budget (Eq. 19). Only jobs that save checkpoints move, and then rest for
    a while: where a prediction is wrong, the next place may be no better.

    Source: [OJPP] Alg. 4. Differs: GPUs within the bound are left alone, since a move stops a job;
    room is free memory alone, where the paper has all resources; no idle GPU is opened;
    most room decides, as in the text (the listing says lowest interference); if the cheapest worker
    has nowhere to go, the next one is tried; the weight, the budget and the rest are ours.
    """

    kind: Literal["migrate"] = "migrate"
    every_s: Annotated[float, Field(gt=0)] = 300.0
    max_interference: Annotated[float, Field(gt=0)] = 0.2
    weight_of_past: Annotated[float, Field(ge=0, lt=1)] = 0.5  # [OJPP] a
    max_migration_cost_s: Annotated[float, Field(gt=0)] = 32.0
    seconds_per_gib: Annotated[float, Field(gt=0)] = 1.0
    rest_s: Annotated[float, Field(gt=0)] = 7200.0

    @property
    def repeats(self) -> bool:
        """True: it looks again as long as GPUs are shared."""
        return True

    def __call__(self, board: Board, pipeline: Pipeline) -> bool:
        """Enter what is measured now, and move workers where the average passes the bound."""
        level = ewma(board.interference, measured_interference(board), self.weight_of_past)
        board.interference = level
        in_use = np.flatnonzero(board.gpus.jobs > 0)
        worse_half = in_use[np.argsort(-level[in_use], kind="stable")][: (len(in_use) + 1) // 2]
        left = self.max_migration_cost_s
        resting = {j for j, at in board.moved_s.items() if board.now_s < at + self.rest_s}
        for row in worse_half[level[worse_half] > self.max_interference].tolist():
            residents = board.residents_of[row]
            if len(residents) < 2:
                continue  # its neighbour has moved already
            costs = sorted((self._cost_s(board.jobs[job]), job) for job in set(residents) - resting)
            for cost, job in costs:
                if cost > left or not board.jobs[job].checkpointable:
                    continue
                target = _roomiest(board, pipeline, job, row)
                if target is not None:
                    _move(board, job, row, target)
                    resting.add(job)
                    left -= cost
                    break
        return False

    def _cost_s(self, job: Job) -> float:
        if job.migration_s is not None:
            return job.migration_s
        return self.seconds_per_gib * job.memory_base_gib


def measured_interference(board: Board) -> Floats:
    """Return the largest measured slowdown on each GPU that is shared, else 0, (gpus,).

    A gang is measured as a whole: its slowdown counts where it is predicted to be slowed most.
    """
    gpus = board.gpus
    row, slot = np.nonzero((gpus.residents >= 0) & (gpus.jobs[:, None] > 1))
    job, predicted = gpus.residents[row, slot], gpus.resident_slowdown[row, slot]
    slowest = device_interference(job, predicted, len(board.jobs))
    blamed = predicted >= slowest[job]
    measured = slowdown(np.array(1.0), board.arrays.speed[job[blamed]])
    return device_interference(row[blamed], measured, len(gpus))


def _roomiest(board: Board, pipeline: Pipeline, job: int, row: int) -> int | None:
    """Return the GPU in use with the most memory free where a worker of `row` may go, or None."""
    held = board.rows_of[job]
    rest = np.delete(held, np.flatnonzero(held == row)[0])
    board.remove(job)
    if len(rest):
        board.place(job, rest)
    gpus = board.gpus
    among = gpus.jobs > 0
    among[row] = False
    allowed = pipeline.narrowed(among, replace(board.jobs[job], placing=Placing(job)), gpus)
    free = gpus.memory_capacity_gib - gpus.memory_base_gib - gpus.memory_peak_extra_gib
    best = int(np.argmax(np.where(allowed, free, -np.inf)))
    if len(rest):
        board.remove(job)
    board.place(job, held)
    return best if allowed[best] else None


def _move(board: Board, job: int, row: int, target: int) -> None:
    """Move one worker; what was measured on either GPU was with other neighbours."""
    rows = board.rows_of[job].copy()
    rows[np.flatnonzero(rows == row)[0]] = target
    board.stop(job)
    board.start(job, rows)
    board.moved_s[job] = board.now_s
    board.interference[[row, target]] = 0.0
