"""What a pod was placed with: the annotation that outlives changes of its labels and its GPUJob."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Annotated

from pydantic import Field, ValidationError

from tandem.contracts.base import Message

_MOST_BYTES = 2**60
_LONGEST = 1024  # characters; a name takes 253 of them at most

_Bytes = Annotated[int, Field(ge=0, le=_MOST_BYTES)]


class PlacedWith(Message):
    """The load of one worker on each of its GPUs, as the pod was placed; unknown parts are absent.

    Without memory the pod was given whole GPUs, as is one that is `exclusive`. `utilization` is in
    percent of one GPU.
    """

    gpu_job: Annotated[str, Field(min_length=1, max_length=253)]
    role: Annotated[str, Field(max_length=63)] | None = None
    memory_base_bytes: _Bytes | None = None
    memory_peak_extra_bytes: _Bytes | None = None
    peak_probability: Annotated[float, Field(ge=0, le=1)] | None = None
    utilization: Annotated[float, Field(ge=0, le=100_000)] | None = None
    exclusive: bool | None = None

    @property
    def memory_bytes(self) -> int | None:
        """The memory of its peak on each GPU; None where it was given whole GPUs."""
        if self.memory_base_bytes is None:
            return None
        return self.memory_base_bytes + (self.memory_peak_extra_bytes or 0)

    def text(self) -> str:
        """Return the annotation's value."""
        return json.dumps(self.wire(), separators=(",", ":"), allow_nan=False)


@lru_cache(4096)
def parse_placed_with(text: str) -> PlacedWith | None:
    """Return what an annotation says, None where it is absent or cannot be read."""
    if not text or len(text) > _LONGEST:
        return None
    try:
        return PlacedWith.model_validate_json(text)
    except ValidationError:
        return None
