"""The input of one cycle: running gangs with their GPUs, pending jobs in order.

The sums over residents are the snapshot's own; here only the names of the residents change, from
the ledger's to rows of the board.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from scheduler_extender.cluster.records import Key
from scheduler_extender.cluster.table import columns_of, gpu_arrays, places_of
from scheduler_extender.planning.cluster_pipeline import SPECIAL
from scheduler_extender.planning.questions import Avoids, Part, Question, Start
from tandem.policy.board import Board
from tandem.policy.cluster import GpuArrays
from tandem.policy.columns import JobColumns
from tandem.policy.job import Job
from tandem.policy.jobs import JobArrays
from tandem.policy.pipeline import Pipeline
from tandem.policy.topology import Gang, Keeper, Topology
from tandem.policy.units import Bools, Floats, Ints

_NO_JOB: Key = ("", "")


@dataclass(slots=True)
class CycleInput:
    """A board, and what its jobs are: gangs on GPUs (`start` None) or starts that wait.

    A gang of which some pods run and others wait has a row for each, and so has each role of a
    start. `nodes`, `most` and `apart`
    are facts about `Job.where` (ClusterPipeline). Gangs that are giving up their GPUs are off the
    board: `held` has the rows of all that were there, them included.
    """

    board: Board
    keys: list[Key]
    starts: list[Start | None]
    held: dict[int, tuple[int, ...]]
    going: set[int]
    ranked: Ints  # rows of the board, first to be tried first, running gangs among them
    nodes: dict[int, Bools]
    most: dict[int, Ints] = field(default_factory=dict)
    apart: dict[int, Ints] = field(default_factory=dict)
    #: Of starts with several roles (rows in `ranked`), the rows of all roles, its own first.
    roles: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def parts(self, index: int) -> tuple[Part, ...]:
        """Return the roles of a start that waits, as they were asked for."""
        start = self.starts[index]
        assert start is not None
        return start.parts

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
        self.gang_rows: list[int] = []

    def add(self, job: Job, key: Key, start: Start | None, gang_row: int) -> int:
        self.jobs.append(job)
        self.keys.append(key)
        self.starts.append(start)
        self.gang_rows.append(gang_row)
        return len(self.jobs) - 1

    def in_order(self, arrived_s: Floats) -> Ints:
        """Sort by arrival; return the new index of each."""
        arrived = np.append(arrived_s, np.inf)[self.gang_rows]  # those of no gang come last
        order = np.argsort(arrived, kind="stable")
        new = np.empty(len(order), dtype=np.int64)
        new[order] = np.arange(len(order))
        at = order.tolist()
        self.jobs = list(map(self.jobs.__getitem__, at))
        self.keys = list(map(self.keys.__getitem__, at))
        self.starts = list(map(self.starts.__getitem__, at))
        self.gang_rows = list(map(self.gang_rows.__getitem__, at))
        return new


class KnownJobs:
    """The jobs of the cycle before, so that a cycle reads only those that are new.

    A job never changes: another object stands in its place. So what was read of an object holds as
    long as the object is kept here.
    """

    def __init__(self) -> None:
        self._columns: JobColumns | None = None
        self._workers: Sequence[Job] = ()  # kept, so that no other job gets the id of one
        self._gangs: dict[int, Job] = {}  # by the id of the job of its worker

    def columns(self, jobs: Sequence[Job]) -> JobColumns:
        """Return the loads of the jobs as columns."""
        self._columns = JobColumns(jobs, self._columns)
        return self._columns

    def on_gpus(self, jobs: Sequence[Job], pods: Sequence[int], where: Sequence[int]) -> list[Job]:
        """Return jobs with as many `pods` as are on GPUs, and with where these may run."""
        found = []
        for job, there, place in zip(jobs, pods, where, strict=True):
            gang = self._gangs.get(id(job), job)
            if gang.pods != there or gang.where != place:
                gang = replace(job, pods=there, where=place)
            found.append(gang)
        self._workers = jobs
        self._gangs = {id(job): gang for job, gang in zip(jobs, found, strict=True)}
        return found


@dataclass(slots=True)
class _Holders:
    """Holders of GPUs, by row of the board; `gpus` and `jobs` say which job is on which GPU.

    Residents of a GPU stand in the order of the uids of their pods, as in the ledger's sums.
    """

    held: dict[int, tuple[int, ...]]
    going: set[int]
    gpus: Ints  # (workers,) rows of the snapshot
    jobs: Ints  # (workers,) rows of the board
    #: Gangs whose pods have different numbers of GPUs. They stay where they are: the dispatch would
    #: choose another place by the number of one pod.
    mixed: set[int]

    def renamed(self, new: Ints) -> _Holders:
        """Return the same after the rows of the board have got `new` numbers."""
        name = new.tolist()
        held = {name[i]: at for i, at in self.held.items()}
        going, mixed = ({name[i] for i in each} for each in (self.going, self.mixed))
        return _Holders(held, going, self.gpus, new[self.jobs], mixed)

    def residents_of(self, count: int) -> list[list[int]]:
        """Return the residents of each of `count` GPUs."""
        found: list[list[int]] = [[] for _ in range(count)]
        for gpu, job in zip(self.gpus.tolist(), self.jobs.tolist(), strict=True):
            found[gpu].append(job)
        return found

    def name_residents(self, residents: Floats | Ints | Bools) -> None:
        """Write the residents of each GPU, (gpus, slots)."""
        order = np.argsort(self.gpus, kind="stable")
        gpus = self.gpus[order]
        slot = np.arange(len(gpus)) - np.searchsorted(gpus, gpus)
        fits = slot < residents.shape[1]
        residents[:] = -1
        residents[gpus[fits], slot[fits]] = self.jobs[order][fits]


def cycle_input_of(
    question: Question,
    rows_of_gpus: Mapping[tuple[str, str], int],
    known: KnownJobs | None = None,
) -> CycleInput:
    """Return the board of a question; `rows_of_gpus` has the snapshot's rows by node and UUID.

    `known` has the jobs of the cycle before, and then those of this one.
    """
    snapshot, known = question.snapshot, known or KnownJobs()
    rows = _Rows()
    holders = _holders(question, rows_of_gpus, rows, known)
    ranked, roles = _rank(question, rows, sorted(holders.held.keys() - holders.going))
    # In order of arrival, as the simulator's are: by it policies break ties.
    new = rows.in_order(question.arrays.arrived_s)
    holders = holders.renamed(new)
    held, going, mixed = holders.held, holders.going, holders.mixed
    residents_of = holders.residents_of(len(snapshot.gpus))
    columns = columns_of(snapshot.gpus)
    most = _most(question)
    if most:
        columns["place"] = freest_first(snapshot.gpus)
    holders.name_residents(columns["residents"])
    loads = known.columns(rows.jobs)
    board = Board(
        rows.jobs,
        _arrays(question, rows, held, loads),
        gpu_arrays({name: column.view() for name, column in columns.items()}),
        columns,
        history=question.history,
        now_s=question.now_s,
        rows_of={i: np.array(at, dtype=np.int64) for i, at in held.items()},
        residents_of=residents_of,
        empty=int(np.count_nonzero(columns["jobs"] == 0)),
        stale={i for there in residents_of if len(there) > 1 for i in there},
        pinned={
            i
            for i in held
            if i not in going and (rows.keys[i] not in question.victims or i in mixed)
        },
        known_loads=loads,
    )
    name = new.tolist()
    inputs = CycleInput(
        board, rows.keys, rows.starts, held, going, new[ranked], dict(question.eligible), most,
        roles={name[i]: tuple(name[each] for each in all_of) for i, all_of in roles.items()},
    )  # fmt: skip
    _keep_apart(question, inputs)
    for index in sorted(going):
        board.remove(index)
    return inputs


def _most(question: Question) -> dict[int, Ints]:
    """Return of how many GPUs of each node gangs may have some, where nodes are too small."""
    nodes, snapshot = question.nodes, question.snapshot
    if nodes is None:
        return {}
    gpus = np.bincount(snapshot.gpus.node, minlength=len(snapshot.node_names))
    found = {number: nodes.most(number, gpus) for number in nodes.asks}
    return {number: most for number, most in found.items() if most is not None}


def freest_first(gpus: GpuArrays) -> Ints:
    """Return the place of each GPU among those of its node, (gpus,): the freest come first.

    Of equals the last comes first: jobs that may have any of them take the first.
    """
    closed = ~gpus.healthy | gpus.exclusive | (gpus.jobs >= gpus.shares)
    used_gib = gpus.memory_base_gib + gpus.memory_peak_extra_gib
    back = -np.arange(len(gpus))
    free_gib = gpus.memory_capacity_gib - used_gib
    # Of equally free ones whole GPUs come first: any job may have those.
    order = np.lexsort((back, -free_gib, gpus.sliced, gpus.jobs, closed, gpus.node))
    place = np.empty(len(gpus), dtype=np.int64)
    node = gpus.node[order]
    place[order] = np.arange(len(gpus)) - np.searchsorted(node, node)
    return place


def _holders(
    question: Question, rows_of_gpus: Mapping[tuple[str, str], int], rows: _Rows, known: KnownJobs
) -> _Holders:
    """Add a row for each gang on GPUs, and one for its pods on their way out, if it has some."""
    staying: dict[str, int] = {}
    leaving: dict[str, int] = {}
    held: list[list[int]] = []
    gpus, jobs = [], []
    mixed: set[int] = set()
    for uid in sorted(question.claims):
        claim = question.claims[uid]
        name = claim.job.id
        rows_of = leaving if uid in question.going else staying
        index = rows_of.get(name)
        if index is None:
            namespace, _, own = name.partition("/")
            key = (namespace, own)
            gang_row = question.row_of.get(key, -1)
            index = rows.add(claim.job, key if gang_row >= 0 else _NO_JOB, None, gang_row)
            rows_of[name] = index
            held.append([])
        elif claim.job.gpus_per_pod != rows.jobs[index].gpus_per_pod:
            mixed.add(index)
        for gpu in claim.gpus:
            row = rows_of_gpus.get((claim.node, gpu))
            if row is not None:
                held[index].append(row)
                gpus.append(row)
                jobs.append(index)
    pods = [max(1, len(at) // job.gpus_per_pod) for job, at in zip(rows.jobs, held, strict=True)]
    where = [question.where_of.get(key, 0) for key in rows.keys]
    rows.jobs = known.on_gpus(rows.jobs, pods, where)
    on_gpus = {index: tuple(at) for index, at in enumerate(held) if at}
    going = set(leaving.values()) & on_gpus.keys()
    return _Holders(on_gpus, going, np.array(gpus, np.int64), np.array(jobs, np.int64), mixed)


def _rank(
    question: Question, rows: _Rows, running: Sequence[int]
) -> tuple[Ints, dict[int, tuple[int, ...]]]:
    """Add a row for each start that waits; return all in order, a gang before its own starts.

    `running` are the rows of the board of the gangs that run. Starts with several roles have rows
    for the others too, which are not in the order: the second value has them by start.
    """
    order, first = question.rank(), len(rows.jobs)
    # Each look-up of a key costs a quarter of a microsecond: two for each gang, the rest by row.
    # Comprehensions let other threads have their turn; `map` would hold them up for 3 ms.
    starts_of, row_of = question.starts, question.row_of
    groups = [starts_of.get(key, ()) for key in order]
    gangs = np.array([row_of[key] for key in order], dtype=np.int64)
    waiting = np.array([len(group) for group in groups], dtype=np.int64)
    known = [index for index in running if rows.gang_rows[index] >= 0]
    on_gpus = np.full(len(question.arrays), -1)
    on_gpus[[rows.gang_rows[index] for index in known]] = known
    runs = on_gpus[gangs] >= 0
    begins = np.cumsum(waiting + runs) - (waiting + runs)
    starts = [start for group in groups for start in group]
    ranked = np.empty(len(starts) + np.count_nonzero(runs), dtype=np.int64)
    waits = np.ones(len(ranked), dtype=np.bool_)
    waits[begins[runs]] = False
    ranked[~waits] = on_gpus[gangs[runs]]
    ranked[waits] = np.arange(first, first + len(starts))
    jobs = [start.job for start in starts]
    keys = [start.gpujob for start in starts]
    gang_rows = np.repeat(gangs, waiting).tolist()
    if question.needs_remaining:
        left = question.arrays.remaining_at_since[gang_rows].tolist()
        jobs = [replace(job, remaining_s=s) for job, s in zip(jobs, left, strict=True)]
    rows.jobs += jobs
    rows.keys += keys
    rows.starts += starts
    rows.gang_rows += gang_rows
    roles: dict[int, tuple[int, ...]] = {}
    for at, start in [(at, start) for at, start in enumerate(starts) if start.others]:
        others = (rows.add(part.job, start.gpujob, None, gang_rows[at]) for part in start.others)
        roles[first + at] = (first + at, *others)
    return ranked, roles


def _arrays(
    question: Question, rows: _Rows, held: Mapping[int, tuple[int, ...]], loads: JobColumns
) -> JobArrays:
    """Return the state of each row: that of its gang, with the GPUs and the state of the row."""
    gang_rows = np.array(rows.gang_rows, dtype=np.int64)
    known = gang_rows >= 0
    whole: dict[str, Any] = {
        f.name: getattr(question.arrays, f.name)[np.where(known, gang_rows, 0)]
        if len(question.arrays)
        else np.zeros(len(gang_rows))
        for f in fields(JobArrays)
    }
    running = np.zeros(len(gang_rows), dtype=np.bool_)
    running[list(held)] = True
    gpus = loads.gpus.copy()
    for index, at in held.items():
        gpus[index] = len(at)
    whole["remaining_at_since"] = np.where(known, whole["remaining_at_since"], np.nan)
    speed = np.where(known & (whole["speed"] > 0), whole["speed"], 1.0)
    whole |= {"gpus": gpus, "running": running, "speed": np.where(running, speed, 0.0)}
    whole["gpus_per_pod"] = loads.gpus_per_pod.copy()
    return JobArrays(**(whole | {"interference_class": loads.interference_class.copy()}))


def keep_to_domains(question: Question, inputs: CycleInput, pipeline: Pipeline) -> None:
    """Give gangs that ask for a level of topology a `where` of the nodes where they may be.

    Those on GPUs stay in their domain, as do pods that join them; others get the best in order.
    """
    board, topology = inputs.board, question.topology
    asks = board.loads.asks_topology
    if not asks.any():
        return
    on_gpus = {
        inputs.keys[i]: np.array(rows, dtype=np.int64)
        for i, rows in inputs.held.items()
        if i not in inputs.going and asks[i]
    }
    ranked = [
        i for i in inputs.ranked[asks[inputs.ranked]].tolist() if inputs.starts[i] is not None
    ]
    if topology is None:
        nodes = len(question.snapshot.node_names)
        topology = Topology((), np.zeros((nodes, 0), dtype=np.int64))
    gangs = [
        Gang((i,), on_gpus[inputs.keys[i]])
        for i in inputs.held
        if i not in inputs.going and inputs.keys[i] in on_gpus
    ]
    at = {place: row for row, place in enumerate(places_of(question.snapshot))} if any(
        inputs.keys[i] in question.targets for i in ranked
    ) else {}  # fmt: skip
    for index in ranked:
        key = inputs.keys[index]
        there = on_gpus.get(key)
        if there is None and key in question.targets:
            rows = sorted(at[place] for place in question.targets[key] if place in at)
            there = np.array(rows, dtype=np.int64)
        gangs.append(Gang(inputs.roles.get(index, (index,)), there))
    Keeper(topology, inputs.nodes, (inputs.most, inputs.apart)).keep(board, gangs, pipeline)


def _keep_apart(question: Question, inputs: CycleInput) -> None:
    """Give those a `where` of their own that avoid certain nodes or neighbours.

    The neighbours of a gang's further pods are all pods of that gang. Pods of one gang that could
    run on the same nodes have one `where` together, so that what is refused to one is to all.
    """
    if not (question.avoids or question.joining):
        return
    names = np.array(question.snapshot.node_names)
    handles = {key: i for i, key in enumerate(inputs.keys) if i in inputs.held}
    waiting = {i for i, start in enumerate(inputs.starts) if start is not None}
    waiting |= {i for roles in inputs.roles.values() for i in roles}
    of_gang: dict[Key, list[int]] = defaultdict(list)
    for index, key in enumerate(inputs.keys):
        if key in question.joining:
            of_gang[key].append(index)
    known: dict[tuple[Key, int], int] = {}
    for index, key in enumerate(inputs.keys):
        if index not in waiting or not (key in question.avoids or key in of_gang):
            continue
        avoid, job = question.avoids.get(key, Avoids()), inputs.board.jobs[index]
        asked = key, job.where
        if asked in known:
            inputs.board.change(index, replace(job, where=known[asked]))
            continue
        everywhere = np.ones(len(names), dtype=np.bool_)
        number = known[asked] = SPECIAL + index
        nodes = inputs.nodes.get(job.where, everywhere)
        if job.where in inputs.most:
            inputs.most[number] = inputs.most[job.where]
        others = nodes & ~np.isin(names, sorted(avoid.nodes))
        inputs.nodes[number] = others if others.any() else nodes
        apart = [handles[key] for key in avoid.neighbours if key in handles]
        apart += of_gang.get(key, ())
        if apart:
            inputs.apart[number] = np.array(apart, dtype=np.int64)
        inputs.board.change(index, replace(job, where=number))
