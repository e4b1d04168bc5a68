"""Measured time first: one consistent load, and what a run says of another configuration."""

from __future__ import annotations

import pytest

from predictor.load.equations import training_step
from predictor.load.predictor import Predictor
from tandem.contracts.prediction import Precision, PredictRequest
from tandem.contracts.resources import GraphFeatures, Load, Observation, Source
from tandem.gpu_types import find_gpu

GIB = 1024**3
NOW = "2026-01-01T00:00:00Z"
V100, A100 = "Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-40GB"
#: About a ResNet-50: 100 kernels, 8 GFLOPs and 100 MiB of activations a sample.
NET = GraphFeatures(
    flops=8e9, backward_flops=16e9, parameters=25_000_000, parameter_bytes=100_000_000,
    activation_bytes=100 << 20, saved_activation_bytes=90 << 20, largest_activation_bytes=3 << 20,
    largest_tensor_bytes=8 << 20, tensor_skew=0.09, nodes=120, kernels=100, depth=100,
    op_counts={"Conv": 53}, opset=17, bytes_moved=300e6,
)  # fmt: skip


def ran(batch: int, *, gpu: str = V100, busy: float = 95, rate: float | None = None,
        gib: float = 6, steps: int = 1) -> Observation:  # fmt: skip
    return Observation(
        gpu_model=gpu, batch_size=batch, accumulation_steps=steps, feature_hash="h", runs=1,
        memory_base_bytes=int(gib * GIB), memory_peak_bytes=int(gib * GIB), peak_probability=0,
        utilisation_percent=busy, iterations_per_second=rate, last_observed_at=NOW,
    )  # fmt: skip


def asked(*seen: Observation, batch: int = 32, gpu: str = V100, **how: object) -> Load:
    request = PredictRequest(model="net", batch_size=batch, gpu_model=gpu, **how)
    return Predictor().predict(request, NET, "h", seen).load


def formula(batch: int, gpu: str = V100):
    return training_step(NET, batch, find_gpu(gpu))


def test_a_measured_run_is_one_consistent_load():
    """At 2 steps/s the shares of the GPU's rates are those of half a second, not the formula's."""
    load = asked(ran(32, rate=2.0, busy=40))
    assert load.utilisation_source is Source.OBSERVED
    assert load.iteration_s == pytest.approx(0.5)
    slower = formula(32).seconds / 0.5
    assert load.compute_share == pytest.approx(formula(32).compute_share * slower)
    assert load.bandwidth_share == pytest.approx(formula(32).bandwidth_share * slower)


def test_without_progress_the_measured_utilisation_stretches_the_step():
    load = asked(ran(32, busy=25))
    assert load.iteration_s == pytest.approx(formula(32).busy_seconds / 0.25)


def test_the_rhythm_that_the_agent_observes_replaces_the_formula_where_it_is_near():
    slow = 1.4 * formula(32).seconds

    def rhythm(active: float, idle: float) -> float | None:
        phases = {"active_seconds": active, "idle_seconds": idle}
        return asked(ran(32, busy=98).model_copy(update=phases)).iteration_s

    derived = asked(ran(32, busy=98)).iteration_s
    assert rhythm(0.9 * slow, 0.1 * slow) == pytest.approx(slow)
    assert rhythm(30.0, 2.0) == derived  # an epoch, or a log
    assert rhythm(0.98, 0.02) == derived  # shares of a second: no period was found


def test_a_run_in_micro_batches_tells_the_time_of_one():
    load = asked(ran(64, rate=1.0, steps=2), batch=64, accumulation_steps=2)
    assert load.iteration_s == pytest.approx(0.5)


def test_a_job_that_waits_for_its_input_is_named_and_keeps_its_pace_at_another_batch():
    waits = ran(32, rate=1.0, busy=20)
    said = Predictor().predict(
        PredictRequest(model="net", batch_size=32, gpu_model=V100), NET, "h", [waits]
    )
    assert "waits for its input" in said.explanation
    doubled = asked(waits, batch=64)
    assert doubled.iteration_s == pytest.approx(2.0)  # so many samples a second, as before
    assert doubled.utilisation_percent == pytest.approx(20, abs=1)
    faster = asked(waits, gpu=A100)
    assert faster.iteration_s == pytest.approx(1.0)  # a faster GPU loads no data faster
    assert faster.utilisation_percent < 20


def test_another_batch_size_follows_from_the_measured_one():
    """A job that takes 1.5 times the formula's time at batch 32 does so at batch 64 as well."""
    slow = 1.5 * formula(32).seconds
    load = asked(ran(32, rate=1 / slow, busy=97, gib=5), batch=64)
    assert load.utilisation_source is load.memory_source is Source.MODEL
    assert load.iteration_s == pytest.approx(1.5 * formula(64).seconds, rel=0.05)
    assert load.memory_p95_bytes > load.memory_base_bytes > 5 * GIB
    assert not load.out_of_distribution


def test_two_batch_sizes_give_a_line():
    load = asked(ran(16, rate=10.0, gib=4), ran(32, rate=6.25, gib=6), batch=64)
    assert load.iteration_s == pytest.approx(0.28)  # 40 ms, and 3.75 ms a sample
    assert load.memory_base_bytes + load.memory_peak_extra_bytes == pytest.approx(
        10 * GIB, rel=0.01
    )


def test_the_line_of_noise_never_falls():
    load = asked(ran(16, rate=10.0, gib=6), ran(32, rate=11.0, gib=5), batch=64)
    assert load.iteration_s >= 1 / 11
    assert load.memory_base_bytes >= 5 * GIB


def test_another_type_of_gpu_scales_by_the_formula_and_is_out_of_distribution():
    slow = 1.5 * formula(32).seconds
    load = asked(ran(32, rate=1 / slow, busy=97), gpu=A100)
    assert load.iteration_s == pytest.approx(1.5 * formula(32, A100).seconds, rel=0.1)
    assert load.out_of_distribution


def test_the_bound_widens_with_the_distance():
    near, far = (asked(ran(32, gpu=A100), batch=b, gpu=A100) for b in (48, 128))
    shares = [load.memory_p95_bytes / load.memory_base_bytes for load in (near, far)]
    assert 1 < shares[0] < shares[1]


def test_a_run_on_the_same_type_of_gpu_goes_before_one_at_the_same_batch_size():
    here, there = ran(64, rate=2.0, busy=90), ran(32, gpu=A100, rate=50.0, busy=90)
    assert asked(there, here, batch=32).iteration_s > 0.1


def test_how_a_job_trains_leaves_what_was_seen_of_other_ways_aside():
    load = asked(ran(32, rate=2.0), precision=Precision.AMP)
    assert load.utilisation_source is Source.FORMULA


def test_a_run_of_another_graph_says_nothing():
    other = ran(32, rate=2.0).model_copy(update={"feature_hash": "other"})
    assert asked(other, batch=64).utilisation_source is Source.FORMULA
