"""The input of one cycle: running gangs with their GPUs, pending jobs in order.

The sums over residents are the snapshot's own; here only the names of the residents change, from
the ledger's to rows of the board.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from scheduler_extender.cluster.records import Key
from scheduler_extender.cluster.table import columns_of, gpu_arrays
from scheduler_extender.planning.cluster_pipeline import SPECIAL
from scheduler_extender.planning.questions import Question, Start
from tandem.policy.board import Board
from tandem.policy.job import Job
from tandem.policy.jobs import JobArrays
from tandem.policy.units import Bools, Floats, Ints

_NOBODY: Key = ("", "")


@dataclass(slots=True)
class CycleInput:
    """A board, and what its jobs are: gangs on GPUs (`start` None) or starts that wait.

    A gang of which some pods run and others wait has a row for each. `nodes` and `apart` are facts
    about `Job.where` (ClusterPipeline). Gangs that are giving up their GPUs are off the board:
    `held` has the rows of whoever was there, them included.
    """

    board: Board
    keys: list[Key]
    starts: list[Start | None]
    held: dict[int, tuple[int, ...]]
    going: set[int]
    ranked: Ints  # rows of the board, first to be tried first, running gangs among them
    nodes: dict[int, Bools]
    apart: dict[int, Ints] = field(default_factory=dict)

    def began(self, indices: list[int]) -> None:
        """Note who was started before the others were tried: they stay where they are."""
        self.board.arrays.running[indices] = True
        self.board.pinned.update(indices)


class _Rows:
    """The board's jobs as they are collected."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.keys: list[Key] = []
        self.starts: list[Start | None] = []
        self.standing: list[int] = []

    def add(self, job: Job, key: Key, start: Start | None, standing: int) -> int:
        self.jobs.append(job)
        self.keys.append(key)
        self.starts.append(start)
        self.standing.append(standing)
        return len(self.jobs) - 1

    def in_order(self, arrived_s: Floats) -> list[int]:
        """Sort by arrival; return the new index of each."""
        arrived = np.append(arrived_s, np.inf)[self.standing]  # those of no gang come last
        order = np.argsort(arrived, kind="stable")
        new = np.empty(len(order), dtype=np.int64)
        new[order] = np.arange(len(order))
        at = order.tolist()
        self.jobs = [self.jobs[i] for i in at]
        self.keys = [self.keys[i] for i in at]
        self.starts = [self.starts[i] for i in at]
        self.standing = [self.standing[i] for i in at]
        index: list[int] = new.tolist()
        return index


def cycle_input_of(question: Question, rows_of_gpus: Mapping[tuple[str, str], int]) -> CycleInput:
    """Return the board of a question; `rows_of_gpus` has the snapshot's rows by node and UUID."""
    snapshot = question.snapshot
    rows = _Rows()
    held, going, residents_of = _holders(question, rows_of_gpus, rows)
    ranked = _rank(question, rows, {rows.keys[i]: i for i in held if i not in going})
    # In order of arrival, as the simulator's are: by it policies break ties.
    name = rows.in_order(question.arrays.arrived_s)
    held = {name[i]: at for i, at in held.items()}
    going = {name[i] for i in going}
    residents_of = [[name[i] for i in there] for there in residents_of]
    columns = columns_of(snapshot.gpus)
    _name_residents(columns["residents"], residents_of)
    board = Board(
        rows.jobs,
        _arrays(question, rows, held),
        gpu_arrays({name: column.view() for name, column in columns.items()}),
        columns,
        history=question.history,
        now_s=question.now_s,
        rows_of={i: np.array(at, dtype=np.int64) for i, at in held.items()},
        residents_of=residents_of,
        empty=int(np.count_nonzero(columns["jobs"] == 0)),
        stale={i for there in residents_of if len(there) > 1 for i in there},
        pinned={i for i in held if i not in going and rows.keys[i] not in question.victims},
    )
    inputs = CycleInput(
        board, rows.keys, rows.starts, held, going,
        np.array([name[i] for i in ranked], dtype=np.int64), dict(question.eligible),
    )  # fmt: skip
    _keep_apart(question, inputs)
    for index in sorted(going):
        board.remove(index)
    return inputs


def _holders(
    question: Question, rows_of_gpus: Mapping[tuple[str, str], int], rows: _Rows
) -> tuple[dict[int, tuple[int, ...]], set[int], list[list[int]]]:
    """Add a row for each gang on GPUs, and one for its pods on their way out, if it has some.

    Residents of a GPU stand in the order of their uids, as in the ledger's sums.
    """
    known: dict[tuple[str, bool], int] = {}
    held: dict[int, list[int]] = {}
    going: set[int] = set()
    residents_of: list[list[int]] = [[] for _ in range(len(question.snapshot.gpus))]
    for uid in sorted(question.claims):
        claim = question.claims[uid]
        leaves = uid in question.going
        index = known.get((claim.job.id, leaves))
        if index is None:
            namespace, _, name = claim.job.id.partition("/")
            key = (namespace, name)
            standing = question.row_of.get(key, -1)
            index = rows.add(claim.job, key if standing >= 0 else _NOBODY, None, standing)
            known[claim.job.id, leaves] = index
            held[index] = []
            if leaves:
                going.add(index)
        for gpu in claim.gpus:
            row = rows_of_gpus.get((claim.node, gpu))
            if row is not None:
                held[index].append(row)
                residents_of[row].append(index)
    for index, at in held.items():
        job = rows.jobs[index]
        pods = max(1, len(at) // job.gpus_per_pod)
        where = question.where_of.get(rows.keys[index], 0)
        if (pods, where) != (job.pods, job.where):
            rows.jobs[index] = replace(job, pods=pods, where=where)
    on_gpus = {index: tuple(at) for index, at in held.items() if at}
    return on_gpus, going & on_gpus.keys(), residents_of


def _rank(question: Question, rows: _Rows, running: Mapping[Key, int]) -> list[int]:
    """Add a row for each start that waits; return all in order, a gang before its own starts."""
    ranked = []
    waiting: list[tuple[Job, Key, Start]] = []  # most of the queue: added together
    starts_of, first = question.starts, len(rows.jobs)
    for key in question.rank():
        if key in running:
            ranked.append(running[key])
        for start in starts_of.get(key, ()):
            ranked.append(first + len(waiting))
            waiting.append((start.job, key, start))
    if not waiting:
        return ranked
    jobs, keys, starts = map(list, zip(*waiting, strict=True))
    standing = [question.row_of[key] for key in keys]
    if question.needs_remaining:
        left = question.arrays.remaining_at_since[standing].tolist()
        jobs = [replace(job, remaining_s=s) for job, s in zip(jobs, left, strict=True)]
    rows.jobs += jobs
    rows.keys += keys
    rows.starts += starts
    rows.standing += standing
    return ranked


def _name_residents(residents: Floats | Ints | Bools, residents_of: list[list[int]]) -> None:
    slots = residents.shape[1]
    residents[:] = -1
    for slot in range(slots):
        there = [(row, names[slot]) for row, names in enumerate(residents_of) if len(names) > slot]
        if there:
            at, names = zip(*there, strict=True)
            residents[list(at), slot] = names


def _arrays(question: Question, rows: _Rows, held: Mapping[int, tuple[int, ...]]) -> JobArrays:
    """Return the standing of each row: that of its gang, with the GPUs and the state of the row."""
    standing = np.array(rows.standing, dtype=np.int64)
    known = standing >= 0
    whole: dict[str, Any] = {
        f.name: getattr(question.arrays, f.name)[np.where(known, standing, 0)]
        if len(question.arrays)
        else np.zeros(len(standing))
        for f in fields(JobArrays)
    }
    running = np.zeros(len(standing), dtype=np.bool_)
    running[list(held)] = True
    gpus = np.array([job.gpus for job in rows.jobs], dtype=np.int64)
    for index, at in held.items():
        gpus[index] = len(at)
    classes = np.array([job.interference_class for job in rows.jobs], dtype=np.int64)
    whole["remaining_at_since"] = np.where(known, whole["remaining_at_since"], np.nan)
    speed = np.where(known & (whole["speed"] > 0), whole["speed"], 1.0)
    whole |= {"gpus": gpus, "running": running, "speed": np.where(running, speed, 0.0)}
    return JobArrays(**(whole | {"interference_class": classes}))


def _keep_apart(question: Question, inputs: CycleInput) -> None:
    """Give those a `where` of their own that avoid certain nodes or neighbours."""
    if not question.avoids:
        return
    names = np.array(question.snapshot.node_names)
    handles = {key: i for i, key in enumerate(inputs.keys) if i in inputs.held}
    for index, start in enumerate(inputs.starts):
        avoid = question.avoids.get(inputs.keys[index]) if start is not None else None
        if avoid is None:
            continue
        job = inputs.board.jobs[index]
        everywhere = np.ones(len(names), dtype=np.bool_)
        number = SPECIAL + index
        nodes = inputs.nodes.get(job.where, everywhere)
        others = nodes & ~np.isin(names, sorted(avoid.nodes))
        inputs.nodes[number] = others if others.any() else nodes
        apart = [handles[key] for key in avoid.neighbours if key in handles]
        if apart:
            inputs.apart[number] = np.array(apart, dtype=np.int64)
        inputs.board.jobs[index] = replace(job, where=number)
