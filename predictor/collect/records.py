"""The file of measurements: one JSON object a line, appended as it goes.

Kinds of lines: `header` (one for each run: GPU, driver, libraries), `graph` (a model at a sequence
length: its ONNX graph without weights, and what its layers say), `solo` (a configuration alone),
`pair` (two at the same time). A line is whole or, after a kill, the last and cut off.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from pathlib import Path
from typing import Any

from predictor.collect import FORMAT

#: Of a graph without its weights.
_MOST_BYTES = 64 << 20

Record = dict[str, Any]


class Records:
    """A file of measurements, opened to go on with it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seen: list[Record] = []
        if path.exists():
            data = path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            self.seen = [json.loads(line) for line in whole.splitlines() if line.strip()]
            if len(whole) != len(data):  # killed while it wrote
                os.truncate(path, len(whole))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")

    def append(self, record: Record) -> None:
        """Write a line, and see that it is on the disk."""
        self._file.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.seen.append(record)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def start(self, header: Record) -> None:
        """Begin a run; raises ValueError where the file has another GPU's figures."""
        header = {"kind": "header", "format": FORMAT, **header}
        for record in self.seen:
            if record["kind"] == "header" and record["gpu"].get("model") != header["gpu"]["model"]:
                raise ValueError(
                    f"{self._path} was measured on {record['gpu'].get('model')}, "
                    f"and here is {header['gpu']['model']}: name another file."
                )
        self.append(header)

    def of_kind(self, kind: str) -> list[Record]:
        """Return the lines of a kind, oldest first."""
        return [record for record in self.seen if record["kind"] == kind]

    def done(self, kind: str) -> set[str]:
        """Return the keys that need not be measured again; what failed is not tried again."""
        return {record["key"] for record in self.of_kind(kind)}


def graph_bytes(record: Record) -> bytes | None:
    """Return the ONNX graph of a `graph` line, if it has one.

    Raises ValueError and zlib.error where it is damaged, or larger than a graph may be.
    """
    packed = record.get("onnx")
    if not packed:
        return None
    unpacking = zlib.decompressobj()
    graph = unpacking.decompress(base64.b64decode(packed, validate=True), _MOST_BYTES)
    if not unpacking.eof:
        raise ValueError(f"the graph is cut off, or larger than {_MOST_BYTES} bytes")
    return graph
