"""Running jobs stay; waiting ones are placed in order wherever the constraints allow."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tandem.policy.board import Board
from tandem.policy.pipeline import Pipeline
from tandem.policy.ports import Dispatch
from tandem.policy.units import Ints


# Paper: [Horus] Alg. 1 line 4-18 | beta jobs a round, cheapest GPUs | test:
#   tests/policy/test_policy_horus.py test_a_round_considers_fifteen_jobs | live: yes |
#   deviation: the next round follows at once where a job started
class Admit(Dispatch):
    """Place waiting jobs in order. Where the order blocks, the first that does not fit ends it.

    With `jobs_a_round`, beta of [Horus] Alg. 1, a round considers so many jobs; the next round
    follows at once where one of them started, else when something has changed. Jobs behind them
    are not considered before.
    """

    kind: Literal["admit"] = "admit"
    jobs_a_round: Annotated[int, Field(ge=1)] | None = None

    def __call__(self, board: Board, ranked: Ints, pipeline: Pipeline, blocks: bool) -> None:
        """Start what fits of `ranked`, waiting jobs in order.

        Until somebody leaves, the cluster only fills up, so a demand that was refused once is not
        tried again: a long queue of alike jobs costs one evaluation.
        """
        refused = board.refused
        in_round, started = 0, False
        for index in ranked.tolist():
            if in_round == self.jobs_a_round:
                if not started:
                    return
                in_round, started = 0, False
            in_round += 1
            job = board.jobs[index]
            demand = job.demand
            rows = None if demand in refused else pipeline.choose(job, board.gpus)
            if rows is not None:
                board.start(index, rows)
                started = True
            elif blocks:
                return
            else:
                refused.add(demand)
