"""Reports a run: the figures of the JSON and of the tables."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from tandem.simulator.outcome import Outcome
from tandem.simulator.truth import Truth


@dataclass(frozen=True, slots=True)
class Report:
    """One profile's figures. Completion time (JCT) runs from submission to end."""

    jobs: int
    avg_jct_s: float
    median_jct_s: float
    p95_jct_s: float
    p99_jct_s: float
    makespan_s: float
    avg_queue_s: float  # not on GPUs: before the first start and while preempted
    preemptions: int
    migrations: int
    ooms: int
    mean_gpu_utilisation: float  # percent of all GPUs over the makespan
    gpu_seconds: float  # GPUs with at least one job, over time
    max_gpus_used: int
    mean_slowdown: float  # time on GPUs / solo time of the same work - 1, mean over jobs
    mean_speed: float  # solo time / time on GPUs of the same work, mean over jobs
    wall_s: float
    resizes: int | None = None  # of elastic jobs while they ran; None: no job is elastic
    shrinks: int | None = None  # those of them by which a job got smaller

    def as_json(self) -> dict[str, float | int]:
        """Return the figures by name, those that there are."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def report(outcome: Outcome, truth: Truth, gpus: int, wall_s: float) -> Report:
    """Return the figures of one run on a cluster of `gpus` GPUs."""
    jct = outcome.end_s - outcome.submit_s
    makespan = float(outcome.end_s.max() - outcome.submit_s.min())
    work = outcome.duration_s + outcome.overhead_s
    elastic = ~np.isnan(outcome.elastic_gpu_s)
    work_gpu_s = np.where(elastic, outcome.elastic_gpu_s, outcome.gpus * work)
    busy = float((work_gpu_s * truth.gpu_utilisation).sum())
    median, p95, p99 = np.percentile(jct, [50, 95, 99])
    return Report(
        jobs=len(jct),
        avg_jct_s=float(jct.mean()),
        median_jct_s=float(median),
        p95_jct_s=float(p95),
        p99_jct_s=float(p99),
        makespan_s=makespan,
        avg_queue_s=float((jct - outcome.run_s).mean()),
        preemptions=int(outcome.preemptions.sum()),
        migrations=int(outcome.migrations.sum()),
        ooms=int(outcome.ooms.sum()),
        mean_gpu_utilisation=busy / (gpus * makespan),
        gpu_seconds=outcome.busy_gpu_s,
        max_gpus_used=outcome.max_gpus_used,
        mean_slowdown=float((outcome.run_s / work).mean() - 1),
        mean_speed=float((work / outcome.run_s).mean()),
        wall_s=wall_s,
        resizes=int(outcome.resizes.sum()) if elastic.any() else None,
        shrinks=int(outcome.shrunk.sum()) if elastic.any() else None,
    )
