"""A report: the sums of days by what the reader asks for. Pure; it runs in a thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from scheduler_extender.accounting.account import Account
from scheduler_extender.accounting.days import DAY_S, FIGURES, Day, Sums, day_of
from tandem.reasons.words import KINDS, kind_of

#: By what the rows of a report may be: the place of each in a row of a day.
BY = {"namespace": 0, "user": 1, "model": 2, "gpu-type": 3, "day": -1}
_JOBS = 1000
_COUNTS = ("jobs", "failed")
_SECONDS = ("waited", "ran")


def with_now(
    days: Mapping[int, Day], ended: Iterable[Account], running: Iterable[Account], now_s: float
) -> dict[int, Day]:
    """Return the stored days with what has come since: jobs that have ended, and open ones."""
    newest = days[max(days)] if days else Day(day_of(now_s))
    current = newest.next(max(day_of(now_s), newest.number + 1)) if newest.closed else newest.copy()
    ends: dict[str, float] = {}
    for account in ended:
        current.take(account)
        ends[account.uid] = account.until_s
    for account in running:
        if account.until_s > ends.get(account.uid, -1.0):  # else it has ended since it was read
            current.take_open(account)
    return {**days, current.number: current}


def report_of(
    days: Mapping[int, Day], now_s: float, count: int, by: str, namespace: str | None
) -> dict[str, Any]:
    """Return the last `count` days until now, by one of `BY`; of one namespace, or of all."""
    at, last = BY[by], day_of(now_s)
    groups: dict[str, Sums] = {}
    types: dict[str, dict[str, float]] = {}
    total, jobs = Sums(), list[dict[str, Any]]()
    for number in sorted(days):
        if number <= last - count:
            continue
        for row, sums in days[number].rows.items():
            if namespace is not None and row[0] != namespace:
                continue
            key = _date(number) if at < 0 else row[at]
            groups.setdefault(key, Sums()).include(sums)
            of_types = types.setdefault(key, {})
            of_types[row[3]] = of_types.get(row[3], 0.0) + occupied(sums)
            total.include(sums)
        jobs += (j for j in days[number].jobs if namespace is None or j["namespace"] == namespace)
    order = sorted(groups, key=lambda key: key if at < 0 else (-groups[key].named()["held"], key))
    all_types: dict[str, float] = {}
    for of_types in types.values():
        for gpu_type, amount in of_types.items():
            all_types[gpu_type] = all_types.get(gpu_type, 0.0) + amount
    jobs.sort(key=lambda job: -job["endedAt"])
    return {
        "time": datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds"),
        "from": _date(last - count + 1),
        "to": _date(last),
        "since": _date(min(days)) if days else None,
        "by": by,
        "namespace": namespace,
        "rows": [{"key": key, **_line(groups[key], types[key])} for key in order],
        "total": {**_line(total, all_types), "waits": _waits(total)},
        "jobs": jobs[:_JOBS],
        "jobsNotShown": max(0, round(total.named()["jobs"]) - min(len(jobs), _JOBS)),
    }


def occupied(sums: Sums) -> float:
    """Return the GPU-seconds that jobs had, those of a shared GPU divided among its jobs."""
    of = sums.named()
    shared = of["saved"] + of["lost"] + of["saved_predicted"] + of["lost_predicted"]
    return max(0.0, of["held"] - shared)


def _line(sums: Sums, types: Mapping[str, float]) -> dict[str, Any]:
    line: dict[str, Any] = {}
    for name in FIGURES:
        amount = sums.named()[name]
        if name in _COUNTS:
            line[name] = round(amount)
        elif name in _SECONDS:
            line[f"{name}Seconds"] = round(amount, 1)
        else:
            first, *rest = name.split("_")
            line[f"{first}{''.join(map(str.title, rest))}GpuSeconds"] = round(amount, 3)
    return line | {
        "occupiedGpuSeconds": round(occupied(sums), 3),
        "occupiedGpuSecondsByType": {name: round(amount, 3) for name, amount in types.items()},
        "waitSecondsByReason": {
            reason: round(waited_s, 1)
            for reason, waited_s in sorted(sums.waits.items(), key=lambda each: -each[1])
        },
    }


def _waits(sums: Sums) -> list[dict[str, Any]]:
    """Return why jobs waited, by the groups in which the status page has reasons."""
    by_kind: dict[str, float] = {}
    for reason, waited_s in sums.waits.items():
        kind = kind_of((), reason)
        by_kind[kind] = by_kind.get(kind, 0.0) + waited_s
    return [
        {"reason": kind, "words": KINDS[kind], "seconds": round(waited_s, 1)}
        for kind, waited_s in sorted(by_kind.items(), key=lambda each: (-each[1], each[0]))
    ]


def _date(number: int) -> str:
    return datetime.fromtimestamp(number * DAY_S, UTC).date().isoformat()
