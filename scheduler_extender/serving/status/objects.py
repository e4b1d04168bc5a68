"""Nodes, GPUs and jobs as the page shows them, decoded from lines of `Changes.pieces`. No I/O.

Lists need few fields of each object; these are decoded when an object changes. The object itself
is kept as the bytes that came and is decoded for the view that shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic_core import from_json

from tandem.reasons.causes import Cause, understood
from tandem.reasons.words import briefly, kind_of

Key = tuple[str, str]  # (namespace, name)
Raw = Mapping[str, Any]

#: A measured slowdown from which a GPU and its jobs count as slowed down.
SLOWED = 0.10
#: States of a GPU, the gravest first: a GPU is in the first that is true of it.
GPU_STATES = (
    "quarantined", "unavailable", "silent", "slowed", "shared", "exclusive", "single", "idle",
)  # fmt: skip
WAITING = ("Queued", "Suspended")
PHASES = (
    "Queued", "Suspended", "Admitted", "Running", "Preempting", "Completed", "Failed",
)  # fmt: skip


class Holder(NamedTuple):
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
    number: str
    model: str
    memory_bytes: int
    capacity_gib: float
    used_bytes: int | None
    foreign_bytes: int | None
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

    def set_state(self, slowed: Collection[Key]) -> None:
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

    key: Key
    namespace: str
    name: str
    phase: str
    reason: str
    message: str
    kind: str  # of the reason for which it waits
    causes: tuple[Cause, ...]
    short: str  # what counts of the causes, in a few words
    found_at: str
    position: int | None
    expected: Raw | None
    queued_at: str
    waiting_since: str
    started_at: str
    finished_at: str
    gpus: int
    model: str
    known_by: str  # by what runs of its model and batch are known again, '' where by nothing
    batch_size: int | None
    exclusive: bool
    places: tuple[Key, ...]  # (node, GPU)
    slowdown: float | None
    estimated: bool
    predicted_bytes: int | None
    predicted_utilisation: float | None
    measured_bytes: int | None
    measured_utilisation: float | None
    source: str
    unfamiliar: bool
    raw: bytes

    @property
    def waits(self) -> bool:
        """True while it waits for GPUs."""
        return self.phase in WAITING

    def whole(self) -> dict[str, Any]:
        """Return facts, spec and status as they came, the pods by name."""
        found: dict[str, Any] = from_json(self.raw)
        found["facts"]["pods"].sort()
        if "planned" in found:  # a job of many pods: see `Changes`
            found["status"]["plan"]["pods"] = found.pop("planned")
            found["status"]["podService"] = found.pop("served")
        return found


@dataclass(frozen=True, slots=True)
class Scope:
    """What a reader sees: one namespace, or with None the whole cluster."""

    namespace: str | None = None

    def sees(self, namespace: str) -> bool:
        """Say whether objects of a namespace are shown."""
        return self.namespace is None or namespace == self.namespace


def node_of(value: Raw, line: bytes, slowed: Collection[Key]) -> Node:
    """Return the node of a line; `slowed` are the jobs that count as slowed down."""
    name, status = value["facts"]["name"], value["status"]
    node = Node(name, [], status["observedAt"], line, len(status.get("outOfMemory") or ()))
    for raw in sorted(status.get("gpus") or (), key=lambda gpu: _order(gpu)):
        gpu = _gpu(name, raw, value["facts"])
        gpu.set_state(slowed)
        node.gpus.append(gpu)
    node.count()
    return node


def _order(gpu: Raw) -> tuple[int, int, str]:
    return gpu["index"], (gpu.get("slice") or {}).get("number", 0), gpu["uuid"]


def _gpu(node: str, raw: Raw, facts: Raw) -> Gpu:
    row = facts["rows"].get(raw["uuid"]) or [0, False, False, 0.0]
    mig_slice = raw.get("slice")
    return Gpu(
        node=node,
        uuid=raw["uuid"],
        index=raw["index"],
        number=f"{raw['index']}:{mig_slice['number']}" if mig_slice else str(raw["index"]),
        model=raw["model"],
        memory_bytes=raw["memoryBytes"],
        capacity_gib=row[3],
        used_bytes=raw.get("memoryUsedBytes"),
        foreign_bytes=raw.get("memoryForeignBytes"),
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


def _gpus_of(spec: Raw) -> int:
    """Return how many GPUs a whole gang takes, in all its roles."""
    demand = spec["demand"]
    roles = [(role["pods"], role["demand"]) for role in spec["roles"]]
    return sum(pods * each["gpusPerPod"] for pods, each in roles or [(demand["gangSize"], demand)])


def job_of(value: Raw, line: bytes) -> Job:
    """Return the job of a line."""
    facts, spec, status = value["facts"], value["spec"], value["status"]
    demand, load = spec["demand"], status.get("load") or {}
    observed = status.get("observed") or {}
    slowdown = observed.get("slowdown") or {}
    phase, reason, message = status["phase"], status["reason"], status["message"]
    causes = understood(status.get("causes") or ())
    places = {
        (node, gpu): None
        for _, _, pod_phase, node, gpus, *_ in sorted(facts["pods"])
        if node and pod_phase not in ("Succeeded", "Failed")
        for gpu in gpus
    }
    base, extra = load.get("memoryBaseBytes"), load.get("memoryPeakExtraBytes")
    return Job(
        key=(facts["namespace"], facts["name"]),
        namespace=facts["namespace"],
        name=facts["name"],
        phase=phase,
        reason=reason,
        message=message,
        kind=kind_of(causes, reason) if phase in WAITING else "",
        causes=causes,
        short=briefly(causes),
        found_at=status.get("foundAt") or "",
        position=status.get("position"),
        expected=status.get("expectedStart"),
        queued_at=status.get("queuedAt") or "",
        waiting_since=status.get("waitingSince") or "",
        started_at=status.get("startedAt") or "",
        finished_at=status.get("finishedAt") or "",
        gpus=_gpus_of(spec),
        model=demand.get("model") or "",
        known_by=observed.get("kind") or "",
        batch_size=demand.get("batchSize"),
        exclusive=demand["exclusive"],
        places=tuple(places),
        slowdown=slowdown.get("value") if phase == "Running" else None,
        estimated=bool(slowdown.get("estimated")),
        predicted_bytes=None if base is None else base + (extra or 0),
        predicted_utilisation=load.get("utilisationPercent"),
        measured_bytes=observed.get("memoryPeakBytes"),
        measured_utilisation=observed.get("soloUtilisationPercent")
        or observed.get("utilisationPercent"),
        source=load.get("memorySource") or "",
        unfamiliar=bool(load.get("outOfDistribution")),
        raw=line,
    )


#: Ended runs are kept for the time axis of their GPUs. A run takes about 600 bytes in the extender:
#: 0.2 MiB in a cluster of 40 GPUs, and 6 MiB in one of 5,000 nodes.
#: A run that ended longer ago is of no use to a person who looks at a GPU now.
RUNS_KEPT_S = 86_400.0
_PER_GPU, _LEAST, _MOST = 8, 100, 10_000


def most_runs(gpus: int) -> int:
    """Return how many ended runs are kept in a cluster with so many GPUs."""
    return min(_MOST, max(_LEAST, _PER_GPU * gpus))
