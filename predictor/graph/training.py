"""What training does that an exported forward pass does not show.

Exports for inference fold BatchNormalization into convolutions and write layer norms, GELU, SiLU
and attention as many small nodes. A framework that trains runs each of them as one operator and
keeps less (or, for a folded norm, more) for the backward pass than the nodes suggest. `Fusions`
finds these groups; `saved_values` says what the backward pass of an operator reads.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from onnx import GraphProto, NodeProto

#: The names that exporters give to the weights of a convolution into which they folded a norm.
_FOLDED = re.compile(r"^onnx::Conv(Transpose)?_\d+$|fused_bn|_bn_folded|bn_fused", re.IGNORECASE)

#: Operators whose backward pass reads their inputs, their outputs, or both factors.
_READS_INPUT = frozenset({
    "Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "BatchNormalization", "LRN", "Pow", "Erf",
    "LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization", "Log",
    "Gelu", "HardSwish", "Swish", "Mish", "Softplus", "Abs", "LeakyRelu", "PRelu", "Clip", "Sin",
    "Cos", "MaxPool", "AveragePool", "LpPool", "ReduceL2", "ReduceL1", "ReduceMax", "ReduceMin",
    "ReduceProd", "LpNormalization", "MeanVarianceNormalization", "DeformConv", "HardSigmoid",
    "Attention", "MultiHeadAttention", "GroupQueryAttention", "LSTM", "GRU", "RNN", "BiasGelu",
    "FastGelu", "QuickGelu", "FusedMatMul", "FusedGemm", "FusedConv", "SkipLayerNormalization",
    "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "ConvInteger",
    "MatMulInteger", "QLinearConv", "QLinearMatMul", "MatMulNBits", "ThresholdedRelu", "Celu",
})  # fmt: skip
_READS_OUTPUT = frozenset({
    "Relu", "Sigmoid", "Tanh", "Softmax", "LogSoftmax", "Exp", "Sqrt", "Reciprocal", "Elu", "Selu",
    "Attention", "MultiHeadAttention", "GroupQueryAttention", "GlobalMaxPool", "FusedConv",
    "FusedGemm", "ReduceLogSumExp", "BiasSoftmax",
})  # fmt: skip
_PRODUCTS = frozenset({"Mul", "Div"})
#: What a recurrent layer keeps of each step, in sizes of its output: its gates and its state.
RECURRENT_KEEPS = {"LSTM": 5.0, "GRU": 4.0, "RNN": 0.0}

#: Their output is the storage of their input, seen otherwise.
ALIASES = frozenset({
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Transpose", "Slice", "Split",
    "Expand", "Dropout",
})  # fmt: skip
_SCALES = frozenset({"Mul", "Div"})
_BEFORE_SOFTMAX = frozenset({"Mul", "Div", "Add", "Sub", "Where", "Cast", "Reshape"})
_AFTER_SOFTMAX = frozenset({"Cast", "Dropout", "Where", "IsNaN", "Reshape"})


class Fusions:
    """Groups of nodes that a framework runs as one operator.

    Nodes are known by their first output. `absorbed` are the nodes of a group but its last; `keeps`
    names the values that the backward pass of a group reads, by its last node; `folded` are the
    convolutions that were followed by a BatchNormalization.
    """

    def __init__(self, graph: GraphProto) -> None:
        self.absorbed: set[str] = set()
        self.keeps: dict[str, tuple[str, ...]] = {}
        self.folded: set[str] = set()
        self._constants = {t.name for t in graph.initializer} | {
            node.output[0] for node in graph.node if node.op_type == "Constant" and node.output
        }
        self._makes: dict[str, NodeProto] = {}
        self._reads: defaultdict[str, list[NodeProto]] = defaultdict(list)
        kinds = set()
        for node in graph.node:
            kinds.add(node.op_type)
            for name in node.output:
                self._makes[name] = node
            for name in node.input:
                self._reads[name].append(node)
        finders = {
            "ReduceMean": self._layer_norm, "Erf": self._gelu, "Sigmoid": self._silu,
            "HardSigmoid": self._silu, "Softmax": self._attention,
        }  # fmt: skip
        for node in graph.node:
            if node.op_type in ("Conv", "ConvTranspose"):
                if len(node.input) > 1 and _FOLDED.search(node.input[1]):
                    self.folded.add(_key(node))
            elif node.op_type in finders and _key(node) not in self.absorbed:
                finders[node.op_type](node)

    def _group(self, nodes: Sequence[NodeProto], last: NodeProto, *keeps: str) -> None:
        self.absorbed.update(_key(node) for node in nodes)
        self.keeps[_key(last)] = keeps

    def _only_reader(self, name: str, *kinds: str) -> NodeProto | None:
        readers = self._reads[name]
        return readers[0] if len(readers) == 1 and readers[0].op_type in kinds else None

    def _layer_norm(self, mean: NodeProto) -> None:
        """ReduceMean, Sub, Pow or Mul, ReduceMean, Add, Sqrt, Div: reads the input alone."""
        x = mean.input[0]
        minus = self._only_reader(mean.output[0], "Sub")
        if minus is None or minus.input[0] != x:
            return
        centred = minus.output[0]
        square = next((n for n in self._reads[centred] if n.op_type in ("Pow", "Mul")), None)
        nodes = [mean, minus, square]
        at = square
        for kinds in (("ReduceMean",), ("Add",), ("Sqrt",), ("Div", "Reciprocal", "Mul")):
            if at is None:
                return
            at = self._only_reader(at.output[0], *kinds)
            nodes.append(at)
        if at is not None and at.op_type == "Reciprocal":
            at = self._only_reader(at.output[0], "Mul")
            nodes.append(at)
        if at is None or centred not in at.input or None in nodes:
            return
        for kind in ("Mul", "Add"):
            after = self._only_reader(at.output[0], kind)
            if after is None or not any(name in self._constants for name in after.input):
                break
            nodes.append(after)
            at = after
        found = [node for node in nodes if node is not None]
        self._group(found[:-1], found[-1], x)

    def _gelu(self, erf: NodeProto) -> None:
        """Find x / sqrt 2, Erf, + 1, times x and 0.5 in either order: reads the input alone."""
        scale = self._makes.get(erf.input[0])
        plus = self._only_reader(erf.output[0], "Add")
        if scale is None or plus is None or scale.op_type not in _SCALES:
            return
        x = scale.input[0] if scale.input[1] in self._constants else scale.input[1]
        nodes = [scale, erf, plus]
        at: NodeProto = plus
        for _ in range(2):
            after = self._only_reader(at.output[0], "Mul")
            if after is None:
                return
            nodes.append(after)
            at = after
        for half in self._reads[x]:  # 0.5 x may come first
            if (
                half.op_type == "Mul"
                and _key(half) != _key(scale)
                and _key(half) in nodes[-1].input
            ):
                nodes.insert(0, half)
        self._group(nodes[:-1], at, x)

    def _silu(self, sigmoid: NodeProto) -> None:
        """Find x times its (hard) sigmoid: reads the input alone."""
        product = self._only_reader(sigmoid.output[0], "Mul")
        if product is not None and sigmoid.input[0] in product.input:
            self._group([sigmoid], product, sigmoid.input[0])

    def _attention(self, softmax: NodeProto) -> None:
        """Q K^T, scaled and masked, Softmax, times V: keeps Q, K, V and its output."""
        before: list[NodeProto] = []
        at: NodeProto | None = self._makes.get(softmax.input[0])
        while at is not None and at.op_type in _BEFORE_SOFTMAX and len(before) < 8:
            before.append(at)
            at = next(
                (
                    made
                    for name in at.input
                    if (made := self._makes.get(name)) is not None
                    and made.op_type in (*_BEFORE_SOFTMAX, "MatMul")
                    and self._leads_to_product(made)
                ),
                None,
            )
        if at is None or at.op_type != "MatMul" or any(n in self._constants for n in at.input):
            return
        after: list[NodeProto] = []
        out: NodeProto | None = softmax
        while out is not None:
            readers = self._reads[out.output[0]]
            onward = [n for n in readers if n.op_type in _AFTER_SOFTMAX]
            product = [n for n in readers if n.op_type == "MatMul"]
            if product:
                query, key = (self._unscaled(name) for name in at.input[:2])
                value = product[0].input[1]
                last = product[0]
                self._group([at, *before, softmax, *after], last, query, key, value, last.output[0])
                return
            after += onward
            out = onward[-1] if onward and len(after) < 8 else None

    def _leads_to_product(self, node: NodeProto) -> bool:
        at: NodeProto | None = node
        for _ in range(8):
            if at is None:
                return False
            if at.op_type == "MatMul":
                return True
            at = next(
                (
                    m
                    for name in at.input
                    if (m := self._makes.get(name)) is not None
                    and m.op_type in (*_BEFORE_SOFTMAX, "MatMul")
                ),
                None,
            )
        return False

    def _unscaled(self, name: str) -> str:
        """Return what a factor of Q K^T is before it is scaled by a number."""
        node = self._makes.get(name)
        if node is not None and node.op_type in _SCALES and len(self._reads[name]) == 1:
            self.absorbed.add(_key(node))
            return str(node.input[0])
        return name


def _key(node: NodeProto) -> str:
    return node.output[0] if node.output else ""


def saved_values(node: NodeProto, constants: Sequence[bool]) -> tuple[bool, bool]:
    """Return whether the backward pass of an operator reads its inputs, and its outputs.

    `constants` says of each input whether it is one without an axis to train along.
    """
    op = node.op_type
    if op in _PRODUCTS:
        return not any(constants), False
    return op in _READS_INPUT, op in _READS_OUTPUT
