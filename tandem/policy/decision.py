"""A decision: a place, or the reasons why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.reasons.causes import Cause


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """The place of one pod: a node and distinct GPUs of it."""

    node: str
    gpu_ids: tuple[str, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """A place for every pod of a gang."""

    job: str
    pods: tuple[PodPlacement, ...]

    @property
    def rows(self) -> tuple[int, ...]:
        """All rows that the gang takes, pod by pod."""
        return tuple(row for pod in self.pods for row in pod.rows)


@dataclass(frozen=True, slots=True)
class Waits:
    """No place now; one may come when something ends.

    `causes` says first what the job asks for, then what keeps it off most GPUs.
    """

    job: str
    causes: tuple[Cause, ...]


@dataclass(frozen=True, slots=True)
class Rejected:
    """No place, ever, on this cluster as it is (`resolvable` if preemption could help)."""

    job: str
    message: str
    resolvable: bool = False


Decision = Placement | Waits | Rejected
