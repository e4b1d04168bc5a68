"""Reads what XGBoost writes of UBJSON (ubjson.org, draft 12), the format of stored models.

The service needs no more of XGBoost than this, and its import takes seconds.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

#: Type markers of numbers, with numpy's names for them (big-endian).
_NUMBERS = {
    b"i": ">i1",
    b"U": ">u1",
    b"I": ">i2",
    b"l": ">i4",
    b"L": ">i8",
    b"d": ">f4",
    b"D": ">f8",
}
_CONSTANTS = {b"T": True, b"F": False, b"Z": None}


def read(data: bytes) -> dict[str, Any]:
    """Return the object in `data`; typed arrays as numpy's. Raises ValueError on anything else."""
    if data[:1] != b"{":
        raise ValueError("not UBJSON: not an object")
    try:
        value, end = _object(data, 1)
    except (KeyError, IndexError, struct.error, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"not UBJSON: {error!r}") from error
    if end != len(data):
        raise ValueError(f"not UBJSON: {len(data) - end} bytes too many")
    return value


def _value(data: bytes, at: int, kind: bytes) -> tuple[Any, int]:
    """Return the value of a type, of which the content begins at `at`, and where it ends."""
    if kind in _CONSTANTS:
        return _CONSTANTS[kind], at
    if kind == b"S":
        return _text(data, at)
    if kind == b"[":
        return _array(data, at)
    if kind == b"{":
        return _object(data, at)
    numbers, at = _numbers(data, at, kind, 1)
    return numbers[0].item(), at


def _numbers(data: bytes, at: int, kind: bytes, count: int) -> tuple[Any, int]:
    dtype = np.dtype(_NUMBERS[kind])
    return np.frombuffer(data, dtype, count, at), at + count * dtype.itemsize


def _length(data: bytes, at: int) -> tuple[int, int]:
    length, at = _value(data, at + 1, data[at : at + 1])
    if not isinstance(length, int) or length < 0:
        raise ValueError(f"not UBJSON: length {length!r}")
    return length, at


def _text(data: bytes, at: int) -> tuple[str, int]:
    length, at = _length(data, at)
    if at + length > len(data):
        raise ValueError("not UBJSON: it ends in a text")
    return data[at : at + length].decode(), at + length


def _object(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    found = {}
    while data[at : at + 1] != b"}":
        key, at = _text(data, at)
        found[key], at = _value(data, at + 1, data[at : at + 1])
    return found, at + 1


def _array(data: bytes, at: int) -> tuple[Any, int]:
    if data[at : at + 1] == b"$":
        kind = data[at + 1 : at + 2]
        count, at = _length(data, at + 3)  # past the type and `#`
        return _numbers(data, at, kind, count)
    if data[at : at + 1] != b"#":
        raise ValueError("not UBJSON of XGBoost: an array that does not say its length")
    count, at = _length(data, at + 1)
    values = []
    for _ in range(count):
        value, at = _value(data, at + 1, data[at : at + 1])
        values.append(value)
    return values, at
