"""The views of the page as JSON: pure functions of a `Cluster`, a scope and a query.

A list is filtered, sorted and cut into pages here, so that an answer has at most `PAGE_ROWS` rows
however large the cluster is. Memory is in bytes, utilisation in percent (0..100), a slowdown is the
part by which an iteration takes longer (0.2: 20 % longer). What is not known is null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler_extender.serving.status.model import (
    GPU_STATES,
    PHASES,
    Cluster,
    Gpu,
    Holder,
    Job,
    Key,
    Node,
    Raw,
    Scope,
)
from scheduler_extender.serving.status.reasons import WORDS
from tandem.contracts.names import API_VERSION

PAGE_ROWS = 100
_LONGEST_PARAMETER = 253
_PLACES = 8  # of one job in a list
_NAMESPACES = 50
_WORST = 5
_NEXT = 8
_RUNS = 200
_GIB = 2**30

Document = dict[str, Any]


class MissingError(Exception):
    """There is no such object, or the reader does not see it."""


class BadQueryError(ValueError):
    """A parameter is not understood; the text says which values are."""


@dataclass(frozen=True, slots=True)
class Query:
    """A view, the names in its path, and its parameters in the order of their names."""

    view: str
    names: tuple[str, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()

    def get(self, name: str) -> str:
        """Return a parameter, '' where it is not given."""
        return dict(self.parameters).get(name, "")

    @property
    def page(self) -> int:
        """The page of a list, 1 first."""
        text = self.get("page") or "1"
        if not (text.isascii() and text.isdigit()) or int(text[:7]) < 1:
            raise BadQueryError("page: a number from 1 on")
        return int(text[:7])


#: The parameters that each view understands; others are left out of its query.
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "overview": ("namespace",),
    "nodes": ("namespace", "page", "q", "state"),
    "node": (),
    "gpus": ("job", "model", "namespace", "node", "page", "q", "sort", "state"),
    "gpu": (),
    "jobs": (
        "gpu",
        "model",
        "namespace",
        "node",
        "page",
        "phase",
        "q",
        "reason",
        "sharing",
        "sort",
    ),
    "job": (),
    "models": ("namespace", "page", "q"),
    "model": (),
}


def query_of(view: str, names: Iterable[str], given: Iterable[tuple[str, str]]) -> Query:
    """Return the query of a request.

    Raises:
        BadQueryError: a parameter is too long.
    """
    known = PARAMETERS[view]
    found = {name: value for name, value in given if name in known and value}
    for name, value in found.items():
        if len(value) > _LONGEST_PARAMETER:
            raise BadQueryError(f"{name}: at most {_LONGEST_PARAMETER} characters")
    return Query(view, tuple(names), tuple(sorted(found.items())))


def document(cluster: Cluster, scope: Scope, query: Query) -> Document:
    """Return what a view shows to a reader.

    Raises:
        MissingError: it is the view of one object, which the reader does not see.
        BadQueryError: a parameter has no meaning.
    """
    return _VIEWS[query.view](cluster, scope, query)


# --- overview ---------------------------------------------------------------------------------


def _overview(cluster: Cluster, scope: Scope, query: Query) -> Document:
    namespace = query.get("namespace")
    jobs = [job for job in cluster.jobs_of(scope) if namespace in ("", job.namespace)]
    gpus = cluster.gpus_of(scope)
    if namespace and scope.namespace is None:
        gpus = [gpu for gpu in gpus if any(each.job[0] == namespace for each in gpu.holders)]
    waiting = sorted((job for job in jobs if job.waits), key=_by_position)
    phases = Counter(job.phase for job in jobs)
    reasons = Counter(job.kind for job in waiting)
    since = [job for job in waiting if job.waiting_since]
    longest = min(since, key=lambda job: job.waiting_since, default=None)
    if scope.namespace is None and not namespace:
        states: Counter[str] = Counter()
        for node in cluster.nodes.values():
            states.update(node.states)
        nodes = len(cluster.nodes)
    else:
        states = Counter(gpu.state for gpu in gpus)
        nodes = len({gpu.node for gpu in gpus})
    return {
        "gpus": {
            "total": len(gpus),
            "nodes": nodes,
            "byState": {state: states[state] for state in GPU_STATES},
            "models": _by_count(Counter(gpu.model for gpu in gpus)),
        },
        "memory": {
            "capacityBytes": round(sum(gpu.capacity_gib for gpu in gpus) * _GIB),
            "promisedBytes": sum(_promised_bytes(gpu) for gpu in gpus if gpu.holders),
            "usedBytes": None
            if scope.namespace is not None
            else sum(gpu.used_bytes or 0 for gpu in gpus),
        },
        "jobs": {
            "total": len(jobs),
            "byPhase": {phase: phases[phase] for phase in PHASES},
            "waiting": len(waiting),
            "byReason": [
                {"reason": kind, "words": WORDS.get(kind, kind), "count": count}
                for kind, count in reasons.most_common()
            ],
            "longestWait": None
            if longest is None
            else {**_named(longest.key), "waitingSince": longest.waiting_since},
            "next": [_job_row(cluster, scope, job) for job in waiting[:_NEXT]],
        },
        "sharing": _sharing(cluster, scope, gpus),
        "namespaces": _namespaces(cluster, scope, jobs, gpus),
        "attention": _attention(cluster, scope, jobs, states),
    }


def _sharing(cluster: Cluster, scope: Scope, gpus: Sequence[Gpu]) -> Document:
    """Return what sharing brings and costs.

    On a GPU that jobs share, each job runs at the speed 1 / (1 + slowdown) of a GPU of its own. The
    gain is the sum of these speeds less one: so many GPUs more would be needed for the same work.
    A GPU counts only where the slowdown of all its jobs is measured or predicted.
    """
    shared = [gpu for gpu in gpus if len(gpu.holders) > 1]
    gain, counted = 0.0, 0
    sharing: dict[Key, Job] = {}
    for gpu in shared:
        speeds = []
        for holder in gpu.holders:
            job = cluster.jobs.get(holder.job)
            if job is not None:
                sharing[job.key] = job
            slowdown = holder.predicted_slowdown
            if job is not None and job.slowdown is not None:
                slowdown = job.slowdown
            if slowdown is not None:
                speeds.append(1 / (1 + slowdown))
        if len(speeds) == len(gpu.holders):
            gain += sum(speeds) - 1
            counted += 1
    measured = [job for job in sharing.values() if job.slowdown is not None]
    slowest = sorted(measured, key=lambda job: -(job.slowdown or 0.0))
    return {
        "gpus": len(shared),
        "jobs": len(sharing),
        "gainGpus": round(gain, 2) if counted else None,
        "gpusCounted": counted,
        "jobsMeasured": len(measured),
        "meanSlowdown": round(sum(job.slowdown or 0.0 for job in measured) / len(measured), 3)
        if measured
        else None,
        "slowest": [_job_row(cluster, scope, job) for job in slowest[:_WORST] if job.slowdown],
    }


def _namespaces(
    cluster: Cluster, scope: Scope, jobs: Sequence[Job], gpus: Sequence[Gpu]
) -> Document:
    """Return each namespace; a share of a GPU counts as one GPU held, as it does for quotas."""
    quotas = {
        quota["namespace"]: quota for quota in cluster.quotas if scope.sees(quota["namespace"])
    }
    waiting = Counter(job.namespace for job in jobs if job.waits)
    running = Counter(job.namespace for job in jobs if job.phase == "Running")
    held: Counter[str] = Counter()
    for job in jobs:
        if job.places:
            held[job.namespace] += len(job.places)
    on = Counter(name for gpu in gpus for name in {holder.job[0] for holder in gpu.holders})
    names = sorted(
        {*waiting, *running, *held, *quotas}, key=lambda name: (-held[name], -waiting[name], name)
    )
    rows = []
    for name in names:
        quota = quotas.get(name) or {}
        share, most = quota.get("gpus"), quota.get("gpuSeconds")
        used = quota.get("gpuSecondsUsed")
        rows.append(
            {
                "namespace": name,
                "waiting": waiting[name],
                "running": running[name],
                "gpus": on[name],
                "gpusHeld": held[name],
                "quotaGpus": share,
                "maxGpus": quota.get("maxGpus"),
                "quotaGpuSeconds": most,
                "gpuSecondsUsed": used,
                "overQuota": (share is not None and held[name] > share)
                or (most is not None and (used or 0.0) >= most),
            }
        )
    rows.sort(key=lambda row: not row["overQuota"])
    return {"total": len(rows), "rows": rows[:_NAMESPACES]}


def _attention(
    cluster: Cluster, scope: Scope, jobs: Sequence[Job], states: Counter[str]
) -> list[Document]:
    """Return what is broken or needs a look: kind, count and the list that shows the objects."""
    silent = sum(1 for node in cluster.nodes.values() if node.states["silent"])
    memory = sum(1 for node in cluster.nodes.values() if node.out_of_memory)
    operator = scope.namespace is None
    found = [
        ("quarantined", states["quarantined"], "gpus", {"state": "quarantined"}),
        ("unavailable", states["unavailable"], "gpus", {"state": "unavailable"}),
        ("silent", silent if operator else 0, "nodes", {"state": "silent"}),
        ("outOfMemory", memory if operator else 0, "nodes", {"state": "outOfMemory"}),
        ("slowed", states["slowed"], "gpus", {"state": "slowed"}),
        ("failed", sum(job.phase == "Failed" for job in jobs), "jobs", {"phase": "Failed"}),
        ("preempting", sum(job.phase == "Preempting" for job in jobs), "jobs",
         {"phase": "Preempting"}),
        ("held", sum(job.kind == "held" for job in jobs), "jobs", {"reason": "held"}),
    ]  # fmt: skip
    return [
        {"kind": kind, "count": count, "view": view, "filter": chosen}
        for kind, count, view, chosen in found
        if count
    ]


# --- nodes and GPUs ---------------------------------------------------------------------------


def _nodes(cluster: Cluster, scope: Scope, query: Query) -> Document:
    text, state = query.get("q").lower(), query.get("state")
    if state and state not in (*GPU_STATES, "outOfMemory"):
        raise BadQueryError(f"state: one of {', '.join(GPU_STATES)}, outOfMemory")
    by_node: dict[str, list[Gpu]] = {}
    if scope.namespace is not None:
        for gpu in cluster.gpus_of(scope):
            by_node.setdefault(gpu.node, []).append(gpu)
    rows = []
    for node in cluster.all_nodes():
        if (scope.namespace is not None and node.name not in by_node) or text not in node.name:
            continue
        states = node.states
        if scope.namespace is not None:
            states = Counter(gpu.state for gpu in by_node[node.name])
        if state == "outOfMemory" and not (node.out_of_memory and scope.namespace is None):
            continue
        if state in GPU_STATES and not states[state]:
            continue
        rows.append((node, states))
    return _page(query, rows, lambda row: _node_row(row[0], row[1], by_node.get(row[0].name)))


def _node_row(node: Node, states: Counter[str], own: Sequence[Gpu] | None) -> Document:
    gpus = node.gpus if own is None else own
    return {
        "node": node.name,
        "gpus": len(gpus),
        "byState": {state: states[state] for state in GPU_STATES if states[state]},
        "models": sorted({gpu.model for gpu in gpus}),
        "jobs": len({holder.job for gpu in gpus for holder in gpu.holders}),
        "observedAt": node.observed_at,
        "outOfMemory": node.out_of_memory if own is None else None,
    }


def _node(cluster: Cluster, scope: Scope, query: Query) -> Document:
    (name,) = query.names
    node, gpus = cluster.nodes.get(name), cluster.gpus_of(scope, name)
    if node is None or (scope.namespace is not None and not gpus):
        raise MissingError(f"node {name}")
    report = node.report()
    states = Counter(gpu.state for gpu in gpus)
    return {
        **_node_row(node, states, None if scope.namespace is None else gpus),
        "agentVersion": report.get("agentVersion") or "",
        "driverVersion": report.get("driverVersion") or "",
        "conditions": (report.get("conditions") or []) if scope.namespace is None else [],
        "outOfMemoryEvents": _out_of_memory(report, scope),
        "rows": [_gpu_row(cluster, gpu) for gpu in gpus],
    }


def _out_of_memory(report: Raw, scope: Scope, gpu: str = "") -> list[Document]:
    found = []
    for event in report.get("outOfMemory") or ():
        if not scope.sees(event["namespace"]) or gpu not in ("", event["gpu"]):
            continue
        blamed = event.get("blamed")
        if blamed is not None and not scope.sees(blamed["namespace"]):
            blamed = None
        found.append({**event, "blamed": blamed})
    return found


def _gpus(cluster: Cluster, scope: Scope, query: Query) -> Document:
    state, sort = query.get("state"), query.get("sort") or "node"
    if state and state not in (*GPU_STATES, "busy", "sharing"):
        raise BadQueryError(f"state: one of {', '.join(GPU_STATES)}, busy, sharing")
    keys: dict[str, Callable[[Gpu], Any] | None] = {
        "node": None,
        "utilisation": lambda gpu: -(-1.0 if gpu.utilisation is None else gpu.utilisation),
        "memory": lambda gpu: -(gpu.used_bytes or 0),
        "temperature": lambda gpu: -(gpu.temperature or 0.0),
        "jobs": lambda gpu: -len(gpu.holders),
    }
    if sort not in keys:
        raise BadQueryError(f"sort: one of {', '.join(keys)}")
    model, namespace, text = query.get("model"), query.get("namespace"), query.get("q").lower()
    job: Key | None = None
    if query.get("job"):
        job = (query.get("job").partition("/")[0], query.get("job").partition("/")[2])
    found: Sequence[Gpu] = cluster.gpus_of(scope, query.get("node"))
    states = Counter(gpu.state for gpu in found)
    if state == "busy":
        found = [gpu for gpu in found if gpu.holders]
    elif state == "sharing":
        found = [gpu for gpu in found if len(gpu.holders) > 1]
    elif state:
        found = [gpu for gpu in found if gpu.state == state]
    if model:
        found = [gpu for gpu in found if gpu.model == model]
    if namespace and scope.namespace is None:
        found = [gpu for gpu in found if any(each.job[0] == namespace for each in gpu.holders)]
    if job is not None:
        found = [gpu for gpu in found if any(each.job == job for each in gpu.holders)]
    if text:
        found = [gpu for gpu in found if text in gpu.node or text in gpu.uuid.lower()]
    key = keys[sort]
    if key is not None:
        found = sorted(found, key=key)
    return _page(query, found, lambda gpu: _gpu_row(cluster, gpu)) | {
        "byState": {each: states[each] for each in GPU_STATES}
    }


def _promised_bytes(gpu: Gpu) -> int:
    """Return the base memory of all residents and the largest peak ([OJPP] Eq. 3)."""
    base = sum(each.memory_base_gib for each in gpu.holders)
    peak = max((each.memory_extra_gib for each in gpu.holders), default=0.0)
    return round((base + peak) * _GIB)


def _gpu_row(cluster: Cluster, gpu: Gpu) -> Document:
    return {
        "node": gpu.node,
        "gpu": gpu.uuid,
        "index": gpu.index,
        "model": gpu.model,
        "state": gpu.state,
        "reason": gpu.reason,
        "shares": gpu.shares,
        "jobs": [_holder_row(cluster, each) for each in gpu.holders],
        "memoryCapacityBytes": round(gpu.capacity_gib * _GIB),
        "memoryUsedBytes": gpu.used_bytes,
        "memoryPromisedBytes": _promised_bytes(gpu),
        "utilisationPercent": gpu.utilisation,
        "utilisationPromisedPercent": round(sum(each.utilisation for each in gpu.holders), 1),
        "temperatureCelsius": gpu.temperature,
    }


def _holder_row(cluster: Cluster, holder: Holder) -> Document:
    job = cluster.jobs.get(holder.job)
    return {
        **_named(holder.job),
        "pod": holder.pod,
        "hold": holder.hold,
        "exclusive": holder.exclusive,
        "slowdown": job.slowdown if job is not None else None,
    }


def _gpu(cluster: Cluster, scope: Scope, query: Query) -> Document:
    node_name, uuid = query.names
    gpu = cluster.gpu(scope, node_name, uuid)
    if gpu is None:
        raise MissingError(f"GPU {uuid} of node {node_name}")
    node = cluster.nodes[node_name]
    report = node.report()
    raw = next(each for each in report["gpus"] if each["uuid"] == uuid)
    uses = {use["uid"]: use for use in raw.get("pods") or () if use.get("uid")}
    operator = scope.namespace is None
    device = {
        "memoryBytes": raw["memoryBytes"],
        "memoryReservedBytes": raw.get("memoryReservedBytes"),
        "computeMode": raw.get("computeMode"),
        "mig": raw.get("mig"),
        "mps": raw.get("mps"),
        "eccUncorrectedErrors": raw.get("eccUncorrectedErrors"),
        "health": raw["health"],
    }
    measured = {
        "memoryForeignBytes": raw.get("memoryForeignBytes"),
        "memoryActivityPercent": raw.get("memoryActivityPercent"),
        "powerWatts": raw.get("powerWatts"),
        "utilisationSource": raw.get("utilisationSource"),
    }
    return {
        **_gpu_row(cluster, gpu),
        **device,
        **(measured if operator else dict.fromkeys(measured)),
        "observedAt": node.observed_at,
        "residents": [_resident(cluster, each, uses.get(each.uid)) for each in gpu.holders],
        "runs": [_run(run) for run in cluster.runs_of(scope, node_name, uuid)[:_RUNS]],
        "outOfMemoryEvents": _out_of_memory(report, scope, uuid),
    }


def _resident(cluster: Cluster, holder: Holder, use: Raw | None) -> Document:
    job, use = cluster.jobs.get(holder.job), use or {}
    return {
        **_holder_row(cluster, holder),
        "startedAt": holder.started_at,
        "predicted": {
            "memoryBaseBytes": round(holder.memory_base_gib * _GIB),
            "memoryPeakBytes": round((holder.memory_base_gib + holder.memory_extra_gib) * _GIB),
            "peakProbability": holder.peak_probability,
            "utilisationPercent": holder.utilisation,
            "slowdown": holder.predicted_slowdown,
        },
        "measured": {
            "memoryBytes": use.get("memoryBytes"),
            "memoryBaseBytes": use.get("memoryBaseBytes"),
            "memoryPeakBytes": use.get("memoryPeakBytes"),
            "peakProbability": use.get("peakProbability"),
            "utilisationPercent": use.get("utilisationPercent"),
            "iterationsPerSecond": use.get("iterationsPerSecond"),
            "slowdown": job.slowdown if job is not None else None,
            "slowdownEstimated": job.estimated if job is not None else None,
        },
    }


def _run(run: Raw) -> Document:
    return {name: run[name] for name in (
        "namespace", "job", "pod", "node", "gpus", "startedAt", "endedAt",
    )}  # fmt: skip


# --- jobs -------------------------------------------------------------------------------------


def _by_position(job: Job) -> tuple[float, str, Key]:
    position = float("inf") if job.position is None else float(job.position)
    return position, job.waiting_since or job.queued_at, job.key


def _jobs(cluster: Cluster, scope: Scope, query: Query) -> Document:
    phase, reason, sort = query.get("phase"), query.get("reason"), query.get("sort") or "queue"
    if phase and phase not in (*PHASES, "Waiting"):
        raise BadQueryError(f"phase: one of {', '.join(PHASES)}, Waiting")
    if reason and reason not in WORDS:
        raise BadQueryError(f"reason: one of {', '.join(WORDS)}")
    order = {name: number for number, name in enumerate(PHASES)}
    keys: dict[str, Callable[[Job], Any]] = {
        "queue": lambda job: (order.get(job.phase, 0), _by_position(job)),
        "name": lambda job: job.key,
        "waiting": lambda job: (not job.waits, job.waiting_since or "9", job.key),
        "slowdown": lambda job: (-(job.slowdown or 0.0), job.key),
        "gpus": lambda job: (-job.gpus, job.key),
        "started": lambda job: (not job.started_at, _descending(job.started_at), job.key),
    }
    if sort not in keys:
        raise BadQueryError(f"sort: one of {', '.join(keys)}")
    jobs: Sequence[Job] = cluster.jobs_of(scope)
    if query.get("namespace"):
        jobs = [job for job in jobs if job.namespace == query.get("namespace")]
    phases = Counter(job.phase for job in jobs)
    if phase == "Waiting":
        jobs = [job for job in jobs if job.waits]
    elif phase:
        jobs = [job for job in jobs if job.phase == phase]
    if reason:
        jobs = [job for job in jobs if job.kind == reason]
    if query.get("model"):
        jobs = [job for job in jobs if job.model == query.get("model")]
    if query.get("node") or query.get("gpu"):
        uuid = query.get("gpu")
        there = {
            holder.job
            for gpu in cluster.gpus_of(scope, query.get("node"))
            if uuid in ("", gpu.uuid)
            for holder in gpu.holders
        }
        jobs = [job for job in jobs if job.key in there]
    if query.get("sharing") == "true":
        sharing = {
            holder.job
            for gpu in cluster.gpus_of(scope)
            if len(gpu.holders) > 1
            for holder in gpu.holders
        }
        jobs = [job for job in jobs if job.key in sharing]
    text = query.get("q").lower()
    if text:
        jobs = [job for job in jobs if text in job.name or text in job.model.lower()]
    jobs = sorted(jobs, key=keys[sort])
    return _page(query, jobs, lambda job: _job_row(cluster, scope, job)) | {
        "byPhase": {each: phases[each] for each in PHASES}
    }


def _descending(text: str) -> tuple[int, ...]:
    return tuple(-ord(each) for each in text)


def _job_row(cluster: Cluster, scope: Scope, job: Job) -> Document:
    return {
        **_named(job.key),
        "phase": job.phase,
        "reason": job.kind or None,
        "message": job.message,
        "position": _position(cluster, scope, job),
        "expectedStart": job.expected if job.waits else None,
        "queuedAt": job.queued_at or None,
        "waitingSince": job.waiting_since or None,
        "startedAt": job.started_at or None,
        "finishedAt": job.finished_at or None,
        "gpus": job.gpus,
        "model": job.model or None,
        "exclusive": job.exclusive,
        "places": [{"node": node, "gpu": gpu} for node, gpu in job.places[:_PLACES]],
        "placesInAll": len(job.places),
        "slowdown": job.slowdown,
    }


def _position(cluster: Cluster, scope: Scope, job: Job) -> int | None:
    """Return the place in the queue, 0 first: among the jobs that the reader sees."""
    if scope.namespace is None or job.position is None:
        return job.position
    return sum(
        other.position is not None and other.position < job.position
        for other in cluster.jobs_of(scope)
        if other.waits
    )


def _job(cluster: Cluster, scope: Scope, query: Query) -> Document:
    key = (query.names[0], query.names[1])
    job = cluster.jobs.get(key)
    if job is None or not scope.sees(job.namespace):
        raise MissingError(f"GPUJob {'/'.join(key)}")
    whole = job.whole()
    spec, status = whole["spec"], _for_reader(cluster, scope, whole["status"])
    gpus = [gpu for node, uuid in job.places if (gpu := cluster.gpu(scope, node, uuid)) is not None]
    own = [each for gpu in gpus for each in gpu.holders if each.job == key]
    predicted = [each.predicted_slowdown for each in own if each.predicted_slowdown is not None]
    return {
        **_job_row(cluster, scope, job),
        "why": [part.strip() for part in job.message.split(" | ") if part.strip()],
        "words": WORDS.get(job.kind) if job.kind else None,
        "workload": spec["workload"],
        "demand": spec["demand"],
        "hold": spec["hold"],
        "prioritizedAt": spec.get("prioritizedAt"),
        "timeline": _timeline(status),
        "attempts": status["attempts"],
        "attainedGpuSeconds": status["attainedGpuSeconds"],
        "queue": status.get("queue"),
        "load": status.get("load"),
        "subBatches": status["subBatches"],
        "plan": status.get("plan"),
        "observed": status.get("observed"),
        "predictedSlowdown": max(predicted, default=None),
        "decisions": list(reversed(status["decisions"])),
        "conditions": status["conditions"],
        "preemption": status.get("preemption"),
        "pods": [
            {"pod": name, "phase": phase, "node": node or None, "gpus": devices,
             "startedAt": started or None, "endedAt": ended or None}
            for name, _, phase, node, devices, started, ended in whole["facts"]["pods"]
        ],
        "neighbours": _neighbours(cluster, gpus, key),
        "runs": [_run(run) for run in cluster.runs_of(scope, job=key)[:_RUNS]],
    }  # fmt: skip


def _for_reader(cluster: Cluster, scope: Scope, status: dict[str, Any]) -> dict[str, Any]:
    """Return the status without what counts or names jobs that the reader does not see."""
    if scope.namespace is None:
        return status
    status = {name: value for name, value in status.items() if name != "position"}
    observed = status.get("observed")
    if observed and observed.get("neighbours"):
        models = {job.model for job in cluster.jobs_of(scope) if job.model}
        neighbours = [
            {**each, "kind": each["kind"] if each["kind"] in models else ""}
            for each in observed["neighbours"]
        ]
        status["observed"] = {**observed, "neighbours": neighbours}
    return status


def _timeline(status: Raw) -> list[Document]:
    """Return what happened when, the earliest first."""
    steps = [
        ("Queued", status.get("queuedAt")),
        ("Admitted", status.get("admittedAt")),
        ("Started", status.get("startedAt")),
        *(("Preempted", at) for at in status.get("preemptedAt") or ()),
        ("Running again", status.get("runningSince")),
        ("Waiting again", status.get("waitingSince")),
        ("Finished", status.get("finishedAt")),
    ]
    first = {status.get("startedAt"), status.get("queuedAt")}
    found = [
        {"what": what, "at": at}
        for what, at in steps
        if at and not (what.endswith("again") and at in first)
    ]
    return sorted(found, key=lambda step: str(step["at"]))


def _neighbours(cluster: Cluster, gpus: Sequence[Gpu], key: Key) -> list[Document]:
    found: dict[Key, list[str]] = {}
    for gpu in gpus:
        for holder in gpu.holders:
            if holder.job != key:
                found.setdefault(holder.job, []).append(gpu.uuid)
    return [
        {
            **_named(other),
            "gpus": sorted(set(uuids)),
            "model": cluster.jobs[other].model or None if other in cluster.jobs else None,
            "slowdown": cluster.jobs[other].slowdown if other in cluster.jobs else None,
        }
        for other, uuids in sorted(found.items())
    ]


def object_of(cluster: Cluster, scope: Scope, key: Key) -> Document:
    """Return a GPUJob as an object of the API server, as far as the reader sees it.

    Raises:
        MissingError: the reader sees none.
    """
    job = cluster.jobs.get(key)
    if job is None or not scope.sees(job.namespace):
        raise MissingError(f"GPUJob {'/'.join(key)}")
    whole = job.whole()
    return {
        "apiVersion": API_VERSION,
        "kind": "GPUJob",
        "metadata": {"namespace": key[0], "name": key[1], "uid": whole["facts"]["uid"]},
        "spec": whole["spec"],
        "status": _for_reader(cluster, scope, whole["status"]),
    }


# --- models -----------------------------------------------------------------------------------


def _models(cluster: Cluster, scope: Scope, query: Query) -> Document:
    text, namespace = query.get("q").lower(), query.get("namespace")
    by_model: dict[Key, list[Job]] = {}
    for job in cluster.jobs_of(scope):
        if job.model and text in job.model.lower() and namespace in ("", job.namespace):
            by_model.setdefault((job.namespace, job.model), []).append(job)
    return _page(query, sorted(by_model.items()), lambda item: _model_row(*item))


def _model_row(key: Key, jobs: Sequence[Job]) -> Document:
    known = [job for job in jobs if job.predicted_bytes is not None]
    latest = max(known, key=lambda job: job.queued_at, default=None)
    measured = [job.measured_bytes for job in jobs if job.measured_bytes is not None]
    slowdowns = [job.slowdown for job in jobs if job.slowdown is not None]
    return {
        "namespace": key[0],
        "model": key[1],
        "jobs": len(jobs),
        "waiting": sum(job.waits for job in jobs),
        "running": sum(job.phase == "Running" for job in jobs),
        "source": latest.source if latest is not None else None,
        "unfamiliar": any(job.unfamiliar for job in jobs),
        "predictedMemoryBytes": latest.predicted_bytes if latest is not None else None,
        "predictedUtilisationPercent": latest.predicted_utilisation if latest is not None else None,
        "measuredMemoryBytes": max(measured, default=None),
        "worstSlowdown": max(slowdowns, default=None),
    }


def _model(cluster: Cluster, scope: Scope, query: Query) -> Document:
    namespace, model = query.names
    jobs = [
        job for job in cluster.jobs_of(scope) if job.model == model and job.namespace == namespace
    ]
    if not jobs:
        raise MissingError(f"a job of model {namespace}/{model}")
    rows = []
    pairs: dict[str, list[float]] = {}
    for job in jobs[-PAGE_ROWS:]:
        status = _for_reader(cluster, scope, job.whole()["status"])
        observed = status.get("observed") or {}
        rows.append(
            {
                **_named(job.key),
                "phase": job.phase,
                "batchSize": job.batch_size,
                "gpuModel": observed.get("gpuModel") or None,
                "predictedMemoryBytes": job.predicted_bytes,
                "measuredMemoryBytes": job.measured_bytes,
                "predictedUtilisationPercent": job.predicted_utilisation,
                "measuredUtilisationPercent": job.measured_utilisation,
                "slowdown": job.slowdown,
                "source": job.source or None,
            }
        )
        for each in observed.get("neighbours") or ():
            pairs.setdefault(each["kind"], []).append(each["slowdown"])
    return {
        **_model_row((namespace, model), jobs),
        "rows": rows,
        "pairs": [
            {"kind": kind, "slowdown": round(sum(seen) / len(seen), 3), "runs": len(seen)}
            for kind, seen in sorted(pairs.items())
        ],
    }


# --- shared -----------------------------------------------------------------------------------


def _named(key: Key) -> Document:
    return {"namespace": key[0], "name": key[1]}


def _by_count(counts: Counter[str]) -> list[Document]:
    return [{"model": name, "count": count} for name, count in counts.most_common()]


def _page(query: Query, found: Sequence[Any], row: Callable[[Any], Document]) -> Document:
    """Return one page of what was found; a page beyond the last one is empty."""
    first = (query.page - 1) * PAGE_ROWS
    return {
        "total": len(found),
        "page": query.page,
        "pages": max(1, -(-len(found) // PAGE_ROWS)),
        "rows": [row(each) for each in found[first : first + PAGE_ROWS]],
    }


_VIEWS: Mapping[str, Callable[[Cluster, Scope, Query], Document]] = {
    "overview": _overview,
    "nodes": _nodes,
    "node": _node,
    "gpus": _gpus,
    "gpu": _gpu,
    "jobs": _jobs,
    "job": _job,
    "models": _models,
    "model": _model,
}
