"""[Tiresias] the jobs at the front of the order run, whichever run now."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from tandem.policy.board import Board
from tandem.policy.compiled.front import front
from tandem.policy.dispatch.fit import fits_in_order
from tandem.policy.jobs import JobArrays
from tandem.policy.pipeline import Pipeline
from tandem.policy.ports import Dispatch
from tandem.policy.units import Ints

_PART = 1024  # jobs looked at together


# Paper: [Tiresias] 3.2.3, Pseudocode 2 | all or nothing: a job that does not fit is skipped, and
#   preempted if it runs | test: tests/papers/test_papers_scenarios.py test_the_rule_decides |
#   live: yes | deviation: in a cluster a job that started less than `min_run_s` ago stays, at
#   most `max_preemptions_per_hour` preemptions are made, and none whose cost (`preemption_cost_s`
#   on its GPUs) exceeds what the order counts for it
class Preempt(Dispatch):
    """Take jobs in order onto whole GPUs, all or nothing.

    A job that does not fit is skipped, and preempted if it runs. Source: [Tiresias] 3.2, 4.
    """

    kind: Literal["preempt"] = "preempt"
    preempts: ClassVar[bool] = True
    ignores_preemption_cost: ClassVar[bool] = True

    def __call__(self, board: Board, ranked: Ints, pipeline: Pipeline, blocks: bool) -> None:
        """Make the front of `ranked`, all jobs in order, run. `blocks` has no meaning here."""
        on_offer = board.gpus.healthy & (board.gpus.shares > 0)
        if board.pinned:
            on_offer[np.concatenate([board.rows_of[job] for job in board.pinned])] = False
            ranked = ranked[~np.isin(ranked, list(board.pinned))]
        free = int(np.count_nonzero(on_offer))
        running = len(board.rows_of) - len(board.pinned)  # jobs that may have to stop
        stops, starts = front(ranked, board.arrays, free, running) or front_in_python(
            ranked, board.arrays, free, running
        )
        for index in stops:
            board.stop(index)
        for index in starts:
            rows = pipeline.choose(board.jobs[index], board.gpus)
            if rows is not None:
                board.start(index, rows)


def front_in_python(
    ranked: Ints, arrays: JobArrays, free_gpus: int, occupied: int
) -> tuple[list[int], list[int]]:
    """Return what `front` does, without compiled code: the reference that it is tested with."""
    stops: list[int] = []
    starts: list[int] = []
    for at in range(0, len(ranked), _PART):
        part = ranked[at : at + _PART]
        sizes, runs = arrays.gpus[part], arrays.running[part]
        wanted = fits_in_order(sizes, free_gpus)
        turns = (runs != wanted).nonzero()[0]
        begins = wanted[turns]
        stops += part[turns[~begins]].tolist()
        starts += part[turns[begins]].tolist()
        free_gpus -= int(sizes[wanted].sum())
        occupied -= int(np.count_nonzero(runs))
        if not (free_gpus or occupied):
            break  # those behind wait, and go on waiting
    return stops, starts
