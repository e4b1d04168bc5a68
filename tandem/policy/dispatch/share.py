"""Ours: share before preempting, each choice by what it is worth."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from tandem.policy.board import Board
from tandem.policy.dispatch.exchange import replace_some
from tandem.policy.dispatch.fill import fill
from tandem.policy.dispatch.move import improve
from tandem.policy.dispatch.valuation import Valuation
from tandem.policy.equations.worth import completion_rate
from tandem.policy.pipeline import Pipeline
from tandem.policy.ports import Policy
from tandem.policy.units import Ints

Positive = Annotated[float, Field(gt=0)]


class Share(Policy):
    """Fill the free shares, preempt only for what is worth far more, and repair bad pairs.

    A job's worth is its expected rate of completion given its attained service ([Tiresias]'
    Gittins index, learned from finished jobs). Joining a neighbour gains the newcomer's worth at
    its predicted speed and costs the neighbour's slowdown: Theorem 1 of [SJF-BSBF] with rates in
    place of known remaining times. In each round:

    1. free shares go to the waiting jobs that gain most per GPU there (share before preempting);
    2. who still waits and is worth `preempt_factor` times a running job may take its place;
    3. jobs in the worst pairs move where that repays `move_cost_s` ([OJPP] Alg. 4).
    """

    kind: Literal["share"] = "share"
    scale_gpu_s: Positive = 500.0  # service at which the worth of a new job has halved
    quantum: Positive = 0.5  # of what was attained: how far ahead completions are counted
    prior_jobs: Annotated[float, Field(ge=0)] = 20.0  # weight of the heavy tail, in samples
    preempt_factor: Annotated[float, Field(gt=1)] | None = 2.0  # none: nobody is preempted
    move_cost_s: Annotated[float, Field(ge=0)] | None = 60.0  # none: nobody is moved
    move_below_speed: Annotated[float, Field(ge=0, le=1)] = 0.75
    min_speed: Annotated[float, Field(ge=0, le=1)] = 0.0  # each of a pair keeps at least this
    share: bool = True  # false: whole GPUs only
    learn: bool = True  # false: least attained service
    best_pair: bool = True  # false: in the order of worth, whatever the partner
    demands_tried: Annotated[int, Field(ge=1)] = 64  # different demands looked at in a round

    @property
    def preempts(self) -> bool:
        """True: running jobs compete with waiting ones."""
        return True

    def __call__(self, board: Board, ranked: Ints, pipeline: Pipeline, blocks: bool) -> None:
        """Act on all jobs, `ranked`; the order says only when to look again."""
        rate = np.zeros(len(board.arrays))
        rate[ranked] = completion_rate(
            board.arrays.service_gpu_s(ranked, board.now_s),
            board.history.sorted_service if self.learn else np.zeros(0),
            scale_gpu_s=self.scale_gpu_s,
            quantum=self.quantum,
            prior_jobs=self.prior_jobs,
        )
        valuation = Valuation(board, rate, pipeline, shares=self.share, min_speed=self.min_speed)
        waiting = ranked[~board.arrays.running[ranked]]
        waiting = waiting[np.argsort(-rate[waiting], kind="stable")]
        left, started = fill(
            valuation, waiting.tolist(), most=self.demands_tried, best_pair=self.best_pair
        )
        if left and self.preempt_factor is not None:
            started |= replace_some(
                valuation, left, started, factor=self.preempt_factor, most=self.demands_tried
            )
        if self.move_cost_s is not None:
            improve(valuation, started, cost_s=self.move_cost_s, below=self.move_below_speed)
