"""A what-if copy of the GPUs, on which one cycle adds and removes gangs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace

import numpy as np

from scheduler_extender.cluster.ledger import Claim
from scheduler_extender.cluster.table import Columns, gpu_arrays
from tandem.policy.cluster import GpuArrays, Snapshot, add_worker, reset_rows
from tandem.policy.job import Job

_ON_PAPER = -1  # handle of a resident that is not in the ledger


class WhatIf:
    """A copy of a snapshot that may be changed. With `claims`, holders can be taken off.

    Holders are named by pod uid, those put on here by whatever name they are given.
    """

    def __init__(self, snapshot: Snapshot, claims: Mapping[str, Claim] | None = None) -> None:
        self._columns: Columns = {
            field.name: getattr(snapshot.gpus, field.name).copy() for field in fields(GpuArrays)
        }
        # Views are frozen, the columns below them are ours.
        live = gpu_arrays({name: column.view() for name, column in self._columns.items()})
        self.snapshot = replace(snapshot, gpus=live)
        self._rows: dict[str, tuple[int, ...]] = {}
        self._jobs: dict[str, Job] = {}
        self._holders: dict[int, set[str]] = {}
        if claims:
            self._take_over(snapshot, claims)

    def add(self, name: str, job: Job, rows: tuple[int, ...]) -> None:
        """Put one worker of `job` on each of `rows`."""
        add_worker(self._columns, job, np.array(rows, dtype=np.int64), _ON_PAPER)
        self._note(name, job, rows)

    def remove(self, names: Iterable[str]) -> None:
        """Take holders off; those that hold nothing are passed over."""
        touched: set[int] = set()
        for name in names:
            for row in self._rows.pop(name, ()):
                self._holders[row].discard(name)
                touched.add(row)
        rows = np.array(sorted(touched), dtype=np.int64)
        reset_rows(self._columns, rows)
        for row in rows.tolist():
            for name in sorted(self._holders[row]):
                add_worker(self._columns, self._jobs[name], np.array([row]), _ON_PAPER)

    def rows_of(self, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Return which rows the holders are on, to put them back there."""
        return {name: self._rows[name] for name in names if name in self._rows}

    def put_back(self, rows: Mapping[str, tuple[int, ...]]) -> None:
        """Put holders that were taken off back on their rows."""
        for name, at in rows.items():
            self.add(name, self._jobs[name], at)

    def _note(self, name: str, job: Job, rows: tuple[int, ...]) -> None:
        self._rows[name] = rows
        self._jobs[name] = job
        for row in rows:
            self._holders.setdefault(row, set()).add(name)

    def _take_over(self, snapshot: Snapshot, claims: Mapping[str, Claim]) -> None:
        names, node = snapshot.node_names, snapshot.gpus.node.tolist()
        row_of = {(names[node[row]], gpu): row for row, gpu in enumerate(snapshot.gpu_ids)}
        for uid, claim in claims.items():
            found = (row_of.get((claim.node, gpu)) for gpu in claim.gpus)
            self._note(uid, claim.job, tuple(row for row in found if row is not None))
