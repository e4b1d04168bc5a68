"""Generated gangs, and what the simulator makes of them, given the latencies of a control plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scheduler_extender.cluster.jobs import policy_job, unpredicted_load
from scheduler_extender.cluster.slowdowns import Slowdowns
from tandem.contracts.resources import Demand
from tandem.policy.catalog import Profile, load_profile
from tandem.policy.job import UNKNOWN, Job
from tandem.simulator import truth
from tandem.simulator.cluster import Nodes, gpu_arrays
from tandem.simulator.engine import Engine, Outcome
from tandem.simulator.jobs import TraceJob

NODES, GPUS = 2, 4
#: The profiles' thresholds are for training runs of hours; these jobs take a minute.
THRESHOLDS_GPU_S = (60.0,)
DOUBLING_GPU_S = tuple(20.0 * 2**n for n in range(8))
SIZES, SHARES = (1, 2, 4), (0.5, 0.25, 0.25)  # gangs, by their pods
_GIB = 1 << 30


@dataclass(frozen=True)
class Gang:
    """One job of the workload; `utilisation` is of each of its GPUs, percent."""

    name: str
    arrives_s: float
    pods: int
    duration_s: float
    memory_gib: int
    utilisation: int

    @property
    def demand(self) -> Demand:
        """As its annotations say it."""
        return Demand(
            gpus_per_pod=1,
            gang_size=self.pods,
            declared_memory_bytes=self.memory_gib * _GIB,
            declared_utilisation_percent=self.utilisation,
            checkpoint=True,
        )


@dataclass(frozen=True)
class Latency:
    """What the control plane takes, by a gang's pods: to start it, to have it give up its GPUs."""

    start_s: Mapping[int, float]
    release_s: Mapping[int, float]


NO_LATENCY = Latency(dict.fromkeys(SIZES, 0.0), dict.fromkeys(SIZES, 0.0))


def workload(seed: int, count: int, load: float, *, scale: float = 1.0) -> list[Gang]:
    """Return gangs of 1, 2 and 4 GPUs, most of 10 to 20 s, a few of 60 to 90, at a load.

    The load is the work that comes per second over what the GPUs can do in one.
    """
    rng = np.random.default_rng(seed)
    pods = rng.choice(SIZES, count, p=SHARES)
    long = rng.random(count) < 0.18
    duration = np.where(long, rng.uniform(60, 90, count), rng.uniform(10, 20, count)) * scale
    work = float((pods * duration).sum())
    arrives = np.sort(rng.uniform(0, work / (NODES * GPUS) / load, count))
    return [
        Gang(
            f"g{i:02}", round(float(arrives[i]), 2), int(pods[i]), round(float(duration[i]), 1),
            int(rng.choice([8, 16, 30])), int(rng.choice([20, 40, 60, 90])),
        )
        for i in range(count)
    ]  # fmt: skip


def scaled(name: str, scale: float = 1.0) -> Profile:
    """Return a shipped profile with its thresholds at the scale of this workload."""
    profile = load_profile(name)
    if name == "tiresias-l":
        thresholds = tuple(t * scale for t in THRESHOLDS_GPU_S)
        order = profile.order.model_copy(update={"thresholds_gpu_s": thresholds})
        return profile.model_copy(update={"order": order})
    if name == "tandem":
        thresholds = tuple(t * scale for t in DOUBLING_GPU_S)
        order = profile.order.model_copy(update={"thresholds_gpu_s": thresholds})
        dispatch = profile.dispatch.model_copy(
            update={"scale_s": 20.0 * scale, "move_cost_s": 10.0 * scale}
        )
        return profile.model_copy(update={"order": order, "dispatch": dispatch})
    return profile


def simulate(
    gangs: Sequence[Gang],
    profile: Profile,
    latency: Latency = NO_LATENCY,
    *,
    preemption_cost_s: float = 0.0,
    nodes: int = NODES,
    gpus: int = GPUS,
) -> Outcome:
    """Return what the simulator makes of it."""
    cluster = gpu_arrays([Nodes(nodes, gpus, "A100", 80.0)], shares=profile.max_jobs_per_gpu)
    slowdowns = Slowdowns()
    jobs = [believed(gang, slowdowns) for gang in gangs]
    classes = 1 + max(job.interference_class for job in jobs)
    slowdown = np.zeros((classes, classes))
    for job in jobs:
        if job.own_slowdown is not None:
            slowdown[job.interference_class] = job.own_slowdown[:classes]
    slowdown[:, UNKNOWN] = slowdown[UNKNOWN] = 0.0
    physics = truth.Truth(
        slowdown=slowdown,
        job_class=np.array([job.interference_class for job in jobs]),
        memory=[truth.MemoryCourse(gang.memory_gib, 0.0, 0.0) for gang in gangs],
        memory_gib=np.full(len(cluster), 80.0),
        gpu_utilisation=np.array([float(gang.utilisation) for gang in gangs]),
        preemption_cost_s=preemption_cost_s,
        latency=truth.Latency(
            np.array([latency.start_s[gang.pods] for gang in gangs]),
            np.array([latency.release_s[gang.pods] for gang in gangs]),
        ),
    )
    trace = [TraceJob(gang.name, gang.arrives_s, gang.pods, gang.duration_s) for gang in gangs]
    return Engine(trace, jobs, cluster, profile, physics).run()


def believed(gang: Gang, slowdowns: Slowdowns) -> Job:
    """Return a gang as the policies see it."""
    load = unpredicted_load(gang.demand)
    job = policy_job(gang.name, gang.demand, load, queued_at_s=gang.arrives_s)
    return slowdowns.of(replace(job, remaining_s=gang.duration_s), load)
