"""[SJF-BSBF] scenarios: who shares with whom, with which sub-batch, and who waits."""

from dataclasses import replace

import numpy as np
import pytest

from tandem.policy.board import Board
from tandem.policy.catalog import load_profile
from tandem.policy.equations.accumulation import halved
from tandem.policy.job import Iteration, Job, SubBatch
from tandem.policy.jobs import JobArrays
from tandem.simulator.cluster import Nodes, gpu_arrays
from tandem.simulator.engine import Engine
from tandem.simulator.jobs import TraceJob
from tandem.simulator.truth import MemoryCourse, Truth

GPU_GIB = 11.0
HALF = (SubBatch(2, 3.0, 0.0, 1.2), SubBatch(4, 2.0, 0.0, 1.9))


def job(
    name: str, seconds: float, *, pods: int = 1, memory: float = 5.0, kind: int = 2,
    sub_batches: tuple[SubBatch, ...] = (), slowdown: dict[int, float] | None = None,
) -> Job:  # fmt: skip
    """A job of class `kind`, slowed down next to class k by slowdown[k] (0.4), and slowing so."""
    by_class = np.full(5, 0.4)
    by_class[0] = 0.0
    for other, value in (slowdown or {}).items():
        by_class[other] = value
    return Job(
        id=name, pods=pods, memory_base_gib=memory, remaining_s=seconds, sub_batches=sub_batches,
        interference_class=kind, own_slowdown=by_class, caused_slowdown=by_class,
    )  # fmt: skip


def round_of(profile: str, running: list[tuple[Job, int]], queue: list[Job], gpus: int) -> Board:
    """Return the board after one round over `queue`, with `running` jobs on the GPUs named."""
    jobs = [one for one, _ in running] + queue
    chosen = load_profile(profile)
    board = Board.of(jobs, JobArrays.of(jobs), gpu_arrays([Nodes(1, gpus, "X", GPU_GIB)]))
    for index, (_, row) in enumerate(running):
        board.place(index, np.array([row]))
    chosen.dispatch(board, np.arange(len(running), len(jobs)), chosen.pipeline(), False)
    return board


def places(board: Board) -> dict[str, list[int]]:
    return {board.jobs[index].id: rows.tolist() for index, rows in board.rows_of.items()}


def test_free_gpus_are_taken_before_shared_ones() -> None:
    board = round_of("sjf-bsbf", [(job("a", 10), 0)], [job("b", 10)], 2)
    assert places(board)["b"] == [1]


@pytest.mark.parametrize(
    ("first_s", "second_s", "ratio", "shares"),
    [(10, 10, 1.4, True), (10, 10, 1.6, False), (10, 4, 2.0, True), (4, 10, 2.0, False)],
)
def test_shares_where_theorem_1_says_so_and_waits_otherwise(
    first_s: float, second_s: float, ratio: float, shares: bool
) -> None:
    slow = {2: ratio - 1}
    board = round_of(
        "sjf-bsbf", [(job("a", first_s, slowdown=slow), 0)],
        [job("b", second_s, slowdown=slow)], 1,
    )  # fmt: skip
    assert ("b" in places(board)) is shares


def test_first_fit_shares_with_the_first_though_it_hurts() -> None:
    slow = {2: 2.0}
    board = round_of("sjf-ffs", [(job("a", 4), 0)], [job("b", 10, slowdown=slow)], 1)
    assert places(board)["b"] == [0]


def test_of_two_partners_the_one_with_the_least_mean_completion_time() -> None:
    running = [(job("a", 10, kind=2), 0), (job("b", 10, kind=3), 1)]
    board = round_of("sjf-bsbf", running, [job("c", 4, slowdown={2: 0.4, 3: 0.1})], 2)
    assert places(board)["c"] == [1]


def test_the_batch_is_halved_until_it_fits_next_to_the_partners_peak() -> None:
    board = round_of(
        "sjf-bsbf", [(job("a", 100, memory=7.5), 0)], [job("b", 4, sub_batches=HALF)], 1
    )
    assert (board.jobs[1].accumulation_steps, board.jobs[1].memory_peak_gib) == (2, 3.0)
    assert board.gpus.memory_base_gib[0] == 10.5


def test_no_sub_batch_fits_so_it_waits_and_keeps_its_batch() -> None:
    board = round_of(
        "sjf-bsbf", [(job("a", 100, memory=10), 0)], [job("b", 4, sub_batches=HALF)], 1
    )
    assert "b" not in places(board)
    assert board.jobs[1].accumulation_steps == 1


def test_the_stretch_of_accumulation_can_make_waiting_better() -> None:
    # 10 next to 10 at 1.4: mean 14 instead of 15. In four steps the second needs 19: mean 18.5.
    queue = [job("b", 10, sub_batches=HALF)]
    assert "b" in places(round_of("sjf-bsbf", [(job("a", 10), 0)], queue, 1))
    assert "b" not in places(round_of("sjf-bsbf", [(job("a", 10, memory=8.5), 0)], queue, 1))


def test_a_gang_takes_shared_gpus_first_and_free_ones_on_top_with_one_sub_batch() -> None:
    running = [(job("a", 100, memory=7.5), 0), (job("b", 100), 1)]
    board = round_of("sjf-bsbf", running, [job("c", 4, pods=3, sub_batches=HALF)], 3)
    assert sorted(places(board)["c"]) == [0, 1, 2]
    assert board.jobs[2].accumulation_steps == 2


def test_who_waits_blocks_no_other_and_decisions_do_not_flap() -> None:
    queue = [job("large", 1, pods=9), job("small", 4)]
    board = round_of("sjf-bsbf", [(job("a", 100), 0)], queue, 1)
    assert places(board)["small"] == [0]
    board.take_actions()
    profile = load_profile("sjf-bsbf")
    for _ in range(3):
        profile.dispatch(board, np.array([1]), profile.pipeline(), False)
    assert board.take_actions() == []


def test_a_job_that_accumulates_is_slower_to_its_end() -> None:
    jobs = [job("a", 100, memory=7.5), job("b", 4, sub_batches=HALF)]
    trace = [TraceJob(j.id, 0.0, 1, j.remaining_s or 0.0) for j in jobs]
    slowdown = np.zeros((5, 5))
    slowdown[2, 2] = 0.4
    truth = Truth(
        slowdown=slowdown, job_class=np.array([2, 2]),
        memory=[MemoryCourse(7.5, 0.0, 0.0), MemoryCourse(5.0, 0.0, 0.0)],
        memory_gib=np.array([GPU_GIB]), gpu_utilisation=np.full(2, 100.0),
        sub_batches=[{}, {s.steps: s for s in HALF}],
    )  # fmt: skip
    gpus = gpu_arrays([Nodes(1, 1, "X", GPU_GIB)])
    # The shorter job arrives when the longer one has started.
    trace[1] = TraceJob("b", 1.0, 1, 4.0)
    outcome = Engine(trace, jobs, gpus, load_profile("sjf-bsbf"), truth).run()
    assert outcome.end_s[1] == pytest.approx(1 + 4 * 1.4 * 1.2)
    assert outcome.ooms.sum() == 0


# --- Eq. (3), (4), (7) ---------------------------------------------------------------------------

# 0.1 s and 0.01 s an item, 20 items; 0.1 s and 1e-9 s a byte, 2e8 bytes: 0.3 s of each. Memory:
# 2 GiB and 0.2 GiB an item.
TALKS = Iteration(
    batch=20, compute_fixed_s=0.1, compute_per_item_s=0.01, message_bytes=2e8,
    communication_fixed_s=0.1, communication_per_byte_s=1e-9, memory_fixed_gib=2.0,
    memory_per_item_gib=0.2,
)  # fmt: skip
SILENT = replace(TALKS, message_bytes=0.0, communication_fixed_s=0.0)


@pytest.mark.parametrize(
    ("iteration", "stretch"),
    [
        (TALKS, [0.7 / 0.6, 0.9 / 0.6]),
        (SILENT, [0.4 / 0.3, 0.6 / 0.3]),
        # Overlapped by far, only the longer of the two counts: 0.3; 0.2 + 0.3; 0.45 + 0.3.
        (replace(TALKS, overlap=400.0), [0.5 / 0.3, 0.75 / 0.3]),
    ],
)
def test_the_stretch_of_a_sub_batch_is_that_of_compute_and_communication(
    iteration: Iteration, stretch: list[float]
) -> None:
    found = halved(iteration)
    assert [each.steps for each in found] == [2, 4]
    assert [each.stretch for each in found] == pytest.approx(stretch, rel=2e-3)
    assert [each.memory_base_gib for each in found] == pytest.approx([4.0, 3.0])


def test_a_batch_is_halved_down_to_one_item() -> None:
    assert [each.steps for each in halved(replace(TALKS, batch=16))] == [2, 4, 8, 16]
    assert halved(replace(TALKS, batch=1)) == ()


@pytest.mark.parametrize(("iteration", "shares"), [(TALKS, True), (SILENT, False)])
def test_communication_decides_whether_a_smaller_batch_pays(
    iteration: Iteration, shares: bool
) -> None:
    # 3.5 GiB are left, so four micro-batches. L 10 and 10, both ratios 1.2: 10 (1 - 1.2 + 0.5) = 3
    # is gained, and half of what the newcomer's stretch costs is lost: 2.5 at 1.5, 5 at 2.
    slow = {2: 0.2}
    new = replace(job("b", 10, memory=6.0, slowdown=slow), iteration=iteration)
    board = round_of("sjf-bsbf", [(job("a", 10, memory=7.5, slowdown=slow), 0)], [new], 1)
    assert ("b" in places(board)) is shares
    if shares:
        assert (board.jobs[1].accumulation_steps, board.jobs[1].memory_base_gib) == (4, 3.0)


def test_of_the_sub_batches_that_fit_the_one_that_disturbs_least_is_run() -> None:
    # As submitted both are stretched by 2: 10 (1 - 2 + 0.5) = -5. In two micro-batches by 1.1:
    # 10 (1 - 1.1 + 0.5) - 10 x 0.1 / 2 = 3.5. In four the stretch of 3 loses: 4 - 10.
    mild = np.array([0.0, np.inf, 0.1, 0.1, 0.1])
    options = tuple(
        SubBatch(steps, 3.0, 0.0, stretch, interference_class=3, own_slowdown=mild,
                 caused_slowdown=mild)
        for steps, stretch in ((2, 1.1), (4, 3.0))
    )  # fmt: skip
    new = job("b", 10, sub_batches=options, slowdown={2: 1.0})
    board = round_of("sjf-bsbf", [(job("a", 10, slowdown={2: 1.0}), 0)], [new], 1)
    assert places(board)["b"] == [0]
    assert board.jobs[1].accumulation_steps == 2
    assert board.gpus.resident_class[0].tolist() == [2, 3]
    assert "b" not in places(
        round_of("sjf-bsbf", [(job("a", 10, slowdown={2: 1.0}), 0)],
                 [job("b", 10, slowdown={2: 1.0})], 1)
    )  # fmt: skip
