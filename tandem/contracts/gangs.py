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

    `pod` is the pod's name, `owner` the (kind, name) of its controller. The user's annotation comes
    first, then the groups of other schedulers, then a workload above the controller (a JobSet, a
    group of a LeaderWorkerSet), then the owner; a bare pod is a workload of its own. The kind is
    part of the name: a Job and a PyTorchJob may share one.
    """
    gang = annotations.get(names.GANG)
    if gang:
        return _fit(f"gang-{gang}")
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
