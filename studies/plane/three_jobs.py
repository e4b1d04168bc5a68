"""[Tiresias]' three jobs (Fig. 7) on a real control plane: (GPUs, units) (2,2) (1,8) (2,6).

Two GPUs; two readings of the order, plain 2D-LAS with slices of a unit and the discretised one with
its boundary at four units. Sharing, minimum run and preemption caps are off. The longer a unit is,
the less the control plane's own latency weighs.
"""

from __future__ import annotations

import argparse
from statistics import fmean

from studies.plane.jobs import Gang, simulate
from studies.plane.site import site
from tandem.policy.catalog import Profile, load_profile
from tandem.policy.ordering.attained import Las2D
from tandem.policy.ordering.queues import Queues

READINGS = ("plain", "discretised")
JOBS = (("one", 2, 2), ("two", 1, 8), ("three", 2, 6))
APART_S = 1.1  # creation times have a resolution of a second
#: A job that ends exactly at the boundary must have ended before it is counted over it.
BEYOND_GPU_S = 6.0


def profile_of(reading: str, unit_s: float) -> Profile:
    """Return Tiresias-L with the order of a reading."""
    threshold = 4 * unit_s + BEYOND_GPU_S
    order = Las2D(slice_s=unit_s) if reading == "plain" else Queues(thresholds_gpu_s=(threshold,))
    return load_profile("tiresias-l").model_copy(update={"order": order})


def gangs(unit_s: float, apart_s: float = APART_S) -> list[Gang]:
    """Return the three jobs, as gangs of pods of one GPU."""
    return [
        Gang(name, index * apart_s, pods, units * unit_s, 8, 90)
        for index, (name, pods, units) in enumerate(JOBS)
    ]


def main() -> None:
    """Run the readings one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unit", type=float, default=30.0, help="seconds")
    parser.add_argument("--reading", action="append", choices=READINGS)
    args = parser.parse_args()
    for reading in args.reading or READINGS:
        profile = profile_of(reading, args.unit)
        exact = simulate(gangs(args.unit, 0.0), profile, nodes=1, gpus=2)
        expected = [float(x) / args.unit for x in exact.end_s - exact.submit_s]
        with site(profile, nodes=1, gpus=2) as at:
            training, _ = at.run(at.namespace("three"), gangs(args.unit))
        units = [training.runs[name].completion_s / args.unit for name, _, _ in JOBS]
        print(
            f"{reading}: {', '.join(f'{u:.2f}' for u in units)} units (mean {fmean(units):.2f}), "
            f"simulator {', '.join(f'{u:.2f}' for u in expected)} (mean {fmean(expected):.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
