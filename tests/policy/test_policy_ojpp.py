"""[OJPP]'s placement and repair: one scenario a profile, and its bounds recounted the slow way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.policy.adjust.migrate import Migrate, measured_interference
from tandem.policy.board import Board, Start, Stop
from tandem.policy.catalog import Profile, load_profile
from tandem.policy.cluster import GpuArrays
from tandem.policy.constraints.balance import Balance
from tandem.policy.job import Job, Placing
from tandem.policy.jobs import JobArrays

DEVICE_GIB = 10.0
A, B, C = 2, 3, 4  # classes of interference after empty slot and unknown
QUIET = {(A, A): 0.05, (A, B): 0.1, (B, A): 0.1, (B, B): 0.15, (C, C): 0.05}


def matrix(pairs: dict[tuple[int, int], float], other: float = 0.5) -> np.ndarray:
    """(5, 5) slowdown of row next to column; 0 with an empty slot, infinite with the unknown."""
    table = np.full((5, 5), other)
    table[1, :], table[:, 1] = np.inf, np.inf
    table[0, :], table[:, 0] = 0.0, 0.0
    for pair, value in pairs.items():
        table[pair] = value
    return table


def job(name: str, kind: int = A, workers: int = 1, **more: object) -> Job:
    table = more.pop("table", matrix(QUIET))
    values = {
        "pods": workers,
        "memory_base_gib": 1.0,
        "memory_peak_extra_gib": 2.0,
        "peak_probability": 0.1,
        "gpu_utilisation": 20.0,
        "checkpointable": True,
        "interference_class": kind,
        "own_slowdown": table[kind],
        "caused_slowdown": table[:, kind],
        **more,
    }
    return Job(id=name, **values)


def board_of(jobs: list[Job], devices: int, **placed: list[int]) -> Board:
    gpus = GpuArrays.empty(
        np.zeros(devices, dtype=np.int64), np.full(devices, DEVICE_GIB), shares=16, slots=16
    )
    board = Board.of(jobs, JobArrays.of(jobs), gpus)
    names = [j.id for j in jobs]
    for name, rows in placed.items():
        board.place(names.index(name), np.array(rows))
    return board


def run(profile: str | Profile, board: Board) -> dict[str, list[int]]:
    """One round; who was started where, in the order of the starts."""
    chosen = load_profile(profile) if isinstance(profile, str) else profile
    waiting = [i for i in range(len(board.jobs)) if i not in board.rows_of]
    ranked = [waiting[i] for i in chosen.order([board.jobs[i] for i in waiting], 0.0)]
    chosen.dispatch(board, np.array(ranked, dtype=np.int64), chosen.pipeline(), False)
    actions = board.take_actions()
    assert all(isinstance(action, Start) for action in actions)
    again = [i for i in ranked if i not in board.rows_of]
    chosen.dispatch(board, np.array(again, dtype=np.int64), chosen.pipeline(), False)
    assert board.take_actions() == [], "a second round with nothing new changes nothing"
    return {board.jobs[action.job].id: list(action.rows) for action in actions}


def test_best_fit_fills_the_fullest_gpu_with_room_whatever_it_slows_down() -> None:
    jobs = [
        job("small", A, gpu_utilisation=20.0),
        job("large", C, gpu_utilisation=60.0),
        job("new", A, workers=2),
    ]
    # 60 + 20 + 20 fill one GPU: both workers of the new job share it with one they harm.
    assert run("best-fit", board_of(jobs, 3, small=[0], large=[1])) == {"new": [1, 1]}


def test_best_fit_takes_the_most_demanding_job_first() -> None:
    jobs = [job("light", gpu_utilisation=30.0), job("heavy", gpu_utilisation=90.0)]
    assert list(run("best-fit", board_of(jobs, 2))) == ["heavy", "light"]


def test_i_greedy_opens_a_gpu_rather_than_pass_the_bound_on_interference() -> None:
    jobs = [job("there", C), job("new", A)]
    assert run("i-greedy", board_of(jobs, 2, there=[0])) == {"new": [1]}
    assert run("best-fit", board_of(jobs, 2, there=[0])) == {"new": [0]}


def test_b_greedy_does_not_slow_down_one_worker_of_a_job_alone() -> None:
    jobs = [job("pair", C, workers=2), job("new", A)]
    assert run("b-greedy", board_of(jobs, 3, pair=[0, 1])) == {"new": [2]}
    # A job of one worker has no other to differ from, so it may be slowed down.
    jobs = [job("one", C), job("new", A)]
    assert run("b-greedy", board_of(jobs, 2, one=[0])) == {"new": [0]}


def test_c_greedy_opens_a_gpu_rather_than_risk_a_collision() -> None:
    # One peak fits in 10 GiB with both bases, and both peaks do not.
    peaks = {"peak_probability": 0.5, "memory_peak_extra_gib": 5.0}
    jobs = [job("there", **peaks), job("new", **peaks)]
    assert run("c-greedy", board_of(jobs, 2, there=[0])) == {"new": [1]}


def test_ojpp_places_the_least_gregarious_last() -> None:
    jobs = [
        job("peaky", peak_probability=0.3),
        job("calm", peak_probability=0.05),
        job("mild", peak_probability=0.1),
    ]
    assert list(run("ojpp", board_of(jobs, 3))) == ["calm", "mild", "peaky"]


def test_ojpp_packs_workers_of_one_job_together_where_all_bounds_allow() -> None:
    assert run("ojpp", board_of([job("gang", A, workers=4)], 4)) == {"gang": [0, 0, 0, 1]}


def test_ojpp_keeps_a_job_balanced_that_has_a_worker_alone() -> None:
    # Two of B on a GPU lose 0.15 each; the third is alone, and 0.15 is more than 0.1 from it.
    assert run("ojpp", board_of([job("gang", B, workers=3)], 4)) == {"gang": [0, 1, 2]}


def test_a_gang_without_a_place_for_each_worker_waits_and_leaves_no_trace() -> None:
    board = board_of([job("gang", B, workers=3)], 2)
    before = {name: column.copy() for name, column in board.columns.items()}
    assert run("ojpp", board) == {}
    assert all((before[name] == column).all() for name, column in board.columns.items())


def test_an_exclusive_gang_does_not_even_share_with_itself() -> None:
    board = board_of([job("gang", A, workers=2, exclusive=True)], 3)
    assert run("best-fit", board) == {"gang": [0, 1]}


# --- repair ---------------------------------------------------------------------------------------


def disturbed(**more: object) -> Board:
    """A and B share GPU 0 and slow each other down by half; A's on GPU 1 has room next to it."""
    jobs = [job("a", A, memory_base_gib=2.0, **more), job("b", B, **more), job("free", A)]
    board = board_of(jobs, 3, a=[0], b=[0], free=[1])
    board.arrays.speed[:] = [1 / 1.5, 1 / 1.5, 1.0]
    return board


def look(board: Board, **changes: object) -> list[object]:
    profile = load_profile("ojpap")
    assert isinstance(profile.adjust, Migrate)
    adjust = Migrate.model_validate({**profile.adjust.model_dump(), **changes})
    adjust(board, profile.pipeline())
    return list(board.take_actions())


def test_ojpap_moves_the_cheapest_worker_off_the_worst_gpu_and_then_rests() -> None:
    board = disturbed()
    assert measured_interference(board) == pytest.approx([0.5, 0.0, 0.0])
    # b has the least memory to move; GPU 2 is empty, and empty GPUs are no targets.
    assert look(board) == [Stop(1), Start(1, (1,))]
    board.arrays.speed[:] = [1.0, 1 / 1.1, 1 / 1.1]
    assert [look(board) for _ in range(5)] == [[]] * 5


def test_a_short_disturbance_moves_no_job() -> None:
    board = disturbed()
    assert look(board, weight_of_past=0.7) == []  # 0.3 x 0.5 = 0.15
    board.arrays.speed[:] = 1.0
    assert [look(board, weight_of_past=0.7) for _ in range(5)] == [[]] * 5
    board.arrays.speed[:2] = 1 / 1.5
    assert look(board, weight_of_past=0.7) == []
    assert look(board, weight_of_past=0.7) == [Stop(1), Start(1, (1,))]  # it lasts


def test_what_cannot_be_paid_or_saved_or_placed_stays() -> None:
    assert look(disturbed(), max_migration_cost_s=0.5) == []
    assert look(disturbed(checkpointable=False)) == []
    board = disturbed()
    board.jobs[2] = replace(board.jobs[2], gpu_utilisation=90.0)
    board.remove(2)
    board.place(2, np.array([1]))
    assert look(board) == []  # 90 + 20 is more than one GPU


def test_only_one_worker_of_a_gang_moves_a_look() -> None:
    jobs = [job("gang", B, 2), job("x", A, memory_base_gib=3.0), job("y", A, memory_base_gib=3.0),
            job("free", A), job("too", A)]  # fmt: skip
    board = board_of(jobs, 4, gang=[0, 1], x=[0], y=[1], free=[2], too=[3])
    board.arrays.speed[:] = [1 / 1.5, 1 / 1.5, 1 / 1.5, 1.0, 1.0]
    stopped = [action.job for action in look(board) if isinstance(action, Stop)]
    assert len(stopped) == len(set(stopped)) == 2


# --- the bounds, recounted ----------------------------------------------------------------------

Jobs = st.lists(
    st.tuples(
        st.sampled_from([A, B, C]), st.integers(1, 4), st.floats(5, 60), st.floats(0, 0.4),
        st.floats(0.2, 4), st.floats(0, 4),
    ),
    min_size=1, max_size=8,
)  # fmt: skip
Tables = st.lists(st.floats(0, 0.4), min_size=9, max_size=9)


def drawn(
    rows: list[tuple[int, int, float, float, float, float]], values: list[float]
) -> list[Job]:
    table = matrix({(2 + i // 3, 2 + i % 3): v for i, v in enumerate(values)})
    return [
        job(
            f"j{i}", kind, workers, table=table, gpu_utilisation=busy, peak_probability=p,
            memory_base_gib=base, memory_peak_extra_gib=extra,
        )
        for i, (kind, workers, busy, p, base, extra) in enumerate(rows)
    ]  # fmt: skip


def slowdowns(board: Board) -> dict[int, list[tuple[int, float]]]:
    """Of each job, its workers' GPUs and slowdowns, by walking all pairs."""
    on_row: dict[int, list[int]] = {}
    for index, rows in board.rows_of.items():
        for row in rows.tolist():
            on_row.setdefault(row, []).append(index)
    found: dict[int, list[tuple[int, float]]] = {}
    for row, there in on_row.items():
        for i, index in enumerate(there):
            own = board.jobs[index].own_slowdown
            assert own is not None
            total = sum(
                own[board.jobs[o].interference_class] for j, o in enumerate(there) if j != i
            )
            found.setdefault(index, []).append((row, float(total)))
    return found


@settings(max_examples=60)
@given(Jobs, Tables)
def test_ojpp_never_passes_any_of_its_bounds(
    rows: list[tuple[int, int, float, float, float, float]], values: list[float]
) -> None:
    jobs = drawn(rows, values)
    board = board_of(jobs, sum(j.gpus for j in jobs))
    run("ojpp", board)
    assert len(board.rows_of) == len(jobs), "an empty GPU for each worker: no job need wait"
    found = slowdowns(board)
    for workers in found.values():
        own = [slowdown for _, slowdown in workers]
        assert max(own) <= 0.2 + 1e-9
        assert max(own) - min(own) <= 0.1 + 1e-9
    for row in range(len(board.gpus)):
        there = [jobs[i] for i in board.residents_of[row]]
        assert sum(j.gpu_utilisation for j in there) <= 100 + 1e-9
        peak = max((j.memory_peak_extra_gib for j in there), default=0.0)
        assert sum(j.memory_base_gib for j in there) + peak <= DEVICE_GIB + 1e-9
        none = np.prod([1 - j.peak_probability for j in there])
        one = sum(
            j.peak_probability
            * np.prod([1 - o.peak_probability for k, o in enumerate(there) if k != i])
            for i, j in enumerate(there)
        )
        # Eq. 4 is about peaks that do not fit together.
        together = sum(j.memory_base_gib + j.memory_peak_extra_gib for j in there)
        assert 1 - none - one <= 0.1 + 1e-9 or together <= DEVICE_GIB


@settings(max_examples=60)
@given(Jobs, Tables, st.integers(1, 5), st.data())
def test_balance_agrees_with_trying_each_gpu(
    rows: list[tuple[int, int, float, float, float, float]],
    values: list[float],
    devices: int,
    data: st.DataObject,
) -> None:
    jobs = drawn(rows, values)
    board = board_of(jobs, devices)
    for index, j in enumerate(jobs):
        at = data.draw(st.lists(st.integers(0, devices - 1), min_size=j.gpus, max_size=j.gpus))
        board.place(index, np.array(at))
    new = 0
    held = board.rows_of[new][:-1]  # all but its last worker are placed
    board.remove(new)
    if len(held):
        board.place(new, held)
    trying = replace(jobs[new], placing=Placing(new))
    fast = Balance(max_imbalance=0.1)(trying, board.gpus)
    for row in range(devices):
        trial = board_of(jobs, devices)
        for index, at in board.rows_of.items():
            if index != new:
                trial.place(index, at)
        trial.place(new, np.append(held, row))
        spreads = [
            max(s for _, s in workers) - min(s for _, s in workers)
            for workers in slowdowns(trial).values()
            if any(r == row for r, _ in workers)
        ]
        if abs(max(spreads) - 0.1) > 1e-9:
            assert fast[row] == (max(spreads) <= 0.1)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_a_job_may_be_on_a_gpu_several_times_and_leaves_it_as_it_was(at: list[int]) -> None:
    jobs = [job("gang", B, workers=len(at)), job("other", A)]
    board = board_of(jobs, 4, other=[0])
    before = {name: column.copy() for name, column in board.columns.items()}
    board.place(0, np.array(at))
    assert [board.residents_of[row].count(0) for row in range(4)] == [at.count(r) for r in range(4)]
    board.remove(0)
    assert all((before[name] == column).all() for name, column in board.columns.items())
    assert board.residents_of == [[1], [], [], []]
    assert board.empty == 3
