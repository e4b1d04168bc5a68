"""The settings of quotas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator

from tandem.settings import Section

EVERYBODY = "*"
Gpus = Annotated[int, Field(ge=0)]


class Quota(Section):
    """The quota of one namespace; `*` is each namespace that is not named.

    `gpus`: its share; its jobs within the share go before all those beyond theirs, and take back
    what others have borrowed. `gpu_seconds`: its share of a window; when it is used up, `gpus`
    counts as 0. `borrow`: it may go beyond its share with GPUs that no namespace within its share
    needs. `max_gpus`: never more than this. `endless_gpus`: the most for pods that do not end by
    themselves (Deployments, StatefulSets, notebooks), which are never preempted.
    """

    namespace: str
    gpus: Gpus | None = None
    gpu_seconds: Annotated[float, Field(gt=0)] | None = None
    borrow: bool = True
    max_gpus: Gpus | None = None
    endless_gpus: Gpus | None = None

    @model_validator(mode="after")
    def _of_one_mind(self) -> Self:
        if self.max_gpus is not None and self.max_gpus < (self.gpus or 0):
            raise ValueError("max_gpus must be at least gpus")
        if self.gpu_seconds is not None and self.gpus is None:
            raise ValueError("gpu_seconds limit a share: set gpus as well")
        return self


def once_each(quotas: Sequence[Quota]) -> Sequence[Quota]:
    """Return the quotas, where no namespace has two.

    Raises:
        ValueError: one has.
    """
    twice = [
        name for name, count in Counter(each.namespace for each in quotas).items() if count > 1
    ]
    if twice:
        raise ValueError(f"two quotas for {', '.join(twice)}")
    return quotas
