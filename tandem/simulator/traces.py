"""Readers of traces: the canonical CSV, and what three public clusters published."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tandem.errors import UsageError
from tandem.files import read_csv, read_json, read_table
from tandem.reasons.counting import counted
from tandem.simulator.cluster import RACK
from tandem.simulator.jobs import TraceJob

REQUIRED = ("job_id", "submit_time_s", "num_gpus", "duration_s")
OPTIONAL = ("model", "batch_size", "iterations", "gpu_util", "memory_gib", "memory_peak_gib",
            "peak_probability", "iteration_s", "required_topology",
            "preferred_topology", "min_gpus", "throughput")  # fmt: skip

#: What every program reads as the same number: Python also takes 1_000, and digits of any script.
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_SHOWN = 64  # characters of what is no number
_MOST = 1e12  # of seconds, GPUs and samples: far beyond all that there is, and exact as a float
_HINT = "Check --trace and --format."

Row = tuple[int, TraceJob | str]  # line or number of the record, and the job or what is wrong


@dataclass(frozen=True, slots=True)
class Trace:
    """The jobs of a trace by time of submission, from 0 on, and what was left out."""

    jobs: tuple[TraceJob, ...]
    skipped: tuple[tuple[int, str], ...] = ()


def read_trace(path: Path, format_name: str = "csv", *, strict: bool = False) -> Trace:
    """Read a trace; raises UsageError with the line where `strict` meets a bad row.

    Times start at the first submission. Ties keep the order of the file.
    """
    if format_name not in FORMATS:
        near = get_close_matches(format_name, FORMATS, n=1) or sorted(FORMATS)
        raise UsageError(f"--format {format_name!r} is not known", f"Nearest: {', '.join(near)}.")
    jobs: list[TraceJob] = []
    skipped: list[tuple[int, str]] = []
    for line, found in FORMATS[format_name](path):
        if isinstance(found, TraceJob):
            jobs.append(found)
        elif strict:
            raise UsageError(f"{path}, line {line}: {found}", "Correct it, or leave out --strict.")
        else:
            skipped.append((line, found))
    if not jobs:
        first = f"; the first: line {skipped[0][0]}: {skipped[0][1]}" if skipped else ""
        raise UsageError(
            f"{path} has no usable job ({counted(len(skipped), 'row')} left out{first})",
            "Check --format.",
        )
    start = min(job.submit_s for job in jobs)
    jobs = [replace(job, submit_s=job.submit_s - start) for job in jobs]
    return Trace(tuple(sorted(jobs, key=lambda job: job.submit_s)), tuple(skipped))


def _canonical(path: Path) -> Iterator[Row]:
    """`job_id,submit_time_s,num_gpus,duration_s` and any of the optional columns."""
    rows = read_table(path, _HINT)
    line, names = next(rows)
    for name in names:
        if name not in REQUIRED + OPTIONAL:
            near = get_close_matches(name, REQUIRED + OPTIONAL, n=2)
            hint = f"Nearest: {', '.join(near)}." if near else ""
            raise UsageError(
                f"{path}, line {line}: unknown column {name!r}",
                f"{hint} Columns: {', '.join(REQUIRED + OPTIONAL)}.".strip(),
            )
    if absent := [name for name in REQUIRED if name not in names]:
        raise UsageError(
            f"{path}, line {line}: no column {', '.join(absent)}",
            f"Columns: {', '.join(REQUIRED)}.",
        )
    seen: set[str] = set()
    for line, row in rows:
        yield line, _attempt(_canonical_job, row, seen)


def _canonical_job(row: dict[str, str], seen: set[str]) -> TraceJob:
    _complete(row)
    if row["job_id"] in seen:
        raise ValueError(f"job_id {row['job_id']!r} is there twice")
    job = TraceJob(
        id=row["job_id"],
        submit_s=_number(row, "submit_time_s", 0.0),
        gpus=_whole(row, "num_gpus", 1),
        duration_s=_number(row, "duration_s", 0.0, above=True),
        model=row.get("model") or None,
        batch_size=_whole(row, "batch_size", 1) if row.get("batch_size") else None,
        iterations=_whole(row, "iterations", 1) if row.get("iterations") else None,
        iteration_s=_optional(row, "iteration_s"),
        gpu_utilisation=_optional(row, "gpu_util", 100.0),
        memory_base_gib=_optional(row, "memory_gib"),
        memory_peak_gib=_optional(row, "memory_peak_gib"),
        peak_probability=_optional(row, "peak_probability", 1.0),
        required_topology=_level(row, "required_topology"),
        preferred_topology=_level(row, "preferred_topology"),
        min_gpus=_whole(row, "min_gpus", 1) if row.get("min_gpus") else None,
        throughput=_throughput(row),
    )
    _check_elastic(job)
    if (job.memory_peak_gib or math.inf) < (job.memory_base_gib or 0.0):
        raise ValueError("memory_peak_gib is below memory_gib")
    seen.add(job.id)
    return job


def _throughput(row: dict[str, str]) -> tuple[tuple[int, float], ...]:
    """`1:10 2:19.5 4:36`: GPUs, and work per second on as many."""
    found = []
    for point in (row.get("throughput") or "").split():
        gpus, colon, work_per_s = point.partition(":")
        if not colon:
            raise ValueError(f"throughput {point[:_SHOWN]!r} must be GPUs:throughput, as in 2:19.5")
        pair = {"throughput": gpus}, {"throughput": work_per_s}
        found.append(
            (_whole(pair[0], "throughput", 1), _number(pair[1], "throughput", 0.0, above=True))
        )
    return tuple(found)


def _check_elastic(job: TraceJob) -> None:
    if job.min_gpus is not None and job.min_gpus > job.gpus:
        raise ValueError(f"min_gpus {job.min_gpus} is above num_gpus {job.gpus}")
    counts = [gpus for gpus, _ in job.throughput]
    if counts != sorted(set(counts)):
        raise ValueError("throughput must have each number of GPUs once, the fewest first")
    if counts and not (counts[0] <= job.least_gpus and counts[-1] >= job.gpus):
        raise ValueError(
            f"throughput goes from {counts[0]} to {counts[-1]} GPUs, and must go from"
            f" {job.least_gpus} to {job.gpus}"
        )


def _philly(path: Path) -> Iterator[Row]:
    """`cluster_job_log` of philly-traces: a JSON list of jobs with their attempts."""
    records = read_json(path, _HINT)
    if not isinstance(records, list):
        raise UsageError(f"{path} is not a list of jobs", "Check --format.")
    for number, record in enumerate(records, 1):
        yield number, _attempt(_philly_job, record)


def _philly_job(record: dict[str, Any]) -> TraceJob:
    attempts = [a for a in record["attempts"] if a.get("start_time") and a.get("end_time")]
    if not attempts:
        raise ValueError("no attempt with a start and an end")
    lengths = [_moment(a["end_time"]) - _moment(a["start_time"]) for a in attempts]
    if min(lengths) < 0:
        raise ValueError("an attempt ends before it starts")
    # An attempt that never reached a machine has no details.
    gpus = next((count for count in [_philly_gpus(each) for each in attempts] if count), 0)
    job_id = record["jobid"]
    if not isinstance(job_id, str):
        raise ValueError("jobid is no text")
    return _checked(job_id, _moment(record["submitted_time"]), gpus, sum(lengths))


def _philly_gpus(attempt: dict[str, Any]) -> int:
    machines: Any = attempt.get("detail") or []
    gpus: list[Any] = [None]
    if isinstance(machines, list):
        gpus = [machine["gpus"] for machine in machines]
    if not all(isinstance(each, list) for each in gpus):
        raise ValueError("detail is no list of machines with lists of gpus")
    return sum(len(each) for each in gpus)


def _alibaba(path: Path) -> Iterator[Row]:
    """`pai_task_table` of cluster-trace-gpu-v2020: one task a row, with or without a header."""
    names = ("job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu",
             "plan_mem", "plan_gpu", "gpu_type")  # fmt: skip
    for line, fields in read_csv(path, _HINT):
        if fields[:1] != ["job_name"]:
            yield line, _attempt(_alibaba_job, dict(zip(names, fields, strict=False)))


def _alibaba_job(row: dict[str, str]) -> TraceJob:
    start, end = _number(row, "start_time", 0.0), _number(row, "end_time", 0.0)
    # plan_gpu is in percent of a GPU; a share of one still holds one.
    percent = _number(row, "plan_gpu", 0.0) if row["plan_gpu"] else 0.0
    gpus = _whole(row, "inst_num", 0) * math.ceil(percent / 100)
    return _checked(f"{row['job_name']}/{row['task_name']}", start, gpus, end - start)


def _helios(path: Path) -> Iterator[Row]:
    """`cluster_log.csv` of HeliosData."""
    rows = read_table(path, _HINT)
    next(rows)
    for line, row in rows:
        yield line, _attempt(_helios_job, row)


def _complete(row: dict[str, str]) -> None:
    if "" in row:
        raise ValueError(row[""])


def _helios_job(row: dict[str, str]) -> TraceJob:
    _complete(row)
    return _checked(
        row["job_id"],
        _moment(row["submit_time"]),
        _whole(row, "gpu_num", 0),
        _number(row, "duration", 0.0),
    )


FORMATS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "csv": _canonical,
    "philly": _philly,
    "alibaba": _alibaba,
    "helios": _helios,
}


def _attempt(parse: Callable[..., TraceJob], *args: Any) -> TraceJob | str:  # noqa: ANN401 - passed through
    try:
        return parse(*args)
    except KeyError as error:
        return f"no field {error}"
    except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
        return str(error)


def _checked(job_id: str, submit_s: float, gpus: int, duration_s: float) -> TraceJob:
    if gpus < 1:
        raise ValueError("asks for no GPU")
    if gpus > _MOST:
        raise ValueError(f"asks for more than {_MOST:g} GPUs")
    if not duration_s > 0:
        raise ValueError("ran for no time")
    return TraceJob(job_id, submit_s, gpus, duration_s)


def _moment(text: str) -> float:
    """Return seconds since 1970; a time without a zone is in UTC, wherever the file is read."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _number(row: dict[str, str], name: str, least: float, *, above: bool = False) -> float:
    text = row[name].strip(" ")
    if not _DECIMAL.fullmatch(text):
        raise ValueError(f"{name} {row[name][:_SHOWN]!r} is not a number")
    value = float(text)
    if not math.isfinite(value) or value < least or (above and value <= least):
        raise ValueError(
            f"{name} {row[name]!r} must be {'above' if above else 'at least'} {least:g}"
        )
    if value > _MOST:
        raise ValueError(f"{name} {row[name][:_SHOWN]!r} must be at most {_MOST:g}")
    return value


def _whole(row: dict[str, str], name: str, least: int) -> int:
    value = _number(row, name, least)
    if value != int(value):
        raise ValueError(f"{name} {row[name]!r} is not a whole number")
    return int(value)


def _level(row: dict[str, str], name: str) -> str | None:
    level = row.get(name) or None
    if level not in (None, RACK):
        raise ValueError(f"{name} {row[name][:_SHOWN]!r} must be {RACK}, or empty")
    return level


def _optional(row: dict[str, str], name: str, most: float = math.inf) -> float | None:
    if not row.get(name):
        return None
    value = _number(row, name, 0.0)
    if value > most:
        raise ValueError(f"{name} {row[name]!r} must be at most {most:g}")
    return value
