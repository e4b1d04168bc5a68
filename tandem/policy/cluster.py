"""The cluster as arrays: one row a GPU, grouped by node; a decision is a few numpy lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from tandem.policy.equations.horus import OTHER_GPU
from tandem.policy.job import EMPTY_SLOT, Job
from tandem.policy.units import Bools, Floats, Ints

_NO_RESIDENT = -1

#: The columns that say who is there; the others describe the GPU itself.
LOAD_COLUMNS = (
    "memory_base_gib", "memory_peak_extra_gib", "memory_peak_sum_gib", "none_in_peak",
    "one_in_peak", "peaks_measured", "gpu_utilisation", "jobs", "exclusive", "residents",
    "resident_class", "resident_slowdown",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuArrays:
    """All GPUs, one column a field; rows of a node stand together. Read-only.

    What several jobs on one GPU need together is kept as sums that a new job extends in constant
    time: no column walks the jobs. `none_in_peak` and `one_in_peak` are the probabilities that no
    resident, and exactly one, is in its memory peak, which is all that [OJPP] Eq. (4) needs.
    """

    node: Ints  # (gpus,) index of the node
    rack: Ints  # (gpus,) index of the rack; equal where no label tells racks apart
    place: Ints  # (gpus,) among the GPUs of its node, by which `Pipeline.limits` counts
    gpu_type: Ints  # (gpus,) index of the GPU's type
    over_commit: Floats  # (gpus, 3) coefficients of [Horus] Eq. (9) for the GPU's type
    # (gpus,) what may be given out: total less reserved and foreign; 0 where no size is known
    memory_capacity_gib: Floats
    memory_base_gib: Floats  # (gpus,) sum over residents, predicted or observed
    memory_peak_extra_gib: Floats  # (gpus,) largest over residents
    memory_peak_sum_gib: Floats  # (gpus,) what the peaks of all residents add together
    none_in_peak: Floats  # (gpus,) probability
    one_in_peak: Floats  # (gpus,) probability
    peaks_measured: Bools  # (gpus,) of every resident, and each saves its work when evicted
    sliced: Bools  # (gpus,) a slice of a GPU (MIG)
    compute: Floats  # (gpus,) part of the GPU's compute that is the slice's; 1 of a whole GPU
    guarded: Bools  # (gpus,) an agent evicts a worker before memory runs over
    gpu_utilisation: Floats  # (gpus,) sum over residents, percent; may exceed 100
    jobs: Ints  # (gpus,) residents
    shares: Ints  # (gpus,) residents allowed
    exclusive: Bools  # (gpus,) held by a job that does not share
    healthy: Bools  # (gpus,) may take new work
    fresh: Bools  # (gpus,) the agent's report is recent enough to share by
    residents: Ints  # (gpus, slots) handle of each resident job, -1 where none
    resident_class: Ints  # (gpus, slots) interference class of each, 0 where none
    resident_slowdown: Floats  # (gpus, slots) predicted for each next to the others, summed

    def __post_init__(self) -> None:
        """Check that all columns have one row a GPU, and freeze them."""
        rows = len(self.node)
        for field in fields(self):
            column: Floats | Ints | Bools = getattr(self, field.name)
            if len(column) != rows:
                raise ValueError(f"column {field.name} has {len(column)} rows, node has {rows}")
            column.setflags(write=False)

    def __len__(self) -> int:
        return len(self.node)

    @classmethod
    def empty(
        cls, node: Ints, memory_capacity_gib: Floats, *, shares: int = 2, slots: int | None = None
    ) -> Self:
        """Return healthy GPUs without residents, at the given nodes and capacities.

        Each GPU has columns for `slots` residents; without it, for as many as there are shares.
        """
        rows, slots = len(node), slots or max(shares, 1)
        return cls(
            node=np.array(node, dtype=np.int64),
            rack=np.zeros(rows, dtype=np.int64),
            place=np.zeros(rows, dtype=np.int64),
            gpu_type=np.zeros(rows, dtype=np.int64),
            over_commit=np.tile(OTHER_GPU, (rows, 1)),
            memory_capacity_gib=np.array(memory_capacity_gib, dtype=np.float64),
            memory_base_gib=np.zeros(rows),
            memory_peak_extra_gib=np.zeros(rows),
            memory_peak_sum_gib=np.zeros(rows),
            none_in_peak=np.ones(rows),
            one_in_peak=np.zeros(rows),
            peaks_measured=np.ones(rows, dtype=np.bool_),
            sliced=np.zeros(rows, dtype=np.bool_),
            compute=np.ones(rows),
            guarded=np.zeros(rows, dtype=np.bool_),
            gpu_utilisation=np.zeros(rows),
            jobs=np.zeros(rows, dtype=np.int64),
            shares=np.full(rows, shares, dtype=np.int64),
            exclusive=np.zeros(rows, dtype=np.bool_),
            healthy=np.ones(rows, dtype=np.bool_),
            fresh=np.ones(rows, dtype=np.bool_),
            residents=np.full((rows, slots), _NO_RESIDENT, dtype=np.int64),
            resident_class=np.full((rows, slots), EMPTY_SLOT, dtype=np.int64),
            resident_slowdown=np.zeros((rows, slots)),
        )

    def take(self, rows: Ints) -> Self:
        """Return the given rows only, in the given order."""
        return self._changed({name: getattr(self, name)[rows] for name in _COLUMNS})

    def with_loads(self, columns: Mapping[str, Floats | Ints | Bools]) -> Self:
        """Return the arrays with other columns of LOAD_COLUMNS, of the same length."""
        return self._changed({name: getattr(self, name) for name in _COLUMNS} | dict(columns))

    def _changed(self, columns: dict[str, Floats | Ints | Bools]) -> Self:
        # Some thousand times a second: what `replace` and the checks cost is as much as a mask.
        new = object.__new__(type(self))
        for name, column in columns.items():
            column.flags.writeable = False
            object.__setattr__(new, name, column)
        return new

    def with_job(self, job: Job, rows: Iterable[int], handle: int = _NO_RESIDENT) -> Self:
        """Return the arrays after one worker of `job` has been put on each of `rows`."""
        at = np.fromiter(rows, dtype=np.int64)
        new = {name: getattr(self, name).copy() for name in LOAD_COLUMNS}
        add_worker(new, job, at, handle)
        return replace(self, **new)


def add_worker(
    columns: dict[str, Floats | Ints | Bools], job: Job, rows: Ints, handle: int
) -> None:
    """Put one worker of `job` on each of `rows` of writable `columns` (named as in GpuArrays).

    The one place where a resident changes the sums, so that the live state, the planner's copy and
    the simulator cannot differ. A row that comes twice gets two workers. A resident is removed by
    resetting the row and adding those that remain: the product over (1 - p) has no safe inverse at
    p = 1.
    """
    # Row by row in plain numbers: most jobs have few GPUs, and an operation on an array of a few
    # costs ten times as much as one on a number.
    p = job.peak_probability
    none, one = columns["none_in_peak"], columns["one_in_peak"]
    base, utilisation = columns["memory_base_gib"], columns["gpu_utilisation"]
    extra, extras = columns["memory_peak_extra_gib"], columns["memory_peak_sum_gib"]
    residents, classes, jobs = columns["residents"], columns["resident_class"], columns["jobs"]
    slowdowns, last = columns["resident_slowdown"], residents.shape[1] - 1
    for row in rows.tolist():
        if p:
            one[row] = one[row] * (1 - p) + none[row] * p
            none[row] *= 1 - p
        base[row] += job.memory_base_gib
        extra[row] = max(extra[row], job.memory_peak_extra_gib)
        extras[row] += job.memory_peak_extra_gib
        utilisation[row] += job.gpu_utilisation
        if not job.peaks_may_meet:
            columns["peaks_measured"][row] = False
        if job.exclusive:
            columns["exclusive"][row] = True
        slot = min(jobs.item(row), last)
        if job.own_slowdown is not None and job.caused_slowdown is not None:
            others = classes[row]
            slowdowns[row] += job.caused_slowdown[others]
            slowdowns[row, slot] = job.own_slowdown[others].sum()
        residents[row, slot] = handle
        classes[row, slot] = job.interference_class
        jobs[row] += 1


def sum_slowdown(
    columns: dict[str, Floats | Ints | Bools], job: Job, rows: Ints, handle: int
) -> None:
    """Sum anew how much the resident `handle` of `rows` is slowed down, by its predictions of now.

    For predictions that have changed since its worker was added; `rows` must be distinct.
    """
    if job.own_slowdown is None:
        return
    classes = columns["resident_class"][rows]
    index, slot = np.nonzero(columns["residents"][rows] == handle)
    others = classes[index]
    others[np.arange(len(index)), slot] = EMPTY_SLOT
    columns["resident_slowdown"][rows[index], slot] = job.own_slowdown[others].sum(axis=1)


def reset_rows(columns: dict[str, Floats | Ints | Bools], rows: Ints) -> None:
    """Remove every resident of `rows` from writable `columns` (named as in GpuArrays)."""
    # One row, by far the most common, as a number: that costs a fifth of indexing by an array.
    at = rows.item() if len(rows) == 1 else rows
    for name in (
        "memory_base_gib", "memory_peak_extra_gib", "memory_peak_sum_gib", "one_in_peak",
        "gpu_utilisation",
    ):  # fmt: skip
        columns[name][at] = 0.0
    columns["none_in_peak"][at] = 1.0
    columns["peaks_measured"][at] = True
    columns["jobs"][at] = 0
    columns["exclusive"][at] = False
    columns["residents"][at] = _NO_RESIDENT
    columns["resident_class"][at] = EMPTY_SLOT
    columns["resident_slowdown"][at] = 0.0


_COLUMNS = tuple(field.name for field in fields(GpuArrays))


@dataclass(frozen=True, slots=True)
class Links:
    """In which domains of their nodes GPUs are, (gpus,) each; -1 where that is not known.

    GPUs of one node with the same number are connected by NVLink, or next to one NUMA node. The
    numbers of different nodes have nothing to do with one another.
    """

    nvlink: Ints
    numa: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A frozen picture of the cluster on which one decision is made.

    `node_names` and `gpu_ids` are in row order; a GPU's id is its UUID. Rows of one node stand
    together, and within a node in the order of their ids, so that ties break by (node, id). `links`
    is None where no GPU's connections are known.
    """

    gpus: GpuArrays
    node_names: tuple[str, ...]
    gpu_ids: tuple[str, ...]
    links: Links | None = None

    def __post_init__(self) -> None:
        """Check that names and rows agree."""
        if len(self.gpu_ids) != len(self.gpus):
            raise ValueError(f"{len(self.gpu_ids)} ids for {len(self.gpus)} GPUs")
        node = self.gpus.node
        if len(node) and (np.diff(node) < 0).any():
            raise ValueError("the rows of a node must stand together, nodes in ascending order")

    @classmethod
    def from_rows(
        cls, rows: Sequence[tuple[str, str, float]], *, shares: int = 2, slots: int | None = None
    ) -> Self:
        """Return an empty cluster from rows (node, GPU id, memory in GiB), in any order."""
        ordered = sorted(rows)
        names = tuple(dict.fromkeys(node for node, _, _ in ordered))
        index = {name: i for i, name in enumerate(names)}
        return cls(
            gpus=GpuArrays.empty(
                np.array([index[node] for node, _, _ in ordered], dtype=np.int64),
                np.array([memory for _, _, memory in ordered], dtype=np.float64),
                shares=shares,
                slots=slots,
            ),
            node_names=names,
            gpu_ids=tuple(gpu for _, gpu, _ in ordered),
        )

    def with_job(self, job: Job, rows: Iterable[int], handle: int = _NO_RESIDENT) -> Self:
        """Return the snapshot after one worker of `job` has been put on each of `rows`."""
        return replace(self, gpus=self.gpus.with_job(job, rows, handle))
