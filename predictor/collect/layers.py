"""Features of a model that cannot be exported, from the operators of its layers.

Follows the definitions of docs/predictor.md over ATen operators of one forward pass at batch 1, on
the `meta` device, so that nothing is computed and no memory taken. FLOPs and parameters are those
of the exported graph. Views count nothing, and a recurrent layer counts by the products that it is
made of, so that activations and kernels may differ: a graph is preferred where there is one.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

#: ATen operators by the ONNX operator that they are, for counts; others keep their own name.
_NAMES = {
    "convolution": "Conv", "_convolution": "Conv", "addmm": "Gemm", "mm": "MatMul",
    "bmm": "MatMul", "baddbmm": "MatMul", "native_batch_norm": "BatchNormalization",
    "_native_batch_norm_legit_no_training": "BatchNormalization",
    "cudnn_batch_norm": "BatchNormalization", "native_layer_norm": "LayerNormalization",
    "native_group_norm": "GroupNormalization", "relu": "Relu", "relu_": "Relu", "gelu": "Gelu",
    "_softmax": "Softmax", "cat": "Concat", "add": "Add", "add_": "Add", "mul": "Mul",
    "mul_": "Mul", "mean": "ReduceMean", "embedding": "Gather",
    "max_pool2d_with_indices": "MaxPool",
    "avg_pool2d": "AveragePool", "_adaptive_avg_pool2d": "GlobalAveragePool", "sigmoid": "Sigmoid",
    "tanh": "Tanh", "clone": "Transpose", "split": "Split", "slice": "Slice",
}  # fmt: skip
_VIEWS = frozenset({
    "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "expand", "unsqueeze",
    "squeeze", "select", "slice", "split", "split_with_sizes", "unbind", "chunk", "detach", "alias",
    "as_strided", "dropout", "native_dropout", "_reshape_alias", "unsafe_split", "unsafe_chunk",
})  # fmt: skip
_IN_PLACE = frozenset({"relu", "leaky_relu", "hardtanh", "elu"})
_ELEMENTWISE_COST = {"_softmax": 5, "native_batch_norm": 2, "native_layer_norm": 8, "gelu": 8}


def layer_features(model: nn.Module, example: Tensor) -> dict[str, Any]:
    """Return the features of a model, which must be on `meta` as its example of batch 1 is."""
    counter = _Counter()
    with torch.no_grad(), counter:
        model.eval()(example)
    weights = [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
    sizes = [t.numel() * t.element_size() for t in weights if t.dim()]
    return {
        "flops": counter.flops,
        "backwardFlops": 2 * counter.flops + counter.elementwise,
        "elementwiseFlops": counter.elementwise,
        "parameters": sum(t.numel() for t in weights if t.dim()),
        "parameterBytes": sum(sizes),
        "activationBytes": counter.written,
        "savedActivationBytes": counter.saved,
        "largestActivationBytes": counter.largest,
        "largestTensorBytes": max(sizes, default=0),
        "tensorSkew": max(sizes, default=0) / max(sum(sizes), 1),
        "bytesMoved": float(counter.moved),
        "nodes": sum(counter.ops.values()),
        "kernels": counter.kernels,
        "depth": sum(counter.ops.values()),
        "opCounts": dict(sorted(counter.ops.items())),
        "opset": 0,
        "inputShapes": {"input": list(example.shape)},
    }


class _Counter(TorchDispatchMode):
    """Sums over every operator that runs within it."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0.0
        self.elementwise = 0.0
        self.written = self.saved = self.largest = self.moved = self.kernels = 0
        self.ops: Counter[str] = Counter()

    def __torch_dispatch__(  # PyTorch's own signature
        self,
        function: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: Any = (),  # noqa: ANN401
        kwargs: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Count one operator and run it."""
        result = function(*args, **(kwargs or {}))
        name = function.__name__.split(".")[0]
        outputs = [t for t in tree_flatten(result)[0] if isinstance(t, Tensor)]
        self.ops[_NAMES.get(name, name)] += 1
        if name in _VIEWS:
            return result
        inputs = [t for t in tree_flatten((args, kwargs or {}))[0] if isinstance(t, Tensor)]
        made = sum(map(_bytes, outputs[:1]))
        products = _flops(name, args, outputs)
        self.flops += products
        if not products:
            self.elementwise += (
                outputs[0].numel() * _ELEMENTWISE_COST.get(name, 1) if outputs else 0
            )
        self.written += made
        self.largest = max(self.largest, made)
        self.saved += 0 if name.rstrip("_") in _IN_PLACE or name.endswith("_") else made
        read = made if name == "embedding" else sum(map(_bytes, inputs))
        self.moved += read + made
        self.kernels += 1
        return result


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _flops(name: str, args: Any, outputs: list[Tensor]) -> float:  # noqa: ANN401
    """Return the multiply-adds of an operator, each counted as two."""
    if name in ("convolution", "_convolution"):
        weight, transposed = args[1], args[6]
        ends = args[0] if transposed else outputs[0]
        return 2.0 * ends.numel() * math.prod(weight.shape[1:])
    if name == "addmm":
        return 2.0 * outputs[0].numel() * args[1].shape[-1]
    if name in ("mm", "bmm"):
        return 2.0 * outputs[0].numel() * args[0].shape[-1]
    if name == "baddbmm":
        return 2.0 * outputs[0].numel() * args[1].shape[-1]
    if name.startswith("_scaled_dot_product"):
        query, key, value = args[0], args[1], args[2]
        rows = math.prod(query.shape[:-1]) * key.shape[-2]
        return 2.0 * rows * (query.shape[-1] + value.shape[-1])
    return 0.0
