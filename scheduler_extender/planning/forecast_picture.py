"""From the input of a cycle to the input of a forecast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from scheduler_extender.cluster.records import Key
from scheduler_extender.cluster.table import places_of
from scheduler_extender.planning.cycle_input import CycleInput, cycle_input_of, freest_first
from scheduler_extender.planning.forecast import Picture
from scheduler_extender.planning.forecast_quotas import Quotas
from scheduler_extender.planning.questions import Question
from tandem.policy.catalog import Profile
from tandem.policy.job import EMPTY_SLOT, Job
from tandem.policy.jobs import JobArrays
from tandem.policy.units import Bools, Floats, Ints

_TIMES = ("arrived_s", "since_s", "waiting_since_s", "first_started_s")


@dataclass(frozen=True, slots=True)
class Asked:
    """The input of a forecast; frozen, for the thread.

    `nodes` is (nodes,) by `Job.where`: who could run there if they were empty; `most` is how many
    GPUs of each they could have together. `certain` are gangs
    whose time left is known, `endless` those that do not end. `quotas` is the account of the round.
    """

    question: Question
    nodes: Mapping[int, Bools]
    certain: frozenset[Key]
    endless: frozenset[Key]
    most: Mapping[int, Ints] = field(default_factory=dict)
    quotas: Quotas | None = None


def picture_of(
    asked: Asked, profile: Profile, preemption_cost_s: float
) -> tuple[Picture, list[Job], list[Key]]:
    """Return the picture, its jobs, and whose each job is: running ones, then the queue in order.

    Gangs that are giving up their GPUs wait already, behind all others.
    """
    question = asked.question
    snapshot = question.snapshot
    inputs = cycle_input_of(question, {at: row for row, at in enumerate(places_of(snapshot))})
    running = [i for i in inputs.held if i not in inputs.going]
    # Of a gang of several roles nothing is forecast: the simulator's jobs have one.
    ranked = inputs.ranked.tolist()
    waiting = [i for i in ranked if inputs.starts[i] is not None and i not in inputs.roles]
    order = [*running, *waiting, *sorted(inputs.going)]
    keys = [inputs.keys[i] for i in order]
    jobs = [inputs.board.jobs[i] for i in order]
    picture = Picture(
        profile=profile,
        gpus=replace(snapshot.gpus, place=freest_first(snapshot.gpus)),
        arrays=_arrays(inputs, order, question.now_s),
        rows_of={new: inputs.held[i] for new, i in enumerate(running)},
        known=np.array([key in asked.certain for key in keys]),
        endless=np.array([key in asked.endless for key in keys]),
        nodes=asked.nodes,
        most=asked.most,
        topology=question.topology,
        slowdown=_table(jobs),
        history=question.history,
        preemption_cost_s=preemption_cost_s,
        seed=int(question.now_s),
        shares=None if asked.quotas is None else asked.quotas.shares(keys),
    )
    return picture, jobs, keys


def _arrays(inputs: CycleInput, order: Sequence[int], now_s: float) -> JobArrays:
    columns: dict[str, Any] = {
        f.name: getattr(inputs.board.arrays, f.name)[order] for f in fields(JobArrays)
    }
    columns |= {name: columns[name] - now_s for name in _TIMES}
    waiting = np.zeros(len(order))
    return JobArrays(**(columns | {"running": waiting.astype(np.bool_), "speed": waiting}))


def _table(jobs: Sequence[Job]) -> Floats:
    """Return the believed slowdown of each class next to each, (classes, classes)."""
    count = 2 + max((job.interference_class for job in jobs), default=0)
    table = np.full((count, count), np.inf)
    # What one namespace has learned for itself is not everybody's: such jobs come first.
    for job in sorted(jobs, key=lambda job: not job.experience):
        if job.own_slowdown is not None and len(job.own_slowdown) >= count:
            table[job.interference_class] = job.own_slowdown[:count]
    table[EMPTY_SLOT], table[:, EMPTY_SLOT] = 0.0, 0.0
    return table
