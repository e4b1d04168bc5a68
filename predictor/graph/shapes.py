"""The shapes of what a node reads and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Shape = tuple[int, ...]


class UnknownShapeError(Exception):
    """A shape that the count needs could not be inferred."""


@dataclass(frozen=True)
class NodeShapes:
    """One node with the shapes of what it reads and writes; None where unknown or left out."""

    op_type: str
    inputs: Sequence[Shape | None]
    outputs: Sequence[Shape | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def input(self, index: int) -> Shape:
        """Return the shape of an input; raises UnknownShapeError."""
        return _known(self.inputs, index)

    def output(self, index: int = 0) -> Shape:
        """Return the shape of an output; raises UnknownShapeError."""
        return _known(self.outputs, index)

    def optional_input(self, index: int) -> Shape | None:
        """Return the shape of an input that may be left out."""
        return self.inputs[index] if index < len(self.inputs) else None


def _known(shapes: Sequence[Shape | None], index: int) -> Shape:
    shape = shapes[index] if index < len(shapes) else None
    if shape is None:
        raise UnknownShapeError
    return shape
