"""The truths that the papers' comparisons run on."""

import os
from pathlib import Path

import numpy as np
import pytest

from studies.papers import horus, pollux, xonar
from studies.papers.simulation import simulate

DATA = Path(os.environ.get("TANDEM_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))


def test_two_jobs_that_never_idle_halve_each_other() -> None:
    assert xonar.cycle_times_s((1.0, 1.0), (1e-6, 1e-6)) == pytest.approx((2.0, 2.0), rel=1e-3)


def test_a_job_that_hardly_computes_disturbs_no_other() -> None:
    busy, idle = xonar.cycle_times_s((1.0, 0.001), (0.5, 1.0))
    assert busy == pytest.approx(1.5, rel=0.01)
    assert idle == pytest.approx(1.001, rel=0.01)


def test_a_pair_computes_no_faster_than_one_gpu_can() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        active, idle = rng.uniform(0.05, 2, size=2), rng.uniform(0.05, 2, size=2)
        times = xonar.cycle_times_s(active.tolist(), idle.tolist())
        assert sum(a / t for a, t in zip(active, times, strict=True)) <= 1.05
        assert all(t >= alone * 0.999 for t, alone in zip(times, active + idle, strict=True))


def test_xonar_takes_no_pair_whose_peaks_do_not_fit_and_fifo_pairs_do() -> None:
    ooms = {"xonar": 0, "xonar-fifo-pairs": 0}
    for seed in range(2):
        trial = xonar.draw(seed)
        for name in ooms:
            outcome = simulate(
                name, xonar.MACHINE, trial.trace, trial.believed, trial.truth, seed=seed
            )
            assert xonar.pairs_formed(outcome) >= int(outcome.ooms.sum())
            ooms[name] += int(outcome.ooms.sum())
    assert ooms["xonar"] == 0
    assert ooms["xonar-fifo-pairs"] > 0


def test_slowdown_by_summed_utilisation() -> None:
    work = horus.draw(horus.testbed_trace(0), horus.TESTBED, fitted=False, seed=0)
    busy = work.truth.gpu_utilisation
    total = float(busy[0] + busy[1])
    # 1.265 at 100 %: the published fit for the RTX 2080.
    expected = 1 / (1 + 0.26464 * total / 100)
    assert work.truth.speed(0, [1]) == work.truth.speed(1, [0]) == pytest.approx(expected)


@pytest.mark.skipif(not (DATA / "pollux").is_dir(), reason="no measured data")
def test_step_times_are_those_measured_on_the_densest_placement() -> None:
    bert = pollux.applications(0)["bert"]
    assert bert.iteration_s(1, 4, 1) == pytest.approx(0.45532354712486267)
    # Two micro-batches: one without synchronisation.
    assert bert.iteration_s(1, 4, 2) == pytest.approx(2 * 0.45532354712486267 - 0.013738612174)
    assert bert.memory_gib(bert.largest_local) == pytest.approx(0.95 * pollux.CAPACITY_GIB)


@pytest.mark.skipif(not (DATA / "pollux").is_dir(), reason="no measured data")
def test_halving_lowers_memory_and_never_shortens_an_iteration() -> None:
    for job in pollux.workload("1.5-1", pollux.applications(0)):
        memory = [job.memory_gib, *(s.memory_base_gib for s in job.sub_batches)]
        stretch = [1.0, *(s.stretch for s in job.sub_batches)]
        assert memory == sorted(memory, reverse=True)
        assert stretch == sorted(stretch)
