"""Flax models, as jax2onnx writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax2onnx import to_onnx


class _Perceptron(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.one, self.two = nnx.Linear(784, 1024, rngs=rngs), nnx.Linear(1024, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.two(nnx.relu(self.one(x)))


class _Convolutions(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.one = nnx.Conv(3, 32, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(32, use_running_average=True, rngs=rngs)
        self.two = nnx.Conv(32, 64, (3, 3), strides=2, rngs=rngs)
        self.out = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.norm(self.one(x)))
        return self.out(nnx.relu(self.two(x)).mean(axis=(1, 2)))


class _Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, width: int = 256) -> None:
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.attend = nnx.MultiHeadAttention(4, width, rngs=rngs, decode=False)
        self.one, self.two = nnx.Linear(width, 1024, rngs=rngs), nnx.Linear(1024, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attend(self.norm(x))
        return x + self.two(nnx.gelu(self.one(x)))


_MODELS: dict[str, tuple[type[nnx.Module], tuple[int, ...], float]] = {
    "perceptron": (_Perceptron, (784,), 2.0 * (784 * 1024 + 1024 * 10)),
    "convolutions": (
        _Convolutions,
        (32, 32, 3),
        2.0 * (32 * 32 * 32 * 27 + 16 * 16 * 64 * 288 + 640),
    ),
    # Projections of attention, its two products over 64 tokens, and the two layers after it.
    "block": (_Block, (64, 256), 2.0 * 64 * (4 * 256**2 + 2 * 256 * 1024) + 4.0 * 64 * 64 * 256),
}


def entries() -> list[tuple[str, str, Callable[[], tuple[bytes, dict[str, Any]]]]]:
    """Return name, exporter and what writes each graph."""
    return [(f"flax-{name}", "jax2onnx", lambda n=name: _write(n)) for name in _MODELS]  # type: ignore[misc]


def _write(name: str) -> tuple[bytes, dict[str, Any]]:
    make, shape, flops = _MODELS[name]
    model = make(nnx.Rngs(0))  # type: ignore[call-arg]
    proto = to_onnx(model, inputs=[("B", *shape)])
    state = jax.tree.leaves(nnx.state(model, (nnx.Param, nnx.BatchStat)))
    facts = {
        "parameters": sum(leaf.size for leaf in state),
        "flops": flops,
        "family": f"flax {name}",
    }
    return proto.SerializeToString(), facts
