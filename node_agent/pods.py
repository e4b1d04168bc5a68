"""Identifies pods by UID."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ContainerEnd:
    """A container of a pod that ended, at Unix time `at_s`; `reason` as kubelet tells it."""

    container: str
    exit_code: int
    at_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PodInfo:
    """A pod on this node, as the extender knows it.

    `job` names its GPUJob; `ours` is false for a pod that asks for no GPU of ours: a GPU that it
    uses was taken past Tandem. `assigned` are the UUIDs that it was given, None where that is not
    known; `predicted_memory` is the memory per GPU in bytes for which it was given its place, None
    where nothing was predicted. `ends` are the last ends of its containers that were not asked for.
    A pod that is `finished` runs no more.
    """

    namespace: str
    name: str
    job: str = ""
    ours: bool = True
    assigned: frozenset[str] | None = None
    predicted_memory: int | None = None
    ends: tuple[ContainerEnd, ...] = ()
    finished: bool = False

    def belongs_on(self, gpu: str) -> bool:
        """Return whether Tandem put the pod onto the GPU of this UUID."""
        return self.ours and (self.assigned is None or gpu in self.assigned)


class PodDirectory(Protocol):
    """Looks pods of this node up, between `start` and `stop`."""

    def start(self) -> None:
        """Begin to follow the pods; returns within a few seconds, with or without them."""
        ...

    def stop(self) -> None:
        """End."""
        ...

    def find(self, uid: str) -> PodInfo | None:
        """Return the pod, or None while it is unknown."""
        ...

    def __iter__(self) -> Iterator[str]:
        """Yield the UIDs of the pods that are known."""
        ...

    def at(self, address: str) -> str | None:
        """Return the UID of the pod whose address this is; None for one of no pod or of several."""
        ...

    def look_for(self, uids: Iterable[str]) -> None:
        """Ask about these pods soon: they are unknown, or something has happened to them."""
        ...
