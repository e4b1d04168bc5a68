"""Learning over a history that grows, and among jobs that declare too little."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.tables import data_folder, markdown
from studies.learning.errors import figures, mean, spread, with_loop
from tandem.policy.catalog import load_profile
from tandem.policy.job import Job
from tandem.policy.units import Floats
from tandem.simulator.cluster import gpu_arrays, parse_cluster
from tandem.simulator.engine import Engine, RunOptions
from tandem.simulator.gavel import PairMatrix, load_matrix
from tandem.simulator.jobs import TraceJob
from tandem.simulator.report import report
from tandem.simulator.world import World, measured_world

MODELS, JOBS = 40, 2000
LIARS = 0.1
LIARS_JOBS, LIARS_TRIALS = 500, 4  # trials for each seed that is asked for
LIE = 0.25  # of its true memory and utilisation is what a liar declares


# --- a history that grows -----------------------------------------------------------------------


def drawn_matrix(rng: np.random.Generator) -> PairMatrix:
    """Draw what each of the models suffers next to each other: log-uniform, 2 to 120 %."""
    slowdown = np.exp(rng.uniform(np.log(0.02), np.log(1.2), size=(MODELS, MODELS)))
    return PairMatrix(tuple(f"model-{i:02}" for i in range(MODELS)), slowdown)


def drawn_trace(rng: np.random.Generator, jobs: int = JOBS) -> list[TraceJob]:
    """Draw one-GPU jobs of a heavy tail for 32 GPUs at a load over 1."""
    submit = np.cumsum(rng.exponential(60.0, size=jobs))
    duration = np.exp(rng.normal(np.log(1200), 1.0, size=jobs)).clip(120, 4 * 86_400)
    gpus = rng.choice([1, 1, 1, 1, 2, 4], size=jobs)
    return [
        TraceJob(str(i), float(s), int(g), float(d))
        for i, (s, d, g) in enumerate(zip(submit, duration, gpus, strict=True))
    ]


def history(seeds: int) -> list[dict[str, object]]:
    """Run 2,000 jobs of 40 models, and follow the error of the predictions."""
    found = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        trace, matrix = drawn_trace(rng), drawn_matrix(rng)
        for loop in (False, True):
            profile = load_profile("tandem")
            profile = with_loop(profile) if loop else profile
            gpus = gpu_arrays([parse_cluster("4x8")], shares=2)
            world = measured_world(trace, gpus, matrix, seed=seed, belief_error=0.5)
            believed = _believed(world)
            course: list[tuple[int, float]] = []

            def note(ended: int, believed: Floats = believed, truth: Floats = matrix.slowdown,
                     course: list[tuple[int, float]] = course) -> None:  # fmt: skip
                if ended % 50 == 0 or ended == 1:
                    off = float(np.abs((1 + believed) / (1 + truth) - 1).mean())
                    course.append((ended, off))

            engine = Engine(trace, world.believed, gpus, profile, world.truth, seed=seed,
                            options=RunOptions(on_progress=note))  # fmt: skip
            outcome = engine.run()
            reached = figures(report(outcome, world.truth, len(gpus), 0.0))
            found.append({"seed": seed, "loop": loop, "course": course, **reached})
            print(seed, loop, course[0], course[-1], reached, flush=True)
    return found


def _believed(world: World) -> Floats:
    """Return a live view of what is believed of each pair of models, (models, models)."""
    table = world.believed[0].own_slowdown
    assert table is not None
    base = table.base
    assert isinstance(base, np.ndarray)
    view: Floats = base[2:, 2:]
    return view


def history_plot(runs: Sequence[dict[str, object]], path: Path) -> None:
    """Draw the error over the jobs that have ended."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "tandem"
    plt.figure(figsize=(7, 4))
    for run in runs:
        x, y = zip(*run["course"], strict=True)  # type: ignore[call-overload]
        colour, label = ("C0", "with the loop") if run["loop"] else ("C1", "without")
        plt.plot(x, 100 * np.array(y), colour, label=label if run["seed"] == 0 else None)
    plt.xlabel("jobs ended")
    plt.ylabel("mean error over all pairs of models, %")
    plt.ylim(bottom=0)
    plt.legend()
    plt.tight_layout()
    plt.savefig(path, metadata={"Date": None})
    plt.close()


def history_table(runs: Sequence[dict[str, object]]) -> str:
    """Return the error after so many jobs, and what it came to."""
    lines = []
    for loop in (False, True):
        courses = [dict(map(tuple, r["course"])) for r in runs if r["loop"] == loop]  # type: ignore[call-overload]
        marks = [
            f"{100 * np.mean([c[n] for c in courses]):.1f} %" for n in (1, 250, 500, 1000, 2000)
        ]
        at = [r for r in runs if r["loop"] == loop]
        jct = float(np.mean([r["jct"] for r in at]))  # type: ignore[arg-type]
        speed = float(np.mean([r["speed"] for r in at]))  # type: ignore[arg-type]
        lines.append(
            ["with the loop" if loop else "without", *marks, f"{jct:,.0f}", f"{speed:.3f}"]
        )
    return markdown(["", "after 1 job", "250", "500", "1,000", "2,000", "mean completion, s",
                     "mean speed"], lines)  # fmt: skip


# --- liars ----------------------------------------------------------------------------------------


def liars(seeds: int) -> list[dict[str, float | str]]:
    """Let a tenth of the jobs declare a quarter of their memory, guarded by measurement or not."""
    matrix = load_matrix(data_folder() / "colocation" / "gavel-oracle-v100-p100.json")
    rows: list[dict[str, float | str]] = []
    for seed in range(LIARS_TRIALS * seeds):
        rng = np.random.default_rng(seed)
        trace = drawn_trace(rng, LIARS_JOBS)
        lying = rng.random(len(trace)) < LIARS
        for case in ("all honest", "guarded", "not guarded"):
            gpus = gpu_arrays([parse_cluster("4x8")], shares=2)
            world = measured_world(trace, gpus, matrix, seed=seed, belief_error=0.0)
            believed = [
                _lie(job) if case != "all honest" and lies else job
                for job, lies in zip(world.believed, lying, strict=True)
            ]
            tandem, guarded = load_profile("tandem"), case == "guarded"
            engine = Engine(trace, believed, gpus, tandem, world.truth, seed=seed, guarded=guarded)
            out = engine.run()
            jct = out.end_s - out.submit_s
            speed = (out.duration_s + out.overhead_s) / out.run_s
            rows.append(
                {
                    "case": case,
                    "seed": seed,
                    "honest_jct": float(jct[~lying].mean()),
                    "honest_speed": float(speed[~lying].mean()),
                    "honest_ooms": int(out.ooms[~lying].sum()),
                    "honest_lost_s": float(out.overhead_s[~lying].sum()),
                    "liars_jct": float(jct[lying].mean()),
                    "liars_ooms": int(out.ooms[lying].sum()),
                }
            )
            print(rows[-1], flush=True)
    return rows


def _lie(job: Job) -> Job:
    return replace(
        job,
        memory_base_gib=LIE * job.memory_base_gib,
        memory_peak_extra_gib=LIE * job.memory_peak_extra_gib,
        gpu_utilisation=LIE * job.gpu_utilisation,
    )


def liars_table(rows: Sequence[dict[str, float]]) -> str:
    """Return one line for each case, means over seeds."""
    lines = []
    for case in ("all honest", "guarded", "not guarded"):
        jct = mean(rows, "honest_jct", case=case)
        lines.append(
            [
                case,
                f"{jct:,.0f} ({_change_for_honest(rows, case)})",
                f"{mean(rows, 'honest_speed', case=case):.3f}",
                f"{mean(rows, 'honest_ooms', case=case):.1f}",
                f"{mean(rows, 'liars_jct', case=case):,.0f}",
                f"{mean(rows, 'liars_ooms', case=case):.1f}",
            ]
        )
    columns = ["", "honest jobs: mean completion, s", "mean speed", "killed for memory",
               "liars: mean completion, s", "evicted or killed for memory"]  # fmt: skip
    return markdown(columns, lines)


def _change_for_honest(rows: Sequence[dict[str, float]], case: str) -> str:
    """Return how honest jobs' mean completion differs from when all are honest, seed by seed."""
    base = {r["seed"]: r["honest_jct"] for r in rows if r["case"] == "all honest"}
    found = np.array([r["honest_jct"] / base[r["seed"]] - 1 for r in rows if r["case"] == case])
    return spread(found)
