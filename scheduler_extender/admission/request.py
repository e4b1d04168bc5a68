"""The request of a pod in Tandem's terms: read, translated where it is exact, or refused. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from scheduler_extender.admission.podshape import Placed, PodShape
from tandem.contracts import fractions, names
from tandem.contracts.annotations import MAX_ERRORS, FieldError, annotation_field
from tandem.contracts.claims import MAX_GPUS_PER_POD
from tandem.contracts.quantity import parse_quantity

_ONE_CONTAINER = (
    f"only one container of a pod may ask for GPUs, and only once; write {names.RESOURCE} there"
)


@dataclass(slots=True)
class Request:
    """The GPUs of a pod: for which ordinary container, how many, and on what terms.

    `taken_out` are the resources of others that Tandem's takes the place of, by section, and
    `annotations` what is added for them. Nothing but `errors` means anything where there are some.
    """

    container: int = 0
    gpus: int = 1
    asked: bool = False
    annotations: dict[str, str] = field(default_factory=dict)
    taken_out: list[tuple[str, str]] = field(default_factory=list)
    errors: list[FieldError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def refuse(self, at: str, value: str, allowed: str) -> None:
        """Keep an error, of the first ones."""
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(FieldError(at, value, allowed))


def is_ours(pod: PodShape, *, adopt: bool) -> bool:
    """Tell whether a pod is for us; in adopted namespaces other systems' requests count as well."""
    wanted: Callable[[str], bool] = fractions.makes_ours if adopt else (lambda _: False)
    return any(
        name == names.RESOURCE or wanted(name)
        for placed in pod.containers()
        for name in placed.body.resources.asked()
    ) or (adopt and fractions.asks_by_annotation(pod.metadata.annotations))


def read_request(pod: PodShape, prefix: str, *, adopt: bool) -> Request:
    """Return what a pod asks for, or a template whose fields begin with `prefix`."""
    found = Request()
    spec_field = f"{prefix}spec"
    _read_counts(pod, found, spec_field, adopt=adopt)
    by_annotation = fractions.read_annotations(pod.metadata.annotations)
    if not found.errors and not found.asked:
        _choose_container(pod, found, by_annotation, prefix)
    parts = dict(_read_parts(pod, found, spec_field))
    where = f"{prefix}metadata.annotations"
    for name, value, allowed in by_annotation.errors:
        found.refuse(annotation_field(name, where), value, allowed)
    if by_annotation.memory is not None and not by_annotation.memory.refusal:
        _annotate(found, parts, annotation_field(fractions.MEMORY, where), by_annotation.memory)
        _refuse_limit(pod, found, spec_field)
    if by_annotation.gpus is not None and found.asked and by_annotation.gpus != found.gpus:
        at = annotation_field("gpu-fraction-num-devices", where)
        found.refuse(at, str(by_annotation.gpus), f"the container asks for {found.gpus}; remove it")
    if found.errors:
        return found
    present = pod.metadata.annotations
    if found.taken_out and not parts and not any(n in present for n in names.USER_ANNOTATIONS):
        # A stock manifest: whole GPUs of its own.
        found.annotations[names.EXCLUSIVE] = "true"
    for annotation, (at, reading) in parts.items():
        if annotation not in present:
            found.annotations[annotation] = reading.value
        kept = present.get(annotation, reading.value)
        if annotation not in present or kept != reading.value:
            found.warnings.append(f'{at}: read as the annotation {annotation}: "{kept[:64]}"')
    if parts or by_annotation.memory is not None:
        found.warnings += (
            f"{annotation_field(name, where)}: has no effect here; select the type of GPU by"
            " spec.nodeSelector[nvidia.com/gpu.product]"
            for name in fractions.without_effect(present)
        )
    return found


def _read_counts(pod: PodShape, found: Request, spec_field: str, *, adopt: bool) -> None:
    """Find the container that asks for GPUs by their number."""
    for placed in pod.containers():
        for name in (names.RESOURCE, *fractions.COUNTS):
            amounts = placed.body.resources.of(name)
            if not amounts:
                continue
            section, value = next(iter(amounts.items()))
            count = _count(value)
            if name != names.RESOURCE and not adopt:
                refusal = (
                    f"a pod that asks for {names.RESOURCE} takes no GPUs another way; remove it"
                )
            elif placed.kind != "containers":
                refusal = (
                    "only an ordinary container may ask for GPUs;"
                    f" write {names.RESOURCE} under spec.containers"
                )
            elif found.asked:
                refusal = _ONE_CONTAINER
            elif section != "limits":
                refusal = f"GPUs are asked for under resources.limits; write {names.RESOURCE} there"
            elif count is None or _count(amounts.get("requests", value)) != count:
                refusal = (
                    f"must be a whole number of GPUs from 1 to {MAX_GPUS_PER_POD}, "
                    "the same in limits and requests"
                )
            else:
                found.container, found.gpus, found.asked = placed.index, count, True
                if name != names.RESOURCE:
                    found.taken_out += ((each, name) for each in amounts)
                continue
            found.refuse(f"{placed.field(spec_field)}.resources.{section}[{name}]", value, refusal)


def _choose_container(
    pod: PodShape, found: Request, by_annotation: fractions.ByAnnotation, prefix: str
) -> None:
    """Find the container of a pod that names no number: one GPU, unless annotations say more.

    So do HAMi for a container with a part, KAI and run:ai for the first container.
    """
    found.gpus = by_annotation.gpus or 1
    if by_annotation.container:
        called = [each.name for each in pod.spec.containers]
        if by_annotation.container not in called:
            at = annotation_field("gpu-fraction-container-name", f"{prefix}metadata.annotations")
            allowed = "must be the name of one of spec.containers"
            found.refuse(at, by_annotation.container, allowed)
            return
        found.container = called.index(by_annotation.container)
        return
    found.container = next(
        (
            placed.index
            for placed in pod.containers()
            if placed.kind == "containers" and any(map(names.is_gpu, placed.body.resources.asked()))
        ),
        0,
    )


def _read_parts(
    pod: PodShape, found: Request, spec_field: str
) -> Iterator[tuple[str, tuple[str, fractions.Reading]]]:
    """Yield the annotations that parts of GPUs are read as, with the field of each."""
    seen: dict[str, tuple[str, fractions.Reading]] = {}
    for placed in pod.containers():
        for name in placed.body.resources.asked():
            if not fractions.is_part(name):
                continue
            amounts = placed.body.resources.of(name)
            section, value = next(iter(amounts.items()))
            at = f"{placed.field(spec_field)}.resources.{section}[{name}]"
            reading = fractions.read_part(name, value)
            if reading.refusal:
                found.refuse(at, value, reading.refusal)
            elif placed.kind != "containers" or placed.index != found.container:
                found.refuse(at, value, _ONE_CONTAINER)
            elif section != "limits" or len(set(amounts.values())) > 1:
                found.refuse(at, value, "must be the same in limits and requests")
            else:
                found.taken_out += ((each, name) for each in amounts)
                _annotate(found, seen, at, reading)
    yield from seen.items()


def _annotate(
    found: Request,
    seen: dict[str, tuple[str, fractions.Reading]],
    at: str,
    reading: fractions.Reading,
) -> None:
    """Keep what a part is read as; two different amounts of memory are an error."""
    known = seen.setdefault(reading.annotation, (at, reading))
    if known[1].value != reading.value:
        allowed = f"{known[0]} is another amount; write the annotation {names.MEMORY} alone"
        found.refuse(at, reading.value, allowed)


def _refuse_limit(pod: PodShape, found: Request, spec_field: str) -> None:
    """Refuse run:ai's variable by which a container grows beyond what it asks for."""
    for placed in pod.containers():
        for position, variable in enumerate(placed.body.env):
            if variable.get("name") == fractions.LIMIT_ENV:
                found.refuse(
                    f"{placed.field(spec_field)}.env[{position}]",
                    fractions.LIMIT_ENV,
                    f"a job states the most that it takes: write the annotation {names.MEMORY} with"
                    " it, and remove the variable",
                )


def _count(value: str) -> int | None:
    try:
        number = parse_quantity(value)
    except ValueError:
        return None
    if number != number.to_integral_value() or not 1 <= number <= MAX_GPUS_PER_POD:
        return None
    return int(number)


def gets_gpus(placed: Placed, gpu_index: int) -> bool:
    """Tell whether this is the container that the GPUs are for."""
    return placed.kind == "containers" and placed.index == gpu_index
