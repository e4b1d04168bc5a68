"""Why a node was refused, as `kubectl describe pod` shows it."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.policy.cluster import GpuArrays
from tandem.policy.job import Job
from tandem.policy.pipeline import evaluate
from tandem.policy.ports import Constraint

_NAMED = 4  # GPUs named per sentence; the rest are counted


def node_reason(
    job: Job, gpus: GpuArrays, ids: Sequence[str], constraints: Sequence[Constraint]
) -> str:
    """Say why one node's GPUs (`gpus`, called `ids`) cannot take a pod of `job`.

    GPUs that are refused for the same reason with the same figures share a sentence.
    """
    evaluation = evaluate(job, gpus, constraints)
    named: dict[str, list[str]] = {}
    for row, index in enumerate(evaluation.refused_by.tolist()):
        if index >= 0:
            named.setdefault(constraints[index].sentence(job, gpus, row), []).append(ids[row])
    allowed = int(evaluation.allowed.sum())
    parts = [f"{_listed(gpu_ids)}: {sentence}" for sentence, gpu_ids in named.items()]
    if allowed:
        parts.insert(0, f"{allowed} of the {job.gpus_per_pod} GPUs wanted")
    return "; ".join(parts)


def reason_of_many(kind: str, wanted: int) -> str:
    """Say why a node was refused where many were: the same words for all, which are counted."""
    return f"fewer than {wanted} GPU(s) can take it, mostly refused by {kind}"


def _listed(ids: Sequence[str]) -> str:
    more = len(ids) - _NAMED
    return ", ".join(ids[:_NAMED]) + (f" and {more} more" if more > 0 else "")
