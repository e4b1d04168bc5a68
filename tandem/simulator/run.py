"""Profiles on a trace: one after the other or in parallel processes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tandem.errors import TandemError
from tandem.policy.adjust.learn import Learn
from tandem.policy.catalog import Profile
from tandem.policy.cluster import GpuArrays
from tandem.reasons.counting import counted
from tandem.simulator import mix
from tandem.simulator.cluster import Nodes, gpu_arrays, gpu_types, racks
from tandem.simulator.engine import Engine, RunOptions
from tandem.simulator.gavel import load_matrices
from tandem.simulator.jobs import TraceJob
from tandem.simulator.outcome import Outcome
from tandem.simulator.report import Report, report
from tandem.simulator.spread import load_spread
from tandem.simulator.world import World, measured_world, plain_world

Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Setup:
    """All that a run depends on besides the profile."""

    trace: tuple[TraceJob, ...]
    nodes: tuple[Nodes, ...]
    truth_file: Path | None = None  # None: no interference
    seed: int = 0
    preemption_cost_s: float = 60.0  # where there is interference; orderings alone cost nothing
    belief_error: float | None = None  # mean relative; None: a model trained without the pair
    resize_cost_s: float = 60.0  # each time that an elastic job gets another number of GPUs
    learns: bool = True  # from pairs that run, as the cluster does; false: predictions alone

    def gpus(self, shares: int) -> GpuArrays:
        """Return the empty cluster."""
        return gpu_arrays(self.nodes, shares=shares)

    def world(self, gpus: GpuArrays) -> World:
        """Return what is true and what is believed."""
        world = self._world(gpus)
        return replace(world, truth=replace(world.truth, resize_cost_s=self.resize_cost_s))

    def _world(self, gpus: GpuArrays) -> World:
        if self.truth_file is None:
            return plain_world(self.trace, gpus)
        types = gpu_types(self.nodes)
        if self.truth_file == mix.FILE:
            types = mix.types_in_mix(types)
        matrices = load_matrices(self.truth_file, types)
        kind = int(np.bincount(gpus.gpu_type).argmax())
        return measured_world(
            self.trace,
            gpus,
            matrices[kind],
            spread=load_spread(self.truth_file, types[kind]),
            by_type=matrices if len(matrices) > 1 else (),
            seed=self.seed,
            preemption_cost_s=self.preemption_cost_s,
            belief_error=self.belief_error,
        )


@dataclass(frozen=True, slots=True)
class Result:
    """One profile's run."""

    profile: str
    report: Report
    outcome: Outcome


def check_fits(setup: Setup) -> None:
    """Raise TandemError, naming the jobs, where some can never fit on the cluster."""
    gpus = setup.gpus(shares=1)
    world = setup.world(gpus)
    total = len(gpus)
    reasons = []
    known = racks(setup.nodes)
    in_racks = [] if known is None else known.domain[gpus.node, 0]
    largest = max(Counter(rack for rack in in_racks if rack >= 0).values(), default=0)
    for job, believed in zip(setup.trace, world.believed, strict=True):
        may = ~gpus.sliced if believed.spans else np.ones(total, dtype=np.bool_)
        least = job.least_gpus
        some = " at least" if job.is_elastic else ""
        room = int((may & (gpus.memory_capacity_gib >= believed.memory_base_gib)).sum())
        if least > total:
            reasons.append(f"{job.id} wants {least} GPUs{some} of {total}")
        elif least > may.sum():
            reasons.append(f"{job.id} wants {least} GPUs{some}, and {may.sum()} are no slices")
        elif job.required_topology and least > largest:
            reasons.append(
                f"{job.id} wants {least} GPUs{some} of one {job.required_topology}, the largest has"
                f" {largest}"
            )
        elif least > room:
            reasons.append(
                f"{job.id} wants {least} GPUs{some} with {believed.memory_base_gib:.1f} GiB, "
                f"{room} have it"
            )
    if reasons:
        more = f" and {len(reasons) - 5} more" if len(reasons) > 5 else ""
        raise TandemError(
            f"{counted(len(reasons), 'job')} can never fit: {'; '.join(reasons[:5])}{more}",
            "Give a larger --cluster, or leave the jobs out of the trace.",
        )


def learner_of(profile: Profile, world: World) -> Learn | None:
    """Return what corrects the predictions of a profile that weighs pairs; None: nothing does.

    A cluster learns from what agents measure of pairs that run (docs/learning.md); here a
    measurement is exact, so that one look after each start shows all of it. Predictions are of one
    type of GPU, so that nothing is learned where there are several.
    """
    if profile.adjust is not None or not profile.dispatch.weighs_pairs:
        return None
    if world.truth.slowdown_by_type is not None:
        return None
    return Learn(once=True, weight_of_past=0.0)


def run_profile(
    setup: Setup, profile: Profile, on_progress: Callable[[int], None] | None = None
) -> Result:
    """Run one profile; raises TandemError if a job never gets a place."""
    if setup.truth_file and profile.order.slice_s <= setup.preemption_cost_s:
        raise TandemError(
            f"{profile.name}: slices of {profile.order.slice_s:g} s and {setup.preemption_cost_s:g}"
            " s for each preemption: a job that is sliced would never end",
            "Lower --preemption-cost, or --set order.slice_s to more.",
        )
    started = time.perf_counter()
    gpus = setup.gpus(profile.max_jobs_per_gpu)
    world = setup.world(gpus)
    engine = Engine(
        setup.trace,
        world.believed,
        gpus,
        profile,
        world.truth,
        seed=setup.seed,
        options=RunOptions(
            learner=learner_of(profile, world) if setup.learns else None,
            on_progress=on_progress,
            topology=racks(setup.nodes),
        ),
    )
    outcome = engine.run()
    wall = time.perf_counter() - started
    return Result(profile.name, report(outcome, world.truth, len(gpus), wall), outcome)


def run_profiles(
    setup: Setup, profiles: Sequence[Profile], *, processes: int = 1, progress: Progress
) -> list[Result]:
    """Run profiles, several at a time where `processes` > 1; results in the order given.

    `progress(name, jobs ended)` is called while a profile runs here, and when it ends elsewhere.
    """
    check_fits(setup)
    if processes <= 1 or len(profiles) <= 1:
        return [
            run_profile(setup, profile, lambda done, name=profile.name: progress(name, done))  # type: ignore[misc]
            for profile in profiles
        ]
    found: dict[int, Result] = {}
    with ProcessPoolExecutor(max_workers=processes) as pool:
        futures = {pool.submit(run_profile, setup, p): i for i, p in enumerate(profiles)}
        for future in as_completed(futures):
            index = futures[future]
            found[index] = future.result()
            progress(profiles[index].name, len(setup.trace))
    return [found[i] for i in range(len(profiles))]
