"""Objects as the API server would send them, with only what the extender reads."""

from __future__ import annotations

import itertools
from typing import Any

from scheduler_extender.cluster.jobs import rfc3339
from tandem.contracts import names

Object = dict[str, Any]
NOW = 1_700_000_000.0
GIB = 2**30
_versions = itertools.count(1)


def meta(name: str, namespace: str = "", uid: str = "", version: int | None = None) -> Object:
    found = {
        "name": name,
        "uid": uid or f"uid-{namespace}-{name}",
        "resourceVersion": str(version if version is not None else next(_versions)),
    }
    return found | ({"namespace": namespace} if namespace else {})


def node(name: str, cpu: str = "64", memory: str = "512Gi", pods: str = "110", **spec) -> Object:
    labels = spec.pop("labels", {})
    return {
        "metadata": meta(name) | {"labels": {"kubernetes.io/hostname": name, **labels}},
        "spec": spec,
        "status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": pods}},
    }


def gpu(uuid: str, memory_gib: float = 80, **more) -> Object:
    return {
        "uuid": uuid,
        "index": 0,
        "model": "NVIDIA A100-SXM4-80GB",
        "memoryBytes": int(memory_gib * GIB),
        "shares": 2,
        **more,
    }


def gpu_node(name: str, *gpus: Object | str, observed_at_s: float = NOW, **metadata) -> Object:
    return {
        "metadata": meta(name, **metadata),
        "spec": {},
        "status": {
            "observedAt": rfc3339(observed_at_s),
            "gpus": [gpu(g) if isinstance(g, str) else g for g in gpus],
        },
    }


def pod(
    name: str,
    gpus: int = 1,
    *,
    memory: str | None = "10Gi",
    utilisation: str = "40",
    exclusive: bool = False,
    node_name: str = "",
    devices: str = "",
    phase: str = "Pending",
    uid: str = "",
    version: int | None = None,
    namespace: str = "ml",
    annotations: dict[str, str] | None = None,
    cpu: str = "1",
    **spec,
) -> Object:
    notes = {**(annotations or {})}
    if memory is not None:
        notes |= {names.MEMORY: memory, names.UTILIZATION: utilisation}
    if exclusive:
        notes[names.EXCLUSIVE] = "true"
    if devices:
        notes[names.VISIBLE_DEVICES] = devices
    limits = {names.RESOURCE: str(gpus)} if gpus else {}
    return {
        "metadata": meta(name, namespace, uid, version) | {"annotations": notes},
        "spec": {
            "containers": [
                {"name": "main", "resources": {"limits": limits, "requests": {"cpu": cpu}}}
            ],
            **({"nodeName": node_name} if node_name else {}),
            **spec,
        },
        "status": {"phase": phase},
    }


def load(base_gib: float, extra_gib: float = 0, p: float = 0, utilisation: float = 40) -> Object:
    return {
        "utilisationPercent": utilisation,
        "utilisationP95Percent": utilisation,
        "memoryBaseBytes": int(base_gib * GIB),
        "memoryPeakExtraBytes": int(extra_gib * GIB),
        "peakProbability": p,
        "memoryP95Bytes": int((base_gib + extra_gib) * GIB),
        "utilisationSource": "formula",
        "memorySource": "formula",
    }


def gpu_job(
    name: str,
    *,
    plan: list[tuple[str, str, list[str]]] | None = None,
    deadline_s: float = NOW + 30,
    job_load: Object | None = None,
    gpus_per_pod: int = 1,
    namespace: str = "ml",
    uid: str = "",
    version: int | None = None,
) -> Object:
    """A GPUJob; `plan` has (pod uid, node, GPUs) for each pod."""
    status: Object = {"phase": "Queued"}
    if job_load:
        status["load"] = job_load
    if plan is not None:
        status["plan"] = {
            "madeAt": rfc3339(NOW),
            "deadline": rfc3339(deadline_s),
            "pods": [
                {"pod": pod_uid, "uid": pod_uid, "node": where, "gpus": gpus}
                for pod_uid, where, gpus in plan
            ],
        }
    return {
        "metadata": meta(name, namespace, uid, version),
        "spec": {
            "workload": {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": "w-" + name},
            "demand": {"gpusPerPod": gpus_per_pod},
        },
        "status": status,
    }
