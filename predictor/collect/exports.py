"""Exports graphs while configurations are measured; a measurement waits for no export."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import Self

from predictor.collect.catalog import Model
from predictor.collect.processes import Failed, Worker
from predictor.collect.records import Record, Records

#: An export takes one core for about ten seconds; a configuration is measured in three.
_AT_ONCE = min(4, max(2, (os.cpu_count() or 1) // 4))
_EXPORT_S = 180.0
#: What an export that is under way gets after the time budget.
_LAST_S = 20.0


class Exports:
    """A few processes that export one graph each, on the CPU; the file gets each graph once.

    Leaving a `with` block waits for those under way until `deadline` (time.monotonic(), seconds)
    and a little longer. What has no graph by then has none in the file, and the next run makes it.
    """

    def __init__(self, backend: str, records: Records, deadline: float) -> None:
        self._backend = backend
        self._records = records
        self._deadline = deadline
        self._wanted = set(records.done("graph"))
        self._running: list[tuple[Worker, Record]] = []

    def want(self, model: Model, sequence: int | None) -> None:
        """Export a graph that the file lacks; waits only while the most are under way."""
        key = f"{model.name}|{sequence}"
        if key in self._wanted:
            return
        self._wanted.add(key)
        while len(self._running) >= _AT_ONCE:
            self._keep(*self._running.pop(0), _EXPORT_S)
        worker = Worker(self._backend, "cpu")
        worker.tell(do="describe", model=model.name, sequence=sequence)
        record = {"kind": "graph", "key": key, "model": model.name, "sequence": sequence}
        self._running.append((worker, record))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        end = max(self._deadline, time.monotonic() + _LAST_S)
        while self._running:
            worker, record = self._running.pop(0)
            if kind is None:
                self._keep(worker, record, min(max(end - time.monotonic(), 0.0), _EXPORT_S))
            else:  # an interrupt is not to wait
                worker.end()

    def _keep(self, worker: Worker, record: Record, timeout_s: float) -> None:
        try:
            self._records.append(record | worker.hear(timeout_s))
        except Failed as failure:
            if failure.status != "timeout" or timeout_s >= _EXPORT_S:
                said = {"onnxError": failure.message, "layersError": failure.message}
                self._records.append(record | said)
        finally:
            worker.end()
