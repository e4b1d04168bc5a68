"""[Xonar] scenarios: who picks whom, and who runs alone."""

import numpy as np

from tandem.policy.board import Board
from tandem.policy.catalog import load_profile
from tandem.policy.job import Job
from tandem.policy.jobs import JobArrays
from tandem.simulator.cluster import Nodes, gpu_arrays


def job(name: str, busy: float, peak: float = 4.0, pods: int = 2, **more: bool) -> Job:
    return Job(id=name, pods=pods, memory_base_gib=peak, gpu_utilisation=busy, **more)


def round_of(profile: str, jobs: list[Job], gpus: int = 2) -> tuple[Board, list[list[str]]]:
    """Return the board after one round, and the names on each GPU."""
    chosen = load_profile(profile)
    board = Board.of(jobs, JobArrays.of(jobs), gpu_arrays([Nodes(1, gpus, "V100", 16.0)]))
    chosen.dispatch(board, np.arange(len(jobs)), chosen.pipeline(), chosen.order.blocks)
    return board, [[jobs[j].id for j in on] for on in board.residents_of]


def test_the_head_picks_the_partner_whose_busy_share_complements_its_own() -> None:
    queue = [job("head", 60), job("next", 90), job("fits", 40), job("idle", 5)]
    _, gpus = round_of("xonar", queue)
    assert gpus == [["head", "fits"]] * 2


def test_the_best_partner_is_passed_over_where_both_peaks_do_not_fit() -> None:
    queue = [job("head", 60, peak=9), job("next", 90), job("fits", 40, peak=8)]
    _, gpus = round_of("xonar", queue)
    assert gpus == [["head", "next"]] * 2


def test_a_job_that_is_never_idle_is_no_partner_so_the_head_runs_alone() -> None:
    _, gpus = round_of("xonar", [job("head", 60), job("busy", 100)])
    assert gpus == [["head"]] * 2


def test_the_survivor_of_a_pair_picks_again() -> None:
    queue = [job("head", 60), job("fits", 40), job("next", 90), job("late", 41)]
    board, gpus = round_of("xonar", queue)
    assert gpus == [["head", "fits"]] * 2
    board.remove(0)
    profile = load_profile("xonar")
    profile.dispatch(board, np.array([2, 3]), profile.pipeline(), False)
    assert [[queue[j].id for j in on] for on in board.residents_of] == [["fits", "late"]] * 2
    # r of "fits" is 2/3: next has r = 9 (misfit 5), late 0.69 (0.54).


def test_decisions_do_not_flap() -> None:
    queue = [job("head", 60), job("next", 90), job("fits", 40), job("idle", 5)]
    board, _ = round_of("xonar", queue)
    board.take_actions()
    profile = load_profile("xonar")
    for _ in range(3):
        profile.dispatch(board, np.array([1, 3]), profile.pipeline(), False)
    assert board.take_actions() == []


def test_unordered_pairs_take_the_next_whatever_it_needs() -> None:
    queue = [job("head", 60, peak=12), job("next", 90, peak=12), job("fits", 40)]
    _, gpus = round_of("xonar-fifo-pairs", queue)
    assert gpus == [["head", "next"]] * 2


def test_a_small_partner_takes_as_many_gpus_as_it_needs() -> None:
    _, gpus = round_of("xonar", [job("head", 60), job("one", 40, pods=1)])
    assert gpus == [["head", "one"], ["head"]]
