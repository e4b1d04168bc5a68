"""Drops the weights of an ONNX file while it streams by; what is left is the graph.

A graph of a few MiB may carry GiB of weights, of which features need only the shapes. The skimmer
reads the protobuf wire format as it arrives: it descends into the messages that may hold tensors
(and only into those), copies everything small, and forgets the payload of large tensors. So its
memory is that of the graph, whatever the size of the file.

Wire format: https://protobuf.dev/programming-guides/encoding/; field numbers: onnx.proto.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import Enum, auto

from predictor.errors import GraphError, Refusal

#: Tensors up to this size keep their values: shapes and axes are such, weights are not.
KEPT_PAYLOAD_BYTES = 16 * 1024
MAX_DEPTH = 64
_MAX_VARINT_BYTES = 10
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


class _Kind(Enum):
    MODEL = auto()
    GRAPH = auto()
    FUNCTION = auto()
    NODE = auto()
    ATTRIBUTE = auto()
    TENSOR = auto()
    SPARSE_TENSOR = auto()


#: Which fields of which message hold messages that may hold tensors.
_CHILDREN: dict[tuple[_Kind, int], _Kind] = {
    (_Kind.MODEL, 7): _Kind.GRAPH,
    (_Kind.MODEL, 25): _Kind.FUNCTION,
    (_Kind.FUNCTION, 7): _Kind.NODE,
    (_Kind.GRAPH, 1): _Kind.NODE,
    (_Kind.GRAPH, 5): _Kind.TENSOR,
    (_Kind.GRAPH, 15): _Kind.SPARSE_TENSOR,
    (_Kind.NODE, 5): _Kind.ATTRIBUTE,
    (_Kind.ATTRIBUTE, 5): _Kind.TENSOR,
    (_Kind.ATTRIBUTE, 6): _Kind.GRAPH,
    (_Kind.ATTRIBUTE, 10): _Kind.TENSOR,
    (_Kind.ATTRIBUTE, 11): _Kind.GRAPH,
    (_Kind.ATTRIBUTE, 22): _Kind.SPARSE_TENSOR,
    (_Kind.ATTRIBUTE, 23): _Kind.SPARSE_TENSOR,
    (_Kind.SPARSE_TENSOR, 1): _Kind.TENSOR,
    (_Kind.SPARSE_TENSOR, 2): _Kind.TENSOR,
}
#: TensorProto: float, int32, string, int64, raw, double, uint64 data.
_PAYLOADS = frozenset({4, 5, 6, 7, 9, 10, 11})


@dataclass
class _Frame:
    """A message that is being read: where it ends in the stream, and what is kept of it."""

    kind: _Kind
    tag: bytes
    end: int | None
    kept: bytearray = field(default_factory=bytearray)


class Skimmer:
    """Takes the chunks of an ONNX file, gives back its graph without weights.

    Raises GraphError from `feed` or `finish` when the file is malformed, or when what has to be
    kept grows past `max_kept_bytes`.
    """

    def __init__(self, max_kept_bytes: int) -> None:
        self._max_kept = max_kept_bytes
        self._stack = [_Frame(_Kind.MODEL, b"", None)]
        self._pending = bytearray()
        self._position = 0  # in the stream, of the first pending byte
        self._copy = 0
        self._drop = 0
        self._kept_bytes = 0
        self._hash = hashlib.sha256()
        self.file_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Read the next bytes of the file."""
        self._hash.update(chunk)
        self.file_bytes += len(chunk)
        if self._drop >= len(chunk) and not self._pending:
            self._drop -= len(chunk)
            self._position += len(chunk)
            return
        self._pending += chunk
        offset = 0
        while (step := self._step(offset)) > 0:
            offset += step
        del self._pending[:offset]

    def finish(self) -> bytes:
        """Return the graph without its weights; the whole file must have been fed."""
        self._close_ended()
        if self._pending or self._copy or self._drop or len(self._stack) > 1:
            raise GraphError(
                Refusal.MALFORMED,
                f"The file ends in the middle of a message, after {self.file_bytes} bytes.",
                "It was probably cut off; export or copy the model again.",
            )
        return bytes(self._stack[0].kept)

    @property
    def file_sha256(self) -> str:
        """The hash of the file as it was fed, weights included."""
        return self._hash.hexdigest()

    def _step(self, offset: int) -> int:
        """Handle what lies at `offset` of the pending bytes; return how many of them it took."""
        available = len(self._pending) - offset
        if self._drop:
            taken = min(self._drop, available)
            self._drop -= taken
            self._position += taken
            return taken
        if self._copy:
            taken = min(self._copy, available)
            self._keep(self._pending[offset : offset + taken])
            self._copy -= taken
            self._position += taken
            return taken
        self._close_ended()
        return self._field(offset) if available else 0

    def _field(self, offset: int) -> int:
        header = self._varint(offset)
        if header is None:
            return 0
        key, size = header
        number, wire = key >> 3, key & 7
        if number == 0:
            raise _malformed(self._position)
        if wire == _LENGTH:
            return self._length_delimited(offset, number, size)
        if wire == _VARINT:
            value = self._varint(offset + size)
            if value is None:
                return 0
            size += value[1]
        elif wire == _FIXED64:
            size += 8
        elif wire == _FIXED32:
            size += 4
        else:  # groups (3, 4) do not occur in onnx.proto; 6 and 7 do not exist
            raise _malformed(self._position)
        if len(self._pending) - offset < size:
            return 0
        self._claim(size)
        self._keep(self._pending[offset : offset + size])
        self._position += size
        return size

    def _length_delimited(self, offset: int, number: int, tag_size: int) -> int:
        length = self._varint(offset + tag_size)
        if length is None:
            return 0
        payload, length_size = length
        header = tag_size + length_size
        self._claim(header + payload)
        self._position += header
        frame = self._stack[-1]
        if payload > KEPT_PAYLOAD_BYTES:
            if frame.kind is _Kind.TENSOR and number in _PAYLOADS:
                self._drop = payload
                return header
            child = _CHILDREN.get((frame.kind, number))
            if child is not None:
                if len(self._stack) >= MAX_DEPTH:
                    raise GraphError(
                        Refusal.TOO_LARGE, f"The graph nests deeper than {MAX_DEPTH} messages."
                    )
                tag = bytes(self._pending[offset : offset + tag_size])
                self._stack.append(_Frame(child, tag, self._position + payload))
                return header
        if self._kept_bytes + header + payload > self._max_kept:
            raise self._too_large()
        taken = min(header + payload, len(self._pending) - offset)
        self._keep(self._pending[offset : offset + taken])
        self._copy = header + payload - taken
        self._position += taken - header
        return taken

    def _close_ended(self) -> None:
        while (frame := self._stack[-1]).end == self._position:
            self._stack.pop()
            parent = self._stack[-1].kept
            parent += frame.tag
            parent += _encode_varint(len(frame.kept))
            parent += frame.kept

    def _claim(self, size: int) -> None:
        end = self._stack[-1].end
        if end is not None and self._position + size > end:
            raise _malformed(self._position)

    def _keep(self, data: bytearray) -> None:
        self._kept_bytes += len(data)
        if self._kept_bytes > self._max_kept:
            raise self._too_large()
        self._stack[-1].kept += data

    def _too_large(self) -> GraphError:
        return GraphError(
            Refusal.TOO_LARGE,
            f"The graph without its weights is larger than {self._max_kept} bytes.",
            "Raise the predictor's limit on graphs, or export a smaller graph.",
        )

    def _varint(self, offset: int) -> tuple[int, int] | None:
        """Return (value, size) of the varint at `offset`; None when it is not all here yet."""
        pending, value = self._pending, 0
        if offset < len(pending) and pending[offset] < 0x80:  # nearly always
            return pending[offset], 1
        for index in range(_MAX_VARINT_BYTES):
            if offset + index >= len(pending):
                return None
            byte = pending[offset + index]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value, index + 1
        raise _malformed(self._position)


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _malformed(position: int) -> GraphError:
    return GraphError(
        Refusal.MALFORMED,
        f"This is not an ONNX file: it cannot be read from byte {position} on.",
        "Export the model with torch.onnx.export or a like tool, and push the .onnx file.",
    )
