"""What `share` works out with arrays, against the same worked out job by job and GPU by GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.policy.board import Board
from tandem.policy.catalog import load_profile
from tandem.policy.cluster import GpuArrays
from tandem.policy.dispatch.fill import fill
from tandem.policy.dispatch.swap import Swaps
from tandem.policy.dispatch.valuation import Valuation, cheap_enough
from tandem.policy.equations.turns import shares_well
from tandem.policy.job import Job
from tandem.policy.jobs import JobArrays

CLASSES, ROWS, JOBS = 6, 6, 14
PIPELINE = load_profile("tandem").pipeline()


def a_board(seed: int, shares: int, running: int = JOBS // 2) -> Board:
    """A board on which some jobs, gangs among them, run next to others."""
    rng = np.random.default_rng(seed)
    table = rng.uniform(0.05, 1.2, (CLASSES, CLASSES))
    table[0] = table[:, 0] = 0.0
    jobs = []
    for index in range(JOBS):
        kind = int(rng.integers(2, CLASSES))
        jobs.append(
            Job(
                id=f"{index:02}",
                pods=int(rng.choice([1, 1, 2, 3])),
                memory_base_gib=float(rng.uniform(1, 5)),
                memory_peak_extra_gib=float(rng.uniform(0, 2)),
                peak_probability=float(rng.uniform(0, 0.3)),
                exclusive=bool(rng.random() < 0.1),
                checkpointable=True,
                interference_class=kind,
                own_slowdown=table[kind],
                caused_slowdown=table[:, kind],
            )
        )
    gpus = GpuArrays.empty(np.arange(ROWS) // 2, np.full(ROWS, 16.0), shares=shares)
    board = Board.of(jobs, JobArrays.of(jobs), gpus)
    board.arrays.queue[:] = rng.integers(0, 1 + seed % 3, JOBS)
    for index in range(running):
        allowed = np.flatnonzero(PIPELINE.allowed(jobs[index], board.gpus))
        if len(allowed) >= jobs[index].gpus:
            rows = np.sort(rng.permutation(allowed)[: jobs[index].gpus])
            board.start(index, rows)
            board.arrays.running[index] = True
    board.rate[:] = rng.uniform(0.1, 2.0, JOBS)
    return board


def a_valuation(board: Board, equal_worth: float = 0.0) -> Valuation:
    return Valuation(
        board, board.rate, PIPELINE, shares=True, min_speed=0.0, equal_worth=equal_worth
    )


def slowdown(board: Board, job: int, row: int, residents: list[int]) -> float:
    own = board.jobs[job].own_slowdown
    assert own is not None
    return sum(float(own[board.jobs[k].interference_class]) for k in residents if k != job)


def speed(board: Board, job: int) -> float:
    rows = board.rows_of[job].tolist()
    return 1 / (1 + max(slowdown(board, job, row, board.residents_of[row]) for row in rows))


def total(board: Board) -> float:
    """What all running jobs yield."""
    return sum(float(board.rate[j]) * speed(board, j) * board.jobs[j].gpus for j in board.rows_of)


def with_job(board: Board, job: int, rows: list[int]) -> float:
    """What all yield once `job` has started on `rows`."""
    board.place(job, np.array(rows))
    found = total(board)
    board.remove(job)
    return found


boards = given(seed=st.integers(0, 10_000), shares=st.integers(2, 3))


@boards
@settings(max_examples=40, deadline=None)
def test_offers_agree_with_one_job_on_one_gpu_at_a_time(seed: int, shares: int) -> None:
    board = a_board(seed, shares)
    waiting = np.array([j for j in range(JOBS) if j not in board.rows_of])
    valuation = a_valuation(board)
    rows = valuation.open_rows()
    assert rows.tolist() == [r for r in range(ROWS) if len(board.residents_of[r]) < shares]
    offers = valuation.offers(waiting, rows)
    for i, job in enumerate(waiting.tolist()):
        allowed = PIPELINE.allowed(board.jobs[job], board.gpus)[rows]
        assert offers.allowed[i].tolist() == allowed.tolist()
        for at, row in enumerate(rows.tolist()):
            there = board.residents_of[row]
            assert offers.speed[i, at] == pytest.approx(1 / (1 + slowdown(board, job, row, there)))
            loss = slowed = 0.0
            for other in there:
                theirs = 1 / (1 + slowdown(board, other, row, [*there, job]))
                lost = max(speed(board, other) - theirs, 0.0)
                size = board.jobs[other].gpus
                slowed += lost
                loss += float(board.rate[other]) * lost * size / min(size, board.jobs[job].gpus)
            assert offers.loss[i, at] == pytest.approx(loss)
            assert offers.slowed[i, at] == pytest.approx(slowed)


@boards
@settings(max_examples=40, deadline=None)
def test_the_gain_of_a_job_of_one_gpu_is_what_all_yield_more(seed: int, shares: int) -> None:
    board = a_board(seed, shares)
    valuation = a_valuation(board)
    offers = valuation.offers(np.arange(JOBS // 2, JOBS), valuation.open_rows())
    now = total(board)
    for i, job in enumerate(offers.jobs.tolist()):
        place, gain = offers.best(i)
        if place is not None and board.jobs[job].gpus == 1:
            assert with_job(board, job, place.tolist()) - now == pytest.approx(gain)


@boards
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("running", [0, JOBS // 2])
def test_a_start_renews_what_it_changes_and_nothing_else(
    seed: int, shares: int, running: int
) -> None:
    board = a_board(seed, shares, running)
    valuation = a_valuation(board)
    waiting = np.array([j for j in range(JOBS) if j not in board.rows_of])
    offers = valuation.offers(waiting, valuation.open_rows())
    for i in range(len(waiting)):
        place, _ = offers.best(i)
        if place is None:
            continue
        board.start(int(waiting[i]), place)
        offers.renew(int(waiting[i]))
        anew = valuation.offers(waiting, offers.rows)
        live = offers.allowed.any(axis=1)
        for column in ("speed", "loss", "slowed", "present", "worth"):
            assert np.allclose(getattr(offers, column), getattr(anew, column)), column
        assert (offers.allowed[live] == anew.allowed[live]).all()
        return


def filled_one_by_one(board: Board, equal_worth: float) -> list[tuple[int, tuple[int, ...]]]:
    """Start jobs, queue by queue, greatest gain per GPU first, places worked out anew each time.

    It ends where no other job gains anything, though a start may have changed that.
    """
    done: list[tuple[int, tuple[int, ...]]] = []
    valuation = a_valuation(board)
    rows = valuation.open_rows()
    waiting = [j for j in range(JOBS) if j not in board.rows_of and board.jobs[j].gpus <= len(rows)]
    while waiting:
        valuation = a_valuation(board, equal_worth)
        ahead: tuple[float, float, int, list[int]] = (-np.inf, 0.0, 0, [])
        gain_somewhere = set()
        for job in waiting:
            offers = valuation.offers(np.array([job]), rows)
            if (offers.gains(np.array([0]), np.arange(len(rows))) > 0).any():
                gain_somewhere.add(job)
            place, gain = offers.best(0, score=PIPELINE.score(board.jobs[job], board.gpus)[rows])
            queue = -float(board.arrays.queue[job])
            if place is not None and (queue, gain / len(place)) > ahead[:2]:
                ahead = (queue, gain / len(place), job, place.tolist())
        *_, job, found = ahead
        if not found:
            break
        board.start(job, np.array(found))
        done.append((job, tuple(sorted(found))))
        waiting.remove(job)
        if not gain_somewhere - {job}:
            break
    return done


@pytest.mark.long
@boards
@settings(max_examples=150, deadline=None)
@pytest.mark.parametrize("equal_worth", [0.0, 0.2])
def test_free_shares_go_to_the_same_jobs_as_when_all_is_worked_out_anew(
    seed: int, shares: int, equal_worth: float
) -> None:
    board, other = a_board(seed, shares, running=3), a_board(seed, shares, running=3)
    waiting = np.array([j for j in range(JOBS) if j not in board.rows_of])
    waiting = waiting[np.lexsort((-board.rate[waiting], board.arrays.queue[waiting]))]
    started = fill(a_valuation(board, equal_worth), waiting, most=JOBS, best_pair=True)
    expected = filled_one_by_one(other, equal_worth)
    assert sorted(waiting[started].tolist()) == sorted(job for job, _ in expected)
    for job, rows in expected:
        assert tuple(sorted(board.rows_of[job].tolist())) == rows


@boards
@settings(max_examples=40, deadline=None)
def test_where_a_job_would_go_without_some_is_where_it_goes_when_they_have_left(
    seed: int, shares: int
) -> None:
    board = a_board(seed, shares)
    gone = np.zeros(JOBS, dtype=np.bool_)
    gone[list(board.rows_of)[:2]] = True
    places = [a_valuation(board).best_without(job, gone) for job in range(JOBS // 2, JOBS)]
    for job in np.flatnonzero(gone).tolist():
        board.remove(job)
    valuation = a_valuation(board)
    left = valuation.offers(np.arange(JOBS // 2, JOBS), valuation.open_rows())
    for i, place in enumerate(places):
        expected, _ = left.best(i)
        assert (place is None) == (expected is None)
        if place is not None and expected is not None:
            assert place.tolist() == expected.tolist()


@boards
@settings(max_examples=40, deadline=None)
def test_a_move_of_a_job_of_one_gpu_gains_what_is_said(seed: int, shares: int) -> None:
    board = a_board(seed, shares)
    valuation = a_valuation(board)
    movers = np.array([j for j in board.rows_of if board.jobs[j].gpus == 1], dtype=np.int64)
    rows = valuation.open_rows()
    if not len(movers) or not len(rows):
        return
    offers, now = valuation.offers(movers, rows), total(board)
    for i, job in enumerate(movers.tolist()):
        place, gain = valuation.best_move(job, offers, i)
        own = board.rows_of[job].tolist()
        if place is None or board.partners(job) & set(board.residents_of[int(place[0])]):
            continue
        aside = board.set_aside(job)
        after = with_job(board, job, place.tolist())
        board.put_back(aside)
        assert place.tolist() != own
        assert after - now == pytest.approx(gain)


@given(
    rate=st.floats(0.01, 10), other=st.floats(0.01, 10), mine=st.floats(0.05, 1),
    theirs=st.floats(0.05, 1),
)  # fmt: skip
def test_a_pair_shares_where_that_beats_both_ways_of_taking_turns(
    rate: float, other: float, mine: float, theirs: float
) -> None:
    one = np.ones(1)
    shares = shares_well(
        rate, mine, other * (1 - theirs) * one, (1 - theirs) * one, one, other * one
    )[0]
    both = rate * mine + other * theirs
    together = 2 / both + other * theirs / both / rate + rate * mine / both / other
    last, first = 2 / other + 1 / rate, 2 / rate + 1 / other
    if min(abs(together - last), abs(together - first)) > 1e-6 * together:
        assert shares == (together < min(last, first))
    if mine + theirs <= 1:
        assert not shares


def test_the_loads_follow_a_job_that_is_changed() -> None:
    board = a_board(1, 2)
    job = next(j for j in range(JOBS) if j not in board.rows_of)
    before = board.loads.demand[job]
    board.change(job, replace(board.jobs[job], memory_base_gib=7.5, exclusive=True))
    assert board.loads.base_gib[job] == 7.5
    assert board.loads.exclusive[job]
    assert board.loads.demand[job] != before


@boards
@settings(max_examples=40, deadline=None)
def test_what_a_gang_would_replace_does_not_depend_on_those_asked_about_with_it(
    seed: int, shares: int
) -> None:
    board = a_board(seed, shares)
    valuation = a_valuation(board)
    waiting = [j for j in range(JOBS) if j not in board.rows_of and board.jobs[j].gpus > 1]
    gangs = np.array(waiting, dtype=np.int64)
    may_stop = board.arrays.running.copy()
    together = Swaps(valuation, may_stop, 1.5, gangs)
    for gang in waiting:
        alone = Swaps(valuation, may_stop, 1.5, np.array([gang]))
        assert together.pays(gang) == alone.pays(gang)
        assert together.victims(gang, len(waiting)).tolist() == alone.victims(gang, 1).tolist()


@given(seed=st.integers(0, 10_000), wanted=st.integers(2, 5), count=st.integers(5, 40))
@settings(max_examples=300, deadline=None)
def test_places_that_a_gang_cannot_want_change_nothing(seed: int, wanted: int, count: int) -> None:
    """The best set of places for every speed of the slowest worker is among those kept."""
    rng = np.random.default_rng(seed)
    speed = rng.choice([0.3, 0.5, 0.5, 0.8, 1.0], count)
    loss = rng.choice([0.0, 0.1, 0.1, *rng.uniform(0, 1, 8)], count)
    kept = cheap_enough(speed, loss, wanted)
    for floor in np.unique(speed):
        all_there = np.sort(loss[speed >= floor])[:wanted]
        among_kept = np.sort(loss[kept][speed[kept] >= floor])[:wanted]
        if len(all_there) == wanted:
            assert among_kept.tolist() == all_there.tolist()


@pytest.mark.parametrize(("nodes", "tried"), [(8, True), (40, False)])
def test_for_old_waiting_jobs_preempting_is_looked_at_once_enough_gpus_have_changed(
    nodes: int, tried: bool
) -> None:
    """One GPU of 64 is enough, one of 320 is not; what is new is looked at in any case."""
    profile = load_profile("tandem")
    assert profile.dispatch.kind == "share"
    dispatch = profile.dispatch.model_copy(update={"learn": False})
    count = 8 * nodes
    jobs = [
        Job(id=f"{i:03}", pods=1, exclusive=True, checkpointable=True) for i in range(count + 2)
    ]
    gpus = GpuArrays.empty(np.arange(count) // 8, np.full(count, 16.0), shares=1)
    board = Board.of(jobs, JobArrays.of(jobs), gpus)
    for job in range(count):
        board.start(job, np.array([job]))
        board.arrays.running[job] = True
    board.arrays.service_at_since[:count] = 100.0
    waits = count
    board.take_actions()
    pipeline = profile.pipeline()
    dispatch(board, np.arange(count + 1), pipeline, False)  # all have been looked at
    assert waits not in board.rows_of
    # The job on one GPU is worth far less than before, and the one that waits is not new.
    board.arrays.service_at_since[0] = 1e6
    dispatch(board, np.arange(count + 1), pipeline, False)
    assert (waits in board.rows_of) is tried
    if not tried:
        dispatch(board, np.arange(count + 2), pipeline, False)
        assert {waits, waits + 1} & set(board.rows_of) == {waits + 1}
