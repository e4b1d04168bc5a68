"""Profiles that were not measured, for tests of training; each says so in its origin."""

from __future__ import annotations

import numpy as np

from predictor.training.profiles import Origin, Profile
from tandem.contracts.prediction import Optimizer, Precision
from tandem.contracts.resources import GraphFeatures

GPUS = {"NVIDIA H200": 141 << 30, "Tesla V100-SXM2-16GB": 16 << 30}


def graph(rng: np.random.Generator) -> GraphFeatures:
    """A graph of random size; half of them are convolutional, half transformers."""
    convolutional = rng.random() < 0.5
    flops = 10 ** rng.uniform(8.5, 10.5)
    parameters = int(10 ** rng.uniform(6.3, 8))
    activations = 10 ** rng.uniform(7, 8.3)
    kernels = int(rng.integers(40, 500))
    ops = (
        {"Conv": kernels // 3, "Relu": kernels // 3} if convolutional else {"MatMul": kernels // 2}
    )
    return GraphFeatures(
        flops=flops, backward_flops=2 * flops, elementwise_flops=flops / 50,
        parameters=parameters, parameter_bytes=4 * parameters,
        activation_bytes=int(activations), saved_activation_bytes=int(0.7 * activations),
        largest_activation_bytes=int(activations / 20), largest_tensor_bytes=parameters // 8,
        tensor_skew=0.1, nodes=kernels, kernels=kernels, depth=kernels // 2, op_counts=ops,
        opset=17, bytes_moved=3 * activations,
    )  # fmt: skip


def synthetic_profiles(
    families: int = 12, seed: int = 0, *, noise: float = 0.03, first_family: int = 0
) -> list[Profile]:
    """Configurations whose figures are the formula's times factors that features tell of.

    Memory: what the caching allocator adds, more for convolutions. Utilisation and time: kernels
    that are slower than the roofline.
    """
    found = []
    for number in range(first_family, first_family + families):
        rng = np.random.default_rng([seed, number])
        features = graph(rng)
        convolutional = "Conv" in features.op_counts
        for batch in (4, 16, 64):
            for precision in (Precision.FP32, Precision.BF16):
                for gpu, memory in GPUS.items():
                    optimizer = Optimizer.ADAM if batch == 16 else Optimizer.SGD
                    bare = Profile(
                        name=f"net-{number}", family=f"family-{number}", origin=Origin.SYNTHETIC,
                        features=features, batch_size=batch, precision=precision,
                        optimizer=optimizer, gpu_model=gpu, gpu_memory_bytes=memory,
                    )  # fmt: skip
                    found.append(_with_figures(bare, convolutional, rng, noise))
    return found


def _with_figures(
    bare: Profile, convolutional: bool, rng: np.random.Generator, noise: float
) -> Profile:
    from predictor.load.features import known

    asked = known(bare.question())
    assert asked is not None
    wobble = np.exp(rng.normal(0, noise, 3))
    step = asked.step
    memory = asked.levels.fixed * 0.6 + asked.levels.varying * (1.6 if convolutional else 0.9)
    seconds = step.seconds * (1.5 if convolutional else 2.2)
    utilisation = min(100.0, step.utilisation_percent * (0.95 if convolutional else 0.7))
    return bare.model_copy(
        update={
            "memory_peak_bytes": int(memory * wobble[0]),
            "utilisation_percent": float(min(utilisation * wobble[1], 100)),
            "iteration_s": float(seconds * wobble[2]),
        }
    )
