"""Levels of topology: labels of nodes, widest first, as settings and Kueue's Topology name them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

#: The key of a label, as the API server has it.
LabelKey = Annotated[
    str,
    Field(
        pattern=r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$",
        max_length=253,
    ),
]


def _once_each(levels: tuple[str, ...]) -> tuple[str, ...]:
    if twice := sorted({level for level in levels if levels.count(level) > 1}):
        raise ValueError(f"each level is named once, not {', '.join(twice)} twice")
    return levels


#: Labels of nodes, widest first.
TopologyLevels = Annotated[tuple[LabelKey, ...], Field(max_length=16), AfterValidator(_once_each)]
_LEVELS: TypeAdapter[tuple[str, ...]] = TypeAdapter(TopologyLevels)


class LevelsError(Exception):
    """The levels of a Topology cannot be used; the message says why."""


def levels_of(topology: dict[str, Any]) -> tuple[str, ...]:
    """Return the labels that a Topology of Kueue names, widest first.

    Raises:
        LevelsError: they are no keys of labels, or too many.
    """
    try:
        levels = [each["nodeLabel"] for each in topology["spec"]["levels"]]
        return _LEVELS.validate_python(tuple(levels))
    except (KeyError, TypeError) as error:
        raise LevelsError("its spec.levels have no nodeLabel") from error
    except ValidationError as error:
        first = error.errors()[0]
        no_key = f"{first['input']!r} is no key of a label"
        why = no_key if first["type"] == "string_pattern_mismatch" else first["msg"]
        raise LevelsError(f"its spec.levels: {why}") from error
