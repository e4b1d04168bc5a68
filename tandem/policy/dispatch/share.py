"""Ours: share before preempting, each choice by what it is worth."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from tandem.policy.board import Board
from tandem.policy.dispatch.exchange import replace_some
from tandem.policy.dispatch.fill import fill
from tandem.policy.dispatch.move import improve
from tandem.policy.dispatch.valuation import Valuation
from tandem.policy.equations.worth import completion_rate
from tandem.policy.pipeline import Pipeline
from tandem.policy.ports import Dispatch
from tandem.policy.units import Bools, Ints

_NOTABLE = 0.3  # of a rate: from here on what was decided with it is looked at again

Positive = Annotated[float, Field(gt=0)]


class Share(Dispatch):
    """Fill the free shares, preempt only for what is worth far more, and repair bad pairs.

    A job's worth is its expected rate of completion given its attained service ([Tiresias]'
    Gittins index, learned from all jobs that were served). Joining a neighbour gains the newcomer's
    worth at its predicted speed and costs the neighbour's slowdown. A job joins others only where
    that beats taking turns: Theorem 1 of [SJF-BSBF] with rates in place of known remaining times;
    and only for a gain of `min_gain`, since the best of many predictions is too good on average. A
    gang on more nodes than it needs runs slower, as predicted of it ([Tiresias] 3.3). In each
    round, which looks only at what has changed since the last one:

    1. free shares go to the waiting jobs that gain most per GPU there (share before preempting);
    2. who still waits and is worth `preempt_factor` times a running job may take its place;
    3. jobs in the worst pairs move where that repays `move_cost_s` ([OJPP] Alg. 4).
    """

    kind: Literal["share"] = "share"
    preempts: ClassVar[bool] = True
    weighs_pairs: ClassVar[bool] = True
    scale_gpu_s: Positive = 500.0  # service at which the worth of a new job has halved
    quantum: Positive = 0.5  # of what was attained: how far ahead completions are counted
    prior_jobs: Annotated[float, Field(gt=0)] = 1.0  # weight of the heavy tail, in samples
    preempt_factor: Annotated[float, Field(gt=1)] | None = 2.0  # none: nobody is preempted
    move_cost_s: Annotated[float, Field(ge=0)] | None = 60.0  # none: nobody is moved
    move_below_speed: Annotated[float, Field(ge=0, le=1)] = 0.75
    min_speed: Annotated[float, Field(ge=0, le=1)] = 0.0  # each of a pair keeps at least this
    min_gain: Annotated[float, Field(ge=0, le=1)] = 0.1  # of a GPU's speed, by sharing it
    share: bool = True  # false: whole GPUs only
    locality: bool = True  # false: where the workers of a gang are has no price
    learn: bool = True  # false: least attained service
    best_pair: bool = True  # false: in the order of worth, whatever the partner
    demands_tried: Annotated[int, Field(ge=1)] = 64  # different demands looked at in a round

    @property
    def least_speed(self) -> float:
        """The part of its speed that each job of a pair keeps at least, in [0, 1]."""
        return self.min_speed

    def __call__(self, board: Board, ranked: Ints, pipeline: Pipeline, blocks: bool) -> None:
        """Act on all jobs, `ranked`; the order says only when to look again."""
        running = board.arrays.running[ranked]
        spread = self.locality and bool((board.spread_speed[board.on_gpus] < 1).any())
        movable = spread or bool((board.gpus.jobs > 1).any())
        if running.all() and not (movable and board.changed.any()):
            return  # no job waits, and none can move to a better place than before
        rate = board.rate
        service_gpu_s = board.arrays.service_gpu_s(ranked, board.now_s)
        nothing = np.zeros(0)
        rate[ranked] = completion_rate(
            service_gpu_s,
            board.history.sorted_service if self.learn else nothing,
            np.sort(service_gpu_s) if self.learn else nothing,
            scale_gpu_s=self.scale_gpu_s,
            quantum=self.quantum,
            prior_jobs=self.prior_jobs,
        )
        # Who is worth about as much as when it was last looked at has not changed.
        seen = board.seen_rate[ranked]
        moved = ~(np.abs(rate[ranked] - seen) <= _NOTABLE * seen)
        board.seen_rate[ranked[moved]] = rate[ranked[moved]]
        came_or_went = board.changed.copy()
        changed = self._changed(board, ranked[moved & running])
        fresh = moved & ~running
        if not (changed.any() or fresh.any()):
            return
        valuation = Valuation(
            board, rate, pipeline,
            shares=self.share, min_speed=self.min_speed, min_gain=self.min_gain,
            locality=self.locality,
        )  # fmt: skip
        waiting = ranked[~running]
        fresh = fresh[~running]
        in_order = np.argsort(-rate[waiting], kind="stable")
        waiting, fresh = waiting[in_order], fresh[in_order]
        if not changed[valuation.open_rows()].any():
            tried = np.flatnonzero(fresh)
        else:
            tried = np.arange(len(waiting))
        started = np.zeros(len(waiting), dtype=np.bool_)
        started[tried] = fill(
            valuation, waiting[tried], most=self.demands_tried, best_pair=self.best_pair
        )
        new, left = waiting[started], waiting[~started]
        changed |= board.changed
        came_or_went |= board.changed
        board.changed[:] = False
        may_stop = board.on_gpus & board.loads.checkpointable
        may_stop[new] = False
        may_stop[list(board.pinned)] = False
        if self.preempt_factor is not None:
            if not changed.any():
                left = left[fresh[~started]]
            more = replace_some(
                valuation, left, may_stop, factor=self.preempt_factor, most=self.demands_tried
            )
            may_stop[more] = False
            may_stop &= board.on_gpus
        if self.move_cost_s is not None:
            improve(
                valuation, may_stop, came_or_went | board.changed,
                cost_s=self.move_cost_s, below=self.move_below_speed,
            )  # fmt: skip

    def _changed(self, board: Board, running: Ints) -> Bools:
        """Return the GPUs on which something has changed since the last look, (gpus,).

        Jobs came or went, or one of `running`, whose worth is another by now, is there.
        """
        changed = board.changed.copy()
        board.changed[:] = False
        if len(running):
            of = np.zeros(len(board.arrays), dtype=np.bool_)
            of[running] = True
            there = board.gpus.residents
            changed |= (of[there] & (there >= 0)).any(axis=1)
        return changed
