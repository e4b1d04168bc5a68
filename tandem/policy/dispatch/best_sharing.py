"""[SJF-BSBF] take whole GPUs, or share where that beats waiting."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tandem.policy.board import Board
from tandem.policy.equations.pair import mean_completion_s
from tandem.policy.equations.sharing import sharing_benefit_s
from tandem.policy.gather import whole_pods
from tandem.policy.job import Job, SubBatch
from tandem.policy.pipeline import Pipeline
from tandem.policy.ports import Policy
from tandem.policy.units import Floats, Ints


class BestSharing(Policy):
    """Enough free GPUs: take them, packed; else shared ones by Theorem 1, topped up with free ones.

    It waits otherwise, and blocks nobody. Beside a partner the newcomer runs with the largest
    sub-batch that the constraints allow there: iterations do not get shorter by smaller ones, so
    that one is Alg. 2's best. A gang runs with the smallest that one of its GPUs asks for. Without
    `benefit`, first fit (SJF-FFS): the first GPUs held by one job will do. Remaining times must be
    known.

    Source: [SJF-BSBF] Alg. 1, 2. Differs: the listing of Alg. 2 returns inside its loop, a slip.
    """

    kind: Literal["best_sharing"] = "best_sharing"
    benefit: bool = True

    @property
    def preempts(self) -> bool:
        """False: running jobs keep their GPUs."""
        return False

    def __call__(self, board: Board, ranked: Ints, pipeline: Pipeline, blocks: bool) -> None:
        """Start what fits of `ranked`, waiting jobs in order."""
        refused: set[tuple[object, ...]] = set()
        for index in ranked.tolist():
            job = board.jobs[index]
            # The benefit depends on what is left of the job, so demands differ by it, too.
            demand = (*job.demand, job.remaining_s if self.benefit else None)
            if demand not in refused and not self._start(board, index, pipeline):
                refused.add(demand)

    def _start(self, board: Board, index: int, pipeline: Pipeline) -> bool:
        gpus, job = board.gpus, board.jobs[index]
        if board.empty < job.gpus and np.count_nonzero(gpus.jobs < gpus.shares) < job.gpus:
            return False
        evaluation = pipeline.evaluate(job, gpus)
        empty = evaluation.allowed & (gpus.jobs == 0)
        rows = pipeline.gather(job, gpus, empty, evaluation.score)
        if rows is None:
            shared, chosen = self._shared(board, index, pipeline)
            either = np.concatenate((shared, np.flatnonzero(empty)))
            rows = whole_pods(job, gpus.node, either)
            if rows is None:
                return False
            smallest = int(chosen[np.isin(shared, rows)].max(initial=0))
            if smallest:
                board.change(index, job.with_sub_batch(job.sub_batches[smallest - 1]))
        board.start(index, rows)
        return True

    def _shared(self, board: Board, index: int, pipeline: Pipeline) -> tuple[Ints, Ints]:
        """Return the GPUs worth sharing, best first, and which sub-batch each asks for.

        Sub-batches count from 1; 0 is the batch as submitted.
        """
        gpus, job = board.gpus, board.jobs[index]
        held_by_one = np.flatnonzero(gpus.jobs == 1)
        beside = gpus.take(held_by_one)
        choice = np.full(len(held_by_one), -1)
        for option in range(len(job.sub_batches) + 1):
            sub_batch = job.sub_batches[option - 1] if option else None
            allowed = pipeline.evaluate(_as_run(job, sub_batch), beside).allowed
            choice[allowed & (choice < 0)] = option
            if (choice >= 0).all():
                break
        rows, choice = held_by_one[choice >= 0], choice[choice >= 0]
        if not self.benefit:
            return rows, choice
        together, gain = self._pair_s(board, index, rows, choice)
        order = np.argsort(together, kind="stable")
        order = order[gain[order] > 0]
        return rows[order], choice[order]

    def _pair_s(self, board: Board, index: int, rows: Ints, choice: Ints) -> tuple[Floats, Floats]:
        """Return the mean completion time with the holder of each of `rows`, (rows,), in seconds.

        And by how much that is less than to wait for its end: Theorem 1 compares the two ends.
        """
        job = board.jobs[index]
        if job.own_slowdown is None or job.caused_slowdown is None:
            return np.full(len(rows), np.inf), np.full(len(rows), -np.inf)
        holder = board.gpus.residents[rows, 0]
        classes = board.gpus.resident_class[rows, 0]
        slower = np.array([board.jobs[h].stretch for h in holder.tolist()])
        first = board.arrays.remaining_s(holder, board.now_s) * slower
        alone = np.full(len(rows), board.arrays.remaining_s(np.array([index]), board.now_s)[0])
        stretch = np.array([1.0, *(s.stretch for s in job.sub_batches)])[choice]
        caused, own = 1 + job.caused_slowdown[classes], 1 + job.own_slowdown[classes]
        known = np.isfinite(caused) & np.isfinite(own)
        caused, own = np.where(known, caused, 1.0), np.where(known, own, 1.0)
        together = mean_completion_s(np.zeros(len(rows)), first, alone * stretch, caused, own)
        # Who waits runs the batch as submitted afterwards: half of what that saves is lost here.
        gain = sharing_benefit_s(first, alone * stretch, caused, own) - alone * (stretch - 1) / 2
        return np.where(known, together, np.inf), np.where(known, gain, -np.inf)


def _as_run(job: Job, sub_batch: SubBatch | None) -> Job:
    return job if sub_batch is None else job.with_sub_batch(sub_batch)
