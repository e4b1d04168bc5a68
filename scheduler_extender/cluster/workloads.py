"""Which pods belong to one GPUJob, and how many of them must start together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scheduler_extender.cluster.pods import PodInfo
from tandem.contracts import gangs, names
from tandem.contracts.fractions import template_asks
from tandem.contracts.resources import WorkloadRef
from tandem.contracts.values import MAX_INTEGER
from tandem.kube.resource import JOBS, Resource

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """What we know of a kind of workload.

    `roles` reads off the object which pods start together (none: each alone), `suspend` is the path
    of the field by which its owner lets it rest, `restarts` says that its owner makes new pods for
    those evicted.
    """

    resource: Resource | None = None
    roles: Callable[[Raw], Roles] = lambda _: _NO_ROLES
    suspend: tuple[str, ...] = ()
    restarts: bool = True


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
_NO_ROLES: Roles = {}


def _asks_for_gpus(template: Raw | None, *, adopted: bool) -> bool:
    template = template or {}
    containers = (template.get("spec") or {}).get("containers") or ()
    limits = [((each.get("resources") or {}).get("limits")) or {} for each in containers]
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    return template_asks(limits, annotations, adopted=adopted)


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
        return _NO_ROLES
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


def _kubeflow(field: str) -> Callable[[Raw], Roles]:
    """Return what reads the roles that are listed under `field`."""

    def roles(job: Raw) -> Roles:
        spec, status = job.get("spec") or {}, job.get("status") or {}
        parts = {role: part or {} for role, part in (spec.get(field) or {}).items()}
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


def _kubeflow_kind(kind: str, plural: str, field: str) -> Kind:
    return Kind(
        Resource("kubeflow.org", "v1", kind, plural),
        _kubeflow(field),
        ("spec", "runPolicy", "suspend"),
    )


#: By the kind of the workload. Pods of kinds that are not here start one by one; none is evicted.
KINDS: Mapping[str, Kind] = {
    "Job": Kind(JOBS, _indexed_job, ("spec", "suspend")),
    "JobSet": Kind(
        Resource("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"),
        _job_set,
        ("spec", "suspend"),
    ),
    "PyTorchJob": _kubeflow_kind("PyTorchJob", "pytorchjobs", "pytorchReplicaSpecs"),
    "TFJob": _kubeflow_kind("TFJob", "tfjobs", "tfReplicaSpecs"),
    "MPIJob": _kubeflow_kind("MPIJob", "mpijobs", "mpiReplicaSpecs"),
    "XGBoostJob": _kubeflow_kind("XGBoostJob", "xgboostjobs", "xgbReplicaSpecs"),
    "PaddleJob": _kubeflow_kind("PaddleJob", "paddlejobs", "paddleReplicaSpecs"),
    "JAXJob": _kubeflow_kind("JAXJob", "jaxjobs", "jaxReplicaSpecs"),
    "LeaderWorkerSet": Kind(
        Resource("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets"),
        _leader_worker_set,
    ),
    "RayCluster": Kind(Resource("ray.io", "v1", "RayCluster", "rayclusters")),
    "Pod": Kind(restarts=False),
    # Read by nobody; their controllers make pods anew.
    **{
        kind: Kind()
        for kind in (
            "DaemonSet",
            "Deployment",
            "Notebook",
            "ReplicaSet",
            "ReplicationController",
            "StatefulSet",
        )
    },
}
#: Bare pods, and kinds of which nobody knows that their controllers make pods anew: what these have
#: done would be lost.
_OTHER = Kind(restarts=False)

#: Kinds whose pods do not end by themselves: services and notebooks.
ENDLESS = frozenset(
    {"Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "Notebook", "DaemonSet"}
)

#: Kinds that stand above the controllers of their pods, by the label that names them.
_ABOVE = {names.JOBSET_LABEL: "JobSet", names.LEADER_WORKER_SET_LABEL: "LeaderWorkerSet"}


def kind_of(workload: WorkloadRef) -> Kind:
    """Return what we know of the kind of a workload; of the same name in another group, nothing."""
    kind = KINDS.get(workload.kind, _OTHER)
    if kind.resource is not None and _group(workload) != kind.resource.group:
        return _OTHER
    return kind


def resource_of(workload: WorkloadRef) -> Resource | None:
    """Return how the API serves a workload: at the version by which its pods refer to it."""
    resource = kind_of(workload).resource
    version = workload.api_version.rpartition("/")[2]
    return replace(resource, version=version) if resource is not None else None


def _group(workload: WorkloadRef) -> str:
    return workload.api_version.rpartition("/")[0]


def gpujob_name(pod: PodInfo) -> str:
    """Return the name of the GPUJob, in the pod's namespace, that the pod belongs to."""
    if pod.known_as is not None:
        return pod.known_as[0]
    return pod.annotations.get(names.GPU_JOB) or _derived_name(pod)


def _derived_name(pod: PodInfo) -> str:
    return gangs.derived_name(pod.name, pod.annotations, pod.labels, _owner(pod))


def earlier_name(pod: PodInfo) -> str:
    """Return the name of the pod's GPUJob if it is from before names told API groups apart."""
    return gangs.earlier_name(pod.name, pod.annotations, pod.labels, _owner(pod))


def is_renamed(pod: PodInfo, name: str) -> bool:
    """Say whether the GPUJob `name` is that of the pod's owner, by its name then or now."""
    return name in (_derived_name(pod), earlier_name(pod))


def _owner(pod: PodInfo) -> tuple[str, str] | None:
    owner = pod.owner
    if owner is None:
        return None
    return gangs.qualified_kind(owner.api_version, owner.kind), owner.name


def _has_moved(pod: PodInfo) -> bool:
    """Return True where labels and owner lead to another GPUJob than the pod's: they are void."""
    return not is_renamed(pod, gpujob_name(pod))


def above(pod: PodInfo) -> tuple[str, str] | None:
    """Return kind and name of the workload above the pod's controller, where there is one."""
    for label, kind in _ABOVE.items():
        if pod.labels.get(label) and not _has_moved(pod):
            return kind, pod.labels[label]
    launches = gangs.mpi_job(pod.labels, _owner(pod))
    if launches and gpujob_name(pod) == _derived_name(pod) and not _names_gang(pod):
        return "MPIJob", launches
    return None


def _names_gang(pod: PodInfo) -> bool:
    return gangs.names_group(pod.annotations, pod.labels)


def workload_of(pod: PodInfo) -> WorkloadRef:
    """Return the object that controls the pod; a bare pod and a step of a workflow is its own.

    A pod that was given another owner or other labels since its GPUJob was fixed is its own, too.
    """
    own = WorkloadRef(api_version="v1", kind="Pod", name=pod.name, uid=pod.uid)
    if pod.owner is None or _has_moved(pod):
        return own
    kind = gangs.qualified_kind(pod.owner.api_version, pod.owner.kind)
    alone = gangs.derived_name(pod.name, {}, {}, None)
    return own if gangs.owns_steps(kind) and gpujob_name(pod) == alone else pod.owner


def is_endless(pod: PodInfo) -> bool:
    """Say whether a pod is of a kind that has no end of its own."""
    return pod.owner is not None and pod.owner.kind in ENDLESS and not _has_moved(pod)


def role_of(pod: PodInfo) -> str:
    """Return the role of a pod in its workload, '' where the kind has one role only.

    The role by which it was placed counts, else the one that it had first.
    """
    placed = pod.placed_with
    if placed is not None:
        return placed.role or ""
    return _labelled_role(pod.labels) if pod.known_as is None else pod.known_as[1]


def _labelled_role(labels: Mapping[str, str]) -> str:
    if names.LEADER_WORKER_SET_WORKER_LABEL in labels:
        leads = labels[names.LEADER_WORKER_SET_WORKER_LABEL] == "0"
        return "leader" if leads else "worker"
    for label in (names.REPLICATED_JOB_LABEL, names.REPLICA_TYPE_LABEL, names.JOB_ROLE_LABEL):
        if labels.get(label):
            return labels[label] if label == names.REPLICATED_JOB_LABEL else labels[label].lower()
    return ""


def roles_now(workload: Raw, present: Collection[str]) -> Roles:
    """Return the roles of a workload whose pods ask for GPUs and can exist now.

    Roles without GPUs never join the gang. A role that is created later counts once it is
    `present`, with all its pods; until then those before it start without it.
    """
    roles = KINDS.get(str(workload.get("kind")), _OTHER).roles(workload)
    return {
        name: role
        for name, role in roles.items()
        if role.gpus and role.pods > 0 and (name in present or not role.later)
    }


_DIGITS = 19  # of a size that are read


def explicit_size(pod: PodInfo) -> int | None:
    """Return the size of the gang that a pod states, None where it states none that is valid."""
    stated = pod.annotations.get(names.GANG_SIZE, "")
    if not stated.isdecimal():
        return None
    # Python refuses to read thousands of digits; no cluster has so many pods.
    return min(int(stated[:_DIGITS]), MAX_INTEGER) or None


def gang_size(pod: PodInfo, workload: Raw | None) -> int:
    """Return how many pods must start together.

    `workload` is the object they belong to as the API server has it, where we know its kind. An
    explicit size takes precedence.
    """
    stated = explicit_size(pod)
    if stated is not None or workload is None:
        return stated or 1
    return max(1, sum(role.pods for role in roles_now(workload, {role_of(pod)}).values()))
