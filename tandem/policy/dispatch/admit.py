"""Running jobs stay; waiting ones are placed in order wherever the constraints allow."""

from __future__ import annotations

from typing import Literal

from tandem.policy.board import Board
from tandem.policy.pipeline import Pipeline
from tandem.policy.ports import Policy
from tandem.policy.units import Ints


class Admit(Policy):
    """Place waiting jobs in order. Where the order blocks, the first that does not fit ends it."""

    kind: Literal["admit"] = "admit"

    @property
    def preempts(self) -> bool:
        """False: running jobs keep their GPUs."""
        return False

    def __call__(self, board: Board, ranked: Ints, pipeline: Pipeline, blocks: bool) -> None:
        """Start what fits of `ranked`, waiting jobs in order.

        Until somebody leaves, the cluster only fills up, so a demand that was refused once is not
        tried again: a long queue of alike jobs costs one evaluation.
        """
        refused = board.refused
        for index in ranked.tolist():
            job = board.jobs[index]
            demand = job.demand
            rows = None if demand in refused else pipeline.choose(job, board.gpus)
            if rows is not None:
                board.start(index, rows)
            elif blocks:
                return
            else:
                refused.add(demand)
