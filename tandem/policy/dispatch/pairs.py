"""[Xonar] the head of the queue starts, and picks its partner from the whole queue."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tandem.policy.board import Board
from tandem.policy.equations.xonar import active_idle_misfit
from tandem.policy.gather import whole_pods
from tandem.policy.pipeline import Pipeline
from tandem.policy.ports import Dispatch
from tandem.policy.units import Ints


# Paper: [Xonar] III-B | the head picks the fittest partner whose peak fits | test:
#   tests/policy/test_policy_pairs.py
#   test_the_head_picks_the_partner_whose_busy_share_complements_its_own | live: yes |
#   deviation: the survivor of a pair picks again
class Pairs(Dispatch):
    """Running jobs that are alone pick a partner; then the head takes whole GPUs, and picks.

    The partner is the waiting job with the least |r_a r_n - 1|, by the active and idle time that
    was measured of earlier runs alone, else by predicted utilisation, among those that the
    constraints allow on the GPUs of the one that picks; a job that is never idle is no partner. A
    job without a partner runs alone. The survivor of a pair picks again (ours: the paper does not
    say).

    Source: [Xonar] III-B, Eq. (1).
    """

    kind: Literal["pairs"] = "pairs"

    def __call__(self, board: Board, ranked: Ints, pipeline: Pipeline, blocks: bool) -> None:
        """Start what finds a partner or whole GPUs of `ranked`, waiting jobs in order."""
        waiting = ranked.tolist()
        arrays = board.arrays
        first_started_first = sorted(board.rows_of, key=lambda k: (arrays.first_started_s[k], k))
        for job in first_started_first:
            self._pick(board, job, waiting, pipeline)
        refused: set[tuple[object, ...]] = set()
        for job in ranked.tolist():
            if job not in waiting:
                continue
            demand = board.jobs[job].demand
            rows = None if demand in refused else self._whole(board, job, pipeline)
            if rows is not None:
                waiting.remove(job)
                board.start(job, rows)
                self._pick(board, job, waiting, pipeline)
            elif blocks:
                return
            else:
                refused.add(demand)

    def _whole(self, board: Board, job: int, pipeline: Pipeline) -> Ints | None:
        evaluation = pipeline.evaluate(board.jobs[job], board.gpus)
        empty = evaluation.allowed & (board.gpus.jobs == 0)
        return pipeline.gather(board.jobs[job], board.gpus, empty, evaluation.score)

    def _pick(self, board: Board, job: int, waiting: list[int], pipeline: Pipeline) -> None:
        """Start the best partner of `job` on its GPUs, and take it from `waiting`."""
        held = board.rows_of[job]
        if board.partners(job) or not waiting:
            return
        busy = np.array([board.jobs[other].busy_share for other in waiting])
        misfit = active_idle_misfit(busy, board.jobs[job].busy_share)
        gpus = board.gpus.take(held)
        for index in np.argsort(misfit, kind="stable").tolist():
            other = waiting[index]
            candidate = board.jobs[other]
            if np.isinf(misfit[index]):
                return
            if candidate.gpus > len(held):
                continue
            allowed = np.flatnonzero(pipeline.evaluate(candidate, gpus).allowed)
            there = whole_pods(candidate, gpus.node, allowed)
            if there is not None:
                board.start(other, held[there])
                waiting.remove(other)
                return
