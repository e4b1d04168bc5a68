"""What each knob of the queue does, by the simulator: one table, for docs/queueing.md.

The workload of `studies.plane` at a hundred times its length (most jobs 17 to 33 minutes, a few
100 to 150), 300 gangs on two nodes of four GPUs at a load of 1.1, a minute for each preemption.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

from studies.plane.jobs import simulate, workload
from tandem.policy.catalog import Profile, load_profile

SCALE, JOBS, LOAD = 100.0, 300, 1.1


def with_order(name: str, **changes: object) -> Profile:
    """Return a shipped profile with its order changed."""
    profile = load_profile(name)
    return profile.model_copy(update={"order": profile.order.model_copy(update=changes)})


def with_dispatch(name: str, **changes: object) -> Profile:
    """Return a shipped profile with its dispatch changed."""
    profile = load_profile(name)
    return profile.model_copy(update={"dispatch": profile.dispatch.model_copy(update=changes)})


def rows() -> Iterator[tuple[str, Profile]]:
    """Yield what is compared."""
    for name in ("fifo", "best-effort", "horus-f", "tiresias-l-list", "tiresias-g", "tandem"):
        yield name, load_profile(name)
    for threshold in (1600.0, 12800.0):
        yield (
            f"tiresias-l-list, thresholds_gpu_s [{threshold:g}]",
            with_order("tiresias-l-list", thresholds_gpu_s=(threshold,)),
        )
    yield "tiresias-l-list, promote_knob 2", with_order("tiresias-l-list", promote_knob=2.0)
    yield "tiresias-l", load_profile("tiresias-l")
    for factor in (None, 2.5):
        yield f"tandem, preempt_factor {factor}", with_dispatch("tandem", preempt_factor=factor)
    yield "tandem, share false", with_dispatch("tandem", share=False)
    yield "tandem, learn false", with_dispatch("tandem", learn=False)
    yield "tandem, move_cost_s none", with_dispatch("tandem", move_cost_s=None)
    yield "tandem, min_speed 0.73", with_dispatch("tandem", min_speed=0.73)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    gangs = workload(args.seed, JOBS, LOAD, scale=SCALE)
    print("| profile and knob | mean completion (min) | p95 | longest | preemptions |")
    print("|---|---|---|---|---|")
    for name, profile in rows():
        outcome = simulate(gangs, profile, preemption_cost_s=60.0)
        took: Any = (outcome.end_s - outcome.submit_s) / 60
        print(
            f"| `{name}` | {took.mean():.0f} | {np.percentile(took, 95):.0f} | {took.max():.0f} |"
            f" {int(outcome.preemptions.sum())} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
