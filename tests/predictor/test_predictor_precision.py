"""How a job trains, as far as it is said: precision, optimiser, sequence length."""

from __future__ import annotations

import pytest
from synthetic_profiles import synthetic_profiles

from predictor.load.equations import HALF_ACTIVATIONS
from predictor.load.memory import ALLOCATORS
from predictor.load.predictor import Predictor
from tandem.contracts.prediction import Optimizer, Precision, PredictRequest
from tandem.gpu_types import GPU_TYPES, find_gpu

A100 = "NVIDIA A100-SXM4-80GB"
V100 = "Tesla V100-SXM2-32GB"
FEATURES = synthetic_profiles(families=1)[0].features
#: What the allocator of an unknown framework holds over what a job needs.
GROWTH = ALLOCATORS[None].growth[0]


def load(features=FEATURES, gpu=A100, **asked):
    request = PredictRequest(model="net", batch_size=64, gpu_model=gpu, **asked)
    return Predictor().predict(request, features).load


def point(found):
    return found.memory_base_bytes + found.memory_peak_extra_bytes


def test_what_is_left_open_is_the_default():
    assert load(precision=Precision.FP32) == load()
    assert point(load(optimizer=Optimizer.MOMENTUM)) == point(load())
    assert load(optimizer=Optimizer.ADAM).memory_p95_bytes == load().memory_p95_bytes


def test_sixteen_bits_shrink_activations_and_cast_the_weights():
    full, half = load(optimizer=Optimizer.SGD), load(precision=Precision.AMP, optimizer="sgd")
    weights = FEATURES.parameter_bytes
    largest = 2 * FEATURES.largest_activation_bytes
    activations = 64 * (FEATURES.saved_activation_bytes + largest)
    saved = (1 - HALF_ACTIVATIONS) * activations - 0.5 * weights
    assert point(full) - point(half) == pytest.approx(GROWTH * saved, abs=4)
    assert half.iteration_s <= full.iteration_s


def test_a_graph_that_is_in_sixteen_bits_already_is_taken_as_it_is():
    halved = FEATURES.model_copy(update={"parameter_bytes": 2 * FEATURES.parameters})
    assert point(load(halved, precision=Precision.BF16)) == point(load(halved))


@pytest.mark.parametrize("optimizer", Optimizer)
def test_an_optimiser_keeps_its_copies(optimizer):
    more = point(load(optimizer=optimizer)) - point(load(optimizer=Optimizer.SGD))
    assert more == pytest.approx(GROWTH * optimizer.copies * FEATURES.parameter_bytes, abs=4)


def test_brain_floats_are_fast_from_ampere_on():
    assert find_gpu(A100).flops(Precision.BF16) == find_gpu(A100).flops(Precision.AMP)
    assert find_gpu(V100).flops(Precision.BF16) == find_gpu(V100).flops(Precision.FP32)
    for gpu in GPU_TYPES:
        assert gpu.half_flops >= gpu.training_flops, gpu.name


def test_a_sequence_length_that_the_graph_fixes_is_said_to_make_no_difference():
    request = PredictRequest(model="net", batch_size=4, sequence_length=512)
    answer = Predictor().predict(request, FEATURES)
    assert "sequence length makes no difference" in answer.explanation
