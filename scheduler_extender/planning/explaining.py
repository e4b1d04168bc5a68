"""Why a job is where it is, or waits: constraints with values and bounds, scores, load. Pure.

A constraint's cause has its value and its bound whether it refuses or not, for those that have
figures; of the others it is enough that they allow the place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from scheduler_extender.cluster.records import Key
from tandem.contracts.resources import GPUJobStatus, Load
from tandem.policy.cluster import GpuArrays
from tandem.policy.job import Job
from tandem.policy.pipeline import Pipeline
from tandem.policy.units import BYTES_PER_GIB
from tandem.reasons.causes import Cause
from tandem.reasons.counting import counted
from tandem.reasons.predicted import predicted_in_words
from tandem.reasons.words import clause, figures, topic_of

GPUS = 4  # of one job that are shown of in full


def constraints(pipeline: Pipeline, job: Job, gpus: GpuArrays, row: int) -> list[dict[str, Any]]:
    """Return what each constraint says of a worker of `job` on `row`, with its figures."""
    found = []
    for constraint in pipeline.constraints:
        allows = bool(constraint(job, gpus)[row])
        cause = constraint.cause(job, gpus, row)
        if not allows:
            says = clause(cause)
        elif constraint.has_figures and _within_bound(cause):
            says = figures(cause)
        else:
            # What is allowed beyond the bound is so for another reason: where all peaks fit
            # together, no chance of a collision counts, and a job that is alone has the GPU.
            says = ""
        found.append(
            {
                "constraint": constraint.kind,
                "topic": topic_of(cause),
                "allows": allows,
                "says": says,
            }
        )
    return found


def _within_bound(cause: Cause) -> bool:
    return cause.value is None or cause.bound is None or cause.value <= cause.bound


def scores(pipeline: Pipeline, job: Job, gpus: GpuArrays, row: int) -> dict[str, float]:
    """Return the score of `row` for `job` by each scorer, in [0, 1]."""
    return {scorer.kind: round(float(scorer(job, gpus)[row]), 3) for scorer in pipeline.scorers}


def prediction(status: GPUJobStatus) -> dict[str, Any] | None:
    """Return what is predicted of one worker, and where each figure comes from."""
    load = status.load
    if load is None:
        return None
    return {
        "memoryBaseGib": round(load.memory_base_bytes / BYTES_PER_GIB, 2),
        "memoryPeakGib": round(
            (load.memory_base_bytes + load.memory_peak_extra_bytes) / BYTES_PER_GIB, 2
        ),
        "memoryUpperGib": round(load.memory_p95_bytes / BYTES_PER_GIB, 2),
        "peakProbability": load.peak_probability,
        "utilisationPercent": load.utilisation_percent,
        "memorySource": load.memory_source.value,
        "utilisationSource": load.utilisation_source.value,
        "modelVersion": load.model_version,
    }


def placed(
    pipeline: Pipeline,
    job: Job,
    gpus: GpuArrays,
    names: Sequence[str],
    more: int,
    load: Load | None,
) -> str:
    """Return in words why `job` goes to `gpus`, called `names`, and to so many `more`."""
    parts = []
    for row, name in enumerate(names):
        shown = [
            f"{each['topic'].lower()} {each['says']}"
            for each in constraints(pipeline, job, gpus, row)
            if each["says"]
        ]
        parts.append(f"{name}: {'; '.join(shown) or 'nothing speaks against it'}")
    if more > 0:
        parts.append(f"and {counted(more, 'more GPU')}")
    if load is not None:
        parts.append(
            "predicted: "
            + predicted_in_words(
                load.memory_p95_bytes / BYTES_PER_GIB, load.memory_source,
                load.utilisation_percent, load.utilisation_source,
            )
        )  # fmt: skip
    return " | ".join(parts)


def named(jobs: Iterable[Key], reader: Key) -> str:
    """Return how `jobs` are called in a message to the owner of `reader`.

    A name can say much about a project, and a message in a GPUJob or an event is read by all who
    may view the namespace.
    """
    all_jobs = list(jobs)
    own = ["/".join(key) for key in all_jobs if key[0] == reader[0]]
    foreign = len(all_jobs) - len(own)
    if foreign == 1:
        own.append("a job of another namespace")
    elif foreign:
        own.append(f"{foreign} jobs of other namespaces")
    return " and ".join((", ".join(own[:-1]), own[-1])) if len(own) > 1 else "".join(own)
