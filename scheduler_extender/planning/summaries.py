"""The reason why a job waits, without figures: equal events add up to one event."""

from __future__ import annotations

import re

from tandem.policy.decision import Waits
from tandem.policy.job import Job

_FIGURE = re.compile(r"(?<![\w./-])\d+(\.\d+)?(?![\w/-])")


def summary_of(job: Job, found: Waits) -> str:
    """Return which constraints keep a job from its GPUs; GPUJobs have the figures."""
    wants = f"{job.gpus_per_pod} GPU(s) on one node"
    if job.pods > 1:
        wants = f"{job.pods} times {wants}"
    parts = [f"waits for {wants}"]
    constraints = sorted({refusal.constraint for refusal in found.refusals})
    if constraints:
        parts.append(f"GPUs are refused by {', '.join(constraints)}")
    if "cannot run its pods" in found.message:
        parts.append("some nodes cannot run its pods")
    return "; ".join(parts)


def without_figures(text: str) -> str:
    """Return a sentence with N for each number that stands alone; names keep their digits."""
    return _FIGURE.sub("N", text)
