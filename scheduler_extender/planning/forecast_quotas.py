"""Quotas in a forecast: which jobs a simulated round may try, and in which order.

The same rules as of a real round (`quotas.round`), on the rows of a picture instead of on gangs.
What is left out: borrowers that give way, and GPU-seconds that are used up or run out of the window
during the forecast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from scheduler_extender.cluster.records import Key
from tandem.policy.units import Bools, Ints

_AGAIN = 3  # dispatches of a round: jobs that find no place keep no room from those behind them


@dataclass(frozen=True, slots=True)
class Limits:
    """The quota of a namespace: GPUs of its share, and whether and how far it may go beyond.

    `most` bounds all its GPUs, `endless` those of jobs that do not end; None: nothing does.
    """

    share: int = 0
    borrow: bool = True
    most: int | None = None
    endless: int | None = None


@dataclass(frozen=True, slots=True)
class Shares:
    """The limits of each namespace of a picture, and the GPUs held by jobs that it does not have.

    `outside` has GPUs by namespace, `outside_endless` those of jobs that do not end.
    """

    limits: Mapping[str, Limits]
    outside: Mapping[str, int] = field(default_factory=dict)
    outside_endless: Mapping[str, int] = field(default_factory=dict)

    def with_limits(self, namespace: str, limits: Limits) -> Shares:
        """Return the same with other limits of a namespace."""
        return replace(self, limits={**self.limits, namespace: limits})


class Quotas(Protocol):
    """The account of a round."""

    def shares(self, keys: Sequence[Key]) -> Shares | None:
        """Return the shares of the namespaces of these jobs, None without quotas."""


class Admission:
    """The rounds of one simulation. Rows are those of the picture: jobs (jobs,)."""

    def __init__(
        self, shares: Shares, namespaces: Sequence[str], gpus: Sequence[int], endless: Bools
    ) -> None:
        self._shares = shares
        self._namespaces = namespaces
        self._gpus = gpus
        self._endless = endless.tolist()

    def __call__(self, ranked: Ints, running: Bools) -> Iterator[Ints]:
        """Yield the jobs that a dispatch may try, in order; `running` is that of the time."""
        passed_over: set[int] = set()
        for _ in range(_AGAIN):
            tried, capped = self.admit(ranked.tolist(), running, passed_over)
            yield np.array(tried, dtype=np.int64)
            stuck = {
                row for row in tried if not running[row] and self._namespaces[row] in capped
            } - passed_over
            if not stuck:
                return
            passed_over |= stuck

    def admit(
        self, ranked: Sequence[int], running: Bools, passed_over: Set[int] = frozenset()
    ) -> tuple[list[int], set[str]]:
        """Return the jobs that may be tried, in order, and namespaces with a withheld job.

        Jobs that are passed over are tried, and what they ask for is not kept for them.
        """
        names, gpus = self._namespaces, self._gpus
        held, endless = dict(self._shares.outside), dict(self._shares.outside_endless)
        for row in np.flatnonzero(running).tolist():
            name = names[row]
            held[name] = held.get(name, 0) + gpus[row]
            if self._endless[row]:
                endless[name] = endless.get(name, 0) + gpus[row]
        admitted, capped = [], set()
        for row in self._ranked(ranked, running, held):
            name, wants = names[row], gpus[row]
            if not running[row]:
                limits = self._shares.limits[name]
                after = held.get(name, 0) + wants
                lasts = endless.get(name, 0) + wants if self._endless[row] else 0
                if (
                    (limits.most is not None and after > limits.most)
                    or (lasts and limits.endless is not None and lasts > limits.endless)
                    or (not limits.borrow and after > limits.share)
                ):
                    capped.add(name)
                    continue
                if row not in passed_over:
                    held[name] = after
                    if self._endless[row]:
                        endless[name] = lasts
            admitted.append(row)
        return admitted, capped

    def _ranked(
        self, ranked: Sequence[int], running: Bools, held: Mapping[str, int]
    ) -> Iterator[int]:
        """Yield those within their namespaces' shares before all others, in their order."""
        names, gpus, limits = self._namespaces, self._gpus, self._shares.limits
        runs, coming = dict(self._shares.outside), dict(held)
        borrowers = []
        for row in ranked:
            name, share = names[row], limits[names[row]].share
            if running[row]:
                runs[name] = runs.get(name, 0) + gpus[row]
                beyond = runs[name] > share
            else:
                beyond = coming.get(name, 0) + gpus[row] > share
                if not beyond:
                    coming[name] = coming.get(name, 0) + gpus[row]
            if beyond:
                borrowers.append(row)
            else:
                yield row
        yield from borrowers
