"""How long jobs take on simulated GPUs, and the calculation that a run is compared with."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tandem_demo.gpus import SimulatedNode
from tandem_demo.physics import Outcome, Running, advance, exclusive_fifo, slowdown
from tandem_demo.workload import JOBS

FIRST, SECOND = (
    replace(JOBS[0], name="first", submit_s=0.0, solo_s=10, utilisation=60),
    replace(JOBS[1], name="second", submit_s=1.0, solo_s=20, utilisation=50),
)


def test_a_job_alone_takes_its_own_time():
    assert slowdown(60, 60) == 1.0
    running = {"a": Running(FIRST, "gpu", FIRST.solo_s)}
    assert advance(running, 9.9) == []
    assert advance(running, 0.2) == ["a"]


def test_two_on_one_gpu_are_slowed_down_by_horus_curve():
    # f(110) = 1.16664 - 0.00302 * 110 + 4e-5 * 110^2 = 1.31844; f(60) = 1.15878, f(50) = 1.13232.
    assert slowdown(60, 110) == pytest.approx(1.31844 / 1.158784, rel=1e-5)
    running = {"a": Running(FIRST, "gpu", 10.0), "b": Running(SECOND, "gpu", 20.0)}
    advance(running, 5.0)
    assert running["a"].remaining_s == pytest.approx(10 - 5 * 1.158784 / 1.31844)
    assert running["b"].remaining_s == pytest.approx(20 - 5 * 1.13232 / 1.31844)


def test_jobs_on_different_gpus_do_not_disturb_each_other():
    running = {"a": Running(FIRST, "gpu-0", 10.0), "b": Running(SECOND, "gpu-1", 20.0)}
    assert advance(running, 10.0) == ["a"]
    assert running["b"].remaining_s == pytest.approx(10.0)


def test_fifo_with_one_gpu_each_by_hand():
    assert exclusive_fifo([SECOND, FIRST], 1) == Outcome(
        mean_completion_s=(10 + 29) / 2, makespan_s=30.0
    )
    assert exclusive_fifo([FIRST, SECOND], 2) == Outcome(
        mean_completion_s=(10 + 20) / 2, makespan_s=21.0
    )


def test_the_agents_see_of_a_slowed_job_what_it_gets_of_the_gpu(tmp_path):
    """The measured slowdown is then that of the formula, which the demo's table has as well."""
    node = SimulatedNode("node-a", 1, tmp_path / "node-a")
    (gpu,) = node.uuids()

    def shares():
        """Return the part of the time that each process keeps the GPU busy, in percent."""
        found = re.findall(
            r"sm=(\d+).*?sm_period_us=(\d+) sm_high_us=(\d+)", node.state.read_text()
        )
        return [int(sm) * int(high) / int(period) for sm, period, high in found]

    node.start("uid-first", FIRST, gpu)
    (alone,) = shares()
    assert alone == pytest.approx(FIRST.utilisation, abs=0.1)
    node.start("uid-second", SECOND, gpu)
    first, second = shares()
    assert alone / first == pytest.approx(slowdown(60, 110), rel=1e-3)
    assert SECOND.utilisation / second == pytest.approx(slowdown(50, 110), rel=1e-3)
    node.end("uid-second")
    assert shares() == [alone]
