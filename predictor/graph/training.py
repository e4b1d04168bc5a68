"""Derives from an exported forward pass what training adds to it.

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

from predictor.graph import contrib

#: The names that exporters give to the weights of a convolution into which they folded a norm; a
#: quantiser adds its own ending.
_FOLDED = re.compile(
    r"^onnx::Conv(Transpose)?_\d+($|_quantized|_DequantizeLinear)|fused_bn|_bn_folded|bn_fused",
    re.IGNORECASE,
)
#: Where torch.export's exporter says which rules rewrote a node, and the rule that folds norms.
_RULES_KEY, _FOLDING_RULE = "pkg.onnxscript.rewriter.rule_name", "FuseBatchNorm"
#: The operators into which a norm is folded, with the place of their weight.
_FOLDS_INTO = {
    "Conv": 1, "ConvTranspose": 1, "FusedConv": 1, "ConvInteger": 1, "QLinearConv": 3, "Gemm": 1,
}  # fmt: skip

#: Operators whose backward pass reads their inputs, their outputs, or both factors.
_READS_INPUT = frozenset({
    "Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "BatchNormalization", "LRN", "Pow", "Erf",
    "LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization", "Log",
    "Gelu", "HardSwish", "Swish", "Mish", "Softplus", "Abs", "LeakyRelu", "PRelu", "Clip", "Sin",
    "Cos", "MaxPool", "AveragePool", "LpPool", "ReduceL2", "ReduceL1", "ReduceMax", "ReduceMin",
    "ReduceProd", "LpNormalization", "MeanVarianceNormalization", "DeformConv", "HardSigmoid",
    "Attention", "MultiHeadAttention", "GroupQueryAttention", "LSTM", "GRU", "RNN", "BiasGelu",
    "FastGelu", "QuickGelu", "FusedMatMul", "FusedGemm", "FusedConv",
    "SimplifiedLayerNormalization", "ConvInteger",
    "MatMulInteger", "QLinearConv", "QLinearMatMul", "MatMulNBits", "ThresholdedRelu", "Celu",
})  # fmt: skip
_READS_OUTPUT = frozenset({
    "Relu", "Sigmoid", "Tanh", "Softmax", "LogSoftmax", "Exp", "Sqrt", "Reciprocal", "Elu", "Selu",
    "Attention", "MultiHeadAttention", "GroupQueryAttention", "GlobalMaxPool", "ReduceLogSumExp",
    "BiasSoftmax",
})  # fmt: skip
_PRODUCTS = frozenset({"Mul", "Div"})
_MATRIX_PRODUCTS = ("MatMul", "FusedMatMul")
#: No weight is trained through them: shapes, comparisons, and the waves of positions.
_WITHOUT_GRADIENT = frozenset({
    "Cos", "Sin", "Shape", "Size", "Range", "Equal", "Less", "LessOrEqual", "Greater", "Not", "And",
    "GreaterOrEqual", "Or", "Xor", "IsNaN", "IsInf", "ArgMax", "ArgMin", "OneHot", "NonZero",
    "ConstantOfShape", "EyeLike", "Sign", "Round", "Floor", "Ceil",
})  # fmt: skip
#: What a recurrent layer keeps of each step, in sizes of its output: its gates and its state.
RECURRENT_KEEPS = {"LSTM": 5.0, "GRU": 4.0, "RNN": 0.0}

#: Their output is the storage of their input, seen otherwise. Training has no quantised copy.
ALIASES = frozenset({
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Transpose", "Slice", "Split",
    "Expand", "Dropout", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear",
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
            "HardSigmoid": self._silu, "Softmax": self._attention, "Tanh": self._gelu_by_tanh,
            "ConvInteger": self._integer_product, "MatMulInteger": self._integer_product,
        }  # fmt: skip
        for node in graph.node:
            if _has_folded_norm(node):
                self.folded.add(_key(node))
            if node.op_type in finders and _key(node) not in self.absorbed:
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

    def _gelu_by_tanh(self, tanh: NodeProto) -> None:
        """Find 0.5 x (1 + Tanh(c (x + d x x x))): reads the input alone.

        A model that writes it out in its own code takes a power for the cube, and keeps each part.
        """
        scale = self._makes.get(tanh.input[0])
        plus = next(iter(self._sources(scale, "Add")), None)
        cubed = next(iter(self._sources(plus, "Mul")), None)
        cube = next(iter(self._sources(cubed, "Mul")), None)
        square = next(iter(self._sources(cube, "Mul")), None)
        if scale is None or plus is None or cubed is None or cube is None or square is None:
            return
        x = square.input[0]
        if square.input[1] != x or x not in cube.input or x not in plus.input:
            return
        nodes = [square, cube, cubed, plus, scale, tanh]
        at: NodeProto | None = self._only_reader(tanh.output[0], "Add")
        for _ in range(2):
            if at is None:
                return
            nodes.append(at)
            at = self._only_reader(at.output[0], "Mul")
        if at is not None:
            self._group(nodes, at, x)

    def _sources(self, node: NodeProto | None, kind: str) -> list[NodeProto]:
        """Return the nodes of a kind that make the inputs of a node."""
        made = [self._makes.get(name) for name in node.input] if node is not None else []
        return [m for m in made if m is not None and m.op_type == kind]

    def _silu(self, sigmoid: NodeProto) -> None:
        """Find x times its (hard) sigmoid: reads the input alone."""
        product = self._only_reader(sigmoid.output[0], "Mul")
        if product is not None and sigmoid.input[0] in product.input:
            self._group([sigmoid], product, sigmoid.input[0])

    def _attention(self, softmax: NodeProto) -> None:
        """Q K^T, scaled and masked, Softmax, times V: keeps Q, K, V and its output.

        Where a model writes it out, the output of Softmax is kept as well.
        """
        before: list[NodeProto] = []
        at: NodeProto | None = self._makes.get(softmax.input[0])
        while at is not None and at.op_type in _BEFORE_SOFTMAX and len(before) < 8:
            before.append(at)
            at = next(
                (
                    made
                    for name in at.input
                    if (made := self._makes.get(name)) is not None
                    and made.op_type in (*_BEFORE_SOFTMAX, *_MATRIX_PRODUCTS)
                    and self._leads_to_product(made)
                ),
                None,
            )
        if (
            at is None
            or at.op_type not in _MATRIX_PRODUCTS
            or any(n in self._constants for n in at.input)
        ):
            return
        after: list[NodeProto] = []
        out: NodeProto | None = softmax
        while out is not None:
            readers = self._reads[out.output[0]]
            onward = [n for n in readers if n.op_type in _AFTER_SOFTMAX]
            product = [n for n in readers if n.op_type in _MATRIX_PRODUCTS]
            if product:
                query, key = (self._unscaled(name) for name in at.input[:2])
                value, last = product[0].input[1], product[0]
                # Exporters of the fused operator scale both factors, models' own code does not.
                both = query != at.input[0] and key != at.input[1]
                written_out = () if at.op_type != "MatMul" or both else (softmax.output[0],)
                self._group([at, *before, softmax, *after], last, query, key, value,
                            last.output[0], *written_out)  # fmt: skip
                return
            after += onward
            out = onward[-1] if onward and len(after) < 8 else None

    def _integer_product(self, product: NodeProto) -> None:
        """Find the product, Cast, Mul by the scales: as one product, which reads its input."""
        cast = self._only_reader(product.output[0], "Cast")
        scaled = self._only_reader(cast.output[0], "Mul") if cast is not None else None
        if cast is not None and scaled is not None:
            self._group([product, cast], scaled, *product.input[:2])

    def _leads_to_product(self, node: NodeProto) -> bool:
        at: NodeProto | None = node
        for _ in range(8):
            if at is None:
                return False
            if at.op_type in _MATRIX_PRODUCTS:
                return True
            at = next(
                (
                    m
                    for name in at.input
                    if (m := self._makes.get(name)) is not None
                    and m.op_type in (*_BEFORE_SOFTMAX, *_MATRIX_PRODUCTS)
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


def _has_folded_norm(node: NodeProto) -> bool:
    place = _FOLDS_INTO.get(node.op_type)
    if place is None or len(node.input) <= place:
        return False
    if node.op_type != "Gemm" and _FOLDED.search(node.input[place]):
        return True
    return any(p.key == _RULES_KEY and _FOLDING_RULE in p.value for p in node.metadata_props)


def fused_activation(node: NodeProto) -> str:
    """Return the activation that ONNX Runtime fused into a convolution or product, else ""."""
    if node.op_type not in ("FusedConv", "FusedGemm"):
        return ""
    return next((a.s.decode("utf-8", "replace") for a in node.attribute
                 if a.name == "activation"), "")  # fmt: skip


def saved_values(node: NodeProto, fixed: Sequence[bool]) -> list[str]:
    """Return the values that the backward pass of an operator reads.

    `fixed` says of each input whether it has no gradient. A product reads a factor for the gradient
    of the other one, and a quotient its divisor for both.
    """
    op = node.op_type
    if op in _PRODUCTS:
        found = []
        for place, name in enumerate(node.input):
            others = all(fixed[:place]) and all(fixed[place + 1 :])
            if not others or (op == "Div" and place == 1 and not fixed[place]):
                found.append(name)
        return found
    found = list(node.input) if op in _READS_INPUT else []
    if op in _READS_OUTPUT or fused_activation(node) in _READS_OUTPUT:
        found += node.output[:1]
    return found


def has_no_gradient(node: NodeProto, fixed: Sequence[bool]) -> bool:
    """Say whether what a node makes has no gradient: positions, masks, and what follows of them."""
    if node.op_type in ALIASES:  # the other inputs are shapes and axes
        return bool(fixed) and fixed[0]
    return node.op_type in _WITHOUT_GRADIENT or (bool(fixed) and all(fixed))


def hidden_values(node: NodeProto) -> int:
    """Return how many values of its output's size training keeps inside of a fused operator.

    An activation whose backward pass reads its input keeps what the product before it writes, a
    norm the sum before it, and attention its queries, keys and values.
    """
    inside = _INSIDE.get(node.op_type, 0) if node.domain == contrib.DOMAIN else 0
    return inside + int(fused_activation(node) in _READS_INPUT)


_INSIDE = {
    "SkipLayerNormalization": 1, "SkipSimplifiedLayerNormalization": 1,
    "EmbedLayerNormalization": 1, "Attention": 3,
}  # fmt: skip
