"""The result of a run, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from tandem_demo.kubelet import Run
from tandem_demo.physics import FORMULA, Outcome, exclusive_fifo
from tandem_demo.view import Viewer
from tandem_demo.workload import DemoJob


@dataclass(frozen=True, slots=True)
class JobResult:
    """One job; times in seconds of the demo's clock, slowdowns as ratios of times.

    `slowdown` is that of the whole run, `sharing_slowdown` the largest next to other jobs, both
    calculated; `measured_slowdown` is the largest next to others that was measured, None where none
    was. `measured_memory_gib` is the most that an agent has seen, `predicted_memory_gib` the bound.
    """

    name: str
    model: str
    batch_size: int
    exclusive: bool
    gpu: str
    submitted_s: float
    waited_s: float
    ran_s: float
    alone_s: float
    slowdown: float
    sharing_slowdown: float | None
    measured_slowdown: float | None
    predicted_memory_gib: float | None
    measured_memory_gib: float | None
    shared_with: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """A whole run, and the calculation for one GPU each."""

    gpus: int
    speed: float
    tandem: Outcome
    exclusive_fifo: Outcome
    jobs: tuple[JobResult, ...]
    shared_jobs: int
    measured_jobs: int
    max_jobs_on_a_gpu: int
    bindings: int
    refusals: int
    wall_s: float
    notes: tuple[str, ...]

    def wire(self) -> dict[str, Any]:
        """Return the result as JSON values; milliseconds and MiB are as fine as they mean."""
        rounded: dict[str, Any] = _rounded(asdict(self))
        return rounded


def _rounded(value: Any) -> Any:  # noqa: ANN401 - JSON values
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return value


def notes(rows: Sequence[JobResult], speed: float) -> tuple[str, ...]:
    """Return what a reader must know to read the figures."""
    scale = "1 s of the clock is 1 s" if speed == 1 else f"{speed:g} s of the clock pass in 1 s"
    sharing = [row for row in rows if row.shared_with]
    known = sum(row.measured_slowdown is not None for row in sharing)
    rest = " The others were never alone on a GPU for long." if known < len(sharing) else ""
    return (
        f"Slowdown next to others: calculated, and as measured for {known} of {len(sharing)} jobs"
        f" that shared.{rest}",
        "The extender, the predictor and the agents are the real ones; the GPUs are simulated.",
        f"Loads were chosen by hand; sharing slows jobs by {FORMULA}.",
        f"Times are in seconds of the demo's clock; {scale}.",
    )


class Counts(NamedTuple):
    """Counts of a run; `wall_s` is its duration in real seconds."""

    max_jobs_on_a_gpu: int
    bindings: int
    refusals: int
    wall_s: float


def collect(
    jobs: Sequence[DemoJob],
    runs: Mapping[str, Run],
    viewer: Viewer,
    *,
    gpus: int,
    speed: float,
    counts: Counts,
) -> Result:
    """Return the result of a run in which every job has finished."""
    rows = []
    for job in jobs:
        run = runs[job.name]
        assert run.started_s is not None
        assert run.finished_s is not None
        ran_s = run.finished_s - run.started_s
        rows.append(
            JobResult(
                name=job.name,
                model=job.model,
                batch_size=job.batch_size,
                exclusive=job.exclusive,
                gpu=viewer.place(run.gpu),
                submitted_s=run.submitted_s,
                waited_s=run.started_s - run.submitted_s,
                ran_s=ran_s,
                alone_s=job.solo_s,
                slowdown=ran_s / job.solo_s,
                sharing_slowdown=run.sharing_slowdown,
                measured_slowdown=viewer.measured_slowdown.get(job.name),
                predicted_memory_gib=viewer.predicted_gib.get(job.name),
                measured_memory_gib=viewer.measured_gib.get(job.name),
                shared_with=tuple(sorted(run.neighbours)),
            )
        )
    times = [(row.submitted_s, row.submitted_s + row.waited_s + row.ran_s) for row in rows]
    return Result(
        gpus=gpus,
        speed=speed,
        tandem=Outcome.of(times),
        exclusive_fifo=exclusive_fifo(jobs, gpus),
        jobs=tuple(rows),
        shared_jobs=sum(bool(row.shared_with) for row in rows),
        measured_jobs=sum(row.measured_slowdown is not None for row in rows),
        max_jobs_on_a_gpu=counts.max_jobs_on_a_gpu,
        bindings=counts.bindings,
        refusals=counts.refusals,
        wall_s=counts.wall_s,
        notes=notes(rows, speed),
    )
