"""The sizes of a graph's open axes: by name, by expression, by its operators, at last by default.

An axis is open where the file states no size, or a size of 0 or -1, as some exporters write an
unknown one. A symbol may be an expression of others (`past_sequence_length + 1`, `floor(h/2)`).
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any

from onnx import ModelProto, TensorShapeProto, ValueInfoProto

from predictor.errors import GraphError, Refusal
from predictor.graph.fixed import OpenAxes, fixed_sizes

_BATCH_NAME = re.compile(r"batch|^(n|b|bs)$", re.IGNORECASE)
_SEQUENCE_NAME = re.compile(r"seq|len|time|token|^(s|t|l)$", re.IGNORECASE)
#: Inputs of four axes that are keys and values of earlier tokens, and no images.
_CACHE_NAME = re.compile(r"past|cache|key|value", re.IGNORECASE)
#: Characters of an expression that is evaluated; a longer one is a symbol like any other.
_EXPRESSION_CHARACTERS = 200
#: Sizes that are tried for the one symbol of an expression, and what a power may come to.
_TRIED, _LARGEST = 4096, 2**40


@dataclass(frozen=True)
class SymbolSizes:
    """The sizes given to an input's symbolic axes; the batch is always 1.

    `named` wins over the rules; then comes the batch, by name or as the leading axis; what the
    operators that read the input fix; the spatial axes of an image; everything else is a sequence.
    """

    sequence_length: int = 128
    image_size: int = 224
    named: dict[str, int] = field(default_factory=dict)


@dataclass
class _Axis:
    """One open axis of an input; `symbol` is "" where the file gives it no name."""

    dim: TensorShapeProto.Dimension
    symbol: str
    key: str  # the symbol, or the input and the axis
    input: str
    axis: int
    by_default: str = ""  # "sequence" or "image" where nothing fixes it


@dataclass
class OpenSizes:
    """The open axes of a model and what they are taken for; `apply` writes the sizes into it."""

    axes: list[_Axis]
    declared: list[tuple[TensorShapeProto.Dimension, str]]  # symbols of outputs and of values
    defaults: SymbolSizes
    sizes: dict[str, int] = field(default_factory=dict)  # of symbols and of axes without one

    @property
    def assumed(self) -> dict[str, int]:
        """The sizes that come from the default of an image, by symbol or `input[axis]`."""
        image = (axis for axis in self.axes if axis.by_default == "image")
        return {axis.key: self.sizes[axis.key] for axis in image}

    @property
    def uses_default(self) -> bool:
        """Whether the size of an axis is a default of any kind."""
        return any(axis.by_default for axis in self.axes)

    @property
    def uses_sequence(self) -> bool:
        """Whether an axis has the default length of a sequence."""
        return any(axis.by_default == "sequence" for axis in self.axes)

    def resize(self, kind: str, size: int) -> None:
        """Give another size to the axes that have a default of this kind."""
        for axis in self.axes:
            if axis.by_default == kind:
                self.sizes[axis.key] = size

    def fix(self, kind: str) -> None:
        """State that the axes of a kind have the sizes that the graph asks for."""
        for axis in self.axes:
            if axis.by_default == kind:
                axis.by_default = ""

    def apply(self) -> None:
        """Write the sizes into the model; symbols that have none are left to inference."""
        for axis in self.axes:
            size = self.sizes.get(axis.key)
            if size is None:
                size = evaluate(axis.symbol, self.sizes)
            axis.dim.dim_value = 1 if size is None else size
        for dim, symbol in self.declared:
            size = self.sizes.get(symbol)
            if size is None:
                size = evaluate(symbol, self.sizes)
            if size is None:
                dim.Clear()
            else:
                dim.dim_value = size


def open_sizes(
    model: ModelProto,
    inputs: Sequence[ValueInfoProto],
    sizes: SymbolSizes,
    time_major: frozenset[str],
) -> OpenSizes:
    """Find a size for every open axis; raises GraphError for an input without a shape."""
    axes = [axis for value in inputs for axis in _open_axes(value)]
    others = (*model.graph.output, *model.graph.value_info)
    declared = [(dim, dim.dim_param) for value in others for dim in _open_dims(value)]
    found = OpenSizes(axes, declared, sizes, dict(sizes.named))
    if axes:
        _bind(found, inputs, time_major, model)
    return found


def _bind(
    found: OpenSizes,
    inputs: Sequence[ValueInfoProto],
    time_major: frozenset[str],
    model: ModelProto,
) -> None:
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in inputs}
    sizes, left = found.sizes, list[_Axis]()
    for axis in found.axes:
        batch_axis = 1 if axis.input in time_major else 0
        if axis.key in sizes:
            continue
        leads = axis.axis == batch_axis and not _SEQUENCE_NAME.search(axis.symbol)
        if (leads or _BATCH_NAME.search(axis.symbol)) and not _is_expression(axis.symbol):
            sizes[axis.key] = 1
        else:
            left.append(axis)
    left = [axis for axis in left if axis.key not in sizes]
    if not left:
        return
    fixed = fixed_sizes(model, _for_inference(found, left))
    for key, size in fixed.sizes.items():
        sizes.setdefault(key, size)
    plain = [axis for axis in left if not _is_expression(axis.symbol)]
    for axis in plain:
        if axis.key not in sizes:
            axis.by_default = _kind(axis, ranks[axis.input], fixed.spatial)
            sizes[axis.key] = _default(axis.by_default, found.defaults)
    for axis in left:
        if axis not in plain and axis.key not in sizes:
            _bind_expression(axis, ranks[axis.input], fixed.spatial, found)


def _kind(axis: _Axis, rank: int, spatial: frozenset[str]) -> str:
    if axis.key in spatial:
        return "image"
    cache = _CACHE_NAME.search(axis.input) is not None
    return "image" if rank >= 4 and not _SEQUENCE_NAME.search(axis.symbol) and not cache else (
        "sequence"
    )  # fmt: skip


def _default(kind: str, sizes: SymbolSizes) -> int:
    return sizes.image_size if kind == "image" else sizes.sequence_length


def _bind_expression(axis: _Axis, rank: int, spatial: frozenset[str], found: OpenSizes) -> None:
    """Give an expression the value of its symbols; one that has none of its own gets a size.

    Where a single symbol is not known, it is chosen so that the expression comes to the size.
    """
    names = symbols_of(axis.symbol)
    batch = {name: 1 for name in names if _BATCH_NAME.search(name)}
    known = batch | found.sizes
    if all(name in known for name in names):
        value = evaluate(axis.symbol, known)
        if value is not None:
            found.sizes[axis.key] = value
            return
    if _BATCH_NAME.search(axis.symbol) or (
        axis.axis == 0 and not _SEQUENCE_NAME.search(axis.symbol)
    ):
        found.sizes[axis.key] = target = 1
    else:
        axis.by_default = _kind(axis, rank, spatial)
        found.sizes[axis.key] = target = _default(axis.by_default, found.defaults)
    unknown = [name for name in names if name not in known]
    if len(unknown) != 1:
        return
    for tried in range(1, min(2 * target, _TRIED) + 2):
        value = evaluate(axis.symbol, known | {unknown[0]: tried})
        if value is not None and value >= target:
            found.sizes[unknown[0]] = tried
            found.sizes[axis.key] = value
            return


def _open_axes(value: ValueInfoProto) -> Iterator[_Axis]:
    tensor = value.type.tensor_type
    if value.type.WhichOneof("value") == "tensor_type" and not tensor.HasField("shape"):
        raise GraphError(
            Refusal.UNSUPPORTED,
            f"Input {value.name[:80]!r} has no shape.",
            "Export the model with a shape for every input; symbolic sizes are fine.",
        )
    for axis, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value > 0:
            continue
        symbol = dim.dim_param
        yield _Axis(dim, symbol, symbol or f"{value.name[:80]}[{axis}]", value.name, axis)


def _open_dims(value: ValueInfoProto) -> Iterator[TensorShapeProto.Dimension]:
    for dim in value.type.tensor_type.shape.dim:
        if dim.HasField("dim_param") or (dim.HasField("dim_value") and dim.dim_value <= 0):
            yield dim


def _for_inference(found: OpenSizes, left: Sequence[_Axis]) -> OpenAxes:
    keys = {id(axis) for axis in left}
    return {
        (axis.input, axis.axis): axis.key if id(axis) in keys else found.sizes[axis.key]
        for axis in found.axes
    }


def guessed(value: ValueInfoProto) -> bool:
    """Say whether the first two axes are symbols of which neither is named as the batch."""
    dims = value.type.tensor_type.shape.dim[:2]
    return len(dims) == 2 and not any(
        (dim.HasField("dim_value") and dim.dim_value > 0) or _BATCH_NAME.search(dim.dim_param)
        for dim in dims
    )


# --- expressions ---------------------------------------------------------------------------------

_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "floor": math.floor, "ceil": math.ceil, "ceiling": math.ceil, "trunc": math.trunc,
    "round": round, "min": min, "max": max, "abs": abs, "mod": operator.mod,
    "pythonmod": operator.mod, "floordiv": operator.floordiv,
    "cleandiv": operator.floordiv, "truediv": operator.truediv,
    "inttruediv": operator.truediv, "ceiltoint": math.ceil, "trunctoint": math.trunc,
    "floortoint": math.floor, "sqrt": lambda x: Fraction(math.isqrt(math.floor(x))),
}  # fmt: skip


def evaluate(text: str, sizes: Mapping[str, int]) -> int | None:
    """Return the value of an expression (rounded down); None where a symbol has no size."""
    tree = _parsed(text)
    if tree is None:
        return None
    try:
        value = _value(tree, sizes)
        return math.floor(value) if 0 <= value <= _LARGEST else None
    except (ArithmeticError, ValueError, TypeError, KeyError):
        return None


def symbols_of(text: str) -> list[str]:
    """Return the symbols of an expression, each once; none of a text that is a plain name."""
    tree = _parsed(text)
    if tree is None:
        return []
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = (n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in called)
    return list(dict.fromkeys(names))


def _is_expression(text: str) -> bool:
    return _parsed(text) is not None


@lru_cache(maxsize=1024)
def _parsed(text: str) -> ast.expr | None:
    """Return the tree of an expression; None for a name, and for what is neither."""
    if not text or text.isidentifier() or len(text) > _EXPRESSION_CHARACTERS:
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if isinstance(tree, ast.Name) or not _supported(tree):
        return None
    return tree


def _supported(tree: ast.expr) -> bool:
    if isinstance(tree, ast.Constant):
        return type(tree.value) in (int, float)
    if isinstance(tree, ast.Name):
        return True
    if isinstance(tree, ast.UnaryOp):
        return isinstance(tree.op, ast.USub | ast.UAdd) and _supported(tree.operand)
    if isinstance(tree, ast.BinOp):
        known = type(tree.op) in _OPERATORS or isinstance(tree.op, ast.Pow)
        return known and _supported(tree.left) and _supported(tree.right)
    if isinstance(tree, ast.Call):
        name = tree.func.id.lower() if isinstance(tree.func, ast.Name) else ""
        return name in _FUNCTIONS and not tree.keywords and all(map(_supported, tree.args))
    return False


def _value(tree: ast.expr, sizes: Mapping[str, int]) -> Fraction | int:
    """Return the value of a supported tree, exactly; raises KeyError for a symbol without one."""
    if isinstance(tree, ast.Constant):
        return Fraction(str(tree.value))
    if isinstance(tree, ast.Name):
        return sizes[tree.id]
    if isinstance(tree, ast.UnaryOp):
        value = _value(tree.operand, sizes)
        return -value if isinstance(tree.op, ast.USub) else value
    if isinstance(tree, ast.BinOp):
        left, right = _value(tree.left, sizes), _value(tree.right, sizes)
        if isinstance(tree.op, ast.Pow):
            return _power(left, right)
        return _bounded(_OPERATORS[type(tree.op)](Fraction(left), right))
    assert isinstance(tree, ast.Call)
    assert isinstance(tree.func, ast.Name)
    values = [Fraction(_value(argument, sizes)) for argument in tree.args]
    return _bounded(_FUNCTIONS[tree.func.id.lower()](*values))


def _power(base: Fraction | int, exponent: Fraction | int) -> Fraction:
    if not 0 <= exponent <= 8 or exponent != math.floor(exponent):
        raise ValueError
    return _bounded(Fraction(base) ** math.floor(exponent))


def _bounded(value: Any) -> Fraction:  # noqa: ANN401
    exact = Fraction(value)
    if abs(exact) > _LARGEST or exact.denominator > _LARGEST:
        raise ValueError
    return exact
