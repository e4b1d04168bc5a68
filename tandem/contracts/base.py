"""How our messages look on the wire: lowerCamel keys, as everywhere in Kubernetes."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NoReturn

from pydantic import AfterValidator, BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema


@cache
def _all_fields(kind: type[BaseModel]) -> set[str]:
    return set(kind.model_fields)


class Message(BaseModel):
    """A message or a part of a custom resource; frozen, unknown keys ignored.

    Unknown keys are ignored because the other side may be one version ahead of us
    (an upgrade rolls one component at a time).
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="ignore",
        # No API server and no other JSON reader takes NaN or infinity.
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    def model_post_init(self, _: object, /) -> None:
        """Let all messages of a kind share one set of field names.

        Which fields were given is of no use to anyone here, and a set in each message takes as
        much memory as its values: an extender holds hundreds of thousands of them.
        """
        object.__setattr__(self, "__pydantic_fields_set__", _all_fields(type(self)))

    def wire(self) -> dict[str, object]:
        """Return the JSON object as it goes over the wire; absent values are left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def json_bytes(self) -> bytes:
        """Return the same as JSON text, without a text in between."""
        return self.__pydantic_serializer__.to_json(self, by_alias=True, exclude_none=True)


class _NoEntries(list[Any]):
    """An empty list that stays empty. pydantic makes no copy of a default that has a hash."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]
        return 0

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("messages do not change")

    append = extend = insert = __iadd__ = __setitem__ = _refuse

    @classmethod
    def __get_pydantic_core_schema__(cls, _: object, __: object) -> CoreSchema:
        """Let it be a default like any other list in schemas."""
        return core_schema.list_schema()


#: The one empty list of all messages that are read: a GPUJob has a dozen, and an extender holds
#: tens of thousands of GPUJobs.
NO_ENTRIES: list[Any] = _NoEntries()
SharedEmpty = AfterValidator(lambda entries: entries or NO_ENTRIES)


@lru_cache(4096)
def _first(message: Message | None) -> Message | None:
    return message


#: Lets equal messages that are read be one object: most jobs declare, and are predicted, what
#: others do, and an extender holds tens of thousands of them.
Shared = AfterValidator(_first)
