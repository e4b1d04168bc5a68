"""The annotations of a pod (or of a template of pods): read, checked, and refused in words."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

from tandem.contracts import names
from tandem.contracts.gangs import OBJECT_NAME
from tandem.contracts.quantity import parse_quantity
from tandem.contracts.resources import Demand, Framework, Optimizer, Parallelism, Precision

#: Errors that one answer names. To name all would let a small request cause a large answer.
MAX_ERRORS = 10
_SHOWN = 64  # characters of a wrong value that are repeated to its author
#: Characters of a field that are shown. The longest name of an annotation has 317.
_FIELD_SHOWN = 512
#: Misspelt names for which the nearest one is searched: each search takes about 0.3 ms.
_SUGGESTED = 3
_WHOLE = re.compile(r"[0-9]{1,13}")
_NUMBER = re.compile(r"[0-9]{1,3}(\.[0-9]{1,6})?")
_LABEL_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_MAX_OBJECT_NAME = 253
_MAX_GANG_NAME = 200
_MEMORY_MIN, _MEMORY_MAX = Decimal(2**20), Decimal(2**50)


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing that a user can mend: where it stands, what it is, what is allowed there."""

    field: str
    value: str
    allowed: str

    @property
    def detail(self) -> str:
        """The sentence without the field, for places that show the field separately."""
        shown = self.value if len(self.value) <= _SHOWN else self.value[:_SHOWN] + "…"
        return f'"{shown}" is not allowed: {self.allowed}'

    @property
    def shown_field(self) -> str:
        """The field, cut where it is longer than any that the API server would accept."""
        return self.field if len(self.field) <= _FIELD_SHOWN else self.field[:_FIELD_SHOWN] + "…"

    def __str__(self) -> str:
        return f"{self.shown_field}: {self.detail}"


class AnnotationError(ValueError):
    """Annotations that cannot be followed; `errors` has all of them, the text as well."""

    def __init__(self, errors: Iterable[FieldError]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(str(error) for error in self.errors))


def annotation_field(name: str, where: str = "metadata.annotations") -> str:
    """Return the path of an annotation as the API server writes such paths."""
    return f"{where}[{name}]"


def parse_demand(
    annotations: Mapping[str, str],
    gpus_per_pod: int,
    *,
    where: str = "metadata.annotations",
    gang_size: int = 1,
) -> Demand:
    """Return what a pod with these annotations asks for.

    `where` is the path of the annotations for messages; `gang_size` holds where the user says
    none. Annotations that are not the user's are passed over.

    Raises:
        AnnotationError: one or more cannot be read; all are named.
    """
    values: dict[str, Any] = {}
    errors: list[FieldError] = []
    for name, (attribute, parse, allowed) in _PARSERS.items():
        text = annotations.get(name)
        if text is None:
            continue
        try:
            values[attribute] = parse(text)
        except ValueError:
            errors.append(FieldError(annotation_field(name, where), text, allowed))
    gang = annotations.get(names.GANG)
    if gang is not None:
        if not _is_name(gang, _MAX_GANG_NAME):
            errors.append(FieldError(annotation_field(names.GANG, where), gang, _GANG_ALLOWED))
        elif names.GANG_SIZE not in annotations:
            errors.append(
                FieldError(
                    annotation_field(names.GANG, where),
                    gang,
                    f"a gang needs {names.GANG_SIZE} as well: how many pods start together",
                )
            )
    if errors:
        raise AnnotationError(errors)
    return Demand(**({"gang_size": gang_size} | values), gpus_per_pod=gpus_per_pod)


def check_names(
    annotations: Mapping[str, str], *, where: str = "metadata.annotations"
) -> list[FieldError]:
    """Return the first errors in the names of a user's annotations, `MAX_ERRORS` at most.

    Users may not set the annotations that Tandem sets, and a misspelt annotation has no effect.
    """
    errors: list[FieldError] = []
    prefix = f"{names.GROUP}/"
    for name, value in annotations.items():
        if not name.startswith(prefix) or name in names.USER_ANNOTATIONS:
            continue
        if name in names.OWN_ANNOTATIONS:
            allowed = "Tandem alone sets it; remove it"
        else:
            near = _nearest(name) if len(errors) < _SUGGESTED else []
            allowed = (
                f"there is no such annotation; did you mean {prefix}{near[0]}?"
                if near
                else "there is no such annotation; there are " + ", ".join(names.USER_ANNOTATIONS)
            )
        errors.append(FieldError(annotation_field(name, where), value, allowed))
        if len(errors) == MAX_ERRORS:
            break
    return errors


def _nearest(name: str) -> list[str]:
    """Return the user annotation most like `name`, without the common prefix; none is possible."""
    prefix = f"{names.GROUP}/"
    known = [other.removeprefix(prefix) for other in names.USER_ANNOTATIONS]
    return difflib.get_close_matches(name.removeprefix(prefix)[:_SHOWN], known, n=1)


def parse_visible_devices(text: str) -> tuple[str, ...]:
    """Return the GPU UUIDs of a `visible-devices` annotation; none for an empty text."""
    return tuple(part for part in text.split(",") if part)


def format_visible_devices(uuids: Iterable[str]) -> str:
    """Return the GPU UUIDs as the NVIDIA runtime reads them: separated by commas."""
    return ",".join(uuids)


def _is_name(text: str, longest: int) -> bool:
    return len(text) <= longest and OBJECT_NAME.fullmatch(text) is not None


def _object_name(text: str) -> str:
    if not _is_name(text, _MAX_OBJECT_NAME):
        raise ValueError(text)
    return text


def _whole(highest: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if _WHOLE.fullmatch(text) is None or not 1 <= int(text) <= highest:
            raise ValueError(text)
        return int(text)

    return parse


def _memory(text: str) -> int:
    value = parse_quantity(text)
    if not _MEMORY_MIN <= value <= _MEMORY_MAX:
        raise ValueError(text)
    return math.ceil(value)


def _percent(text: str) -> float:
    if _NUMBER.fullmatch(text) is None or not float(text) <= 100:
        raise ValueError(text)
    return float(text)


def _label_key(text: str) -> str:
    if len(text) > _MAX_OBJECT_NAME or _LABEL_KEY.fullmatch(text) is None:
        raise ValueError(text)
    return text


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _one_of(kind: type[StrEnum]) -> Callable[[str], StrEnum]:
    return lambda text: kind(text)


def _choices(kind: type[StrEnum]) -> str:
    return "must be one of " + ", ".join(member.value for member in kind)


_NAME_ALLOWED = (
    "lower-case letters, digits, '-' and '.', each part between '.' beginning and ending with one"
    " of the first two"
)
_GANG_ALLOWED = f"a name of at most {_MAX_GANG_NAME} characters: {_NAME_ALLOWED}"
_BOOLEAN_ALLOWED = 'must be "true" or "false"'
_LEVEL_ALLOWED = (
    "must be the key of a label of nodes that is a level of the cluster's topology, such as"
    " topology.kubernetes.io/zone"
)

#: annotation -> (field of Demand, how it is read, what is allowed)
_PARSERS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    names.MODEL: ("model", _object_name, f"must be the name of a ModelProfile: {_NAME_ALLOWED}"),
    names.BATCH_SIZE: (
        "batch_size",
        _whole(10**6),
        "must be a whole number of samples per GPU, from 1 to 1000000",
    ),
    names.ITERATIONS: ("iterations", _whole(10**12), "must be a whole number of at least 1"),
    names.MEMORY: (
        "declared_memory_bytes",
        _memory,
        "must be a quantity of memory per GPU from 1Mi to 1Pi, such as 12Gi or 1500Mi",
    ),
    names.UTILIZATION: (
        "declared_utilisation_percent",
        _percent,
        "must be a number of percent from 0 to 100 without a sign, such as 35",
    ),
    names.PRECISION: ("precision", _one_of(Precision), _choices(Precision)),
    names.OPTIMIZER: ("optimizer", _one_of(Optimizer), _choices(Optimizer)),
    names.SEQUENCE_LENGTH: (
        "sequence_length",
        _whole(2**20),
        f"must be a whole number of tokens or frames, from 1 to {2**20}",
    ),
    names.FRAMEWORK: ("framework", _one_of(Framework), _choices(Framework)),
    names.PARALLELISM: ("parallelism", _one_of(Parallelism), _choices(Parallelism)),
    names.GRADIENT_CHECKPOINTING: ("gradient_checkpointing", _boolean, _BOOLEAN_ALLOWED),
    names.EXCLUSIVE: ("exclusive", _boolean, _BOOLEAN_ALLOWED),
    names.CHECKPOINT: ("checkpoint", _boolean, _BOOLEAN_ALLOWED),
    names.ACCUMULATION: ("accumulation", _boolean, _BOOLEAN_ALLOWED),
    names.GANG_SIZE: (
        "gang_size",
        _whole(10**4),
        "must be a whole number of pods from 1 to 10000",
    ),
    names.REQUIRED_TOPOLOGY: ("required_topology", _label_key, _LEVEL_ALLOWED),
    names.PREFERRED_TOPOLOGY: ("preferred_topology", _label_key, _LEVEL_ALLOWED),
}

#: What is allowed in each annotation of users, in words.
ALLOWED = {name: allowed for name, (_, _, allowed) in _PARSERS.items()} | {
    names.GANG: _GANG_ALLOWED
}
