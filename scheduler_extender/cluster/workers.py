"""Makes the policies' view of a pod's worker, from its annotations, its GPUJob and its Binding."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from operator import attrgetter

from scheduler_extender.cluster.jobs import (
    load_now,
    policy_job,
    unpredicted_load,
)
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import GpuJobRecord
from scheduler_extender.cluster.workloads import (
    gpujob_name,
    is_endless,
)
from tandem.contracts import names
from tandem.contracts.annotations import AnnotationError, parse_demand
from tandem.contracts.placement import PlacedWith
from tandem.contracts.resources import (
    Demand,
    Source,
)
from tandem.policy.job import Job, gib
from tandem.policy.units import BYTES_PER_GIB

#: What a pod declares of itself, as it is written, and whether it has no end of its own.
Declared = tuple[tuple[str | None, ...], bool]
#: Annotations of the gang as a whole.
_OF_GANG = (names.GANG, names.GANG_SIZE, names.REQUIRED_TOPOLOGY, names.PREFERRED_TOPOLOGY)
_DECLARED = tuple(name for name in names.USER_ANNOTATIONS if name not in _OF_GANG)
#: Of a demand, what the load of a worker follows from.
_FIGURES = attrgetter(
    "model",
    "batch_size",
    "declared_memory_bytes",
    "declared_utilisation_percent",
    "precision",
    "optimizer",
    "sequence_length",
    "framework",
    "parallelism",
    "gradient_checkpointing",
)


def declared_of(pod: PodInfo) -> Declared:
    """Return what a pod declares of itself, as it is written."""
    return tuple(map(pod.annotations.get, _DECLARED)), is_endless(pod)


@lru_cache(4096)
def demand_of(declared: Declared, gpus: int = 1) -> Demand:
    """Return what a pod asks for by what it declares; one that cannot be read takes whole GPUs."""
    texts, endless = declared
    named = dict(zip(_DECLARED, texts, strict=True))
    try:
        demand = parse_demand({name: text for name, text in named.items() if text}, gpus)
    except AnnotationError:
        return Demand(gpus_per_pod=gpus, exclusive=True)
    return demand.model_copy(update={"exclusive": True}) if endless else demand


@lru_cache(4096)
def figures_of(declared: Declared) -> tuple[object, ...]:
    """Return what a pod declares of the load that it puts on a GPU."""
    figures: tuple[object, ...] = _FIGURES(demand_of(declared))
    return figures


def accumulates(declared: Declared) -> bool:
    """Say whether pods may run their batch in parts: they learn of the number by annotation."""
    return demand_of(declared).accumulation


def has_own_figures(record: GpuJobRecord, declared: Declared, *, several: bool) -> bool:
    """Say whether a pod declares another load than the pod that its GPUJob was made of.

    `several`: the pods of the gang declare different loads. Of a gang whose pods all declare the
    same, the GPUJob says what counts.
    """
    if not (several or record.spec.roles):
        return False
    own: bool = figures_of(declared) != _FIGURES(record.spec.demand)
    return own


def worker_of(record: GpuJobRecord, declared: Declared, *, several: bool) -> Job:
    """Return the load of a pod of a GPUJob: what is known of the job, or of the pod's own role.

    What is predicted of the job says nothing of pods that declare another load: they have what they
    declare, or whole GPUs; and the most that was seen of the job, where that is more.
    """
    demand, said, status = demand_of(declared), record.spec.demand, record.status
    if not has_own_figures(record, declared, several=several):
        if demand.exclusive == said.exclusive or (said.exclusive and not several):
            return record.worker
        whole = load_now(said, status).memory_source is Source.WHOLE_GPU
        return replace(record.worker, exclusive=demand.exclusive or status.alone or whole)
    status = status.model_copy(update={"load": None, "sub_batches": []})
    level = {each: getattr(said, each) for each in ("required_topology", "preferred_topology")}
    demand = demand.model_copy(update=level | ({"exclusive": True} if status.alone else {}))
    name = f"{record.namespace}/{record.name}"
    return policy_job(name, demand, load_now(demand, status), pods=1)


def worker_by_annotations(pod: PodInfo) -> Job:
    """Return the load of one worker without its GPUJob: as it was placed, else as it declares.

    A pod whose annotations cannot be read (it came past the webhook) takes whole GPUs.
    """
    placed = pod.placed_with
    if placed is not None:
        return _worker_as_placed(pod, placed)
    try:
        demand = parse_demand(pod.annotations, pod.gpus)
    except AnnotationError:
        demand = Demand(gpus_per_pod=pod.gpus, exclusive=True)
    return policy_job(
        f"{pod.namespace}/{gpujob_name(pod)}", demand, unpredicted_load(demand), pods=1
    )


def _worker_as_placed(pod: PodInfo, placed: PlacedWith) -> Job:
    return Job(
        id=f"{pod.namespace}/{gpujob_name(pod)}",
        gpus_per_pod=pod.gpus,
        memory_base_gib=gib(placed.memory_base_bytes or 0),
        memory_peak_extra_gib=gib(placed.memory_peak_extra_bytes or 0),
        peak_probability=placed.peak_probability or 0.0,
        gpu_utilisation=100.0 if placed.utilization is None else placed.utilization,
        exclusive=bool(placed.exclusive) or placed.memory_base_bytes is None,
        checkpointable=pod.annotations.get(names.CHECKPOINT) == "true",
    )


def placed_with(gpujob: str, role: str, worker: Job) -> PlacedWith:
    """Return what is written on a pod that is placed as `worker`."""
    whole = worker.exclusive and not worker.memory_peak_gib
    return PlacedWith(
        gpu_job=gpujob,
        role=role or None,
        memory_base_bytes=None if whole else _bytes(worker.memory_base_gib),
        memory_peak_extra_bytes=None if whole else _bytes(worker.memory_peak_extra_gib),
        peak_probability=None if whole else worker.peak_probability,
        utilization=None if whole else worker.gpu_utilisation,
        exclusive=worker.exclusive or None,
    )


def _bytes(memory_gib: float) -> int:
    return round(memory_gib * BYTES_PER_GIB)


def not_less(worker: Job, placed: PlacedWith) -> Job:
    """Return a worker with at least the memory that its pod was placed with."""
    base, peak = placed.memory_base_bytes, placed.memory_bytes
    if base is None or peak is None:
        return worker
    base_gib = max(worker.memory_base_gib, gib(base))
    peak_gib = max(worker.memory_peak_gib, gib(peak))
    if (base_gib, peak_gib) == (worker.memory_base_gib, worker.memory_peak_gib):
        return worker
    return replace(
        worker,
        memory_base_gib=base_gib,
        memory_peak_extra_gib=peak_gib - base_gib,
        peak_probability=max(worker.peak_probability, placed.peak_probability or 0.0),
    )
