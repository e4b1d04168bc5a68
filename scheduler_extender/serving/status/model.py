"""What the page shows of nodes, GPUs and jobs, kept up to date by `Changes`. No I/O.

One thread uses a `Cluster`. Lists need few fields of each object; these are decoded when an object
changes. The object itself is kept as the bytes that came and is decoded for the view that shows it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_core import from_json

from scheduler_extender.serving.status.reasons import kind_of

Key = tuple[str, str]  # (namespace, name)
Raw = Mapping[str, Any]

#: A measured slowdown from which a GPU and its jobs count as slowed down.
SLOWED = 0.10
_RUNS_KEPT = 10_000
#: States of a GPU, the gravest first: a GPU is in the first that is true of it.
GPU_STATES = (
    "quarantined", "unavailable", "silent", "slowed", "shared", "exclusive", "single", "idle",
)  # fmt: skip
WAITING = ("Queued", "Suspended")
PHASES = (
    "Queued", "Suspended", "Admitted", "Running", "Preempting", "Completed", "Failed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that holds a GPU, and the load that is predicted of it; memory in GiB."""

    uid: str
    pod: str
    job: Key
    hold: str
    memory_base_gib: float
    memory_extra_gib: float
    peak_probability: float
    utilisation: float
    exclusive: bool
    predicted_slowdown: float | None
    started_at: str


@dataclass(slots=True)
class Gpu:
    """One GPU; None is what no agent has measured."""

    node: str
    uuid: str
    index: int
    model: str
    memory_bytes: int
    capacity_gib: float
    used_bytes: int | None
    utilisation: float | None
    temperature: float | None
    reason: str
    shares: int
    healthy: bool
    fresh: bool
    holders: tuple[Holder, ...]
    state: str = "idle"

    @property
    def key(self) -> Key:
        """Node and UUID."""
        return self.node, self.uuid

    def set_state(self, slowed: Iterable[Key] | Mapping[Key, float]) -> None:
        """Work out the state; `slowed` are the jobs that count as slowed down."""
        if not self.healthy:
            self.state = "quarantined"
        elif self.shares == 0 and not self.holders:
            self.state = "unavailable"
        elif not self.fresh:
            self.state = "silent"
        elif not self.holders:
            self.state = "idle"
        elif any(each.job in slowed for each in self.holders):
            self.state = "slowed"
        elif len(self.holders) > 1:
            self.state = "shared"
        else:
            self.state = "exclusive" if self.holders[0].exclusive else "single"


@dataclass(slots=True)
class Node:
    """A node with an agent; `raw` is the line that came, with the agent's whole report."""

    name: str
    gpus: list[Gpu]
    observed_at: str
    raw: bytes
    out_of_memory: int = 0
    states: Counter[str] = field(default_factory=Counter)

    def count(self) -> None:
        """Count the GPUs by state."""
        self.states = Counter(gpu.state for gpu in self.gpus)

    def report(self) -> Raw:
        """Return the agent's report."""
        found: Raw = from_json(self.raw)["status"]
        return found


@dataclass(slots=True)
class Job:
    """A GPUJob as lists show it; times are RFC 3339, '' where there is none."""

    namespace: str
    name: str
    phase: str
    reason: str
    message: str
    kind: str  # of the reason for which it waits
    position: int | None
    expected: Raw | None
    queued_at: str
    waiting_since: str
    started_at: str
    finished_at: str
    gpus: int
    model: str
    batch_size: int | None
    exclusive: bool
    places: tuple[Key, ...]  # (node, GPU)
    slowdown: float | None
    estimated: bool
    attained_gpu_s: float
    predicted_bytes: int | None
    predicted_utilisation: float | None
    measured_bytes: int | None
    measured_utilisation: float | None
    source: str
    unfamiliar: bool
    raw: bytes

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.name

    @property
    def waits(self) -> bool:
        """True while it waits for GPUs."""
        return self.phase in WAITING

    def whole(self) -> dict[str, Any]:
        """Return facts, spec and status as they came."""
        found: dict[str, Any] = from_json(self.raw)
        return found


@dataclass(frozen=True, slots=True)
class Scope:
    """What a reader sees: one namespace, or with None the whole cluster."""

    namespace: str | None = None

    def sees(self, namespace: str) -> bool:
        """Say whether objects of a namespace are shown."""
        return self.namespace is None or namespace == self.namespace


class Cluster:
    """All nodes and jobs; `revision` grows with each change that a view could show."""

    def __init__(self) -> None:
        self.version = ""
        self.revision = 0
        self.nodes: dict[str, Node] = {}
        self.jobs: dict[Key, Job] = {}
        self.runs: OrderedDict[str, Raw] = OrderedDict()
        self.quotas: list[Raw] = []
        self.slowed: dict[Key, float] = {}
        self._nodes_of: dict[Key, set[str]] = {}  # job -> nodes whose GPUs it holds
        self._sorted: dict[str, list[Any]] = {}
        self._visible: dict[tuple[str | None, str], list[Gpu]] = {}

    def apply(self, lines: bytes) -> None:
        """Take in whole lines of `Changes.pieces`."""
        for line in lines.splitlines():
            self._take(line)
        self._visible.clear()

    # --- reading ------------------------------------------------------------------------------

    def all_nodes(self) -> list[Node]:
        """Return the nodes by name."""
        found = self._sorted.get("nodes")
        if found is None:
            found = self._sorted["nodes"] = [self.nodes[name] for name in sorted(self.nodes)]
        return found

    def all_jobs(self) -> list[Job]:
        """Return the jobs by namespace and name."""
        found = self._sorted.get("jobs")
        if found is None:
            found = self._sorted["jobs"] = [self.jobs[key] for key in sorted(self.jobs)]
        return found

    def jobs_of(self, scope: Scope) -> list[Job]:
        """Return the jobs that a reader sees."""
        if scope.namespace is None:
            return self.all_jobs()
        name = f"jobs of {scope.namespace}"
        found = self._sorted.get(name)
        if found is None:
            found = [job for job in self.all_jobs() if job.namespace == scope.namespace]
            self._sorted[name] = found
        return found

    def gpus_of(self, scope: Scope, node: str = "") -> list[Gpu]:
        """Return the GPUs that a reader sees, of one node or of all, by node and index.

        In one namespace, a reader sees the GPUs that its pods hold, and no one else's part in them.
        """
        known = self._visible.get((scope.namespace, node))
        if known is not None:
            return known
        if node and node not in self.nodes:
            return []
        if scope.namespace is None:
            nodes = [self.nodes[node]] if node else self.all_nodes()
            found = [gpu for each in nodes for gpu in each.gpus]
        elif node:
            found = [gpu for gpu in self.gpus_of(scope) if gpu.node == node]
        else:
            names: set[str] = set()
            for job in self.jobs_of(scope):
                names |= self._nodes_of.get(job.key, set())
            found = [
                own
                for name in sorted(names & self.nodes.keys())
                for gpu in self.nodes[name].gpus
                if (own := self._own_part(gpu, scope)) is not None
            ]
        self._visible[scope.namespace, node] = found
        return found

    def gpu(self, scope: Scope, node: str, uuid: str) -> Gpu | None:
        """Return one GPU as a reader sees it; None where there is none to see."""
        return next((gpu for gpu in self.gpus_of(scope, node) if gpu.uuid == uuid), None)

    def runs_of(
        self, scope: Scope, node: str = "", gpu: str = "", job: Key | None = None
    ) -> list[Raw]:
        """Return ended runs, the latest first."""
        return [
            run
            for run in reversed(self.runs.values())
            if scope.sees(run["namespace"])
            and (not node or (run["node"] == node and gpu in run["gpus"]))
            and (job is None or (run["namespace"], run["job"]) == job)
        ]

    def _own_part(self, gpu: Gpu, scope: Scope) -> Gpu | None:
        own = tuple(each for each in gpu.holders if scope.sees(each.job[0]))
        if not own:
            return None
        # Neither sums nor measurements of the whole GPU: they show what other tenants do on it.
        own = tuple(replace(each, predicted_slowdown=None) for each in own)
        shown = replace(gpu, holders=own, used_bytes=None, utilisation=None, temperature=None)
        shown.set_state(self.slowed)
        return shown

    # --- taking in ----------------------------------------------------------------------------

    def _take(self, line: bytes) -> None:
        value = from_json(line)
        match value["kind"]:
            case "whole":
                self.version = ""  # until the end has come, nothing is known for certain
                self.nodes.clear()
                self.jobs.clear()
                self.slowed.clear()
                self._nodes_of.clear()
                self._sorted.clear()
            case "node":
                self._take_node(value, line)
            case "job":
                self._take_job(value, line)
            case "gone" if value["of"] == "node":
                self._drop_holders(self.nodes.pop(value["name"], None))
                self._sorted.pop("nodes", None)
            case "gone":
                self._forget_job((value["namespace"], value["name"]))
            case "run":
                self.runs[value["uid"]] = value
                if len(self.runs) > _RUNS_KEPT:
                    self.runs.popitem(last=False)
            case "quotas":
                if self.quotas == value["quotas"]:
                    return
                self.quotas = value["quotas"]
            case "end":
                self.version = value["version"]
                return
        self.revision += 1

    def _take_node(self, value: Raw, line: bytes) -> None:
        name, status = value["facts"]["name"], value["status"]
        before = self.nodes.get(name)
        self._drop_holders(before)
        node = Node(name, [], status["observedAt"], line, len(status.get("outOfMemory") or ()))
        for raw in sorted(status.get("gpus") or (), key=lambda gpu: (gpu["index"], gpu["uuid"])):
            gpu = _gpu(name, raw, value["facts"])
            gpu.set_state(self.slowed)
            node.gpus.append(gpu)
            for holder in gpu.holders:
                self._nodes_of.setdefault(holder.job, set()).add(name)
        node.count()
        self.nodes[name] = node
        if before is None:
            self._sorted.pop("nodes", None)
        else:
            self._put_into("nodes", before, node)

    def _drop_holders(self, node: Node | None) -> None:
        for gpu in node.gpus if node is not None else ():
            for holder in gpu.holders:
                nodes = self._nodes_of.get(holder.job)
                if nodes is not None and node is not None:
                    nodes.discard(node.name)
                    if not nodes:
                        del self._nodes_of[holder.job]

    def _take_job(self, value: Raw, line: bytes) -> None:
        job = _job(value, line)
        before = self.jobs.get(job.key)
        self.jobs[job.key] = job
        for name in ("jobs", f"jobs of {job.namespace}"):
            if before is None:
                self._sorted.pop(name, None)
            else:
                self._put_into(name, before, job)
        is_slowed = job.phase == "Running" and (job.slowdown or 0.0) >= SLOWED
        if is_slowed != (job.key in self.slowed):
            if is_slowed:
                self.slowed[job.key] = job.slowdown or 0.0
            else:
                del self.slowed[job.key]
            self._restate(job.key)
        elif is_slowed:
            self.slowed[job.key] = job.slowdown or 0.0

    def _forget_job(self, key: Key) -> None:
        if self.jobs.pop(key, None) is not None:
            self._sorted.pop("jobs", None)
            self._sorted.pop(f"jobs of {key[0]}", None)
        if self.slowed.pop(key, None) is not None:
            self._restate(key)

    def _restate(self, key: Key) -> None:
        for name in self._nodes_of.get(key, ()):
            node = self.nodes[name]
            for gpu in node.gpus:
                gpu.set_state(self.slowed)
            node.count()

    def _put_into(self, name: str, before: Any, after: Any) -> None:  # noqa: ANN401 - node or job
        """Replace an object in a sorted list, whose order does not change by that."""
        found = self._sorted.get(name)
        if found is None:
            return
        low, high = 0, len(found)
        wanted = after.key if isinstance(after, Job) else after.name
        while low < high:
            middle = (low + high) // 2
            here = found[middle].key if isinstance(after, Job) else found[middle].name
            if here < wanted:
                low = middle + 1
            else:
                high = middle
        assert found[low] is before
        found[low] = after


def _gpu(node: str, raw: Raw, facts: Raw) -> Gpu:
    row = facts["rows"].get(raw["uuid"]) or [0, False, False, 0.0]
    return Gpu(
        node=node,
        uuid=raw["uuid"],
        index=raw["index"],
        model=raw["model"],
        memory_bytes=raw["memoryBytes"],
        capacity_gib=row[3],
        used_bytes=raw.get("memoryUsedBytes"),
        utilisation=raw.get("utilisationPercent"),
        temperature=raw.get("temperatureCelsius"),
        reason=raw.get("healthReason") or raw.get("sharesReason") or "",
        shares=row[0],
        healthy=row[1],
        fresh=row[2],
        holders=tuple(_holders(facts["held"].get(raw["uuid"]) or ())),
    )


def _holders(rows: Iterable[list[Any]]) -> Iterator[Holder]:
    for uid, pod, job, *rest in rows:
        namespace, _, name = job.partition("/")
        yield Holder(uid, pod, (namespace, name), *rest)


def _job(value: Raw, line: bytes) -> Job:
    facts, spec, status = value["facts"], value["spec"], value["status"]
    demand, load = spec["demand"], status.get("load") or {}
    observed = status.get("observed") or {}
    slowdown = observed.get("slowdown") or {}
    phase, reason, message = status["phase"], status["reason"], status["message"]
    places = {
        (node, gpu): None
        for _, _, pod_phase, node, gpus, *_ in facts["pods"]
        if node and pod_phase not in ("Succeeded", "Failed")
        for gpu in gpus
    }
    base, extra = load.get("memoryBaseBytes"), load.get("memoryPeakExtraBytes")
    return Job(
        namespace=facts["namespace"],
        name=facts["name"],
        phase=phase,
        reason=reason,
        message=message,
        kind=kind_of(reason, message) if phase in WAITING else "",
        position=status.get("position"),
        expected=status.get("expectedStart"),
        queued_at=status.get("queuedAt") or "",
        waiting_since=status.get("waitingSince") or "",
        started_at=status.get("startedAt") or "",
        finished_at=status.get("finishedAt") or "",
        gpus=demand["gpusPerPod"] * demand["gangSize"],
        model=demand.get("model") or "",
        batch_size=demand.get("batchSize"),
        exclusive=demand["exclusive"],
        places=tuple(places),
        slowdown=slowdown.get("value") if phase == "Running" else None,
        estimated=bool(slowdown.get("estimated")),
        attained_gpu_s=status["attainedGpuSeconds"],
        predicted_bytes=None if base is None else base + (extra or 0),
        predicted_utilisation=load.get("utilisationPercent"),
        measured_bytes=observed.get("memoryPeakBytes"),
        measured_utilisation=observed.get("soloUtilisationPercent")
        or observed.get("utilisationPercent"),
        source=load.get("memorySource") or "",
        unfamiliar=bool(load.get("outOfDistribution")),
        raw=line,
    )
