"""Traces that are measured, at a load that is chosen; matrices, measured or drawn."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.drawn import drawn_matrix
from benchmarks.tables import data_folder, load_trace
from studies.papers import pollux
from tandem.simulator.gavel import PairMatrix, load_matrix
from tandem.simulator.jobs import TraceJob


def measured_trace(name: str, *, jobs: int, gpus: int, load: float) -> tuple[TraceJob, ...]:
    """Return `jobs` jobs of a shared trace, its arrivals stretched to offer `load`.

    `name` is that of a trace, and its first jobs are taken; or `name@k`, and those after k times as
    many; or `pollux-` and the name of one of Pollux' workloads.
    """
    name, _, window = name.partition("@")
    at = jobs * int(window or 0)
    found = [job for job in _whole_trace(name) if job.gpus <= gpus][at : at + jobs]
    work = sum(job.gpus * job.duration_s for job in found)
    span = found[-1].submit_s - found[0].submit_s
    factor = work / gpus / load / span
    start = found[0].submit_s
    return tuple(replace(job, submit_s=(job.submit_s - start) * factor) for job in found)


def _whole_trace(name: str) -> tuple[TraceJob, ...]:
    if not name.startswith("pollux-"):
        return load_trace(name)
    jobs = pollux.workload(name.removeprefix("pollux-"), pollux.applications(0))
    return tuple(job.trace for job in jobs)


def matrix(kind: str, seed: int) -> PairMatrix:
    """Return `v100` or `p100` as measured, or a matrix that is drawn (`drawn_matrix`)."""
    if kind in ("v100", "p100"):
        return load_matrix(data_folder() / "colocation" / "gavel-oracle-v100-p100.json", kind)
    return drawn_matrix(kind, seed)
