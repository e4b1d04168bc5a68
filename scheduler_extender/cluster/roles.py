"""Reads from a workload which pods it has, by its kind. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler_extender.cluster.kinds import RoleKind, WorkloadKind
from tandem.contracts.fractions import template_asks
from tandem.contracts.values import MAX_INTEGER

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Role:
    """Pods of a workload that are made of one template.

    `pods` is how many of them run at once, `left` how many have not succeeded yet. A role that is
    `later` is created once another role is ready or has ended: it cannot exist before.
    """

    pods: int
    gpus: bool
    later: bool = False
    left: int | None = None


Roles = Mapping[str, Role]
NO_ROLES: Roles = {}


def _asks_for_gpus(template: object, *, adopted: bool) -> bool:
    """Say whether pods of a template ask for GPUs; definitions may leave it open what it is."""
    containers = at(template, ("spec", "containers"))
    listed = containers if isinstance(containers, list) else []
    limits = [_object(at(each, ("resources", "limits"))) for each in listed]
    annotations = _object(at(template, ("metadata", "annotations")))
    return template_asks(limits, annotations, adopted=adopted)


def _object(value: object) -> Raw:
    return value if isinstance(value, Mapping) else {}


def _gpus_of(templates: Mapping[str, Raw | None]) -> Callable[[str], bool]:
    """Return which roles ask for GPUs, by their templates.

    In namespaces that Tandem adopts, templates may ask in other systems' words and their pods in
    Tandem's. Where no template asks in either, pods are changed on their way by others, and each
    role may.
    """
    for adopted in (False, True):
        asking = {role for role, each in templates.items() if _asks_for_gpus(each, adopted=adopted)}
        if asking:
            return asking.__contains__
    return lambda _: True


def _indexed_job(job: Raw) -> Roles:
    """Return what runs at once of an indexed Job; the pods of a plain one start each alone."""
    spec = job.get("spec") or {}
    if spec.get("completionMode") != "Indexed":
        return NO_ROLES
    succeeded = int((job.get("status") or {}).get("succeeded") or 0)
    return {"": _job_role(spec, succeeded)}


def _job_role(spec: Raw, succeeded: int = 0) -> Role:
    parallelism = int(spec.get("parallelism", 1))
    if spec.get("completions") is None:
        return Role(parallelism, gpus=True)
    left = max(0, int(spec["completions"]) - succeeded)
    return Role(min(parallelism, left), gpus=True, left=left)


def _job_set(job_set: Raw) -> Roles:
    """Return the replicated Jobs; each may wait for others, or for the one before it."""
    spec = job_set.get("spec") or {}
    parts = {str(part["name"]): part for part in spec.get("replicatedJobs") or ()}
    jobs = {name: (part.get("template") or {}).get("spec") or {} for name, part in parts.items()}
    asks = _gpus_of({name: job.get("template") for name, job in jobs.items()})
    in_order = (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"
    ended = {
        each.get("name"): int(each.get("succeeded") or 0)
        for each in (job_set.get("status") or {}).get("replicatedJobsStatus") or ()
    }
    first = next(iter(parts), "")
    return {
        name: Role(
            max(0, int(part.get("replicas", 1)) - ended.get(name, 0)) * _job_role(jobs[name]).pods,
            gpus=asks(name),
            later=bool(part.get("dependsOn")) or (in_order and name != first),
        )
        for name, part in parts.items()
    }


def _replica_specs(way: Sequence[str]) -> Callable[[Raw], Roles]:
    """Return what reads the roles that are listed under a field."""

    def roles(job: Raw) -> Roles:
        spec, status = job.get("spec") or {}, job.get("status") or {}
        parts = {role: part or {} for role, part in (at(job, way) or {}).items()}
        asks = _gpus_of({role: part.get("template") for role, part in parts.items()})
        ended = {
            role: int((each or {}).get("succeeded") or 0)
            for role, each in (status.get("replicaStatuses") or {}).items()
        }
        waits = spec.get("launcherCreationPolicy") == "WaitForWorkersReady"
        return {
            role.lower(): Role(
                max(0, int(part.get("replicas", 1)) - ended.get(role, 0)),
                gpus=asks(role),
                later=waits and role == "Launcher",
            )
            for role, part in parts.items()
        }

    return roles


def _leader_worker_set(workers: Raw) -> Roles:
    """Return the leader and the workers of one group."""
    spec = workers.get("spec") or {}
    template = spec.get("leaderWorkerTemplate") or {}
    worker = template.get("workerTemplate")
    asks = _gpus_of({"leader": template.get("leaderTemplate") or worker, "worker": worker})
    later = spec.get("startupPolicy") == "LeaderReady"
    return {
        "leader": Role(1, gpus=asks("leader")),
        "worker": Role(int(template.get("size", 1)) - 1, gpus=asks("worker"), later=later),
    }


def _by_paths(kinds: Sequence[RoleKind]) -> Callable[[Raw], Roles]:
    """Return what reads roles from the fields that `kinds` name."""

    def roles(workload: Raw) -> Roles:
        found = {name: (kind, entry) for kind in kinds for name, entry in _entries(workload, kind)}
        asks = _gpus_of({name: at(entry, kind.template) for name, (kind, entry) in found.items()})
        return {
            name: Role(_number(entry, kind), gpus=asks(name))
            for name, (kind, entry) in found.items()
        }

    return roles


def _entries(workload: Raw, kind: RoleKind) -> Iterator[tuple[str, Raw]]:
    """Yield each role that a kind of role stands for, and what its paths begin at."""
    if kind.each is None:
        yield kind.name, workload
        return
    entries = at(workload, kind.each)
    if isinstance(entries, Mapping):
        yield from ((str(name), entry or {}) for name, entry in entries.items())
        return
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        name = at(entry, kind.named_by) if kind.named_by else None
        yield str(number if name is None else name), entry or {}


def _number(entry: Raw, kind: RoleKind) -> int:
    pods = whole(at(entry, kind.pods), kind.otherwise) if kind.pods else kind.otherwise
    return min(pods * (whole(at(entry, kind.times), 1) if kind.times else 1), MAX_INTEGER)


def at(value: Any, way: Sequence[str]) -> Any:  # noqa: ANN401 - whatever stands there
    """Return what a path leads to, None where nothing stands there."""
    for step in way:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def whole(value: object, otherwise: int) -> int:
    """Return a number of pods as an object has it; `otherwise` where it has none."""
    if isinstance(value, bool) or not isinstance(value, int):
        return otherwise
    return min(max(value, 0), MAX_INTEGER)


def reader_of(kind: WorkloadKind) -> Callable[[Raw], Roles]:
    """Return what reads the roles of a kind of workload; none: its pods start each alone."""
    match kind.reader:
        case "indexed-job":
            return _indexed_job
        case "job-set":
            return _job_set
        case "leader-worker-set":
            return _leader_worker_set
        case "replica-specs":
            return _replica_specs(kind.replicas or ())
    return _by_paths(kind.roles) if kind.roles else lambda _: NO_ROLES
