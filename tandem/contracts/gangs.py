"""The name of the GPUJob that a pod belongs to: what every service derives in the same way."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from tandem.contracts import names

_MAX_NAME = 253
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
#: A DNS-1123 subdomain: what the API server takes as the name of an object.
OBJECT_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_KEPT = 200  # characters of a name that are kept before a hash
#: Groups whose kinds have names of their own: there the kind alone says which workload it is.
_PLAIN_GROUPS = frozenset(
    {
        "",
        "apps",
        "batch",
        "jobset.x-k8s.io",
        "kubeflow.org",
        "leaderworkerset.x-k8s.io",
        "ray.io",
    }
)
#: Kinds that own pods of different steps: each pod is a workload of its own.
_OWNERS_OF_STEPS = frozenset({"workflow.argoproj.io"})


def qualified_kind(api_version: str, kind: str) -> str:
    """Return a kind as it enters the name of a GPUJob, as `KIND.GROUP` where others may have it.

    Batch and Volcano have a `Job` each: `Job` and `Job.batch.volcano.sh`.
    """
    group = api_version.rpartition("/")[0]
    return kind if group in _PLAIN_GROUPS else f"{kind}.{group}"


def owns_steps(kind: str) -> bool:
    """Say whether the pods of an owner, by its `qualified_kind`, are a workload each."""
    return kind.lower() in _OWNERS_OF_STEPS


def mpi_job(labels: Mapping[str, str], owner: tuple[str, str] | None) -> str:
    """Return the MPIJob of its launcher, '' for all other pods.

    The operator makes a Job for the launcher, so that it has another owner than the workers.
    """
    name = labels.get(names.JOB_NAME_LABEL, "")
    by_operator = labels.get(names.OPERATOR_LABEL) == names.MPI_OPERATOR
    return name if by_operator and owner == ("Job", f"{name}-launcher") else ""


def with_pod_group(labels: Mapping[str, str], pod_group: str) -> Mapping[str, str]:
    """Return the labels of a pod with the PodGroup of Kubernetes that it is in, where it is."""
    return {**labels, names.POD_GROUP_FIELD: pod_group} if pod_group else labels


def gpujob_name(
    pod: str,
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    owner: tuple[str, str] | None,
) -> str:
    """Return the name of the GPUJob, in the pod's namespace, that the pod belongs to.

    The name that was fixed at its admission or before its start counts. Its user may change labels
    and owners while it runs, and would change for whom its GPUs count.
    """
    return annotations.get(names.GPU_JOB) or derived_name(pod, annotations, labels, owner)


def derived_name(
    pod: str,
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    owner: tuple[str, str] | None,
) -> str:
    """Return the name of the GPUJob that annotations, labels and owner of a pod lead to.

    `pod` is the pod's name, `labels` those of `with_pod_group`, `owner` the (`qualified_kind`,
    name) of its controller. The user's annotation comes first, then Kubernetes' own group, then
    the groups of other schedulers, then a workload above the
    controller (a JobSet, a group of a LeaderWorkerSet, the MPIJob of a launcher), then the owner;
    a bare pod is a workload of its own, and so is a step of a workflow. The kind is part of the
    name: a Job and a PyTorchJob may share one.
    """
    if not names_group(annotations, labels):
        if launches := mpi_job(labels, owner):
            return _fit(f"mpijob-{launches}")
        if owner is not None and owns_steps(owner[0]):
            return _fit(f"pod-{pod}")
    return _by_kind(pod, annotations, labels, owner)


def earlier_name(
    pod: str,
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    owner: tuple[str, str] | None,
) -> str:
    """Return the name that `derived_name` gave before names depended on the API group.

    GPUJobs and pods that were made then keep it. Kubernetes' own groups were not known.
    """
    labels = {key: value for key, value in labels.items() if key != names.POD_GROUP_FIELD}
    plain = None if owner is None else (owner[0].partition(".")[0], owner[1])
    return _by_kind(pod, annotations, labels, plain)


def names_group(annotations: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Say whether a pod names its gang, or a workload above its controller."""
    return bool(annotations.get(names.GANG)) or any(
        labels.get(label)
        for label in (
            names.POD_GROUP_FIELD,
            names.COSCHEDULING_GROUP_LABEL,
            names.COSCHEDULING_LEGACY_LABEL,
            names.JOBSET_LABEL,
            names.LEADER_WORKER_SET_LABEL,
        )
    )


def _by_kind(
    pod: str,
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    owner: tuple[str, str] | None,
) -> str:
    gang = annotations.get(names.GANG)
    if gang:
        return _fit(f"gang-{gang}")
    if labels.get(names.POD_GROUP_FIELD):
        return _fit(f"podgroup-{labels[names.POD_GROUP_FIELD]}")
    for label in (names.COSCHEDULING_GROUP_LABEL, names.COSCHEDULING_LEGACY_LABEL):
        if labels.get(label):
            return _fit(f"group-{labels[label]}")
    if labels.get(names.JOBSET_LABEL):
        return _fit(f"jobset-{labels[names.JOBSET_LABEL]}")
    if labels.get(names.LEADER_WORKER_SET_LABEL):
        group = labels.get(names.LEADER_WORKER_SET_GROUP_LABEL, "0")
        return _fit(f"leaderworkerset-{labels[names.LEADER_WORKER_SET_LABEL]}-{group}")
    if owner is not None:
        kind, name = owner
        return _fit(f"{kind.lower()}-{name}")
    return _fit(f"pod-{pod}")


def _fit(name: str) -> str:
    """Return `name` in lower case, with the end replaced by a hash where it is too long.

    Values of labels and names in owner references may have characters that no object's name has:
    `My_Group` is `my-group` and a hash of the value as it stands, so that no two become one.
    """
    fit = name.lower()
    if len(fit) > _MAX_NAME:
        fit = f"{fit[: _MAX_NAME - 11]}-{_hash(fit)[:10]}"
    if OBJECT_NAME.fullmatch(fit):
        return fit
    kept = re.sub(r"[^a-z0-9]+", "-", fit[:_KEPT]).strip("-")
    return f"{kept}-{_hash(name)[:16]}".strip("-")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
