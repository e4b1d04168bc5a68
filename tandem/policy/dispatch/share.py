"""Ours: share before preempting, each choice by what it is worth."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from tandem.policy.board import Board
from tandem.policy.compiled.cycle import compiled_cycle
from tandem.policy.dispatch.exchange import replace_some, take_turns
from tandem.policy.dispatch.fill import fill
from tandem.policy.dispatch.fit import fits_in_order
from tandem.policy.dispatch.move import improve
from tandem.policy.dispatch.too_slow import preempt_too_slow
from tandem.policy.dispatch.valuation import Valuation
from tandem.policy.equations.worth import completion_rate, with_age, with_size
from tandem.policy.pipeline import Pipeline
from tandem.policy.ports import Dispatch
from tandem.policy.units import Bools, Floats, Ints

_TURN_COSTS = 10  # what a turn lasts at least, in costs of a preemption
_NOTABLE = 0.3  # of a rate: from here on what was decided with it is looked at again
_EACH = 64  # GPUs: up to so many, each change has preempting looked at for all who wait

Positive = Annotated[float, Field(gt=0)]


class Share(Dispatch):
    """Fill the free shares, preempt only for what is worth far more, and repair bad pairs.

    Jobs are tried in the order of the profile: queue by queue ([Tiresias] 3.2.3), and in each queue
    by worth. No job is preempted for one of a later queue. A job's worth is its expected rate of
    completion given the time that it has run ([Tiresias]' Gittins index, learned from all jobs that
    were served), per GPU, and more the longer ago it arrived and the larger the part of all GPUs
    that it takes. Joining a neighbour gains the newcomer's worth at its predicted speed and costs
    the neighbour's slowdown. A job joins others only where that beats one after the other: Theorem
    1 of [SJF-BSBF] with rates in place of known remaining times; and only for a gain of `min_gain`,
    since the best of many predictions is too good on average. Gains that differ by less than the
    part `equal_worth` are as good as each other: among such places the scorers of the profile
    decide. A gang on more nodes than it needs runs slower, as predicted of it ([Tiresias] 3.3). In
    each round, which looks only at what has changed since the last one:

    1. free shares go to the waiting jobs that gain most per GPU there (share before preempting);
    2. jobs whose turn it is take the place of those worth least: `turn_share` of the cluster serves
       jobs in the order of arrival, so that none starves;
    3. waiting jobs worth `preempt_factor` times the running jobs in their way take their place;
    4. jobs in the worst pairs move where that repays `move_cost_s` ([OJPP] Alg. 4).

    With `min_speed`, a job joins others only where the predictions say that each job keeps that
    speed. A job that measurements show to be slower is preempted before step 1, and is then one of
    the waiting jobs of the same round.
    """

    kind: Literal["share"] = "share"
    preempts: ClassVar[bool] = True
    weighs_pairs: ClassVar[bool] = True
    scale_s: Positive = 500.0  # running time at which the worth of a new job has about halved
    prior_jobs: Annotated[float, Field(gt=0)] = 1.0  # weight of the heavy tail, in samples
    size_prior_jobs: Annotated[float, Field(gt=0)] = 3.0  # weight of jobs of other sizes, likewise
    novel: Annotated[float, Field(ge=0, lt=1)] = 1 / 32  # part of jobs that are like none before
    aging: Annotated[float, Field(ge=0, le=1)] = 0.75  # how much the age of a job adds to its worth
    gang_weight: Annotated[float, Field(ge=0)] = 4.0  # how much a gang's part of all GPUs adds
    preempt_factor: Annotated[float, Field(gt=1)] | None = 3.5  # none: no job is preempted
    turn_share: Annotated[float, Field(gt=0, le=1)] | None = 0.01  # none: a job may starve
    move_cost_s: Annotated[float, Field(ge=0)] | None = 60.0  # none: no job is moved
    move_below_speed: Annotated[float, Field(ge=0, le=1)] = 0.75
    min_speed: Annotated[float, Field(ge=0, le=1)] = 0.0  # each of a pair keeps at least this
    min_gain: Annotated[float, Field(ge=0, le=1)] = 0.1  # of a GPU's speed, by sharing it
    equal_worth: Annotated[float, Field(ge=0, lt=1)] = 0.02  # gains that are as good as each other
    share: bool = True  # false: whole GPUs only
    locality: bool = True  # false: where the workers of a gang are has no price
    learn: bool = True  # false: least attained service
    best_pair: bool = True  # false: in the order of worth, whatever the partner
    demands_tried: Annotated[int, Field(ge=1)] = 64  # different demands looked at in a round

    @property
    def least_speed(self) -> float:
        """The part of its speed that each job of a pair keeps at least, in [0, 1]."""
        return self.min_speed

    def in_order(self, board: Board, ranked: Ints) -> Ints:
        """Return the jobs `ranked` in their order: by queue, then by what each is worth."""
        return ranked[np.lexsort((-board.rate[ranked], board.arrays.queue[ranked]))]

    def __call__(self, board: Board, ranked: Ints, pipeline: Pipeline, blocks: bool) -> None:
        """Act on all jobs, `ranked`, queue by queue, by what each is worth inside a queue."""
        compiled = compiled_cycle(board, pipeline)
        if compiled is None or not compiled.share(self, board, ranked):
            self.in_python(board, ranked, pipeline)

    def in_python(self, board: Board, ranked: Ints, pipeline: Pipeline) -> None:
        """Act as `__call__` does, without compiled code: the reference that it is tested with."""
        running = board.arrays.running[ranked]
        spread = self.locality and bool((board.spread_speed[ranked[running]] < 1).any())
        movable = spread or bool((board.gpus.jobs > 1).any())
        if running.all() and not (movable and board.changed.any()):
            return  # no job waits, and none can move to a better place than before
        rate = board.rate
        service_gpu_s = board.arrays.service_gpu_s(ranked, board.now_s)
        size = board.arrays.gpus[ranked]
        run_s = service_gpu_s / size
        index = completion_rate(
            run_s,
            size,
            board.history.runs(self.scale_s) if self.learn else None,
            scale_s=self.scale_s,
            prior_jobs=self.prior_jobs,
            size_prior_jobs=self.size_prior_jobs,
            novel=self.novel,
        )
        queue = board.arrays.queue[ranked]
        age_s = board.now_s - board.arrays.arrived_s[ranked]
        worth = with_age(index, age_s, self.aging)
        part = size / max(1, len(board.gpus))
        rate[ranked] = with_size(worth, part, self.gang_weight) / size
        turns = self._turns(board, ranked, run_s)
        # Who is worth about as much as when it was last looked at has not changed.
        seen = board.seen_rate[ranked]
        moved = ~(np.abs(rate[ranked] - seen) <= _NOTABLE * seen)
        moved |= queue != board.seen_queue[ranked]
        board.seen_rate[ranked[moved]] = rate[ranked[moved]]
        board.seen_queue[ranked[moved]] = queue[moved]
        came_or_went = board.changed.copy()
        changed = self._changed(board, ranked[moved & running])
        fresh = moved & ~running
        if not (changed.any() or fresh.any() or (~board.on_gpus[turns]).any()):
            return
        valuation = Valuation(
            board, rate, pipeline,
            shares=self.share, min_speed=self.min_speed, min_gain=self.min_gain,
            equal_worth=self.equal_worth, locality=self.locality,
        )  # fmt: skip
        may_stop = board.on_gpus & board.loads.checkpointable
        may_stop[list(board.pinned)] = False
        if self.min_speed and self.preempt_factor is not None:
            preempted = np.isin(ranked, preempt_too_slow(valuation, may_stop))
            running, fresh = running & ~preempted, fresh | preempted
            changed |= board.changed
        waiting = ranked[~running]
        fresh = fresh[~running]
        order = np.lexsort((-rate[waiting], board.arrays.queue[waiting]))
        waiting, fresh = waiting[order], fresh[order]
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
        may_stop &= board.on_gpus
        may_stop[new] = False
        if self.preempt_factor is not None:
            board.untried |= changed
            if np.count_nonzero(board.untried) < (len(changed) / _EACH) ** 1.5:
                left = left[fresh[~started]]
            else:
                board.untried[:] = False
            self._preempt(valuation, waiting, left, turns, may_stop)
        if self.move_cost_s is not None:
            improve(
                valuation, may_stop, came_or_went | board.changed,
                cost_s=self.move_cost_s, below=self.move_below_speed,
            )  # fmt: skip
        valuation.refresh()

    def _preempt(
        self, valuation: Valuation, waiting: Ints, left: Ints, turns: Ints, may_stop: Bools
    ) -> None:
        """Preempt for the jobs `turns`, then for those of `left` that are worth far more.

        What a gang leaves beyond what they need goes to others of `waiting`. `may_stop` (jobs,) is
        kept up to date.
        """
        board = valuation.board
        served = take_turns(valuation, turns, may_stop)
        left = left[~board.on_gpus[left]]
        assert self.preempt_factor is not None
        new = replace_some(
            valuation, left, may_stop, factor=self.preempt_factor, most=self.demands_tried
        )
        may_stop &= board.on_gpus
        may_stop[new] = False
        if len(served) or len(new):
            rest = waiting[~board.on_gpus[waiting]]
            more = fill(valuation, rest, most=self.demands_tried, best_pair=self.best_pair)
            may_stop[rest[more]] = False

    def _turns(self, board: Board, ranked: Ints, run_s: Floats) -> Ints:
        """Return the jobs whose turn it is, in the order of arrival, as far as there is room.

        A job's turn comes when it has run for less than half of its part of its age, and lasts
        until it has run for all of it. The part is `turn_share`, and less where older jobs that
        wait want more GPUs than there are: without that, the turns of many gangs would take far
        more than `turn_share` of the cluster. No turn is shorter than `_TURN_COSTS` preemptions.

        So no job starves: the oldest job that is behind always comes first, and what arrives later
        cannot delay it. The bound and its proof are in docs/queueing.md (Starvation).
        """
        if self.turn_share is None or self.preempt_factor is None:
            return np.zeros(0, dtype=np.int64)
        arrays, count = board.arrays, len(board.gpus)
        age_s = board.now_s - arrays.arrived_s[ranked]
        least_s = 2 * _TURN_COSTS * (self.move_cost_s or 0.0)
        part_s = self.turn_share * age_s
        behind = (run_s < part_s) & (part_s >= least_s)
        if not behind.any():
            return np.zeros(0, dtype=np.int64)
        concerned = np.flatnonzero(behind | ~arrays.running[ranked])
        order = concerned[np.lexsort((ranked[concerned], arrays.arrived_s[ranked[concerned]]))]
        oldest_first, size = ranked[order], arrays.gpus[ranked[order]]
        running = arrays.running[oldest_first]
        wanted = np.maximum(np.cumsum(np.where(running, 0, size)), size)
        owed_s = self.turn_share * np.minimum(1.0, count / wanted) * age_s[order]
        due_s = np.where(running, 1.0, 0.5) * owed_s
        at = np.flatnonzero((run_s[order] < due_s) & (owed_s >= least_s))
        if not len(at):
            return oldest_first[at]
        room = max(int(self.turn_share * count), int(size[at[0]]))
        return oldest_first[at[fits_in_order(size[at], room)]]

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
