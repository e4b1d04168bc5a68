"""The sums of a day, and which jobs are in them already. Pure: no clock, no I/O.

A day has the sums of the jobs that ended on it, in rows by (namespace, user, model, GPU type). A
job that runs over midnight is in the sums of each day: when a day is closed, what each open job has
had until then is added to it and kept with it (`carried`). The next day counts from there. All of a
day is written in one piece, so that no part of a job is counted twice or not at all, whenever a
writer is killed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from scheduler_extender.accounting.account import DELETED, Account
from tandem.policy.votes import beyond_bound

DAY_S = 86_400
#: Figures of a row: numbers of jobs, GPU-seconds, and (waited, ran) seconds.
FIGURES = (
    "jobs", "failed", "asked", "held", "used", "used_predicted", "saved", "saved_predicted",
    "lost", "lost_predicted", "waited", "ran",
)  # fmt: skip
#: Rows of a day, and of one namespace on it; beyond them, users and models count as `OTHERS`.
MOST_ROWS, MOST_OF_NAMESPACE = 1000, 100
OTHERS = "(others)"
#: Single jobs that are kept of a day: the namespace that has most loses its oldest.
MOST_JOBS = 500
_NEIGHBOURS = 4  # of a single job, the latest
#: How long ends are remembered, by uid. A job that ended before has been counted.
REMEMBERED_S = 3600.0

Row = tuple[str, str, str, str]
_AT = {name: number for number, name in enumerate(FIGURES)}


@dataclass(slots=True)
class Sums:
    """The figures of a row, and the seconds that its jobs waited by reason."""

    figures: list[float] = field(default_factory=lambda: [0.0] * len(FIGURES))
    waits: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, amount: float) -> None:
        """Add to a figure."""
        self.figures[_AT[name]] += amount

    def include(self, other: Sums) -> None:
        """Add all figures of another row."""
        for number, amount in enumerate(other.figures):
            self.figures[number] += amount
        for reason, waited_s in other.waits.items():
            self.waits[reason] = self.waits.get(reason, 0.0) + waited_s

    def named(self) -> dict[str, float]:
        """Return the figures by name."""
        return dict(zip(FIGURES, self.figures, strict=True))


@dataclass(frozen=True, slots=True)
class Counted:
    """The part of a job in the sums of earlier days: its service, and until when it was counted."""

    held_gpu_s: float = 0.0
    until_s: float = -1e18


_NOTHING = Counted()


@dataclass(slots=True)
class Day:
    """One day, by its number since 1970-01-01 (UTC).

    `counted` has the jobs that were open when it began, `carried` those that were when it was
    closed. `ended` and `deleted` are the ends of the last hour, by uid; jobs that ended until
    `certain_until_s` are counted.
    """

    number: int
    rows: dict[Row, Sums] = field(default_factory=dict)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    counted: dict[str, Counted] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    deleted: dict[str, float] = field(default_factory=dict)
    certain_until_s: float = -1e18
    carried: dict[str, Counted] = field(default_factory=dict)
    closed: bool = False

    def has(self, account: Account) -> bool:
        """Say whether the end of a job is counted; its uid may have ended before."""
        if account.until_s <= self.certain_until_s or account.uid in self.deleted:
            return True
        if account.phase == DELETED and account.uid not in self.ended:
            return False
        known = self.ended.get(account.uid)
        return known is not None and account.until_s <= known + 1e-3

    def take(self, account: Account) -> None:
        """Count a job that has ended; once, however often it is taken."""
        if self.has(account):
            return
        self._add(account, self.counted.pop(account.uid, _NOTHING))
        row = self._row(account)
        row.add("jobs", not account.goes_on)
        row.add("failed", account.phase == "Failed")
        row.add("waited", sum(account.waits.values()))
        if account.started_s is not None:
            row.add("ran", max(0.0, account.until_s - max(account.started_s, account.counted_s)))
        for reason, waited_s in account.waits.items():
            row.waits[reason] = row.waits.get(reason, 0.0) + waited_s
        ends = self.deleted if account.phase == DELETED else self.ended
        ends[account.uid] = account.until_s
        if not account.goes_on:
            self.jobs.append(line_of(account))
            self._forget(len(self.jobs) - MOST_JOBS)

    def take_open(self, account: Account) -> None:
        """Count what an open job has had until now: for a reader, or at the end of the day."""
        if account.uid not in self.deleted:
            self._add(account, self.counted.get(account.uid, _NOTHING))

    def close(self, accounts: Iterable[Account]) -> None:
        """End the day: the open jobs count until now, and go on from here on the next."""
        for account in accounts:
            if account.uid not in self.deleted:
                self.take_open(account)
                self.carried[account.uid] = Counted(account.held_gpu_s, account.until_s)
        self.counted, self.closed = {}, True

    def next(self, number: int) -> Day:
        """Return a new day that goes on where this one was closed."""
        return Day(
            number=number,
            counted=dict(self.carried),
            ended=dict(self.ended),
            deleted=dict(self.deleted),
            certain_until_s=self.certain_until_s,
        )

    def settle(self, now_s: float) -> None:
        """Forget the ends before the last hour; the caller has taken all that it knows of."""
        self.certain_until_s = max(self.certain_until_s, now_s - REMEMBERED_S)
        for ends in (self.ended, self.deleted):
            for uid in [uid for uid, end_s in ends.items() if end_s <= self.certain_until_s]:
                del ends[uid]

    def copy(self) -> Day:
        """Return a day that can be changed without this one."""
        return deepcopy(self)

    def _add(self, account: Account, known: Counted) -> None:
        """Add what a job has had since it was last counted."""
        row, parts = self._row(account), account.parts
        held = max(0.0, account.held_gpu_s - known.held_gpu_s)
        wanted_s = account.until_s - max(account.queued_s, account.counted_s, known.until_s)
        row.add("asked", account.gpus * max(0.0, wanted_s))
        row.add("held", held)
        row.add("used" if parts.used_measured else "used_predicted", held * parts.used)
        row.add("saved", held * (parts.neighbours - parts.lost))
        row.add("saved_predicted", held * (parts.predicted_neighbours - parts.predicted_lost))
        row.add("lost", held * parts.lost)
        row.add("lost_predicted", held * parts.predicted_lost)

    def _row(self, account: Account) -> Sums:
        key = (account.namespace, account.user, account.model, account.gpu_type)
        if key in self.rows:
            return self.rows[key]
        of_namespace = sum(row[0] == account.namespace for row in self.rows)
        if of_namespace >= MOST_OF_NAMESPACE or len(self.rows) >= MOST_ROWS:
            key = (account.namespace, OTHERS, OTHERS, account.gpu_type)
        if key not in self.rows and len(self.rows) >= 2 * MOST_ROWS:
            key = (OTHERS, OTHERS, OTHERS, OTHERS)
        return self.rows.setdefault(key, Sums())

    def _forget(self, beyond: int) -> None:
        if beyond > 0:
            rows = ((number, job["namespace"]) for number, job in enumerate(self.jobs))
            out = set(beyond_bound(rows, len(self.jobs) - beyond))
            self.jobs = [job for number, job in enumerate(self.jobs) if number not in out]

    def shed(self) -> bool:
        """Keep half of the single jobs; False where there is none."""
        self._forget(-(-len(self.jobs) // 2))
        return bool(self.jobs)


def day_of(unix_s: float) -> int:
    """Return the number of the day of a Unix time."""
    return int(unix_s // DAY_S)


def line_of(account: Account) -> dict[str, Any]:
    """Return what is kept of a single job."""
    parts, held = account.parts, account.held_gpu_s
    started_s = account.started_s
    return {
        "namespace": account.namespace,
        "name": account.name,
        "uid": account.uid,
        "user": account.user,
        "model": account.model,
        "gpuType": account.gpu_type,
        "gpus": account.gpus,
        "phase": account.phase,
        "queuedAt": round(account.queued_s, 3),
        "startedAt": None if started_s is None else round(started_s, 3),
        "endedAt": round(account.until_s, 3),
        "waitSeconds": round(sum(account.waits.values()), 1),
        "runSeconds": 0.0 if started_s is None else round(account.until_s - started_s, 1),
        "heldGpuSeconds": round(held, 3),
        "occupiedGpuSeconds": round(held * (1 - parts.neighbours - parts.predicted_neighbours), 3),
        "usedGpuSeconds": round(held * parts.used, 1),
        "usedMeasured": parts.used_measured,
        "lostGpuSeconds": round(held * (parts.lost + parts.predicted_lost), 1),
        "slowdown": account.slowdown,
        "neighbours": [list(each) for each in account.neighbours[-_NEIGHBOURS:]],
    }


# --- how it is stored ---------------------------------------------------------------------------

_Pair = tuple[float, float]
_ROWS = TypeAdapter(list[tuple[Row, list[float], dict[str, float]]])
_PAIRS = TypeAdapter(dict[str, _Pair])
_TIMES = TypeAdapter(dict[str, float])
_JOBS = TypeAdapter(list[dict[str, Any]])


def packed(day: Day) -> bytes:
    """Return a day as it is stored: compressed JSON."""

    def pairs(counted: Mapping[str, Counted]) -> dict[str, list[float]]:
        return {u: [round(c.held_gpu_s, 3), round(c.until_s, 3)] for u, c in counted.items()}

    value = {
        "day": day.number,
        "figures": FIGURES,
        "rows": [
            [
                row,
                [round(f, 3) for f in sums.figures],
                {r: round(s, 3) for r, s in sums.waits.items()},
            ]
            for row, sums in day.rows.items()
        ],
        "jobs": day.jobs,
        "counted": pairs(day.counted),
        "carried": pairs(day.carried),
        "ended": day.ended,
        "deleted": day.deleted,
        "certainUntil": day.certain_until_s,
        "closed": day.closed,
    }
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 6)


def unpacked(content: bytes) -> Day:
    """Return a stored day.

    Raises:
        ValueError: it is none.
    """
    try:
        value = json.loads(zlib.decompress(content))
        names = [str(name) for name in value["figures"]]
        rows: dict[Row, Sums] = {}
        for row, figures, waits in _ROWS.validate_python(value["rows"]):
            known = dict(zip(names, figures, strict=True))
            rows[row] = Sums([known.get(name, 0.0) for name in FIGURES], waits)

        def pairs(name: str) -> dict[str, Counted]:
            return {u: Counted(*pair) for u, pair in _PAIRS.validate_python(value[name]).items()}

        return Day(
            number=int(value["day"]),
            rows=rows,
            jobs=_JOBS.validate_python(value["jobs"]),
            counted=pairs("counted"),
            carried=pairs("carried"),
            ended=_TIMES.validate_python(value["ended"]),
            deleted=_TIMES.validate_python(value["deleted"]),
            certain_until_s=float(value["certainUntil"]),
            closed=bool(value["closed"]),
        )
    except (KeyError, TypeError, ValidationError, zlib.error, RecursionError) as error:
        raise ValueError(f"no day of a report: {error}") from error
