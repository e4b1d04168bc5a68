"""`tandem simulate`: replay a trace under any profile before switching anything on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import typer

from tandem.cli.output import err, out, print_json, print_table
from tandem.reasons.counting import counted

if TYPE_CHECKING:
    from tandem.simulator.jobs import TraceJob
    from tandem.simulator.run import Result

_MOST_S = 1e9  # of what starting anew costs: 30 years
_TRACE = typer.Option(None, "--trace", help="Jobs to replay: a CSV, or see --format.")
_CLUSTER = typer.Option(
    [],
    "--cluster",
    help="NODESxGPUS:TYPE, such as 8x8:V100, or 8x8:V100/4 in racks of 4; repeat to add.",
)
_PROFILE = typer.Option([], "--profile", help="Name or YAML file; repeat to compare.")
_SET = typer.Option([], "--set", help="Change a profile's value: order.slice_s=60.")
_TRUTH = typer.Option(
    "none", "--truth", help="none, mix (a default mix of loads), or a file of measured pairs."
)
_JSON = typer.Option(None, "--json", help="Write the figures there; - is stdout.")
_PLOTS = typer.Option(None, "--plots", help="Write pictures into this folder.")


class _Progress:
    """One bar a profile on a terminal; nothing elsewhere."""

    def __init__(self, names: Sequence[str], jobs: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

        self._progress = Progress(
            "{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=err, disable=not err.is_terminal,
        )  # fmt: skip
        self._tasks = {name: self._progress.add_task(name, total=jobs) for name in names}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, name: str, ended: int) -> None:
        """Show how many jobs of a profile have ended."""
        self._progress.update(self._tasks[name], completed=ended)


def _list_profiles() -> None:
    from tandem.policy.catalog import load_profile, profile_names

    rows = [(name, load_profile(name).description) for name in profile_names()]
    print_table("Profiles", ["name", "what it is"], rows)


def _print_table(results: Sequence[Result]) -> None:
    columns = ["profile", "mean JCT s", "p99 s", "makespan s", "preempt", "OOM", "speed", "took s"]
    elastic = any(r.report.resizes is not None for r in results)
    if elastic:
        columns.insert(5, "resizes")
    rows = [
        (
            r.profile,
            round(r.report.avg_jct_s),
            round(r.report.p99_jct_s),
            round(r.report.makespan_s),
            r.report.preemptions,
            *([r.report.resizes] if elastic else []),
            r.report.ooms,
            r.report.mean_speed,
            r.report.wall_s,
        )
        for r in results
    ]
    print_table("", columns, rows)


def _check_outputs(json_: Path | None, plots: Path | None) -> None:
    """Raise UsageError or TandemError for what could not be written after the whole replay."""
    from tandem.errors import UsageError

    if json_ is not None and str(json_) != "-":
        try:
            with json_.open("a"):
                pass
        except OSError as error:
            raise UsageError(f"--json {json_}: {error.strerror}", "Name another file.") from error
    if plots is not None:
        from tandem.simulator.plots import prepare_plots

        prepare_plots(plots)


def _lacks_for_sharing(jobs: Sequence[TraceJob], truth: Path | None) -> str:
    """Say what the replay cannot show of sharing; '' where it can show all."""
    if truth is not None:
        return ""  # what the trace leaves out is drawn
    known = sum(job.model is not None or job.memory_peak_gib is not None for job in jobs)
    if not known:
        return (
            "No job of the trace has a load (model, or memory and utilisation), so no two share a"
            " GPU in this replay: it compares orders alone. For a first look at what sharing could"
            " bring, --truth mix draws loads of a default mix. For your own: measured pairs with"
            " --truth, or loads in the trace (docs/replay.md)."
        )
    return (
        "Without --truth no job slows another one down, so what sharing gains here is a best case."
        " Give measured pairs with --truth: docs/replay.md."
    )


def _assumed_of_elastic(jobs: Sequence[TraceJob]) -> str:
    """Say what is taken to be true of elastic jobs without a throughput; '' where all have one."""
    guessed = sum(job.is_elastic and not job.throughput for job in jobs)
    if not guessed:
        return ""
    has = "has" if guessed == 1 else "have"
    return (
        f"{counted(guessed, 'elastic job')} of the trace {has} no throughput: half as many GPUs are"
        " taken to do half as much. Measured jobs gain less from each further GPU: give throughput"
        " (docs/replay.md)."
    )


def simulate(
    trace: Path | None = _TRACE,
    cluster: list[str] = _CLUSTER,
    profile: list[str] = _PROFILE,
    set_: list[str] = _SET,
    truth: str = _TRUTH,
    preemption_cost: float = typer.Option(
        60.0, min=0, max=_MOST_S, help="Seconds; not with --truth none."
    ),
    resize_cost: float = typer.Option(
        60.0,
        min=0,
        max=_MOST_S,
        help="Seconds in which an elastic job starts anew with other GPUs.",
    ),
    belief_error: float | None = typer.Option(
        None,
        min=0,
        max=100,
        help="Tell policies the truth with this mean error, not a trained model's.",
    ),
    learning: bool = typer.Option(
        True, help="tandem and tandem-guarded learn from pairs that run, as in a cluster."
    ),
    seed: int = typer.Option(0, min=0, help="Of all that is drawn."),
    format_: str = typer.Option("csv", "--format", help="csv, philly, alibaba or helios."),
    strict: bool = typer.Option(False, "--strict", help="Stop at the first bad row."),
    jobs: int = typer.Option(1, min=1, help="Profiles run at a time, each in its own process."),
    json_: Path | None = _JSON,
    plots: Path | None = _PLOTS,
    plot_format: str = typer.Option("svg", help="svg or png."),
    list_: bool = typer.Option(False, "--list", help="List the profiles and stop."),
) -> None:
    """Replay a trace of jobs on a simulated cluster.

    Several profiles are compared.
    """
    if list_:
        _list_profiles()
        return
    from tandem.errors import UsageError
    from tandem.simulator import mix
    from tandem.simulator.cluster import gpu_types, parse_cluster
    from tandem.simulator.run import Setup, run_profiles
    from tandem.simulator.settings import read_profile
    from tandem.simulator.traces import read_trace

    if trace is None or not cluster:
        raise UsageError("--trace and --cluster are needed", "See tandem simulate --help.")
    if plot_format not in ("svg", "png"):
        raise UsageError(f"--plot-format {plot_format!r} is not svg or png")
    _check_outputs(json_, plots)
    profiles = [read_profile(name, set_) for name in profile or ["tandem"]]
    nodes = tuple(parse_cluster(spec) for spec in cluster)
    read = read_trace(trace, format_, strict=strict)
    for line, reason in read.skipped[:5]:
        err.print(f"line {line}: {reason}", highlight=False, markup=False)
    if read.skipped:
        err.print(f"{counted(len(read.skipped), 'row')} left out, {len(read.jobs)} jobs kept.")
    truth_file = {"none": None, "mix": mix.FILE}.get(truth, Path(truth))
    assumed: list[str] = []
    if truth == "mix":
        assumed = mix.what_the_mix_assumes(gpu_types(nodes), seed)
        err.print(" ".join(assumed), highlight=False)
    elif lacks := _lacks_for_sharing(read.jobs, truth_file):
        err.print(lacks, highlight=False)
    if guessed := _assumed_of_elastic(read.jobs):
        err.print(guessed, highlight=False)
        assumed.append(guessed)
    setup = Setup(
        read.jobs, nodes, truth_file, seed, preemption_cost, belief_error,
        resize_cost_s=resize_cost, learns=learning,
    )  # fmt: skip
    with _Progress([p.name for p in profiles], len(read.jobs)) as progress:
        results = run_profiles(setup, profiles, processes=jobs, progress=progress.show)
    document: dict[str, object] = {
        "profiles": {r.profile: r.report.as_json() for r in results},
        **({"assumed": assumed} if assumed else {}),
    }
    if json_ is not None and str(json_) == "-":
        print_json(document)
    else:
        _print_table(results)
        if truth == "mix":  # also where the table alone is kept
            out.print("Estimates with a default mix of loads, and not yours.", highlight=False)
    # Files come last: where one cannot be written, what was found has been shown.
    if json_ is not None and str(json_) != "-":
        import json

        json_.write_text(json.dumps(document, indent=2) + "\n")
    if plots is not None:
        from tandem.simulator.plots import write_plots

        for path in write_plots(results, plots, plot_format):
            err.print(f"wrote {path}", highlight=False)
