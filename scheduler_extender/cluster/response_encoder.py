"""Responses with one line for each node, built as bytes: most of a verb's time otherwise.

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

_SPACE, _COLON, _COMMA = b" :,"
_FIRST_WIDTH = 32
_HOST, _SCORE = b'{"Host":', b',"Score":  },'
_LINE = len(_HOST) + len(_SCORE)


class ResponseEncoder:
    """The names of nodes by slot: quoted, and in lines of one width for prioritize's answer.

    A line is `{"Host":"a"  ,"Score": 0},` with room for the longest name.
    """

    def __init__(self) -> None:
        self._quoted = np.full(64, b"", dtype=np.object_)
        self._rows = np.full((64, _LINE + _FIRST_WIDTH), _SPACE, dtype=np.uint8)

    def put(self, slot: int, name: str) -> None:
        """Set the name of a slot."""
        quoted = json.dumps(name).encode()
        slots, width = len(self._quoted), self._rows.shape[1] - _LINE
        if slot >= slots:
            more = np.full(slots, b"", dtype=np.object_)
            self._quoted = np.concatenate((self._quoted, more))
        if slot >= slots or len(quoted) > width:
            known, width = self._quoted, max(width, len(quoted) + 8)
            self._rows = np.full((len(known), _LINE + width), _SPACE, dtype=np.uint8)
            for at in np.flatnonzero(known).tolist():
                self._write(at, known[at])
        self._quoted[slot] = quoted
        self._write(slot, quoted)

    def _write(self, slot: int, quoted: bytes) -> None:
        row = self._rows[slot]
        line = _HOST + quoted.ljust(len(row) - _LINE) + _SCORE
        row[:] = np.frombuffer(line, dtype=np.uint8)

    def names(self, slots: Ints) -> bytes:
        """Return `"a","b",...` of the slots."""
        return b",".join(self._quoted[slots].tolist())

    def scored(self, slots: Ints, scores: Ints) -> memoryview:
        """Return `{"Host":"a","Score": 8},...`: the body of prioritize's answer."""
        lines = self._rows[slots]
        lines[:, -4:-2] = _NUMBERS[scores]
        return _without_last_comma(lines)

    def members(self, slots: Ints, values: Sequence[str], which: Ints) -> memoryview:
        """Return `"a":"why",...`: for each slot the member that gives it `values[which]`."""
        used = np.flatnonzero(np.bincount(which)).tolist()
        texts = [json.dumps(values[index]).encode() for index in used]
        width = max(map(len, texts), default=0)
        name_width = self._rows.shape[1] - _LINE
        lines = np.empty((len(slots), name_width + 1 + width + 1), dtype=np.uint8)
        lines[:, :name_width] = self._rows[slots, len(_HOST) : -len(_SCORE)]
        lines[:, name_width], lines[:, -1] = _COLON, _COMMA
        place = lines[:, name_width + 1 : -1]
        for index, text in zip(used, texts, strict=True):
            line = np.frombuffer(text.ljust(width), dtype=np.uint8)
            # Nodes are mostly refused for one reason: no array is made to choose from then.
            place[... if len(used) == 1 else which == index] = line
        return _without_last_comma(lines)


def _without_last_comma(lines: Bytes) -> memoryview:
    """Return lines one after another. To copy them is as much work as to make them."""
    return lines.reshape(-1).data[:-1]


_NUMBERS = np.frombuffer(b"".join(b"%2d" % number for number in range(11)), np.uint8).reshape(11, 2)
