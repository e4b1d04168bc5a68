"""How other systems ask for GPUs and parts of them, and what that is in Tandem's words. Pure.

Known: NVIDIA's device plugin (time slicing, MIG), HAMi, Volcano, Alibaba's gpushare, KAI, run:ai.
An amount of memory is exact and has a counterpart, as has all of a GPU. Everything else, such as a
percentage or a slice, depends on the type of GPU or promises what Tandem does not: it is refused
with what to write in its place (docs/decisions/0046).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tandem.contracts import names
from tandem.contracts.quantity import is_zero, parse_quantity

_MIB, _GIB = 2**20, 2**30
#: A CUDA context alone takes more than the least; no GPU has the most. Volcano and Alibaba let an
#: administrator choose another unit: an amount outside these bounds is one in another unit.
_LEAST_BYTES, _MOST_BYTES = 128 * _MIB, 1024 * _GIB

#: Each unit is a GPU, whole or with the part that stands next to it.
COUNTS = (names.NVIDIA_RESOURCE, "volcano.sh/vgpu-number", "volcano.sh/gpu-number")
#: resource -> its unit in bytes, for each GPU of the container.
_MEMORY = {
    "nvidia.com/gpumem": _MIB,
    "volcano.sh/vgpu-memory": _MIB,
    "volcano.sh/gpu-memory": _MIB,
    "aliyun.com/gpu-mem": _GIB,
}
_MEMORY_PERCENT = ("nvidia.com/gpumem-percentage", "volcano.sh/vgpu-memory-percentage")
_CORES_PERCENT = (
    "nvidia.com/gpucores",
    "volcano.sh/vgpu-cores",
    "aliyun.com/gpu-core.percentage",
)
#: HAMi's order among the tasks of a GPU; no GPU, but no node of Tandem's has it.
_PRIORITY = "nvidia.com/priority"
_MIG = re.compile(r"nvidia\.com/mig-[0-9]+(?:c\.[0-9]+)?g\.([0-9]+)gb.*")
_DRA = "deviceclass.resource.kubernetes.io/"

# Annotations of KAI and run:ai.
FRACTION, MEMORY = "gpu-fraction", "gpu-memory"
_DEVICES, _CONTAINER = "gpu-fraction-num-devices", "gpu-fraction-container-name"
#: By which a container may grow beyond what it asks for.
_LIMITS = ("gpu-fraction-limit", "gpu-memory-limit", "gpu-fraction.limit", "gpu-memory.limit")
LIMIT_ENV = "RUNAI_GPU_MEMORY_LIMIT"
#: Choices among GPUs that HAMi's scheduler makes, which have no effect here.
_CHOICES = tuple(
    f"nvidia.com/{name}"
    for name in ("use-gputype", "nouse-gputype", "use-gpuuuid", "nouse-gpuuuid")
)
_MAX_GPUS = 64

_OTHER_WAYS = f"a pod that asks for {names.RESOURCE} takes no GPUs another way"
_WRITE_MEMORY = (
    f"write the annotation {names.MEMORY} in its place, with the most that the job takes of a GPU,"
    " such as 12Gi"
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What an amount is in Tandem's words: an annotation and its value, or why there is none."""

    annotation: str = ""
    value: str = ""
    refusal: str = ""


def is_part(resource: str) -> bool:
    """Say whether a resource stands for GPUs or parts of them, counts left out."""
    return resource not in COUNTS and (resource == _PRIORITY or names.is_gpu(resource))


def makes_ours(resource: str) -> bool:
    """Say whether a pod of an adopted namespace that asks for the resource is Tandem's.

    What a DRA driver gives out is left to it, as are ResourceClaims.
    """
    return names.is_gpu(resource) and not resource.lower().startswith(_DRA)


def asks_by_annotation(annotations: Mapping[str, str]) -> bool:
    """Say whether KAI's or run:ai's annotations ask for a part of a GPU; no resource does then."""
    return any(not is_zero(annotations.get(name)) for name in (FRACTION, MEMORY))


def template_asks(
    limits: Iterable[Mapping[str, object]], annotations: Mapping[str, str], *, adopted: bool
) -> bool:
    """Say whether containers with these limits ask for GPUs: Tandem's, or in any known way."""
    asked = (name for each in limits for name, amount in each.items() if not is_zero(amount))
    if not adopted:
        return names.RESOURCE in asked
    return any(makes_ours(name) for name in asked) or asks_by_annotation(annotations)


def read_part(resource: str, value: str) -> Reading:
    """Return what an amount of a resource is that `is_part`."""
    if resource in _MEMORY:
        return _memory(value, _MEMORY[resource])
    whole = value == "100"
    if resource in _MEMORY_PERCENT:
        return _WHOLE if whole else Reading(refusal=_percent_of_memory())
    if resource in _CORES_PERCENT:
        return _WHOLE if whole else Reading(refusal=_percent_of_cores(value))
    if resource == _PRIORITY:
        return Reading(refusal="the queue decides on the order of jobs with GPUs; remove it")
    mig = _MIG.fullmatch(resource.lower())
    if mig:
        return Reading(
            refusal=f"Tandem chooses GPUs and slices of MIG itself: write {names.RESOURCE}:"
            f" {value[:4]} and the annotation {names.MEMORY}: {mig[1]}Gi in its place"
        )
    if resource.lower().endswith(".shared"):
        return Reading(
            refusal=f"a slice of time says nothing of memory: write {names.RESOURCE} and the"
            f" annotation {names.MEMORY} in its place"
        )
    return Reading(
        refusal=f"{_OTHER_WAYS}: write {names.RESOURCE}, and the annotation {names.MEMORY} for a"
        " part of a GPU, in its place"
    )


_WHOLE = Reading(names.EXCLUSIVE, "true")


def _memory(value: str, unit: int) -> Reading:
    suffix = "Gi" if unit == _GIB else "Mi"
    try:
        amount = parse_quantity(value)
    except ValueError:
        amount = None
    if amount is None or not _LEAST_BYTES <= amount * unit <= _MOST_BYTES:
        return Reading(
            refusal=f"must be from {max(1, _LEAST_BYTES // unit)} to {_MOST_BYTES // unit}, in"
            f" {suffix}B; or {_WRITE_MEMORY}"
        )
    if amount != amount.to_integral_value():
        return Reading(names.MEMORY, str(int(amount * unit)))
    return Reading(names.MEMORY, f"{int(amount)}{suffix}")


def _percent_of_memory() -> str:
    return (
        "the memory behind a percentage differs from one type of GPU to another: "
        f"{_WRITE_MEMORY}, or {names.EXCLUSIVE} for whole GPUs"
    )


def _percent_of_cores(value: str) -> str:
    return (
        "Tandem limits no job to a part of a GPU's cores: remove it, and write the annotation"
        f" {names.UTILIZATION}: {value[:6]} where the job uses so many percent on average"
    )


@dataclass(frozen=True, slots=True)
class ByAnnotation:
    """What KAI's and run:ai's annotations ask for.

    `gpus` is None where they say no number, `container` '' where they name none. `errors` has
    annotations with their values and what to write in their place.
    """

    memory: Reading | None = None
    gpus: int | None = None
    container: str = ""
    errors: tuple[tuple[str, str, str], ...] = ()


def read_annotations(annotations: Mapping[str, str]) -> ByAnnotation:
    """Read the annotations of a pod; without one that asks for a part of a GPU none counts."""
    if not asks_by_annotation(annotations):
        return ByAnnotation()
    errors = []
    memory, gpus = None, None
    fraction = annotations.get(FRACTION)
    if not is_zero(fraction):
        errors.append((FRACTION, str(fraction), _fraction(str(fraction))))
    text = annotations.get(MEMORY)
    if text is not None and not is_zero(text):
        memory = _memory(text, _MIB)
        if memory.refusal:
            errors.append((MEMORY, text, memory.refusal))
    devices = annotations.get(_DEVICES)
    if devices is not None:
        if devices.isascii() and devices.isdecimal() and 1 <= int(devices[:3]) <= _MAX_GPUS:
            gpus = int(devices[:3])
        else:
            errors.append((_DEVICES, devices, f"must be a whole number from 1 to {_MAX_GPUS}"))
    errors += [
        (name, annotations[name], f"a job states the most that it takes: {_WRITE_MEMORY}")
        for name in _LIMITS
        if name in annotations
    ]
    return ByAnnotation(memory, gpus, annotations.get(_CONTAINER, ""), tuple(errors))


def _fraction(value: str) -> str:
    if value in ("1", "1.0"):
        return (
            f"write {names.RESOURCE}: 1 under resources.limits, and the annotation"
            f' {names.EXCLUSIVE}: "true", in its place'
        )
    return (
        f"the memory behind a fraction differs from one type of GPU to another: write"
        f" {names.RESOURCE} under resources.limits and the annotation {names.MEMORY} in its place,"
        " with the most that the job takes of a GPU, such as 12Gi"
    )


def without_effect(annotations: Mapping[str, str]) -> list[str]:
    """Return the annotations by which HAMi chooses among GPUs, and Tandem does not."""
    return [name for name in _CHOICES if name in annotations]
