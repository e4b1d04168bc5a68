"""Memory by framework, optimiser and way to train."""

from __future__ import annotations

import pytest
from predictor_graphs import Builder, tensor_input

from predictor.graph.features import extract_features
from predictor.load.memory import ALLOCATORS, Setup, formula_levels
from predictor.load.predictor import Predictor
from tandem.contracts.prediction import (
    Framework,
    Optimizer,
    Parallelism,
    Precision,
    PredictRequest,
)
from tandem.contracts.resources import GraphFeatures

GIB = 1024**3
#: A transformer of 24 layers: 1.2 GB of weights, little else.
LARGE = GraphFeatures(
    flops=1e11, backward_flops=2e11, parameters=300_000_000, parameter_bytes=1_200_000_000,
    activation_bytes=600 << 20, saved_activation_bytes=500 << 20, largest_activation_bytes=8 << 20,
    largest_tensor_bytes=120_000_000, tensor_skew=0.1, nodes=600, kernels=500, depth=288,
    op_counts={"MatMul": 200}, opset=17, bytes_moved=2e9,
)  # fmt: skip
WEIGHTS = LARGE.parameter_bytes


def fixed(**how: object) -> float:
    """Return what the job needs all the time, without start-up and what the allocator adds."""
    levels = formula_levels(LARGE, 1, Setup(**how))
    return (levels.fixed - levels.start_up) / ALLOCATORS[None].growth[0]


@pytest.mark.parametrize(
    ("optimizer", "copies"),
    [(Optimizer.SGD, 0), (Optimizer.LION, 1), (Optimizer.ADAM, 2), (Optimizer.LAMB, 2),
     (Optimizer.ADAM_8BIT, 0.5), (Optimizer.LION_8BIT, 0.25)],
)  # fmt: skip
def test_the_state_of_an_optimiser_is_counted_by_its_name(optimizer, copies):
    extra = fixed(optimizer=optimizer) - fixed(optimizer=Optimizer.SGD)
    assert extra == pytest.approx(copies * WEIGHTS)


def test_adafactor_keeps_far_less_than_a_copy():
    extra = fixed(optimizer=Optimizer.ADAFACTOR) - fixed(optimizer=Optimizer.SGD)
    assert 0 < extra < 0.05 * WEIGHTS


def test_shards_shrink_what_they_divide():
    """Adam on 8 workers: 4 copies; ZeRO-1 divides 2 of them, ZeRO-2 3, ZeRO-3 and FSDP all."""
    how = {"optimizer": Optimizer.ADAM, "workers": 8}
    alone = fixed(**how)
    ddp, one, two, three, fsdp = (fixed(parallelism=p, **how) for p in Parallelism)
    assert ddp > alone  # buckets and buffers of NCCL
    assert alone > one > two > three == fsdp
    bucket = WEIGHTS - GIB  # DDP's buckets hold all gradients, those of ZeRO at most 1 GiB
    assert ddp - one == pytest.approx(2 * WEIGHTS * 7 / 8 + bucket)
    assert three < alone / 2


def test_one_worker_divides_nothing():
    assert fixed(parallelism=Parallelism.FSDP, workers=1) == fixed()


def test_checkpointing_keeps_a_part_of_the_activations_and_no_less_weights():
    plain, saved = (
        formula_levels(LARGE, 8, Setup(gradient_checkpointing=on)) for on in (False, True)
    )
    assert saved.varying < plain.varying / 3
    assert saved.fixed == plain.fixed
    assert saved.p95 < plain.p95


def test_an_allocator_that_doubles_holds_up_to_twice_the_need():
    torch, tensorflow = (
        formula_levels(LARGE, 8, Setup(framework=f))
        for f in (Framework.PYTORCH, Framework.TENSORFLOW)
    )
    assert tensorflow.fixed + tensorflow.varying > 1.2 * (torch.fixed + torch.varying)
    assert tensorflow.p95 > 1.5 * (tensorflow.fixed + tensorflow.varying - 2 * GIB)


def test_tensorflow_searches_for_convolutions_with_a_workspace():
    convolves = LARGE.model_copy(update={"op_counts": {"Conv": 3}})
    setup = Setup(framework=Framework.TENSORFLOW)
    extra = formula_levels(convolves, 1, setup).fixed - formula_levels(LARGE, 1, setup).fixed
    assert extra == pytest.approx(
        ALLOCATORS[Framework.TENSORFLOW].growth[0] * ALLOCATORS[Framework.TENSORFLOW].workspace[0]
    )


@pytest.mark.parametrize(
    ("producer", "framework"),
    [("pytorch", Framework.PYTORCH), ("tf2onnx", Framework.TENSORFLOW), ("jax2onnx", Framework.JAX),
     ("skl2onnx", None), ("", None)],
)  # fmt: skip
def test_the_framework_is_read_from_the_exporters_name(producer, framework):
    b = Builder()
    model = b.model([tensor_input("x", 1, 8)], b.node("Relu", "x"))
    model.producer_name = producer
    assert extract_features(model.SerializeToString()).framework is framework


def test_what_is_stated_goes_before_the_exporters_name():
    graph = LARGE.model_copy(update={"framework": Framework.PYTORCH})
    said = [
        Predictor().predict(
            PredictRequest(model="m", batch_size=4, framework=framework), graph
        ).load.memory_p95_bytes
        for framework in (None, Framework.PYTORCH, Framework.TENSORFLOW)
    ]  # fmt: skip
    assert said[0] == said[1] < said[2]


def test_all_that_is_stated_reaches_the_formula():
    plain = PredictRequest(model="m", batch_size=8, optimizer=Optimizer.ADAM)
    for change in (
        {"gradient_checkpointing": True},
        {"parallelism": Parallelism.ZERO_3, "workers": 4},
        {"optimizer": Optimizer.ADAM_8BIT},
        {"precision": Precision.BF16},
    ):
        less = plain.model_copy(update=change)
        before, after = (Predictor().predict(asked, LARGE).load for asked in (plain, less))
        assert after.memory_p95_bytes < before.memory_p95_bytes, change
