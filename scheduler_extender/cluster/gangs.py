"""Which pods belong to one GPUJob, and how many of them must start together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scheduler_extender.cluster.pods import Owner, PodInfo
from tandem.contracts import gangs, names
from tandem.contracts.resources import WorkloadRef
from tandem.kube.resource import JOBS, Resource

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """What we know of a kind of workload.

    `size` reads how many pods start together off the object, `suspend` is the path of the field by
    which its owner lets it rest, `restarts` says that its owner makes new pods for those evicted.
    """

    resource: Resource | None = None
    size: Callable[[Raw], int] = lambda _: 1
    suspend: tuple[str, ...] = ()
    restarts: bool = True


def _indexed_job(job: Raw) -> int:
    """Count what runs beside one another of an indexed Job; a plain one's pods start each alone."""
    spec = job.get("spec") or {}
    if spec.get("completionMode") != "Indexed":
        return 1
    parallelism = int(spec.get("parallelism", 1))
    return max(1, min(parallelism, int(spec.get("completions") or parallelism)))


def _job_set(job_set: Raw) -> int:
    """Count all pods of all replicated Jobs."""
    total = 0
    for part in (job_set.get("spec") or {}).get("replicatedJobs") or ():
        job = ((part.get("template") or {}).get("spec")) or {}
        parallelism = int(job.get("parallelism", 1))
        pods = min(parallelism, int(job.get("completions") or parallelism))
        total += int(part.get("replicas", 1)) * pods
    return max(1, total)


def _kubeflow(field: str) -> Callable[[Raw], int]:
    """Return what counts all replicas of all roles, which stand under `field`."""

    def size(job: Raw) -> int:
        roles = (job.get("spec") or {}).get(field) or {}
        return max(1, sum(int((role or {}).get("replicas", 1)) for role in roles.values()))

    return size


def _leader_worker_set(workers: Raw) -> int:
    """Count one group: a leader and its workers."""
    template = (workers.get("spec") or {}).get("leaderWorkerTemplate") or {}
    return max(1, int(template.get("size", 1)))


def _kubeflow_kind(kind: str, plural: str, field: str) -> Kind:
    return Kind(
        Resource("kubeflow.org", "v1", kind, plural),
        _kubeflow(field),
        ("spec", "runPolicy", "suspend"),
    )


#: By the kind of the workload. Kinds that are not here start pod by pod and are evicted.
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
}
_OTHER = Kind()

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
    owner = (pod.owner.kind, pod.owner.name) if pod.owner else None
    return gangs.gpujob_name(pod.name, pod.annotations, pod.labels, owner)


def above(pod: PodInfo) -> tuple[str, str] | None:
    """Return kind and name of the workload above the pod's controller, where there is one."""
    for label, kind in _ABOVE.items():
        if pod.labels.get(label):
            return kind, pod.labels[label]
    return None


def workload_of(pod: PodInfo) -> WorkloadRef:
    """Return the object that controls the pod; a bare pod is its own."""
    owner = pod.owner or Owner("v1", "Pod", pod.name, pod.uid)
    return WorkloadRef(
        api_version=owner.api_version, kind=owner.kind, name=owner.name, uid=owner.uid
    )


def gang_size(pod: PodInfo, workload: Raw | None) -> int:
    """Return how many pods must start together.

    `workload` is the object they belong to as the API server has it, where we know its kind. An
    explicit size wins.
    """
    explicit = pod.annotations.get(names.GANG_SIZE)
    if explicit:
        return int(explicit)
    if workload is None:
        return 1
    return KINDS.get(str(workload.get("kind")), _OTHER).size(workload)
