"""[SJF-BSBF] take whole GPUs, or share where that beats waiting."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from tandem.policy.board import Board
from tandem.policy.equations.accumulation import halved
from tandem.policy.equations.pair import mean_completion_s
from tandem.policy.equations.sharing import sharing_benefit_s
from tandem.policy.gather import whole_pods
from tandem.policy.job import Job, SubBatch
from tandem.policy.pipeline import Pipeline
from tandem.policy.ports import Dispatch
from tandem.policy.units import Floats, Ints


# Paper: [SJF-BSBF] V-B, Alg. 1 | shortest first; free GPUs, else the best partners | test:
#   tests/papers/test_papers_scenarios.py test_the_rule_decides | live: yes | deviation: by
#   remaining time, as the listing says (the text of V-B1 names the number of GPUs)
class BestSharing(Dispatch):
    """Enough free GPUs: take them, packed; else shared ones by Theorem 1, topped up with free ones.

    Otherwise it waits, and blocks no other job. Next to a partner the newcomer runs with the
    sub-batch that the constraints allow there and that makes the pair's mean completion time least,
    each with the interference and the stretch of its own; ties go to the largest. A gang runs with
    the smallest that one of its GPUs asks for. Sub-batches are those of the job or, where none are
    given, follow from its model of an iteration (Eq. 3, 4, 7). Without `benefit`, first fit
    (SJF-FFS): the first GPUs held by one job will do, with the largest sub-batch that fits.
    Remaining times must be known.

    Source: [SJF-BSBF] Alg. 1, 2. Differs: the listing of Alg. 2 returns inside its loop, a slip.
    """

    kind: Literal["best_sharing"] = "best_sharing"
    needs_remaining: ClassVar[bool] = True
    benefit: bool = True

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
                board.change(index, job.with_sub_batch(_sub_batches(job)[smallest - 1]))
        board.start(index, rows)
        return True

    def _shared(self, board: Board, index: int, pipeline: Pipeline) -> tuple[Ints, Ints]:
        """Return the GPUs worth sharing, best first, and which sub-batch each asks for.

        Sub-batches count from 1; 0 is the batch as submitted.
        """
        gpus, job = board.gpus, board.jobs[index]
        held_by_one = np.flatnonzero(gpus.jobs == 1)
        shareable = gpus.take(held_by_one)
        choice = np.full(len(held_by_one), -1)
        together = np.full(len(held_by_one), np.inf)
        for option, sub_batch in enumerate((None, *_sub_batches(job))):
            as_run = _as_run(job, sub_batch)
            allowed = pipeline.evaluate(as_run, shareable).allowed
            if not self.benefit:
                choice[allowed & (choice < 0)] = option
                continue
            pair_s, gain = self._pair_s(board, index, held_by_one, as_run)
            better = allowed & (gain > 0) & (pair_s < together)
            choice[better], together[better] = option, pair_s[better]
        rows = held_by_one[choice >= 0]
        order = np.argsort(together[choice >= 0], kind="stable")
        return rows[order], choice[choice >= 0][order]

    def _pair_s(self, board: Board, index: int, rows: Ints, as_run: Job) -> tuple[Floats, Floats]:
        """Return the mean completion time with the holder of each of `rows`, (rows,), in seconds.

        And by how much that is less than to wait for its end: Theorem 1 compares the two ends.
        """
        if as_run.own_slowdown is None or as_run.caused_slowdown is None:
            return np.full(len(rows), np.inf), np.full(len(rows), -np.inf)
        holder = board.gpus.residents[rows, 0]
        classes = board.gpus.resident_class[rows, 0]
        slower = np.array([board.jobs[h].stretch for h in holder.tolist()])
        first = board.arrays.remaining_s(holder, board.now_s) * slower
        alone = np.full(len(rows), board.arrays.remaining_s(np.array([index]), board.now_s)[0])
        stretch = as_run.stretch
        caused, own = 1 + as_run.caused_slowdown[classes], 1 + as_run.own_slowdown[classes]
        known = np.isfinite(caused) & np.isfinite(own)
        caused, own = np.where(known, caused, 1.0), np.where(known, own, 1.0)
        together = mean_completion_s(np.zeros(len(rows)), first, alone * stretch, caused, own)
        # Who waits runs the batch as submitted afterwards: half of what that saves is lost here.
        gain = sharing_benefit_s(first, alone * stretch, caused, own) - alone * (stretch - 1) / 2
        return np.where(known, together, np.inf), np.where(known, gain, -np.inf)


def _sub_batches(job: Job) -> tuple[SubBatch, ...]:
    if job.sub_batches or job.iteration is None:
        return job.sub_batches
    return halved(job.iteration)


def _as_run(job: Job, sub_batch: SubBatch | None) -> Job:
    return job if sub_batch is None else job.with_sub_batch(sub_batch)
