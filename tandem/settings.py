"""Sections of settings files, and what YAML makes of a word that is meant as something else."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError


class NoFlagForNumber(BaseModel):
    """Refuses `yes`, `on` or `true` where a number is wanted: pydantic would make 1 of it."""

    @model_validator(mode="before")
    @classmethod
    def _no_flag_for_a_number(cls, data: object) -> object:
        for name, value in data.items() if isinstance(data, dict) else ():
            entries = value if isinstance(value, list | tuple) else (value,)
            field = cls.model_fields.get(name)
            flags = any(isinstance(entry, bool) for entry in entries)
            if flags and field is not None and not _takes_flags(field.annotation):
                wrong = PydanticCustomError(
                    "number", "a truth value (yes, no, on, off) is no number"
                )
                details = InitErrorDetails(type=wrong, loc=(name,), input=value)
                raise ValidationError.from_exception_data(cls.__name__, [details])
        return data


class Section(NoFlagForNumber):
    """A part of a file of settings: frozen; unknown keys and infinite numbers are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _takes_flags(annotation: object) -> bool:
    """Say whether a type is, or may be, one of truth values or of anything."""
    return annotation in (bool, Any) or any(map(_takes_flags, get_args(annotation)))
