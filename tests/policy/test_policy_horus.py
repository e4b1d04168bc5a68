"""[Horus] scenarios: cost, fairness, the baselines, and what becomes of who runs out of memory."""

import numpy as np
import pytest

from tandem.policy.board import Board
from tandem.policy.catalog import load_profile
from tandem.policy.job import Job
from tandem.policy.jobs import JobArrays
from tandem.policy.ordering.fair import WeightedFair
from tandem.simulator.cluster import Nodes, gpu_arrays
from tandem.simulator.engine import Engine
from tandem.simulator.jobs import TraceJob
from tandem.simulator.outcome import Outcome
from tandem.simulator.truth import MemoryCourse, Truth


def job(name: str, memory: float, busy: float, **more: float) -> Job:
    return Job(id=name, memory_base_gib=memory, gpu_utilisation=busy, **more)  # type: ignore[arg-type]


def beside(profile: str, running: list[Job], new: Job) -> list[int]:
    """Return the GPUs that `new` gets, one of `running` on each."""
    chosen = load_profile(profile)
    gpus = gpu_arrays([Nodes(1, len(running), "RTX2080", 8.0)])
    jobs = [*running, new]
    board = Board.of(jobs, JobArrays.of(jobs), gpus)
    for row in range(len(running)):
        board.place(row, np.array([row]))
    chosen.dispatch(board, np.array([len(running)]), chosen.pipeline(), False)
    return board.rows_of[len(running)].tolist() if len(running) in board.rows_of else []


BUSY_BUT_SMALL = [job("busy", 1, 95), job("large", 2, 20)]


@pytest.mark.parametrize(("profile", "row"), [("horus", 1), ("horus-f", 1), ("obp", 0)])
def test_horus_looks_at_utilisation_and_obp_at_memory_alone(profile: str, row: int) -> None:
    assert beside(profile, BUSY_BUT_SMALL, job("new", 3, 60)) == [row]


@pytest.mark.parametrize("profile", ["horus", "horus-f", "obp", "pab"])
def test_memory_that_is_not_there_is_not_given(profile: str) -> None:
    assert beside(profile, [job("a", 6, 10), job("b", 7, 10)], job("new", 3, 10)) == []


def test_two_queues_give_a_batch_in_proportion_to_length_and_wait() -> None:
    # 6 light jobs that waited 10 s weigh 60, 3 heavy ones that waited 100 s weigh 300: of six
    # jobs one and five; three heavy ones there are, so the second batch has light ones only.
    jobs = [job(f"light{i}", 1, 10, queued_at_s=90) for i in range(6)]
    jobs += [job(f"heavy{i}", 7, 90, queued_at_s=0) for i in range(3)]
    order = WeightedFair(queues=2, jobs_a_round=6)
    ranked = [jobs[i].id for i in order(jobs, 100.0)]
    assert ranked[:4] == ["heavy0", "heavy1", "heavy2", "light0"]
    assert sorted(ranked) == sorted(j.id for j in jobs)


def test_one_queue_is_by_wait_alone() -> None:
    jobs = [job(f"j{i}", 1 + i % 3, 10 * i, queued_at_s=float(-i)) for i in range(9)]
    ranked = WeightedFair(queues=1, jobs_a_round=2)(jobs, 0.0)
    assert [jobs[i].id for i in ranked] == [f"j{i}" for i in reversed(range(9))]


def simulated(
    profile: str, slowdown: float, *, true_gib: float = 3.0, believed_gib: float = 3.0
) -> Outcome:
    """Return the run of two jobs of 1000 s on one GPU of 8 GiB, the second ten seconds later."""
    trace = [TraceJob("a", 0.0, 1, 1000.0), TraceJob("b", 10.0, 1, 1000.0)]
    table = np.zeros((3, 3))
    table[2, 2] = slowdown
    truth = Truth(
        slowdown=table, job_class=np.array([2, 2]),
        memory=[MemoryCourse(true_gib, 0.0, 0.0)] * 2, memory_gib=np.array([8.0]),
        gpu_utilisation=np.full(2, 80.0),
    )  # fmt: skip
    believed = [
        job(t.id, believed_gib, 80, queued_at_s=t.submit_s, remaining_s=1000.0) for t in trace
    ]
    gpus = gpu_arrays([Nodes(1, 1, "RTX2080", 8.0)])
    return Engine(trace, believed, gpus, load_profile(profile), truth).run()


def test_pab_sends_the_newcomer_back_after_a_minute_at_half_speed() -> None:
    outcome = simulated("pab", 1.5)
    assert outcome.preemptions.tolist() == [0, 1]
    # 60 s together at 0.4 cost the first 36 s; the second has 976 s left.
    assert outcome.end_s == pytest.approx([1036, 2012])


def test_pab_leaves_a_pair_that_keeps_more_than_half_its_speed() -> None:
    assert simulated("pab", 0.9).preemptions.sum() == 0


@pytest.mark.parametrize("profile", ["horus", "obp"])
def test_out_of_memory_goes_back_to_the_queue_and_ends_with_a_higher_need(profile: str) -> None:
    outcome = simulated(profile, 0.2, true_gib=5.0)
    assert outcome.ooms.tolist() == [0, 1]
    assert outcome.end_s[1] == pytest.approx(2000, abs=1)


@pytest.mark.parametrize(
    ("age_s", "goes"), [(59.9, False), (60.0, True), (120.0, True), (120.1, False)]
)
def test_a_newcomer_that_runs_too_slowly_goes_back_after_its_warm_up(
    age_s: float, goes: bool
) -> None:
    began_s = 495.43508709194094
    assert (began_s + 60) - began_s < 60  # it is looked at once, at a time that floats make early
    gpus = gpu_arrays([Nodes(1, 1, "RTX2080", 8.0)])
    jobs = [job("first", 1, 50), job("newcomer", 1, 50)]
    arrays = JobArrays.of(jobs)
    board = Board.of(jobs, arrays, gpus)
    for index, start_s in enumerate((0.0, began_s)):
        board.place(index, np.array([0]))
        arrays.first_started_s[index] = start_s
        arrays.speed[index] = 0.4
    board.now_s = began_s + age_s
    profile = load_profile("pab")
    profile.adjust(board, profile.pipeline())
    assert (1 not in board.rows_of) is goes
    assert 0 in board.rows_of
