"""Pods and nodes of other schedulers, read as if they were Tandem's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler_extender.cluster.pods import PodInfo, pod_info
from tandem.contracts import names
from tandem.contracts.quantity import parse_quantity
from tandem.contracts.shadow import ShadowNode

Raw = Mapping[str, Any]

#: Labels of NVIDIA's feature discovery, and the memory in MiB where there is none.
_PRODUCT, _MEMORY = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"
_MOST_GPUS = 1024
_MIB_PER_GIB = 1024


def read_pod(raw: Raw) -> PodInfo:
    """Return a pod with the GPUs that it asks for in either name; 0: none."""
    spec = raw.get("spec") or {}
    containers = [_as_ours(each) for each in spec.get("containers") or ()]
    return pod_info({**raw, "spec": {**spec, "containers": containers}})


def _as_ours(container: Raw) -> Raw:
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    asked = limits.get(names.NVIDIA_RESOURCE)
    if not asked:
        return container
    ours = {**limits, names.RESOURCE: asked}
    return {**container, "resources": {**resources, "limits": ours}}


def read_node(raw: Raw) -> ShadowNode | None:
    """Return a node's GPUs; None where it has none, or takes no pods."""
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    gpus = _whole((status.get("allocatable") or {}).get(names.NVIDIA_RESOURCE, "0"))
    if not gpus or spec.get("unschedulable"):
        return None
    labels = raw["metadata"].get("labels") or {}
    memory_mib = _whole(labels.get(_MEMORY, "0"))
    return ShadowNode(
        raw["metadata"]["name"],
        min(gpus, _MOST_GPUS),
        labels.get(_PRODUCT, ""),
        memory_mib / _MIB_PER_GIB,
    )


def _whole(text: str) -> int:
    try:
        return max(0, int(parse_quantity(text)))
    except ValueError:
        return 0
