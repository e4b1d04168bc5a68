"""The bar of `tandem-guarded` with two, three and four shares a GPU.

    python -m studies.profiles.shares [--jobs 1000] [--seeds 3] [--cluster 4x8]

Jobs are drawn, seeded; slowdowns are those measured between pairs on V100s (TANDEM_SHARED_DATA),
with a quarter of the pairs made ten times as slow; the policies believe the truth, so that the bar
must hold exactly. Printed for each number of shares: the slowest job of all seeds as a share of its
solo speed, the mean, and the mean completion time. Exit code 1 where a job was slower than the bar.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import numpy as np

from benchmarks.tables import data_folder, markdown
from tandem.policy.catalog import load_profile
from tandem.policy.dispatch.share import Share
from tandem.simulator.cluster import gpu_arrays, parse_cluster
from tandem.simulator.engine import Engine
from tandem.simulator.gavel import PairMatrix, load_matrix
from tandem.simulator.jobs import TraceJob
from tandem.simulator.outcome import Outcome
from tandem.simulator.world import measured_world

SHARES = (2, 3, 4)
_BAD = 0.25  # of the pairs
_ROUNDING = 1e-9


def main() -> None:
    """Run all and print the table."""
    parser = argparse.ArgumentParser(prog="python -m studies.profiles.shares", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cluster", default="4x8")
    given = parser.parse_args()
    matrix = load_matrix(data_folder() / "colocation" / "gavel-oracle-v100-p100.json")
    rows, kept = [], True
    for shares in SHARES:
        runs = [
            _run(matrix, shares, seed, given.jobs, given.cluster) for seed in range(given.seeds)
        ]
        speeds = np.concatenate([run.duration_s / run.run_s for run in runs])
        waited = np.concatenate([run.end_s - run.submit_s for run in runs])
        kept = kept and float(speeds.min()) >= _bar() - _ROUNDING
        rows.append(
            [str(shares), f"{speeds.min():.4f}", f"{speeds.mean():.3f}", f"{waited.mean():,.0f}"]
        )
        print(rows[-1], file=sys.stderr, flush=True)
    print(markdown(["shares", "slowest job", "mean speed", "mean completion, s"], rows))
    sys.exit(0 if kept else 1)


def _bar() -> float:
    dispatch = load_profile("tandem-guarded").dispatch
    assert isinstance(dispatch, Share)
    return dispatch.min_speed


def _run(matrix: PairMatrix, shares: int, seed: int, jobs: int, cluster: str) -> Outcome:
    rng = np.random.default_rng(seed)
    bad = np.triu(rng.random(matrix.slowdown.shape) < _BAD)
    matrix = replace(matrix, slowdown=np.where(bad | bad.T, 9.0, matrix.slowdown))
    trace = [
        TraceJob(str(i), float(at), int(gpus), float(duration))
        for i, (at, gpus, duration) in enumerate(
            zip(
                np.sort(rng.uniform(0, 40.0 * jobs, jobs)),
                rng.choice([1, 1, 1, 2, 4, 8], jobs),
                np.round(rng.lognormal(7.0, 1.0, jobs) + 30.0),
                strict=True,
            )
        )
    ]
    profile = load_profile("tandem-guarded").model_copy(update={"max_jobs_per_gpu": shares})
    gpus = gpu_arrays([parse_cluster(cluster)], shares=shares)
    world = measured_world(trace, gpus, matrix, seed=seed, belief_error=0.0, preemption_cost_s=0.0)
    return Engine(trace, world.believed, gpus, profile, world.truth, seed=seed).run()


if __name__ == "__main__":
    main()
