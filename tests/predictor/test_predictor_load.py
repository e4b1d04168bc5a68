"""From features to a load: the formulas' worked numbers, and which source wins."""

from __future__ import annotations

import functools
import itertools
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from predictor_graphs import REFERENCE, light, measured_matrix

from predictor.graph.features import extract_features
from predictor.load.equations import (
    COMPILED,
    input_cpu_seconds,
    input_cpus,
    pair_step,
    training_step,
    two_levels,
)
from predictor.load.model import open_predictor
from predictor.load.observed import add_run
from predictor.load.predictor import Predictor
from predictor.load.sources import Memory, Utilisation
from tandem.contracts.prediction import Feedback, PredictRequest
from tandem.contracts.resources import ModelProfileStatus, Observation, Source
from tandem.gpu_types import _TABLE, GIB, GPU_TYPES, UNKNOWN_GPU, find_gpu
from tandem.policy.equations.horus import gpu_memory_bytes

V100 = "Tesla V100-SXM2-16GB"
MIB = 2**20


@functools.cache
def features_of(name):
    return extract_features(light(name))


@pytest.fixture(scope="module")
def resnet():
    return features_of("resnet50")


def predict(features=None, **request):
    return Predictor().predict(PredictRequest(**request), features)


# --- equations --------------------------------------------------------------------------------


def test_memory_of_horus_worked():
    # Batch 32, 100 MiB of activations and 50 MiB of gradients a sample, 400 MiB of parameters.
    expected = (32 * 100 + 400 + 32 * 50 + 1536) * MIB
    assert gpu_memory_bytes(32, 100 * MIB, 400 * MIB, 50 * MIB, 1536 * MIB) == expected


def test_two_levels_of_a_triangle_worked():
    # 2 GiB always, up to 8 more: above three quarters of the 8 for a quarter of the time.
    assert two_levels(2 * GIB, 8 * GIB, 0.75) == (8 * GIB, 2 * GIB, 0.25)


def test_two_levels_against_a_sampled_triangle():
    base, extra, probability = two_levels(2.0, 8.0, 0.75)
    course = [2 + 8 * (t / 300 if t < 300 else (900 - t) / 600) for t in range(900)]
    assert max(course) == pytest.approx(base + extra, rel=0.01)
    above = sum(level > base for level in course) / len(course)
    assert above == pytest.approx(probability, abs=0.01)


def test_time_of_a_step_worked(resnet):
    step = training_step(resnet, 32, find_gpu(V100))
    # 32 x (8.18 + 0.04 + 16.40) GFLOP at half of 15.7 TFLOP/s.
    assert step.busy_seconds == pytest.approx(32 * 24.61e9 / (0.5 * 15.7e12), rel=0.01)
    # An eager loop needs 5 ms between two steps.
    assert step.seconds == pytest.approx(step.busy_seconds + 5e-3)
    assert step.compute_share == pytest.approx(0.5 * step.busy_seconds / step.seconds, rel=0.02)
    assert 0 < step.bandwidth_share < 0.7


def test_small_batches_wait_for_the_host(resnet):
    step = training_step(resnet, 1, find_gpu("NVIDIA H100 80GB HBM3"))
    kernels = 3 * resnet.kernels + 40
    assert step.busy_seconds == pytest.approx(kernels * 4e-6)
    assert step.seconds == pytest.approx(kernels * 15e-6 + 5e-3)
    compiled = training_step(resnet, 1, find_gpu("NVIDIA H100 80GB HBM3"), host=COMPILED)
    assert compiled.seconds == pytest.approx(kernels * 10e-6 + 1e-3)


def test_input_of_photos_worked(resnet):
    """2 ms of a CPU for a photo of 224 x 224; a pod that asks for 2 CPUs is taken to use 4."""
    assert input_cpu_seconds(resnet) == pytest.approx(2e-3)
    assert (input_cpus(None), input_cpus(2.0), input_cpus(8.0)) == pytest.approx((8.0, 4.0, 8.0))
    alone = training_step(resnet, 32, find_gpu(V100))
    fed = training_step(resnet, 32, find_gpu(V100), cpus=4.0)
    assert alone.seconds > 32 * 2e-3 / 4
    assert fed.seconds == pytest.approx(alone.seconds + 0.9 * 32 * 2e-3 / 4)
    assert fed.busy_seconds == alone.busy_seconds
    starved = training_step(resnet, 32, find_gpu(V100), cpus=0.1)
    assert starved.seconds == pytest.approx(32 * 2e-3 / 0.1 + 0.9 * alone.seconds)


@pytest.mark.parametrize(
    ("shape", "samples", "seconds"),
    [
        ([1, 3, 448, 448], 1, 4e-3),  # four times the pixels, twice the time
        ([1, 3, 32, 32], 1, 50e-6),
        ([1, 512], 1, 2.5e-6 + 512 * 0.1e-6),
        ([4, 512], 4, 2.5e-6 + 512 * 0.1e-6),
        ([1, 64, 224, 224], 1, 2.5e-6 + 64 * 224 * 224 * 0.1e-6),  # no picture
        ([1], 1, 2.6e-6),
        ([], 1, 2.6e-6),
    ],
)
def test_input_by_kind_of_data(resnet, shape, samples, seconds):
    graph = resnet.model_copy(update={"input_shapes": {"x": shape}, "graph_batch": samples})
    assert input_cpu_seconds(graph) == pytest.approx(seconds)


def test_fewer_cpus_leave_the_gpu_idle_and_more_are_never_slower(resnet):
    said = [
        predict(resnet, batch_size=32, gpu_model=V100, cpus=cpus).load.utilisation_percent
        for cpus in (0.0025, 1, 4, 16, 64)
    ]
    assert said == sorted(said)
    assert said[0] < 30
    assert said[-1] > 90


def test_pairs_are_priced_by_a_busy_share_of_their_own(resnet):
    """Of a wait for the input at least half of the busy share stays: the host is shared as well."""
    gpu = find_gpu(V100)
    starved = pair_step(resnet, 32, gpu, cpus=0.01)
    fed = pair_step(resnet, 32, gpu, cpus=1e6)
    assert fed.utilisation_percent == pytest.approx(
        training_step(resnet, 32, gpu, host=COMPILED).utilisation_percent, rel=0.001
    )
    assert starved.utilisation_percent == pytest.approx(fed.utilisation_percent / 2, rel=0.001)
    assert starved.seconds == fed.seconds == training_step(resnet, 32, gpu).seconds
    load = predict(resnet, batch_size=32, gpu_model=V100).load
    assert load.pair.step_s == fed.seconds
    assert load.pair.busy_percent != load.utilisation_percent
    declared = predict(gpu_model=V100, declared_utilisation_percent=50.0).load
    assert declared.pair is None


def test_the_steps_of_a_recurrent_node_are_started_by_one_call(resnet):
    """cuDNN starts the kernels of all time steps: the GPU is busy, and waits for no host."""
    recurrent = resnet.model_copy(update={"kernels": 5000, "nodes": 60})
    assert training_step(recurrent, 1, find_gpu(V100)).utilisation_percent > 80
    assert training_step(resnet, 1, find_gpu("NVIDIA H100 80GB HBM3")).utilisation_percent < 50


def test_a_measured_step_counts_as_it_is(resnet):
    formula = training_step(resnet, 32, find_gpu(V100))
    measured = training_step(resnet, 32, find_gpu(V100), measured_seconds=2 * formula.seconds)
    assert measured.compute_share == pytest.approx(formula.compute_share / 2)
    assert measured.utilisation_percent == pytest.approx(formula.utilisation_percent / 2)


@pytest.mark.parametrize("gpu", ["v100", "p100"])
def test_steps_of_resnet50_are_near_the_measured_ones(resnet, gpu):
    measured = measured_matrix()[gpu]
    for batch in (16, 32, 64, 128):
        steps_per_second = measured[f"ResNet-50 (batch size {batch})"]["null"]
        step = training_step(resnet, batch, find_gpu(gpu))
        assert 0.65 < step.seconds * steps_per_second < 1.3


# --- GPU types --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla V100-SXM2-32GB", "V100 32GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100"),
        ("NVIDIA H100 PCIe", "H100 PCIE"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce GTX 1080 Ti", "GTX 1080 TI"),
        ("NVIDIA GeForce RTX 2080", "RTX 2080"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX 4070 TI SUPER"),
        ("NVIDIA GeForce RTX 4070", "RTX 4070"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 ADA"),
        ("Quadro RTX 6000", "QUADRO RTX 6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 BLACKWELL"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("Tesla P100-PCIE-12GB", "P100 12GB"),
        ("Quantum 9000", None),
        ("", None),
        (None, None),
    ],
)
def test_products_are_found_by_the_words_of_their_name(product, name):
    found = find_gpu(product)
    assert (found.name if found else None) == name


#: FLOPs of a multiprocessor and clock in the precision that frameworks train in.
PER_CLOCK = {
    "Kepler": (384,), "Pascal": (128, 256), "Volta": (128,), "Turing": (128,),
    "Ampere": (256, 512, 1024), "Ada Lovelace": (256, 512), "Hopper": (480, 2048),
    "Blackwell": (256, 512, 4096),
}  # fmt: skip


def test_the_rates_of_each_card_are_those_of_its_multiprocessors_at_a_clock_that_cards_have():
    wrong = []
    for architecture, (_, rows) in _TABLE.items():
        for name, tflops, half, *_, processors, source in rows:
            clocks = [tflops * 1e3 / (processors * flops) for flops in PER_CLOCK[architecture]]
            if not any(0.8 <= clock <= 2.7 for clock in clocks) or not source:
                wrong.append((name, clocks))
            if not any(abs(half / tflops - ratio) < 0.15 * ratio for ratio in (1, 2, 4, 8)):
                wrong.append((name, half / tflops))
    assert wrong == []


def test_each_type_in_the_table_can_be_found():
    for gpu in GPU_TYPES:
        assert find_gpu(f"NVIDIA {gpu.name}") is gpu


# --- precedence -------------------------------------------------------------------------------


def test_nothing_known_is_the_whole_gpu():
    load = predict(gpu_model=V100).load
    assert load.memory_source is load.utilisation_source is Source.WHOLE_GPU
    assert load.memory_base_bytes == load.memory_p95_bytes == 16 * GIB
    assert load.utilisation_percent == 100


def test_declared_values_count_without_a_model():
    load = predict(declared_memory_bytes=12 * GIB, declared_utilisation_percent=40).load
    assert load.memory_source is load.utilisation_source is Source.DECLARED
    assert (load.memory_base_bytes, load.memory_peak_extra_bytes) == (12 * GIB, 0)
    assert (load.utilisation_percent, load.utilisation_p95_percent) == (40, 50)


def test_the_formula_comes_before_what_was_declared(resnet):
    answer = predict(resnet, batch_size=32, gpu_model=V100, declared_utilisation_percent=5)
    assert answer.load.utilisation_source is answer.load.memory_source is Source.FORMULA
    assert answer.load.model_version == "formula/4"
    assert not answer.load.out_of_distribution
    assert "not measured, so the bounds are wide" in answer.explanation


def test_without_a_batch_size_a_model_says_nothing(resnet):
    answer = predict(resnet, declared_memory_bytes=GIB)
    assert answer.load.memory_source is Source.DECLARED
    assert answer.load.utilisation_source is Source.WHOLE_GPU
    assert "batch size" in answer.explanation


def test_a_higher_declaration_raises_memory(resnet):
    without = predict(resnet, batch_size=32, gpu_model=V100).load
    load = predict(resnet, batch_size=32, gpu_model=V100, declared_memory_bytes=15 * GIB).load
    assert load.memory_base_bytes + load.memory_peak_extra_bytes == 15 * GIB
    assert load.memory_p95_bytes >= 15 * GIB
    assert load.memory_source is Source.DECLARED
    assert load.memory_peak_extra_bytes == without.memory_peak_extra_bytes


def test_a_lower_declaration_changes_nothing(resnet):
    without = predict(resnet, batch_size=32, gpu_model=V100)
    with_it = predict(resnet, batch_size=32, gpu_model=V100, declared_memory_bytes=GIB)
    assert with_it == without


def test_better_sources_come_first_and_may_pass(resnet):
    predictor = Predictor(
        memory=[lambda _: None, lambda _: Memory(1, 2, 0.5, 3, Source.OBSERVED, "seen", "v7")],
        utilisation=[lambda _: Utilisation(50, 60, Source.MODEL, "learned", "v8")],
    )
    load = predictor.predict(PredictRequest(batch_size=1, gpu_model=V100), resnet).load
    assert (load.memory_source, load.utilisation_source) == (Source.OBSERVED, Source.MODEL)
    assert load.model_version == "v7 v8"
    assert (load.memory_base_bytes, load.memory_peak_extra_bytes, load.memory_p95_bytes) == (
        1,
        2,
        3,
    )


def observation(**changed):
    return Observation(
        **{
            "gpu_model": V100, "batch_size": 32, "feature_hash": "h", "runs": 1,
            "memory_base_bytes": 3 * GIB, "memory_peak_bytes": 4 * GIB, "peak_probability": 0.2,
            "utilisation_percent": 70, "last_observed_at": "2026-01-01T00:00:00Z",
        } | changed
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "source"),
    [
        ({}, Source.OBSERVED),
        ({"gpu_model": "Tesla V100-PCIE-16GB"}, Source.OBSERVED),
        ({"gpu_model": "NVIDIA A100-SXM4-40GB"}, Source.MODEL),  # extrapolated
        ({"batch_size": 64}, Source.MODEL),
        ({"feature_hash": "another graph under the same name"}, Source.FORMULA),
    ],
)
def test_only_runs_of_the_same_kind_are_taken(resnet, changed, source):
    request = PredictRequest(batch_size=32, gpu_model=V100)
    answer = Predictor().predict(request, resnet, "h", [observation(**changed)])
    assert answer.load.memory_source is answer.load.utilisation_source is source
    assert answer.load.iteration_s


def test_a_higher_declaration_raises_also_what_was_observed(resnet):
    request = PredictRequest(batch_size=32, gpu_model=V100, declared_memory_bytes=6 * GIB)
    load = Predictor().predict(request, resnet, "h", [observation()]).load
    assert load.memory_base_bytes + load.memory_peak_extra_bytes == 6 * GIB


def run_of(**changed):
    return Feedback(
        **{
            "model": "m", "batch_size": 32, "gpu_model": V100, "memory_base_bytes": 3 * GIB,
            "memory_peak_bytes": 4 * GIB, "utilisation_percent": 70,
        } | changed
    )  # fmt: skip


def test_the_highest_peak_counts_and_the_rest_is_averaged():
    status = add_run(ModelProfileStatus(), "h", run_of(memory_peak_bytes=5 * GIB), "t1")
    status = add_run(status, "h", run_of(utilisation_percent=80, memory_base_bytes=2 * GIB), "t2")
    (seen,) = status.observed
    assert (seen.runs, seen.memory_peak_bytes) == (2, 5 * GIB)
    assert seen.utilisation_percent == pytest.approx(73)
    assert seen.memory_base_bytes == round(2.7 * GIB)
    assert (status.observations, status.last_observed_at) == (2, "t2")


def test_what_was_seen_longest_ago_is_forgotten_first():
    status = ModelProfileStatus()
    for batch in range(1, 70):
        status = add_run(status, "h", run_of(batch_size=batch), f"t{batch:03}")
    assert [seen.batch_size for seen in status.observed] == list(range(69, 5, -1))
    assert status.observations == 69


def test_runs_of_a_graph_that_was_replaced_are_forgotten():
    status = add_run(ModelProfileStatus(), "old", run_of(), "t1")
    status = add_run(status, "new", run_of(), "t2")
    assert [seen.feature_hash for seen in status.observed] == ["new"]


def test_more_than_the_gpu_holds_takes_all_of_it_and_says_so(resnet):
    answer = predict(resnet, batch_size=4096, gpu_model=V100)
    assert answer.load.memory_base_bytes == answer.load.memory_p95_bytes == 16 * GIB
    assert answer.load.memory_peak_extra_bytes == 0
    assert answer.load.out_of_distribution
    assert "all of it" in answer.explanation


def test_an_unknown_gpu_is_flagged_and_taken_as_slow(resnet):
    unknown = predict(resnet, batch_size=8, gpu_model="Quantum 9000").load
    fast = predict(resnet, batch_size=8, gpu_model="NVIDIA H200").load
    assert unknown.out_of_distribution
    assert not fast.out_of_distribution
    assert unknown.utilisation_percent > fast.utilisation_percent
    assert UNKNOWN_GPU.training_flops <= median(g.training_flops for g in GPU_TYPES)


def test_resnet50_is_near_what_is_known_of_it(resnet):
    # Training in single precision at batch 32 is known to take 3.5 to 5.5 GiB on a V100.
    load = predict(resnet, batch_size=32, gpu_model=V100).load
    peak = load.memory_base_bytes + load.memory_peak_extra_bytes
    assert 3.5 * GIB < peak < 5.5 * GIB < load.memory_p95_bytes
    # Its loop is known to keep the GPU busy: so says the model that ships, and the formula nearly.
    assert 85 < load.utilisation_percent < 95
    shipped = open_predictor(None).predict(
        PredictRequest(batch_size=32, gpu_model=V100), resnet, "resnet50"
    )
    assert shipped.load.utilisation_percent > 90


@settings(max_examples=60)
@given(
    name=st.sampled_from(["squeezenet", "vgg19", "bvlc_alexnet", "zfnet512"]),
    batch=st.integers(1, 10_000),
    gpu=st.sampled_from([None, "x", *(g.name for g in GPU_TYPES)]),
    capacity=st.none() | st.integers(1, 200 * GIB),
    declared=st.none() | st.integers(0, 200 * GIB),
    utilisation=st.none() | st.floats(0, 100),
)
def test_every_answer_makes_sense(name, batch, gpu, capacity, declared, utilisation):
    load = predict(
        features_of(name), batch_size=batch, gpu_model=gpu, gpu_memory_bytes=capacity,
        declared_memory_bytes=declared, declared_utilisation_percent=utilisation,
    ).load  # fmt: skip
    peak = load.memory_base_bytes + load.memory_peak_extra_bytes
    assert peak <= load.memory_p95_bytes + 1
    assert peak >= (declared or 0)
    assert 0 < load.utilisation_percent <= load.utilisation_p95_percent <= 100
    if capacity is not None and declared is None:
        assert load.memory_p95_bytes <= capacity


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_memory_and_utilisation_grow_with_the_batch(name):
    loads = [
        predict(features_of(name), batch_size=b, gpu_memory_bytes=10**15).load for b in (1, 8, 64)
    ]
    for smaller, larger in itertools.pairwise(loads):
        assert smaller.memory_base_bytes < larger.memory_base_bytes
        assert smaller.memory_p95_bytes < larger.memory_p95_bytes
        assert smaller.utilisation_percent <= larger.utilisation_percent
