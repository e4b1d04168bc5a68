"""Elastic jobs: which of them get smaller in place of jobs that would be stopped, and by how much.

A cluster and the simulator ask the same function; what a plan is, and whether a start has a place
in it, each says by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

#: A job that was made smaller stays so for this long, and then until a GPU is idle.
SMALLER_FOR_S = 60.0
#: Starts that are looked into in one round. Each costs up to three plans.
LOOKS = 4


class Step(Protocol):
    """One way to make an elastic job smaller."""

    @property
    def gpus(self) -> int:
        """GPUs that it gives up then."""


_Key = TypeVar("_Key", bound=Hashable)
_Step = TypeVar("_Step", bound=Step)


def last_first(rank: Sequence[_Key], keys: Iterable[_Key]) -> list[_Key]:
    """Return `keys`, the last of the order first; those that it does not have come at the end."""
    place = {key: number for number, key in enumerate(rank)}
    return sorted(keys, key=lambda key: -place.get(key, -1))


def behind(to: _Key, rank: Sequence[_Key], keys: Collection[_Key]) -> list[_Key]:
    """Return those of `keys` that the order puts behind a start, the last one first."""
    after = set(rank[rank.index(to) + 1 :]) if to in rank else set[_Key]()
    return last_first(rank, [key for key in keys if key in after])


def smaller_instead(
    stopped: Iterable[_Key],
    lesser: Iterable[_Key],
    steps: Mapping[_Key, Sequence[_Step]],
    *,
    wants: int,
    idle: int,
    fits: Callable[[list[_Step]], bool],
) -> list[_Step]:
    """Return the least that has to go for a start to have a place, nothing where none is enough.

    `stopped` are the jobs that would be stopped for the start, `lesser` those that have to make
    room for it, both in the order in which they are asked. `steps` has of elastic jobs how small
    each may become, each step with more GPUs that it gives up. `wants` are the GPUs of the start,
    `idle` those of the cluster. `fits` says whether the start has a place, and no job is stopped
    for it, once these have given up theirs.
    """
    elastic = [steps[key] for key in dict.fromkeys((*stopped, *lesser)) if key in steps]
    tried: list[list[_Step]] = []
    for chosen in (giving(elastic, each) for each in (max(1, wants - idle), wants, None)):
        if not chosen or chosen in tried:
            continue
        tried.append(chosen)
        if fits(chosen):
            return chosen
    return []


def giving(elastic: Iterable[Sequence[_Step]], gpus: int | None) -> list[_Step]:
    """Return who gives up so many GPUs together, or (None) all that they may: job by job.

    Nothing where all that they may give up is less.
    """
    chosen, need = list[_Step](), gpus
    for steps in elastic:
        if need is not None and need <= 0:
            break
        enough = (each for each in steps if need is not None and each.gpus >= need)
        step = next(enough, steps[-1])
        chosen.append(step)
        need = None if need is None else need - step.gpus
    return [] if need is not None and need > 0 else chosen
