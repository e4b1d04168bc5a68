"""The jobs and GPUs that a view is about, with sums over them and orders of them.

A view of 5,000 nodes and 50,000 jobs must not look at each of them at each change. So a selection
is made once, by looking at all objects, and then follows what changes. Sums are integers: the part
of a node is added, and later exactly the same part is subtracted. Orders are sorted lists in which
one object is moved.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from scheduler_extender.serving.status.objects import PHASES, Gpu, Job, Key, Node, Scope

MICRO = 1_000_000
_GIB = 2**30
_PHASE_ORDER = {name: number for number, name in enumerate(PHASES)}
#: Turns the order of texts of one length around.
_TURNED = {code: 127 - code for code in range(128)}

Entry = tuple[Any, Job]
SortKey = Callable[[Job], tuple[Any, ...]]


def by_position(job: Job) -> tuple[float, str, Key]:
    """Return the place of a waiting job among all that wait; a job without a position is last."""
    position = float("inf") if job.position is None else float(job.position)
    return position, job.waiting_since or job.queued_at, job.key


#: The orders of a list of jobs. Each ends with the name of the job, so that no two are equal.
ORDERS: Mapping[str, SortKey] = {
    "queue": lambda job: (_PHASE_ORDER.get(job.phase, 0), *by_position(job)),
    "name": lambda job: (job.key,),
    "waiting": lambda job: (not job.waits, job.waiting_since or "9", job.key),
    "slowdown": lambda job: (-(job.slowdown or 0.0), job.key),
    "gpus": lambda job: (-job.gpus, job.key),
    "started": lambda job: (not job.started_at, job.started_at.translate(_TURNED), job.key),
}


class Order:
    """Jobs in the order of a key, which is different for each of them."""

    def __init__(self, key: SortKey, jobs: Iterable[Job]) -> None:
        self._key = key
        self._entries: list[Entry] = sorted(
            ((key(job), job) for job in jobs), key=lambda entry: entry[0]
        )

    def __len__(self) -> int:
        return len(self._entries)

    def replace(self, before: Job | None, after: Job | None) -> None:
        """Put `after` in the place of `before`; None is a job that is not in the order."""
        entries = self._entries
        old = None if before is None else self._key(before)
        new = None if after is None else self._key(after)
        at = None if old is None else bisect_left(entries, (old,))
        if at is not None and old == new:
            assert after is not None
            entries[at] = (new, after)
            return
        if at is not None:
            assert entries[at][1] is before
            del entries[at]
        if after is not None:
            insort(entries, (new, after))

    def __getitem__(self, places: slice) -> list[Job]:
        return [job for _, job in self._entries[places]]

    def below(self, key: tuple[Any, ...]) -> int:
        """Return how many jobs have a smaller key; `key` may be only its beginning."""
        return bisect_left(self._entries, (key,))


@dataclass(frozen=True, slots=True)
class Stretch:
    """The jobs of an order from one place up to another; a slice of it looks at no other job."""

    order: Order
    first: int
    end: int

    def __len__(self) -> int:
        return self.end - self.first

    def __getitem__(self, places: slice) -> list[Job]:
        begin, end, _ = places.indices(len(self))
        return self.order[self.first + begin : self.first + end]


@dataclass(slots=True)
class Sums:
    """Sums over GPUs. `gain_micro`: see `views.overview.sharing`, in millionths of a GPU."""

    gpus: int = 0
    nodes: int = 0
    capacity_bytes: int = 0
    promised_bytes: int = 0
    used_bytes: int = 0
    shared: int = 0
    gain_micro: int = 0
    gain_gpus: int = 0  # of the shared GPUs, those whose gain is known
    measured_micro: int = 0  # of the gain, that of GPUs on which all slowdowns are measured
    measured_gpus: int = 0
    silent_nodes: int = 0
    out_of_memory_nodes: int = 0
    states: Counter[str] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)
    on: Counter[str] = field(default_factory=Counter)  # namespace -> GPUs that its jobs hold
    held: Counter[str] = field(default_factory=Counter)  # the same, once for each pod on a GPU
    sharing: Counter[Key] = field(default_factory=Counter)  # job -> GPUs that it shares

    def take(self, other: Sums, times: int) -> None:
        """Add other sums (`times` 1), or subtract them (-1)."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + times * getattr(other, name))
        for name in _COUNTS:
            mine, theirs = getattr(self, name), getattr(other, name)
            for key, count in theirs.items():
                mine[key] += times * count
                if not mine[key]:
                    del mine[key]


@dataclass(slots=True)
class ModelSums:
    """Figures of the jobs of one model; each list is sorted, so that its largest is its last."""

    jobs: int = 0
    waiting: int = 0
    running: int = 0
    unfamiliar: int = 0
    predicted: list[tuple[str, Key]] = field(default_factory=list)  # (queued at, job)
    measured_bytes: list[int] = field(default_factory=list)
    slowdowns: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, jobs: Iterable[Job]) -> ModelSums:
        """Return the figures of these jobs."""
        found = cls()
        for job in jobs:
            found._count(job, 1)
            for values, value in found._values(job):
                values.append(value)
        found.predicted.sort()
        found.measured_bytes.sort()
        found.slowdowns.sort()
        return found

    def take(self, job: Job, times: int) -> None:
        """Add a job (`times` 1), or subtract it (-1)."""
        self._count(job, times)
        for values, value in self._values(job):
            if times > 0:
                insort(values, value)
            else:
                del values[bisect_left(values, value)]

    def _count(self, job: Job, times: int) -> None:
        self.jobs += times
        self.waiting += times * job.waits
        self.running += times * (job.phase == "Running")
        self.unfamiliar += times * job.unfamiliar

    def _values(self, job: Job) -> Iterator[tuple[list[Any], Any]]:
        if job.predicted_bytes is not None:
            yield self.predicted, (job.queued_at, job.key)
        if job.measured_bytes is not None:
            yield self.measured_bytes, job.measured_bytes
        if job.slowdown is not None:
            yield self.slowdowns, job.slowdown


_COUNTS = tuple(each.name for each in fields(Sums) if each.default_factory is Counter)
_NUMBERS = tuple(each.name for each in fields(Sums) if each.default == 0)


@dataclass(frozen=True, slots=True)
class Part:
    """What a selection has of one node."""

    gpus: Sequence[Gpu]
    sums: Sums


def promised_bytes(gpu: Gpu) -> int:
    """Return the base memory of all residents and the largest peak ([OJPP] Eq. 3)."""
    base = sum(each.memory_base_gib for each in gpu.holders)
    peak = max((each.memory_extra_gib for each in gpu.holders), default=0.0)
    return round((base + peak) * _GIB)


class Selection:
    """What a reader sees, and with `namespace` of it what belongs to one namespace.

    `jobs`, `nodes` and `slowed` are those of the cluster, which tells what changes. `places` has
    the nodes that each job holds GPUs of. In the scope of a namespace, a GPU shows the part of the
    reader's own jobs; with `namespace` alone, a GPU on which a job of the namespace is shows all.
    """

    def __init__(
        self,
        scope: Scope,
        namespace: str,
        jobs: Mapping[Key, Job],
        nodes: Mapping[str, Node],
        slowed: Mapping[Key, float],
        places: Mapping[Key, set[str]],
    ) -> None:
        self.scope = scope
        self.namespace = namespace or scope.namespace
        self._all_jobs, self._nodes, self._slowed = jobs, nodes, slowed
        self.sums = Sums()
        self._parts: dict[str, Part] = {}
        self._gpus: list[Gpu] | None = None
        self.slowdowns: dict[Key, int] = {}  # of jobs that share a GPU, in millionths
        self.slowdown_micro = 0  # the sum of these
        self._slowest: list[tuple[int, Key]] = []  # the largest slowdown first
        self.phases: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()  # by namespace, as the next
        self.running: Counter[str] = Counter()
        self.models: dict[Key, dict[Key, Job]] = {}  # (namespace, model) -> its jobs
        self._model_sums: dict[Key, ModelSums] | None = None  # made for the first view of models
        own = [job for job in jobs.values() if self.has(job)]
        for job in own:
            self._count(job, 1)
        self.line = Order(by_position, (job for job in own if job.waits))
        self.since = Order(_by_wait, (job for job in own if _is_since(job)))
        self._orders: dict[str, Order] = {}
        self._own = {job.key: job for job in own}
        names: Iterable[str] = nodes
        if self.namespace is not None:
            names = {n for key, held in places.items() if key[0] == self.namespace for n in held}
        for name in names:
            self.node_changed(name)

    # --- reading ------------------------------------------------------------------------------

    def numbers_of(self, node: str, uuid: str) -> dict[str, int | str | None]:
        """Return index and number of a GPU on its node; None where no agent reports it."""
        found = self._nodes.get(node)
        gpus = found.gpus if found is not None else ()
        numbers = ((gpu.index, gpu.number) for gpu in gpus if gpu.uuid == uuid)
        index, number = next(numbers, (None, None))
        return {"index": index, "number": number}

    def __len__(self) -> int:
        """Return how many jobs there are."""
        return len(self._own)

    def has(self, job: Job) -> bool:
        """Say whether a job belongs to the selection."""
        return self.namespace is None or job.namespace == self.namespace

    def order(self, name: str) -> Order:
        """Return the jobs in one of `ORDERS`."""
        found = self._orders.get(name)
        if found is None:
            found = self._orders[name] = Order(ORDERS[name], self._own.values())
        return found

    def in_phase(self, name: str) -> Stretch:
        """Return the jobs of a phase in the order of the queue; `Waiting` is Queued and Suspended.

        They are next to each other there, since the order begins with the phase.
        """
        first, last = ("Queued", "Suspended") if name == "Waiting" else (name, name)
        order = self.order("queue")
        begin, end = (_PHASE_ORDER[first],), (_PHASE_ORDER[last] + 1,)
        return Stretch(order, order.below(begin), order.below(end))

    def gpus(self, node: str = "") -> Sequence[Gpu]:
        """Return the GPUs of one node or of all, by node and index."""
        if node:
            part = self._parts.get(node)
            return () if part is None else part.gpus
        if self._gpus is None:
            self._gpus = [gpu for name in sorted(self._parts) for gpu in self._parts[name].gpus]
        return self._gpus

    def nodes(self) -> list[str]:
        """Return the nodes with a GPU of the selection, by name."""
        return sorted(self._parts)

    def model_sums(self, model: Key) -> ModelSums:
        """Return the figures of the jobs of one of the `models`."""
        if self._model_sums is None:
            self._model_sums = {}
            for key, jobs in self.models.items():
                self._model_sums[key] = ModelSums.of(jobs.values())
        return self._model_sums[model]

    def slowest(self, most: int) -> list[Job]:
        """Return the jobs that sharing slows down most."""
        return [self._all_jobs[key] for micro, key in self._slowest[:most] if micro]

    # --- following ----------------------------------------------------------------------------

    def job_changed(self, before: Job | None, after: Job | None) -> None:
        """Follow a job of the selection that is new, has changed, or is gone."""
        for job, times in ((before, -1), (after, 1)):
            if job is not None:
                self._count(job, times)
        if after is not None:
            self._own[after.key] = after
        elif before is not None:
            del self._own[before.key]
        for order in self._orders.values():
            order.replace(before, after)
        self.line.replace(
            before if before is not None and before.waits else None,
            after if after is not None and after.waits else None,
        )
        self.since.replace(
            before if before is not None and _is_since(before) else None,
            after if after is not None and _is_since(after) else None,
        )

    def node_changed(self, name: str) -> None:
        """Follow a node that is new, has changed, or is gone, or a slowdown of a job on it."""
        before = self._parts.pop(name, None)
        node = self._nodes.get(name)
        gpus = [] if node is None else self._seen(node)
        if before is None and not gpus:
            return
        touched: set[Key] = set()
        if before is not None:
            self.sums.take(before.sums, -1)
            touched |= before.sums.sharing.keys()
        if node is not None and gpus:
            after = self._parts[name] = Part(gpus, self._sums(node, gpus))
            self.sums.take(after.sums, 1)
            touched |= after.sums.sharing.keys()
        for key in touched:
            self._note_slowdown(key)
        self._splice(name, 0 if before is None else len(before.gpus), gpus)

    # --- inside -------------------------------------------------------------------------------

    def _count(self, job: Job, times: int) -> None:
        self.phases[job.phase] += times
        if job.waits:
            _add(self.reasons, job.kind, times)
            _add(self.waiting, job.namespace, times)
        if job.phase == "Running":
            _add(self.running, job.namespace, times)
        if not job.model:
            return
        model = (job.namespace, job.model)
        if self._model_sums is not None:
            self._model_sums.setdefault(model, ModelSums()).take(job, times)
        jobs = self.models.setdefault(model, {})
        if times > 0:
            jobs[job.key] = job
        else:
            del jobs[job.key]
            if not jobs:
                del self.models[model]
                if self._model_sums is not None:
                    del self._model_sums[model]

    def _seen(self, node: Node) -> list[Gpu]:
        if self.namespace is None:
            return node.gpus
        if self.scope.namespace is None:
            return [
                gpu
                for gpu in node.gpus
                if any(each.job[0] == self.namespace for each in gpu.holders)
            ]
        return [own for gpu in node.gpus if (own := self._own_part(gpu)) is not None]

    def _own_part(self, gpu: Gpu) -> Gpu | None:
        own = tuple(each for each in gpu.holders if self.scope.sees(each.job[0]))
        if not own:
            return None
        # Neither sums nor measurements of the whole GPU: they show what other tenants do on it.
        own = tuple(each._replace(predicted_slowdown=None) for each in own)
        shown = replace(gpu, holders=own, used_bytes=None, utilisation=None, temperature=None)
        shown.set_state(self._slowed)
        return shown

    def _sums(self, node: Node, gpus: Sequence[Gpu]) -> Sums:
        found = Sums(gpus=len(gpus), nodes=1)
        found.silent_nodes = int(node.states["silent"] > 0)
        found.out_of_memory_nodes = int(node.out_of_memory > 0)
        for gpu in gpus:
            found.states[gpu.state] += 1
            found.models[gpu.model] += 1
            found.capacity_bytes += round(gpu.capacity_gib * _GIB)
            found.used_bytes += gpu.used_bytes or 0
            if gpu.holders:
                found.promised_bytes += promised_bytes(gpu)
                for namespace in {each.job[0] for each in gpu.holders}:
                    found.on[namespace] += 1
                for each in gpu.holders:
                    if self.namespace in (None, each.job[0]):
                        found.held[each.job[0]] += 1
            if len(gpu.holders) > 1:
                self._add_shared(found, gpu)
        return found

    def _add_shared(self, found: Sums, gpu: Gpu) -> None:
        found.shared += 1
        speeds, measured = [], 0
        for holder in gpu.holders:
            job = self._all_jobs.get(holder.job)
            if job is not None:
                found.sharing[job.key] += 1
            slowdown = holder.predicted_slowdown
            if job is not None and job.slowdown is not None:
                slowdown = job.slowdown
                measured += 1
            if slowdown is not None:
                speeds.append(1 / (1 + slowdown))
        if len(speeds) == len(gpu.holders):
            gain = round((sum(speeds) - 1) * MICRO)
            found.gain_micro += gain
            found.gain_gpus += 1
            if measured == len(speeds):
                found.measured_micro += gain
                found.measured_gpus += 1

    def _note_slowdown(self, key: Key) -> None:
        job = self._all_jobs.get(key) if self.sums.sharing[key] else None
        before = self.slowdowns.pop(key, None)
        if before is not None:
            self.slowdown_micro -= before
            del self._slowest[bisect_left(self._slowest, (-before, key))]
        if job is not None and job.slowdown is not None:
            micro = self.slowdowns[key] = round(job.slowdown * MICRO)
            self.slowdown_micro += micro
            insort(self._slowest, (-micro, key))

    def _splice(self, name: str, count: int, gpus: Sequence[Gpu]) -> None:
        """Put the GPUs of a node in the place of the `count` that it had."""
        if self._gpus is not None:
            at = bisect_left(self._gpus, name, key=lambda gpu: gpu.node)
            self._gpus[at : at + count] = gpus


def _add(counts: Counter[str], name: str, count: int) -> None:
    counts[name] += count
    if not counts[name]:
        del counts[name]


def _is_since(job: Job) -> bool:
    return job.waits and bool(job.waiting_since)


def _by_wait(job: Job) -> tuple[str, Key]:
    return job.waiting_since, job.key
