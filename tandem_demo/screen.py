"""Shows a run: two tables while it lasts, and the outcome at its end."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tandem.contracts.resources import Phase
from tandem_demo.result import Result
from tandem_demo.view import GpuRow, JobRow, View
from tandem_demo.workload import GIB

#: From this many columns on, reasons may take a second line.
_WIDE = 100
_STYLE = {
    Phase.QUEUED: "yellow",
    Phase.ADMITTED: "cyan",
    Phase.RUNNING: "green",
    Phase.COMPLETED: "dim",
}


def moment(view: View, width: int) -> RenderableType:
    """Return the tables of GPUs and of jobs at one moment, for so many columns of a terminal."""
    gpus = Table(title=f"GPUs at {view.now_s:.0f} s", box=box.SIMPLE_HEAD, title_justify="left")
    gpus.add_column("GPU")
    gpus.add_column("jobs on it", min_width=30)
    gpus.add_column("memory GiB", justify="right")
    gpus.add_column("busy (mean)", justify="right")
    for gpu in view.gpus:
        gpus.add_row(*_gpu_cells(gpu))
    jobs = Table(title="Jobs", box=box.SIMPLE_HEAD, title_justify="left", expand=True)
    jobs.add_column("job", no_wrap=True)
    jobs.add_column("batch", justify="right", no_wrap=True)
    jobs.add_column("predicted", justify="right", no_wrap=True)
    jobs.add_column("phase", no_wrap=True)
    jobs.add_column("where, or why it waits", ratio=1, no_wrap=width < _WIDE, overflow="ellipsis")
    for row in view.jobs:
        jobs.add_row(*_job_cells(row))
    return Group(gpus, jobs)


def _gpu_cells(gpu: GpuRow) -> tuple[str, str, str, str]:
    report = gpu.report
    memory = busy = "-"
    if report is not None and report.memory_used_bytes is not None:
        memory = f"{report.memory_used_bytes / GIB:.1f} / {report.memory_bytes / GIB:.0f}"
    if report is not None and report.utilisation_percent is not None:
        busy = f"{report.utilisation_percent:.0f} %"
    return gpu.name, " + ".join(gpu.jobs) or "-", memory, busy


def _job_cells(row: JobRow) -> tuple[str | Text, ...]:
    where = "" if row.running_s is None else f"{row.where}, {row.running_s:.1f} s"
    return (
        row.job.name,
        str(row.job.batch_size),
        "-" if row.predicted_gib is None else f"< {row.predicted_gib:.1f} GiB",
        Text(row.phase.value, _STYLE.get(row.phase, "")) if row.phase else "-",
        Text(where or row.reason),
    )


def outcome(result: Result) -> RenderableType:
    """Return what came out, next to the same jobs with a GPU each."""
    jobs = Table(
        box=box.SIMPLE_HEAD,
        title="Jobs (times in s; slowdown: of the whole run, the largest next to others, that as"
        " measured; peak memory in GiB: predicted bound, most that was seen)",
        title_justify="left",
    )
    for name in ("job", "GPU"):
        jobs.add_column(name, no_wrap=True)
    for name in ("waited", "ran", "alone", "slowdown", "sharing", "measured", "bound", "seen"):
        jobs.add_column(name, justify="right", no_wrap=True)
    jobs.add_column("shared with")
    for job in result.jobs:
        jobs.add_row(
            job.name,
            job.gpu,
            f"{job.waited_s:.1f}",
            f"{job.ran_s:.1f}",
            f"{job.alone_s:.0f}",
            f"{job.slowdown:.2f}",
            _figure(job.sharing_slowdown, 2),
            _figure(job.measured_slowdown, 2),
            _figure(job.predicted_memory_gib),
            _figure(job.measured_memory_gib),
            "never shares" if job.exclusive else ", ".join(job.shared_with) or "-",
        )
    totals = Table(box=box.SIMPLE_HEAD)
    totals.add_column("")
    totals.add_column("mean completion s", justify="right")
    totals.add_column("makespan s", justify="right")
    for name, each in (
        ("Tandem (run, scheduling included)", result.tandem),
        ("one GPU each, FIFO (calculated)", result.exclusive_fifo),
    ):
        totals.add_row(name, f"{each.mean_completion_s:.1f}", f"{each.makespan_s:.1f}")
    return Group(jobs, totals, Text("\n".join(result.notes), "dim"))


def _figure(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
