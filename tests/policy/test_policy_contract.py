"""What every policy of the catalog keeps to, whatever it decides."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import get_args

import numpy as np
import pytest
import yaml

from tandem.policy.board import Board, Start, Stop
from tandem.policy.catalog import (
    AnyAdjuster,
    AnyConstraint,
    AnyDispatch,
    AnyGather,
    AnyOrder,
    AnyScorer,
    Profile,
    load_profile,
    profile_names,
)
from tandem.policy.cluster import GpuArrays
from tandem.policy.columns import JobColumns
from tandem.policy.job import Job
from tandem.policy.jobs import History, JobArrays
from tandem.policy.pipeline import Pipeline
from tandem.reasons.words import sentence

CLASSES = 6
RNG = np.random.default_rng(5)
SLOWDOWN = np.vstack([np.zeros(CLASSES), np.full(CLASSES, np.inf), RNG.uniform(0, 1.5, (4, 6))])
SLOWDOWN[:, 1] = np.inf
SLOWDOWN[:, 0] = 0.0
HISTORY = History(RNG.lognormal(7, 2, size=60))


def kinds(union: object) -> list[type]:
    """The classes of a discriminated union of the catalog."""
    inner = get_args(union)[0]
    return list(get_args(inner)) or [inner]


def make(kind: type) -> object:
    return kind.model_validate({"by": "remaining_time"} if "by" in kind.model_fields else {})


def job(index: int, **more: object) -> Job:
    klass = 2 + index % 4
    values = {
        "pods": 1 + index % 3,
        "memory_base_gib": 2.0 + index % 5,
        "memory_peak_extra_gib": 1.0 + index % 2,
        "peak_probability": 0.05 * (index % 4),
        "gpu_utilisation": 20.0 + 15 * (index % 5),
        "queued_at_s": float(index // 2),
        "attained_gpu_seconds": 100.0 * (index * 7 % 11),
        "remaining_s": 50.0 * (1 + index * 5 % 13),
        "checkpointable": True,
        "interference_class": klass,
        "own_slowdown": SLOWDOWN[klass],
        "caused_slowdown": SLOWDOWN[:, klass],
    }
    return Job(id=f"job-{index:02}", **{**values, **more})


JOBS = [job(i) for i in range(12)]


def cluster() -> GpuArrays:
    gpus = GpuArrays.empty(np.repeat(np.arange(3), 4), np.full(12, 16.0), shares=2, slots=2)
    for handle, rows in ((0, [0]), (1, [1, 4]), (2, [2, 5, 8]), (3, [0])):
        gpus = gpus.with_job(JOBS[handle], rows, handle)
    return gpus


def copy(arrays: GpuArrays) -> dict[str, np.ndarray]:
    return {f.name: getattr(arrays, f.name).copy() for f in fields(arrays)}


def same(arrays: GpuArrays, before: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(getattr(arrays, name), old) for name, old in before.items())


@pytest.mark.parametrize("kind", kinds(AnyConstraint))
def test_a_constraint_is_a_mask_that_follows_its_gpus(kind: type) -> None:
    constraint, gpus = make(kind), cluster()
    before = copy(gpus)
    shuffled = np.random.default_rng(1).permutation(len(gpus))
    for asked in JOBS:
        mask = constraint(asked, gpus)
        assert mask.shape == (len(gpus),)
        assert mask.dtype == np.bool_
        assert np.array_equal(mask, constraint(asked, gpus))
        assert np.array_equal(constraint(asked, gpus.take(shuffled)), mask[shuffled])
        for row in np.flatnonzero(~mask).tolist():
            assert sentence(constraint.cause(asked, gpus, row))
    assert same(gpus, before)
    assert constraint(JOBS[0], gpus.take(np.zeros(0, dtype=np.int64))).shape == (0,)


def mixed() -> GpuArrays:
    """GPUs of every sort: shared, full, exclusive, ill, stale, guarded, not offered."""
    gpus = cluster().with_job(job(4, exclusive=True), [6], 4)
    count = np.arange(len(gpus))
    return replace(
        gpus,
        shares=np.where(count == 7, 0, gpus.shares),
        healthy=count % 5 != 3,
        fresh=count % 4 != 1,
        sliced=count % 3 == 1,
        guarded=count % 2 == 0,
        peaks_measured=count % 3 != 2,
    )


OPTIONS = {
    "shares": [{}, {"at_most": 1}],
    "peak_fits": [{}, {"opportunistic": True}],
    "memory_collision": [{}, {"max_collision_probability": 0.0}, {"strict": True}],
}


@pytest.mark.parametrize("kind", kinds(AnyConstraint))
def test_a_constraint_says_of_many_jobs_at_once_what_it_says_of_each(kind: type) -> None:
    asked = [
        *JOBS, job(2, exclusive=True), job(3, peak_measured=True, checkpointable=True),
        job(5, memory_base_gib=15.5), job(6, memory_base_gib=30.0),
    ]  # fmt: skip
    gpus = mixed()
    demands = JobColumns(asked).demands(np.arange(len(asked)))
    seen = set()
    for options in OPTIONS.get(make(kind).kind, [{}]):
        constraint = kind.model_validate(make(kind).model_dump() | options)
        together = constraint.each(demands, gpus)
        if together is None:  # it is asked for each job by itself
            return
        one_by_one = np.stack([constraint(each, gpus) for each in asked])
        seen |= set(one_by_one.ravel().tolist())
        assert np.array_equal(np.broadcast_to(together, one_by_one.shape), one_by_one)
    assert seen == {True, False}, "the GPUs show both answers"


@pytest.mark.parametrize("missing", ["own_slowdown", "caused_slowdown"])
@pytest.mark.parametrize("kind", kinds(AnyConstraint))
def test_a_constraint_takes_a_job_of_which_only_one_side_is_believed(
    kind: type, missing: str
) -> None:
    mask = make(kind)(job(1, **{missing: None}), cluster())
    assert np.array_equal(
        mask, make(kind)(job(1, own_slowdown=None, caused_slowdown=None), cluster())
    )


@pytest.mark.parametrize("kind", kinds(AnyScorer))
def test_a_score_is_between_0_and_1_and_follows_its_gpus(kind: type) -> None:
    scorer, gpus = make(kind), cluster()
    before = copy(gpus)
    for asked in JOBS:
        score = scorer(asked, gpus)
        assert score.shape == (len(gpus),)
        assert ((score >= 0) & (score <= 1)).all()
        assert np.array_equal(score, scorer(asked, gpus))
        if scorer.kind != "shuffled":  # it is a hash of the row itself
            shuffled = np.random.default_rng(1).permutation(len(gpus))
            assert np.allclose(scorer(asked, gpus.take(shuffled)), score[shuffled])
    assert same(gpus, before)
    assert scorer(JOBS[0], gpus.take(np.zeros(0, dtype=np.int64))).shape == (0,)


@pytest.mark.parametrize("kind", kinds(AnyOrder))
def test_an_order_ranks_the_same_jobs_alike_however_they_are_listed(kind: type) -> None:
    order = make(kind)
    names = [JOBS[i].id for i in order(JOBS, 100.0, HISTORY)]
    assert len(set(names)) == len(names)
    assert names == [JOBS[i].id for i in order(JOBS, 100.0, HISTORY)]
    backwards = JOBS[::-1]
    assert names == [backwards[i].id for i in order(backwards, 100.0, HISTORY)]
    assert order([], 0.0) == []
    assert [JOBS[:1][i].id for i in order(JOBS[:1], 0.0)] == [JOBS[0].id]


@pytest.mark.parametrize("kind", kinds(AnyGather))
def test_a_gather_takes_distinct_allowed_rows_or_none(kind: type) -> None:
    gather, gpus = make(kind), cluster()
    allowed = np.arange(12) % 5 != 0
    score = np.linspace(0, 1, 12)
    for asked in JOBS:
        rows = gather(asked, gpus, allowed, score)
        assert len(set(rows.tolist())) == asked.gpus
        assert allowed[rows].all()
    assert gather(job(2), gpus, np.zeros(12, dtype=np.bool_), score) is None


@pytest.mark.parametrize("kind", kinds(AnyGather))
def test_a_gather_follows_the_nodes_when_they_are_listed_otherwise(kind: type) -> None:
    gather, gpus = make(kind), cluster()
    allowed = np.array([True] * 4 + [True] * 3 + [False] + [True] * 2 + [False] * 2)
    score = np.linspace(0, 1, 12)
    other = np.concatenate([np.arange(4) + 4 * node for node in (2, 0, 1)])
    listed = replace(gpus.take(other), node=np.repeat(np.arange(3), 4))
    for asked in JOBS:
        rows = gather(asked, gpus, allowed, score)
        moved = other[gather(asked, listed, allowed[other], score[other])]
        assert set(moved.tolist()) == set(rows.tolist())


def board() -> Board:
    arrays = JobArrays.of(JOBS)
    made = Board.of(list(JOBS), arrays, GpuArrays.empty(np.repeat(np.arange(2), 4), np.full(8, 16)))
    made.now_s, made.history = 50.0, HISTORY
    return made


def settle(on: Board) -> list:
    """Carry the actions out in the arrays, as the owner of the board does."""
    actions = on.take_actions()
    for action in actions:
        on.arrays.running[action.job] = isinstance(action, Start)
        on.arrays.speed[action.job] = 0.8 if isinstance(action, Start) else 0.0
        on.arrays.since_s[action.job] = on.now_s
    return actions


@pytest.mark.parametrize("name", profile_names())
def test_a_profile_decides_once_and_does_not_flap(name: str) -> None:
    profile = load_profile(name)
    pipeline = profile.pipeline()

    def one_round(on: Board) -> list:
        ranked = profile.order.rank(on.arrays, np.arange(len(JOBS)), on.now_s, HISTORY)
        if not profile.dispatch.preempts:
            ranked = ranked[~on.arrays.running[ranked]]
        profile.dispatch(on, ranked, pipeline, profile.order.blocks)
        return settle(on)

    first, second = board(), board()
    decided = one_round(first)
    assert decided == one_round(second)
    assert any(isinstance(action, Start) for action in decided)
    for action in decided:
        assert isinstance(action, Start | Stop)
    for job_, rows in first.rows_of.items():
        assert len(rows) == JOBS[job_].gpus
    assert (first.gpus.jobs <= profile.max_jobs_per_gpu).all()
    # Nothing has happened since: some rounds more change nothing.
    for _ in range(3):
        assert one_round(first) == []


@pytest.mark.parametrize("name", profile_names())
def test_a_profile_starts_no_job_where_there_are_no_gpus_and_nothing_without_jobs(
    name: str,
) -> None:
    profile = load_profile(name)
    none = GpuArrays.empty(np.zeros(0, dtype=np.int64), np.zeros(0))
    on = Board.of(list(JOBS), JobArrays.of(JOBS), none)
    profile.dispatch(on, np.arange(len(JOBS)), profile.pipeline(), profile.order.blocks)
    assert on.take_actions() == []
    busy = board()
    no_rows = np.zeros(0, dtype=np.int64)
    profile.dispatch(busy, no_rows, profile.pipeline(), profile.order.blocks)
    assert busy.take_actions() == []


@pytest.mark.parametrize("kind", kinds(AnyAdjuster))
def test_an_adjuster_leaves_those_alone_who_run_well(kind: type) -> None:
    on = board()
    load_profile("best-effort").dispatch(on, np.arange(5), load_profile("fifo").pipeline(), False)
    settle(on)
    on.arrays.speed[:] = 1.0
    make(kind)(on, Pipeline(()))
    assert on.take_actions() == []


@pytest.mark.parametrize("union", [AnyOrder, AnyConstraint, AnyScorer, AnyGather, AnyDispatch,
                                   AnyAdjuster])  # fmt: skip
def test_policies_are_frozen_documented_and_refuse_unknown_parameters(union: object) -> None:
    for kind in kinds(union):
        policy = make(kind)
        assert kind.__doc__
        with pytest.raises(ValueError, match="frozen"):
            policy.kind = "other"
        with pytest.raises(ValueError, match="Extra inputs"):
            kind.model_validate(policy.model_dump() | {"no_such_parameter": 1})


@pytest.mark.parametrize("name", profile_names())
def test_a_profile_survives_yaml(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.description
    again = yaml.safe_load(yaml.safe_dump(profile.model_dump(mode="json")))
    assert Profile.model_validate(again) == profile


def test_times_of_jobs_keep_their_fractions_where_all_begin_in_whole_seconds() -> None:
    arrays = JobArrays.of([Job(id="a", queued_at_s=10, attained_gpu_seconds=5, remaining_s=60)])
    arrays.since_s[0] += 0.5
    arrays.attained_at_since[0] += 0.5
    arrays.remaining_at_since[0] -= 0.5
    rows = np.array([0])
    assert arrays.remaining_s(rows, now_s=11.0).tolist() == [59.5]
    assert arrays.attained_gpu_s(rows, now_s=11.0).tolist() == [5.5]
    assert arrays.since_s.tolist() == [10.5]
