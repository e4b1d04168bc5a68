"""Answers with a line per node, put together as bytes: the larger part of a verb's time otherwise.

JSON allows spaces between its tokens, so that all lines can be padded to one width and an answer
for thousands of nodes is a single selection from an array of bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tandem.policy.units import Ints

Bytes = NDArray[np.uint8]

_SPACE = ord(" ")
_FIRST_WIDTH = 32


class NodeLines:
    """The names of nodes by slot, quoted, padded to the longest, with a comma at the end."""

    def __init__(self) -> None:
        self._rows = np.full((64, _FIRST_WIDTH), _SPACE, dtype=np.uint8)
        self._used = 0

    def put(self, slot: int, name: str) -> None:
        """Set the name of a slot."""
        quoted = json.dumps(name).encode()
        slots, width = self._rows.shape
        if slot >= slots or len(quoted) + 1 > width:
            wider = np.full(
                (2 * slots if slot >= slots else slots, max(width, len(quoted) + 9)),
                _SPACE,
                dtype=np.uint8,
            )
            wider[:slots, : width - 1] = self._rows[:, :-1]
            wider[:slots, -1] = self._rows[:, -1]
            self._rows = wider
        row = self._rows[slot]
        row[:] = _SPACE
        row[: len(quoted)] = np.frombuffer(quoted, dtype=np.uint8)
        row[-1] = ord(",")

    def names(self, slots: Ints) -> bytes:
        """Return `"a","b",...` of the slots."""
        return self._rows[slots].tobytes()[:-1]

    def scored(self, slots: Ints, scores: Ints) -> bytes:
        """Return `{"Host":"a","Score":8},...`: the body of prioritize's answer."""
        return _joined(b'{"Host":', self._rows[slots], b'"Score":', _NUMBERS[scores], b"},")

    def members(self, slots: Ints, values: Sequence[str], which: Ints) -> bytes:
        """Return `"a":"why",...`: for each slot the member that gives it `values[which]`."""
        texts = [json.dumps(value).encode() for value in values]
        width = max(map(len, texts), default=0)
        block = np.frombuffer(b"".join(text.ljust(width) for text in texts), dtype=np.uint8)
        names = self._rows[slots]
        names[:, -1] = ord(":")
        return _joined(names, block.reshape(len(texts), width)[which], b",")


def _joined(*parts: Bytes | bytes) -> bytes:
    """Return the parts side by side, line by line, without the comma at the end.

    Bytes stand in every line; arrays are (lines, width).
    """
    lines = next(len(part) for part in parts if not isinstance(part, bytes))
    width = sum(len(p) if isinstance(p, bytes) else p.shape[1] for p in parts)
    out = np.empty((lines, width), dtype=np.uint8)
    at = 0
    for part in parts:
        block = np.frombuffer(part, dtype=np.uint8) if isinstance(part, bytes) else part
        end = at + block.shape[-1]
        out[:, at:end] = block
        at = end
    return out.tobytes()[:-1]


_NUMBERS = np.frombuffer(b"".join(b"%2d" % number for number in range(11)), np.uint8).reshape(11, 2)
