"""All GPUs as live columns: the arrays that each verb reads and each event updates by row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np

from scheduler_extender.cluster.response_encoder import ResponseEncoder
from tandem.policy.cluster import GpuArrays, Links, Snapshot, reset_rows
from tandem.policy.equations.horus import over_commit_curve
from tandem.policy.units import Bools, Floats, Ints

_FIRST_CAPACITY = 64

Columns = dict[str, Floats | Ints | Bools]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSnapshot(Snapshot):
    """A snapshot that knows when it was taken."""

    generation: int


class GpuKind(NamedTuple):
    """A type of GPU."""

    model: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU as its node's agent reports it, as far as placement needs it."""

    uuid: str
    kind: GpuKind
    capacity_gib: float  # total less reserved and foreign
    shares: int
    healthy: bool
    sliced: bool = False
    compute: float = 1.0  # part of its GPU's compute
    guarded: bool = False  # its agent evicts a worker before memory runs over
    nvlink: int = -1  # its domain of NVLink on the node, and its NUMA node; -1: unknown
    numa: int = -1

    def at_most(self, shares: int) -> GpuFacts:
        """Return the same with at most so many shares."""
        return self if self.shares <= shares else replace(self, shares=shares)


class GpuTable:
    """One row a GPU in growing buffers, columns named as in `GpuArrays`.

    A node has a slot and a run of rows, in the order of the GPUs' UUIDs. A node that goes, or whose
    set of GPUs changes, leaves a hole that the next node with as many GPUs takes: nothing is ever
    moved, so that no event costs more than its own rows. `matrix` (slots, widest node) has the rows
    of each slot, padded with -1: an array over all rows with one more element at its end, indexed
    by it, is an array by node.
    """

    def __init__(self, residents_per_gpu: int = 2) -> None:
        self._columns = _buffers(_FIRST_CAPACITY, residents_per_gpu)
        self._generations = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self._observed_at_s = np.full(_FIRST_CAPACITY, -np.inf)
        self._links = np.full((2, _FIRST_CAPACITY), -1, dtype=np.int64)  # nvlink, numa
        self._used = 0
        self._matrix = np.full((_FIRST_CAPACITY, 1), -1, dtype=np.int64)
        self._across: Ints | None = None
        self._holes: dict[int, list[int]] = {}
        self._view: GpuArrays | None = None
        self._order: tuple[Ints, Ints, tuple[str, ...], tuple[str, ...]] | None = None
        self._widest: Ints | None = None
        self._kinds: dict[GpuKind, int] = {}
        self.generation = 0
        self.slot_of: dict[str, int] = {}
        self.node_names: list[str] = []  # by slot; the last holder's name where the slot is free
        self.encoder = ResponseEncoder()  # the same, for answers
        self.layout = 0  # grows whenever a slot is given to another node
        self._counts = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self.gpu_ids: list[str] = []  # by row
        self.row_of: dict[tuple[str, str], int] = {}

    # --- reading ------------------------------------------------------------------------------

    @property
    def gpus(self) -> GpuArrays:
        """All rows, holes included, as read-only views of the live buffers; copies nothing."""
        if self._view is None:
            self._view = gpu_arrays({k: v[: self._used] for k, v in self._columns.items()})
        return self._view

    @property
    def matrix(self) -> Ints:
        """Rows by slot, (slots, widest node), -1 where a node has fewer."""
        return self._matrix[: len(self.node_names)]

    @property
    def across(self) -> Ints:
        """The same the other way round, (widest node, slots): to sum over the GPUs of all nodes."""
        if self._across is None:
            self._across = np.ascontiguousarray(self.matrix.T)
        return self._across

    @property
    def gpus_of_slot(self) -> Ints:
        """The number of GPUs in each slot, (slots,)."""
        return self._counts[: len(self.node_names)]

    @property
    def writable(self) -> Columns:
        """The buffers, for the ledger, which keeps the sums over residents."""
        return self._columns

    def rows(self, node: str) -> Ints:
        """Return the rows of a node; none where no agent reports."""
        slot = self.slot_of.get(node)
        if slot is None:
            return np.zeros(0, dtype=np.int64)
        rows: Ints = self._matrix[slot]
        return rows[rows >= 0]

    def changed_since(self, rows: Ints, generation: int) -> bool:
        """Say whether any of `rows` has changed since the table stood at `generation`."""
        return bool((self._generations[rows] > generation).any())

    def nodes_changed_since(self, generation: int) -> set[str]:
        """Return the nodes of all rows that have changed since the table stood at `generation`."""
        rows = np.flatnonzero(self._generations[: self._used] > generation)
        # Not np.unique: its first call imports a package, which holds the event loop for 95 ms.
        return {self.node_names[slot] for slot in set(self._columns["node"][rows].tolist())}

    def unchanged(self, snapshot: LiveSnapshot, rows: Iterable[int]) -> bool:
        """Say whether `rows` of the snapshot still are what they were when it was taken."""
        node = snapshot.gpus.node
        keys = [(snapshot.node_names[node[row]], snapshot.gpu_ids[row]) for row in rows]
        found = [self.row_of[key] for key in keys if key in self.row_of]
        live = np.array(found, dtype=np.int64)
        return len(live) == len(keys) and not self.changed_since(live, snapshot.generation)

    def snapshot(self) -> LiveSnapshot:
        """Return frozen copies, nodes in the order of their names, without holes."""
        rows, node, names, ids = self._ordered()
        columns = {k: v[rows] for k, v in self._columns.items()} | {"node": node.copy()}
        return LiveSnapshot(
            gpus=gpu_arrays(columns), node_names=names, gpu_ids=ids, links=self.links_of(rows),
            generation=self.generation,
        )  # fmt: skip

    def links_of(self, rows: Ints) -> Links | None:
        """Return how the GPUs in some rows are connected; None where of none anything is known."""
        nvlink, numa = self._links[:, rows]
        return Links(nvlink, numa) if (nvlink >= 0).any() or (numa >= 0).any() else None

    def commonest_kind(self, nodes: Bools | None = None) -> GpuKind | None:
        """Return the commonest type of GPU (ties: the first seen), None without GPUs.

        Slices count where there are no whole GPUs: one GPU is seven of them.
        `nodes`, (nodes,) in the order of `sorted_names`, says on which of them; None: on all.
        """
        rows, node = self._ordered()[:2]
        rows = rows if nodes is None else rows[nodes[node]]
        whole = rows[~self._columns["sliced"][rows].astype(np.bool_)]
        rows = whole if len(whole) else rows
        types = self._columns["gpu_type"][rows].astype(np.int64)
        return list(self._kinds)[int(np.bincount(types).argmax())] if len(types) else None

    def widest_node(self, like: str) -> int:
        """Return the most GPUs of a node of the type of GPU that node `like` has; 0 without any."""
        own = self.rows(like)
        if not len(own):
            return 0
        types = self._columns["gpu_type"]
        if self._widest is None:
            rows, node, names = self._ordered()[:3]
            key = types[rows].astype(np.int64) * len(names) + node
            counts = np.bincount(key, minlength=len(self._kinds) * len(names))
            self._widest = counts.reshape(-1, len(names)).max(axis=1)
        return int(self._widest[int(types[own[0]])])

    @property
    def sorted_names(self) -> tuple[str, ...]:
        """The nodes in the order of a snapshot."""
        return self._ordered()[2]

    def _ordered(self) -> tuple[Ints, Ints, tuple[str, ...], tuple[str, ...]]:
        if self._order is None:
            names = tuple(sorted(self.slot_of))
            slots = np.fromiter((self.slot_of[n] for n in names), np.int64, len(names))
            matrix = self._matrix[slots]
            real = matrix >= 0
            rows = matrix[real]
            node = np.repeat(np.arange(len(names)), real.sum(axis=1))
            self._order = rows, node, names, tuple(self.gpu_ids[row] for row in rows.tolist())
        return self._order

    # --- changes ------------------------------------------------------------------------------

    def touch(self, rows: Ints) -> None:
        """Note that `rows` have changed."""
        self.generation += 1
        self._generations[rows] = self.generation

    def put_node(self, name: str, gpus: Sequence[GpuFacts]) -> Ints:
        """Take over what the agent of `name` says; return the rows that are new (without sums)."""
        gpus = sorted(gpus, key=lambda gpu: gpu.uuid)
        rows = self.rows(name)
        added = np.zeros(0, dtype=np.int64)
        if name not in self.slot_of or [self.gpu_ids[r] for r in rows.tolist()] != [
            gpu.uuid for gpu in gpus
        ]:
            self.remove_node(name)
            added = rows = self._allocate(name, [gpu.uuid for gpu in gpus])
        facts: dict[str, Sequence[float | Sequence[float]]] = {
            "over_commit": [_curve_of(gpu.kind.model) for gpu in gpus],
            "gpu_type": [self._kinds.setdefault(g.kind, len(self._kinds)) for g in gpus],
            "memory_capacity_gib": [gpu.capacity_gib for gpu in gpus],
            "shares": [gpu.shares for gpu in gpus],
            "healthy": [gpu.healthy for gpu in gpus],
            "sliced": [gpu.sliced for gpu in gpus],
            "compute": [gpu.compute for gpu in gpus],
            "guarded": [gpu.guarded for gpu in gpus],
        }
        self._links[:, rows] = [[gpu.nvlink for gpu in gpus], [gpu.numa for gpu in gpus]]
        changed = len(added) > 0
        for column, values in facts.items():
            known = self._columns[column]
            new = np.array(values, dtype=known.dtype).reshape(len(gpus), *known.shape[1:])
            changed = changed or not np.array_equal(self._columns[column][rows], new)
            self._columns[column][rows] = new
        if changed:
            self._widest = None
            self.touch(rows)
        return added

    def put_rack(self, name: str, rack: int) -> None:
        """Set the rack of a node's GPUs."""
        rows, column = self.rows(name), self._columns["rack"]
        if (column[rows] != rack).any():
            column[rows] = rack
            self.touch(rows)

    def remove_node(self, name: str) -> None:
        """Forget a node and its GPUs; nothing if it is not there."""
        slot = self.slot_of.pop(name, None)
        if slot is None:
            return
        rows = self._matrix[slot]
        rows = rows[rows >= 0]
        reset_rows(self._columns, rows)
        self._columns["shares"][rows] = 0
        self._columns["healthy"][rows] = False
        self._columns["guarded"][rows] = False
        self._observed_at_s[rows] = -np.inf
        for row in rows.tolist():
            del self.row_of[name, self.gpu_ids[row]]
        self._holes.setdefault(len(rows), []).append(slot)
        self.touch(rows)
        self.layout += 1
        self._order = self._widest = None

    def observe(self, name: str, observed_at_s: float, now_s: float, stale_after_s: float) -> None:
        """Note when the agent of `name` last reported (Unix time)."""
        rows = self.rows(name)
        self._observed_at_s[rows] = observed_at_s
        self._freshen(rows, now_s, stale_after_s)

    def tick(self, now_s: float, stale_after_s: float) -> None:
        """Let the clock advance: reports grow stale."""
        self._freshen(np.arange(self._used), now_s, stale_after_s)

    def _freshen(self, rows: Ints, now_s: float, stale_after_s: float) -> None:
        fresh = now_s - self._observed_at_s[rows] <= stale_after_s
        changed = rows[self._columns["fresh"][rows] != fresh]
        if len(changed):
            self._columns["fresh"][changed] = ~self._columns["fresh"][changed]
            self.touch(changed)

    def _allocate(self, name: str, uuids: Sequence[str]) -> Ints:
        count = len(uuids)
        holes = self._holes.get(count)
        if holes:
            slot = holes.pop()
            rows: Ints = self._matrix[slot, :count].copy()
            self.node_names[slot] = name
        else:
            slot, rows = self._append(name, count)
        reset_rows(self._columns, rows)
        self._columns["node"][rows] = slot
        self._columns["fresh"][rows] = False
        for row, uuid in zip(rows.tolist(), uuids, strict=True):
            self.gpu_ids[row] = uuid
            self.row_of[name, uuid] = row
        self.slot_of[name] = slot
        self.encoder.put(slot, name)
        self.layout += 1
        self._order = self._widest = None
        return rows

    def _append(self, name: str, count: int) -> tuple[int, Ints]:
        slot, first = len(self.node_names), self._used
        self._grow(first + count, slot + 1, count)
        rows = np.arange(first, first + count)
        self._matrix[slot, :count] = rows
        self._counts[slot] = count
        self._used += count
        self.node_names.append(name)
        self.gpu_ids.extend([""] * count)
        self._view = self._across = None
        return slot, rows

    def _grow(self, rows: int, slots: int, width: int) -> None:
        """Make room by doubling, so that filling it costs a constant time a row."""
        capacity = len(self._generations)
        if rows > capacity:
            more = max(capacity, rows - capacity)
            residents = self._columns["residents"].shape[1]
            blank = _buffers(more, residents)
            self._columns = {
                name: cast("Floats", np.concatenate((column, blank[name])))
                for name, column in self._columns.items()
            }
            self._generations = np.concatenate((self._generations, np.zeros(more, dtype=np.int64)))
            self._observed_at_s = np.concatenate((self._observed_at_s, np.full(more, -np.inf)))
            self._links = np.hstack((self._links, np.full((2, more), -1, dtype=np.int64)))
        have_slots, have_width = self._matrix.shape
        if slots > have_slots or width > have_width:
            shape = (max(have_slots * (2 if slots > have_slots else 1), slots),
                     max(have_width, width))  # fmt: skip
            matrix = np.full(shape, -1, dtype=np.int64)
            matrix[:have_slots, :have_width] = self._matrix
            self._matrix = matrix
            self._counts = np.concatenate(
                (self._counts, np.zeros(shape[0] - have_slots, dtype=np.int64))
            )


_curve_of = lru_cache(1024)(over_commit_curve)


def columns_of(gpus: GpuArrays) -> Columns:
    """Return writable copies of the columns."""
    return {f.name: getattr(gpus, f.name).copy() for f in fields(GpuArrays)}


def without_residents(gpus: GpuArrays) -> GpuArrays:
    """Return a copy of the GPUs without residents."""
    columns = columns_of(gpus)
    reset_rows(columns, np.arange(len(gpus)))
    return gpu_arrays(columns)


def places_of(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Return node and UUID of the GPU in each row."""
    names, node = snapshot.node_names, snapshot.gpus.node.tolist()
    return [(names[node[row]], gpu) for row, gpu in enumerate(snapshot.gpu_ids)]


def gpu_arrays(columns: Mapping[str, Floats | Ints | Bools]) -> GpuArrays:
    """Return columns by name as GpuArrays, which freezes them."""
    return GpuArrays(**cast("dict[str, Any]", columns))


def _buffers(rows: int, residents: int) -> Columns:
    """Return writable columns of empty GPUs that may take nothing."""
    blank = GpuArrays.empty(np.zeros(rows, dtype=np.int64), np.zeros(rows), slots=residents)
    columns = columns_of(blank)
    columns["shares"][:] = 0
    columns["healthy"][:] = False
    columns["fresh"][:] = False
    return columns
