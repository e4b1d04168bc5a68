"""The compiled cycle of `share` against the same cycle in Python: same actions, same board."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.policy.board import Board, Start
from tandem.policy.catalog import load_profile
from tandem.policy.cluster import LOAD_COLUMNS, GpuArrays
from tandem.policy.compiled import cycle
from tandem.policy.compiled.cycle import compiled_cycle
from tandem.policy.compiled.front import front
from tandem.policy.compiled.library import library
from tandem.policy.constraints.interference import Interference, Utilisation
from tandem.policy.constraints.memory import MemoryCollision
from tandem.policy.dispatch.preempt import front_in_python
from tandem.policy.dispatch.share import Share
from tandem.policy.equations.horus import GTX_1080, RTX_2080
from tandem.policy.job import UNKNOWN, Job
from tandem.policy.jobs import History, JobArrays
from tandem.policy.pipeline import Pipeline
from tandem.policy.scorers.horus_cost import HorusCost
from tandem.policy.scorers.sharing import InUseFirst
from tandem.policy.units import Bools, Ints

CLASSES = 7
CONSTRAINTS = load_profile("tandem").rules
DISPATCHES = (
    Share(),
    Share(min_speed=0.73, demands_tried=16),
    Share(share=False, learn=False, aging=0.0, gang_weight=0.0),
    Share(
        aging=1.0,
        gang_weight=20.0,
        min_gain=0.0,
        preempt_factor=1.2,
        move_cost_s=1.0,
        move_below_speed=1.0,
    ),
    Share(turn_share=0.5, move_cost_s=1.0, demands_tried=2, equal_worth=0.3),
    Share(best_pair=False, locality=False, turn_share=None),
    Share(preempt_factor=None, move_cost_s=None),
)


@dataclass(frozen=True, slots=True)
class Elsewhere(Pipeline):
    """A pipeline in which some jobs have nodes, GPUs or neighbours that they do without."""

    nodes: Mapping[int, Bools] | None = None
    apart: Mapping[int, Ints] | None = None
    most: Mapping[int, Ints] | None = None

    def limits(self) -> Mapping[int, Ints]:
        return self.most or {}

    def elsewhere(self) -> tuple[Mapping[int, Bools], Mapping[int, Ints]]:
        return self.nodes or {}, self.apart or {}

    def narrowed_each(
        self, among: Bools, jobs: Any, demands: Any, gpus: GpuArrays
    ) -> Bools:  # as the pipeline of a cluster
        may = among.copy()
        for row, job in enumerate(jobs):
            if self.nodes and job.where in self.nodes:
                may[row] &= self.nodes[job.where][gpus.node]
            if self.most and job.where in self.most:
                may[row] &= gpus.place < self.most[job.where][gpus.node]
            if self.apart and job.where in self.apart:
                may[row] &= ~np.isin(gpus.residents, self.apart[job.where]).any(axis=1)
        return super(Elsewhere, self).narrowed_each(may, jobs, demands, gpus)


def random_jobs(rng: np.random.Generator, count: int, *, pods_of: int) -> list[Job]:
    table = rng.uniform(0.02, 1.0, (CLASSES, CLASSES))
    table[0] = table[:, 0] = 0.0
    table[UNKNOWN, 1:] = table[1:, UNKNOWN] = np.inf
    jobs = []
    for index in range(count):
        kind = int(rng.integers(UNKNOWN, CLASSES))
        known = kind != UNKNOWN
        pods = int(rng.choice([1, 1, 1, 2, 3, 5]))
        each = pods_of if pods > 1 else 1
        jobs.append(
            Job(
                id=f"{index:03}", pods=pods, gpus_per_pod=each,
                memory_base_gib=float(rng.choice([1.0, 3.0, 6.0])),
                memory_peak_extra_gib=float(rng.choice([0.0, 2.0, 5.0])),
                peak_probability=float(rng.choice([0.0, 0.2, 0.2, 1.0])),
                peak_measured=bool(rng.random() < 0.5),
                gpu_utilisation=float(rng.choice([30.0, 60.0])),
                exclusive=bool(rng.random() < 0.1),
                checkpointable=bool(rng.random() < 0.9),
                queued_at_s=float(rng.uniform(-20_000, 0)),
                attained_gpu_seconds=float(rng.exponential(3000.0)),
                spread_slowdown=float(rng.choice([0.0, 0.3])) if pods > 1 else 0.0,
                where=int(rng.integers(0, 4)),
                interference_class=kind,
                own_slowdown=table[kind] if known else None,
                caused_slowdown=table[:, kind] if known else None,
            )
        )  # fmt: skip
    return jobs


def random_board(seed: int, *, slots: int, pods_of: int, large: int = 1) -> tuple[Board, Pipeline]:
    """A board at some moment: jobs run, on crowded and on empty GPUs, and others wait."""
    rng = np.random.default_rng(seed)
    rows = large * int(rng.integers(4, 17))
    count = large * int(rng.integers(4, 41))
    jobs = random_jobs(rng, count, pods_of=pods_of)
    empty = GpuArrays.empty(
        np.arange(rows) // 4,
        rng.choice([16.0, 16.0, 24.0, 0.0], rows, p=[0.3, 0.3, 0.3, 0.1]),  # 0: without a size
        shares=int(rng.integers(1, slots + 1)),
        slots=slots,
    )
    gpus = replace(
        empty,
        guarded=rng.random(rows) < 0.5,
        sliced=np.random.default_rng(seed + 1).random(rows) < 0.3,
        compute=np.random.default_rng(seed + 2).choice([1 / 7, 3 / 7, 1.0], rows),
        healthy=rng.random(rows) < 0.9,
        fresh=rng.random(rows) < 0.9,
        over_commit=np.array([GTX_1080, RTX_2080])[rng.integers(2, size=rows)],
        place=rng.permuted(np.tile(np.arange(4), (-(-rows // 4), 1)), axis=1).ravel()[:rows],
    )  # fmt: skip
    board = Board.of(jobs, JobArrays.of(jobs), gpus)
    board.arrays.queue[:] = rng.integers(int(rng.choice([1, 2, 4])), size=count)
    # Nodes without GPUs come after those with some, as in a cluster where an agent never reported.
    nodes = {where: rng.random(-(-rows // 4) + 2) < 0.6 for where in (1, 3)}
    apart = {where: rng.integers(count, size=where) for where in (2, 3)}
    most = {where: rng.integers(5, size=-(-rows // 4) + 2) for where in (1, 2)}
    strict = rng.random() < 0.2
    bound = Interference(max_interference=float(rng.choice([0.3, 0.6, 1.0])))
    rest = tuple(
        MemoryCollision(strict=True) if each.kind == "memory_collision" and strict else each
        for each in CONSTRAINTS
        if each.kind != bound.kind
    )
    more = [each for each in (Utilisation(), bound) if rng.random() < 0.4]
    scorers = [HorusCost(), HorusCost(weight=3.0, memory_weight=0.2), InUseFirst()]
    chosen = [each for each in scorers if rng.random() < 0.5]
    if len(chosen) > 1 and chosen[0].kind == chosen[1].kind:
        del chosen[1]
    pipeline = Elsewhere((*rest, *more), tuple(chosen), nodes=nodes, apart=apart, most=most)
    fits = Pipeline(CONSTRAINTS)
    for index in rng.permutation(count)[: count // 2].tolist():
        allowed = np.flatnonzero(fits.allowed(jobs[index], board.gpus))
        if len(allowed) < jobs[index].gpus or pods_of > 1:
            continue
        board.place(index, rng.permutation(allowed)[: jobs[index].gpus])
        board.arrays.running[index] = True
        board.arrays.speed[index] = 1.0
    board.pinned.update(i for i in board.rows_of if rng.random() < 0.1)
    ended = rng.exponential(4000.0, 12)
    board.history = History(ended, rng.choice([1, 2, 3], 12))
    return board, pipeline


def copied(board: Board) -> Board:
    """A board of its own, in the same state."""
    board.compiled = None
    new = copy.deepcopy(board, {id(board.jobs): list(board.jobs)})
    new.gpus = GpuArrays(**{name: column.view() for name, column in new.columns.items()})
    return new


def states(board: Board) -> dict[str, Any]:
    """What a cycle may change, comparable."""
    running = sorted(board.rows_of)
    return {
        **{name: board.columns[name] for name in LOAD_COLUMNS},
        "rate": board.rate, "seen_rate": board.seen_rate,
        "seen_queue": board.seen_queue, "on_gpus": board.on_gpus,
        "changed": board.changed, "untried": board.untried,
        "predicted_speed": board.predicted_speed[[j for j in running if j not in board.stale]],
        "spread_speed": board.spread_speed[running], "stale": sorted(board.stale),
        "rows": [row for job in running for row in (job, *board.rows_of[job].tolist())],
        "residents": [j for there in board.residents_of for j in (*there, -1)],
        "empty": board.empty,
    }  # fmt: skip


def assert_same_cycle(dispatch: Share, board: Board, pipeline: Pipeline, ranked: Ints) -> None:
    """Let both act on copies, then go on with what the compiled cycle did."""
    twin = copied(board)
    compiled = compiled_cycle(board, pipeline)
    assert compiled is not None
    assert compiled.share(dispatch, board, ranked)
    dispatch.in_python(twin, ranked, pipeline)
    assert board.actions == twin.actions
    for (name, mine), other in zip(states(board).items(), states(twin).values(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-15, err_msg=name)


boards = given(
    seed=st.integers(0, 1_000_000),
    slots=st.integers(1, 4),
    pods_of=st.sampled_from([1, 1, 1, 2]),
    dispatch=st.sampled_from(DISPATCHES),
)


@boards
@settings(max_examples=25, deadline=None)
def test_a_compiled_cycle_is_the_cycle_in_python(
    seed: int, slots: int, pods_of: int, dispatch: Share
) -> None:
    board, pipeline = random_board(seed, slots=slots, pods_of=pods_of)
    assert_same_cycles(seed, dispatch, board, pipeline)


@pytest.mark.slow
@boards
@settings(max_examples=400, deadline=None)
def test_many_compiled_cycles_are_those_in_python(
    seed: int, slots: int, pods_of: int, dispatch: Share
) -> None:
    board, pipeline = random_board(seed, slots=slots, pods_of=pods_of)
    assert_same_cycles(seed, dispatch, board, pipeline)


@pytest.mark.slow
def test_a_large_board_is_too() -> None:
    """What a cycle works out is more than fits in one piece of its memory."""
    for seed, dispatch in enumerate(DISPATCHES[:3]):
        board, pipeline = random_board(seed, slots=2, pods_of=1, large=60)
        assert_same_cycles(seed, dispatch, board, pipeline)


def assert_same_cycles(seed: int, dispatch: Share, board: Board, pipeline: Pipeline) -> None:
    """Let jobs start, stop and end for some cycles."""
    rng = np.random.default_rng(seed)
    for _ in range(4):  # what a cycle leaves is where the next one begins
        ranked = rng.permutation(len(board.jobs))
        # Some are on GPUs and in no queue, as pods that no gang is known of are in a cluster.
        ranked = ranked[~(board.on_gpus[ranked] & (rng.random(len(ranked)) < 0.1))]
        assert_same_cycle(dispatch, board, pipeline, ranked)
        for action in board.take_actions():
            running = isinstance(action, Start)
            board.arrays.running[action.job] = running
            board.arrays.since_s[action.job] = board.now_s
        board.arrays.queue[rng.random(len(board.jobs)) < 0.1] += 1
        board.now_s += float(rng.exponential(2000.0))
        for job in list(board.rows_of):
            if rng.random() < 0.2:
                board.remove(job)
                board.pinned.discard(job)
                board.arrays.running[job] = False


def test_a_board_that_is_too_crowded_is_left_to_python() -> None:
    board, pipeline = random_board(3, slots=2, pods_of=1)
    board.columns["jobs"][0] = 3
    compiled = compiled_cycle(board, pipeline)
    assert compiled is not None
    before = copied(board)
    assert not compiled.share(Share(), board, np.arange(len(board.jobs)))
    for mine, other in zip(states(board).values(), states(before).values(), strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("name", ["ojpp", "c-greedy"])
def test_constraints_without_a_compiled_form_are_left_to_python(name: str) -> None:
    board, _ = random_board(4, slots=2, pods_of=1)
    pipeline = load_profile(name).pipeline()
    has_form = all(
        policy.compiled() is not None for policy in (*pipeline.constraints, *pipeline.scorers)
    )
    assert (compiled_cycle(board, pipeline) is not None) == has_form


def test_a_field_that_the_kernel_does_not_have_is_an_error() -> None:
    class Misspelt(Utilisation):
        def compiled(self) -> Mapping[str, float] | None:
            return {"max_utilization": 90.0}

    board, pipeline = random_board(5, slots=2, pods_of=1)
    pipeline = replace(pipeline, constraints=(*pipeline.constraints, Misspelt()))
    with pytest.raises(AttributeError, match="max_utilization"):
        compiled_cycle(board, pipeline)


class WithOneMore:
    """The kernel, whose list of fields has a column at its end that Python does not know."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def tandem_cycle_fields(self) -> bytes:
        fields: bytes = self._kernel.tandem_cycle_fields()
        return fields + b"const double * newcomer;"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)


def test_a_column_of_the_kernel_that_is_never_set_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = WithOneMore(library())
    monkeypatch.setattr(cycle, "library", lambda: kernel)
    board, pipeline = random_board(6, slots=2, pods_of=1)
    compiled = compiled_cycle(board, pipeline)
    assert compiled is not None
    with pytest.raises(RuntimeError, match=r"not set: \['newcomer'\]"):
        compiled.share(Share(), board, np.arange(len(board.jobs)))


@pytest.mark.parametrize("learn", [True, False])
def test_no_column_of_a_cycle_is_a_null_pointer(learn: bool) -> None:
    board, pipeline = random_board(7, slots=2, pods_of=1)
    compiled = compiled_cycle(board, pipeline)
    assert compiled is not None
    assert compiled.share(Share(learn=learn), board, np.arange(len(board.jobs)))
    for name in compiled._dtypes:
        assert getattr(compiled._at, name), name


@pytest.mark.long
@boards
@settings(max_examples=25, deadline=None)
def test_of_two_bounds_on_interference_the_lower_one_is_compiled(
    seed: int, slots: int, pods_of: int, dispatch: Share
) -> None:
    board, pipeline = random_board(seed, slots=slots, pods_of=pods_of)
    lower = Interference(max_interference=0.3)
    for constraints in ((*pipeline.constraints, lower), (lower, *pipeline.constraints)):
        both = replace(pipeline, constraints=constraints)
        assert_same_cycles(seed, dispatch, copied(board), both)


@given(seed=st.integers(0, 1_000_000), jobs=st.integers(1, 60), free=st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_the_compiled_front_of_an_order_is_the_front_in_python(
    seed: int, jobs: int, free: int
) -> None:
    rng = np.random.default_rng(seed)
    arrays = JobArrays.of([Job(id=str(i), pods=int(rng.integers(1, 9))) for i in range(jobs)])
    arrays.running[:] = rng.random(jobs) < 0.5
    ranked = rng.permutation(jobs)
    occupied = int(arrays.running.sum())
    assert front(ranked, arrays, free, occupied) == front_in_python(ranked, arrays, free, occupied)
