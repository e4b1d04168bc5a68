"""Pod templates in workloads: where they are, and what is wrong with them at apply. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from pydantic import ValidationError

from scheduler_extender.admission.checks import check_pod, misuses_scheduler
from scheduler_extender.admission.config import AdmissionConfig
from scheduler_extender.admission.gpu_memory import memory_warnings
from scheduler_extender.admission.patch import Verdict
from scheduler_extender.admission.podshape import PodShape
from scheduler_extender.admission.request import is_ours
from scheduler_extender.cluster.kinds import TEMPLATES
from tandem.contracts import names
from tandem.contracts.annotations import MAX_ERRORS, FieldError

#: More than any workload has; each is judged like a pod.
_MAX_TEMPLATES = 1000
_SHOWN = 65  # characters of a wrong value, one more than are repeated

#: Evictions by us are no failures of the job: they do not count against its backoffLimit.
_IGNORE_DISRUPTIONS = {
    "rules": [
        {
            "action": "Ignore",
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
        }
    ]
}


def admit_owner(
    group: str,
    kind: str,
    owner: Mapping[str, Any],
    before: Mapping[str, Any] | None,
    config: AdmissionConfig,
    *,
    adopt: bool = False,
) -> Verdict:
    """Check the templates of an owner of pods; `before` is what it was, at an update.

    A template that did not change is not judged again: removing a finalizer or
    scaling a workload is not stopped by what was let in before us.
    """
    verdict = Verdict()
    ways = TEMPLATES.get((group, kind), ())
    known = {name: each for way in ways for name, each in _find(before, way)} if before else {}
    found = (each for way in ways for each in _find(owner, way))
    for number, (field, template) in enumerate(found):
        if len(verdict.errors) >= MAX_ERRORS:
            break
        if number == _MAX_TEMPLATES:
            allowed = f"at most {_MAX_TEMPLATES} templates of pods are allowed"
            verdict.errors.append(FieldError(".".join(ways[0][:2]), kind, allowed))
            break
        if template == known.get(field):
            continue
        try:
            pod = PodShape.model_validate(template)
        except ValidationError as error:
            verdict.errors += shape_errors(error, at=field)
            continue
        if not is_ours(pod, adopt=adopt):
            verdict.errors += misuses_scheduler(pod, config.scheduler_name, at=field)
            continue
        request = check_pod(pod, config, adopt=adopt, at=field)
        verdict.errors += request.errors
        if not request.errors:
            verdict.warnings += request.warnings
            limited = config.memory_limits
            verdict.warnings += memory_warnings(pod, request, limited=limited, at=field)
        if (group, kind) == ("batch", "Job") and before is None and not verdict.errors:
            verdict.patch += _outlive_disruptions(owner["spec"], pod)
    return verdict


def shape_errors(error: ValidationError, *, at: str = "") -> list[FieldError]:
    """Turn what pydantic says of a malformed pod into errors of fields."""
    return [
        FieldError(
            ".".join(str(part) for part in ((at,) if at else ()) + each["loc"]),
            _shown(each["input"]),
            each["msg"],
        )
        for each in islice(error.errors(include_url=False), MAX_ERRORS)
    ]


def _shown(value: object) -> str:
    """Return a wrong value as text, of a list or an object (which may be long) its length."""
    match value:
        case list():
            return f"a list of {len(value)}"
        case dict():
            return f"an object of {len(value)}"
        case str():
            return value[:_SHOWN]
        case _:
            return str(value)[:_SHOWN]


def _find(value: object, path: tuple[str, ...], field: str = "") -> Iterator[tuple[str, object]]:
    """Yield the parts of `value` that `path` leads to, with their fields."""
    if not path:
        if value is not None:
            yield field, value
        return
    step, rest = path[0], path[1:]
    if step != "*":
        if isinstance(value, Mapping):
            yield from _find(value.get(step), rest, f"{field}.{step}" if field else step)
        return
    entries: Iterable[tuple[object, object]] = ()
    if isinstance(value, Mapping):
        entries = value.items()
    elif isinstance(value, list):
        entries = enumerate(value)
    for name, entry in entries:
        yield from _find(entry, rest, f"{field}[{name}]")


def _outlive_disruptions(spec: Mapping[str, Any], pod: PodShape) -> Iterator[dict[str, Any]]:
    """Let evictions of a Job that may be checkpointed not count as its failures.

    The API server allows a podFailurePolicy only with restartPolicy Never, and with it no other
    podReplacementPolicy than Failed (which it has filled in by another value already).
    """
    checkpoint = pod.metadata.annotations.get(names.CHECKPOINT) == "true"
    if not checkpoint or spec.get("podFailurePolicy") or pod.spec.restart_policy != "Never":
        return
    yield {"op": "add", "path": "/spec/podFailurePolicy", "value": _IGNORE_DISRUPTIONS}
    yield {"op": "add", "path": "/spec/podReplacementPolicy", "value": "Failed"}
