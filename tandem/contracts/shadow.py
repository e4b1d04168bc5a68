"""What shadow mode records of the jobs of another scheduler: days of them, each in a ConfigMap.

A job is in the day (UTC) on which it came. The recorder writes days, `tandem report --shadow` reads
them.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from tandem.contracts import names

DAY_S = 86_400
#: For each of 30 days and for today. A day takes the place of the one 31 days before.
SLOTS = 31
_KEY = "day"


class Run(NamedTuple):
    """A pod whose containers have started: its GPUs, when (Unix time), and on which node."""

    gpus: int
    started_s: float
    ended_s: float | None
    node: str


@dataclass(slots=True, kw_only=True)
class ShadowJob:
    """A job as the scheduler that is there ran it; times are Unix times.

    `gpus` is the most that its pods asked for at a time, `gpus_per_pod` the most of one pod, all of
    one node. `runs` are its pods by uid,
    `past_gpu_s` is what pods had that are gone. `ended_s` is absent while a pod of it lives.
    """

    id: str
    namespace: str
    name: str
    kind: str
    arrived_s: float
    gpus: int = 0
    gpus_per_pod: int = 1
    started_s: float | None = None
    ended_s: float | None = None
    past_gpu_s: float = 0.0
    runs: dict[str, Run] = field(default_factory=dict)
    endless: bool = False
    exclusive: bool = False
    checkpoint: bool = False
    model: str = ""
    memory_bytes: int | None = None
    utilisation_percent: float | None = None

    def held_gpu_s(self, now_s: float) -> float:
        """Return GPU-seconds: GPUs of each pod times the time that its containers ran."""
        lasted = (
            run.gpus * max(0.0, (now_s if run.ended_s is None else run.ended_s) - run.started_s)
            for run in self.runs.values()
        )
        return self.past_gpu_s + sum(lasted)

    @property
    def day(self) -> int:
        """The day on which it came, by its number since 1970-01-01 (UTC)."""
        return int(self.arrived_s // DAY_S)


class ShadowNode(NamedTuple):
    """A node that takes pods: its whole GPUs, their type ('' where no label says it), GiB each."""

    name: str
    gpus: int
    gpu_type: str
    memory_gib: float


@dataclass(slots=True, kw_only=True)
class ShadowDay:
    """The jobs that came on one day.

    `since_s` is when the record began, `saved_s` until when this day is known, `missed_s` for how
    long no recorder ran before that, `dropped` how many jobs were too many to be kept.
    """

    number: int
    since_s: float
    saved_s: float
    missed_s: float = 0.0
    dropped: int = 0
    nodes: list[ShadowNode] = field(default_factory=list)
    jobs: dict[str, ShadowJob] = field(default_factory=dict)


def config_map_name(day: int) -> str:
    """Return the name of the ConfigMap of a day."""
    return f"{names.SHADOW_CONFIG_MAP}-{day % SLOTS}"


def packed(day: ShadowDay) -> str:
    """Return a day as it is stored: compressed JSON in base64."""
    value = {
        "day": day.number,
        "since": day.since_s,
        "saved": day.saved_s,
        "missed": day.missed_s,
        "dropped": day.dropped,
        "nodes": day.nodes,
        "jobs": [_line(job) for job in day.jobs.values()],
    }
    text = json.dumps(value, separators=(",", ":")).encode()
    return base64.b64encode(zlib.compress(text, 6)).decode()


def data_of(day: ShadowDay) -> dict[str, str]:
    """Return the `binaryData` of a day's ConfigMap."""
    return {_KEY: packed(day)}


def day_in(config_map: Mapping[str, Any]) -> ShadowDay:
    """Return the day in a ConfigMap.

    Raises:
        ValueError: there is none that can be read.
    """
    try:
        content = base64.b64decode((config_map.get("binaryData") or {})[_KEY])
        value = _DAY.validate_python(json.loads(zlib.decompress(content)))
    except (KeyError, TypeError, ValidationError, zlib.error, RecursionError) as error:
        raise ValueError(f"no day of a record: {str(error)[:512]}") from error
    jobs = [_job(line) for line in value["jobs"]]
    return ShadowDay(
        number=value["day"],
        since_s=value["since"],
        saved_s=value["saved"],
        missed_s=value["missed"],
        dropped=value["dropped"],
        nodes=[ShadowNode(*node) for node in value["nodes"]],
        jobs={job.id: job for job in jobs},
    )


#: The fields of a job as they are stored, `runs` after them.
_FIELDS = (
    "id", "namespace", "name", "kind", "arrived_s", "gpus", "gpus_per_pod", "started_s", "ended_s",
    "past_gpu_s", "endless", "exclusive", "checkpoint", "model", "memory_bytes",
    "utilisation_percent",
)  # fmt: skip


def _line(job: ShadowJob) -> list[Any]:
    """Return what is kept of a job; of one that has ended, its pods count in the sum alone."""
    values = {name: getattr(job, name) for name in _FIELDS}
    runs: dict[str, Run] = {}
    if job.ended_s is not None:
        values["past_gpu_s"] = round(job.held_gpu_s(job.ended_s), 3)
    else:
        runs = {uid: run for uid, run in job.runs.items() if run.ended_s is None}
    return [*values.values(), runs]


def _job(line: Sequence[Any]) -> ShadowJob:
    *values, runs = line
    found = ShadowJob(**dict(zip(_FIELDS, values, strict=True)))
    found.runs = {uid: Run(*run) for uid, run in _RUNS.validate_python(runs).items()}
    return found


_RUNS = TypeAdapter(dict[str, tuple[int, float, float | None, str]])
_LINE = tuple[
    str, str, str, str, float, int, int, float | None, float | None, float,
    bool, bool, bool, str, int | None, float | None, dict[str, Any],
]  # fmt: skip


class _Stored(TypedDict):
    day: int
    since: float
    saved: float
    missed: float
    dropped: int
    nodes: list[tuple[str, int, str, float]]
    jobs: list[_LINE]


_DAY = TypeAdapter(_Stored)
