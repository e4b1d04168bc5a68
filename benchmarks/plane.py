"""A generated workload on a real control plane, against the simulator with the same profiles.

Sixty gangs of one-GPU pods on two kwok nodes of four GPUs each come faster than they can be run.
The latencies of the control plane are measured first, on other jobs, and given to the simulator:
what a start costs, and what a preemption adds. Neighbours slow one another down by Horus'
quadratic, in both worlds; all jobs save their state, minimum run and preemption caps are off.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.training import Training
from scheduler_extender.beliefs import Beliefs
from scheduler_extender.jobs import policy_job, unpredicted_load
from tandem.contracts import names
from tandem.contracts.resources import Demand
from tandem.controlplane import ControlPlane, Node, wait_until
from tandem.controlplane.gpus import report_gpus
from tandem.controlplane.installation import Installation
from tandem.policy.catalog import Profile, load_profile
from tandem.policy.job import UNKNOWN, Job
from tandem.simulator.cluster import Nodes, gpu_arrays
from tandem.simulator.engine import Engine, Outcome
from tandem.simulator.jobs import TraceJob
from tandem.simulator.truth import MemoryCourse, Truth

SEED = 43
NODES, GPUS = 2, 4
BAR, BETWEEN = 0.10, 0.30
PROFILES = ("fifo", "tiresias-l", "tandem")
#: The profiles' thresholds are for training runs of hours; these jobs take a minute.
THRESHOLDS_GPU_S = (60.0,)
DOUBLING_GPU_S = tuple(20.0 * 2**n for n in range(8))
_GIB = 1 << 30
_SETTINGS = {
    "stale_after_s": 1e6,
    "queue": {"min_run_s": 0, "preemption_cost_s": 0, "max_preemptions_per_hour": 100},
}


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
    """What the control plane adds, seconds: to each start, and to a preemption besides."""

    start_s: float
    preemption_s: float


@dataclass(frozen=True)
class Compared:
    """Mean completion of one profile, measured and simulated, seconds."""

    profile: str
    jobs: int
    plane_s: float
    simulator_s: float
    preemptions: int
    longest_partial_s: float
    most_on_a_gpu: int

    @property
    def off(self) -> float:
        """By how much the control plane differs from the simulator."""
        return self.plane_s / self.simulator_s - 1


def workload(seed: int, count: int, load: float, *, scale: float = 1.0) -> list[Gang]:
    """Return gangs of 1, 2 and 4 GPUs, most of 10 to 20 s, a few of 60 to 90, at a load.

    The load is the work that comes per second over what the GPUs can do in one.
    """
    rng = np.random.default_rng(seed)
    pods = rng.choice([1, 2, 4], count, p=[0.5, 0.25, 0.25])
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
            update={"scale_gpu_s": 20.0 * scale, "move_cost_s": 10.0 * scale}
        )
        return profile.model_copy(update={"order": order, "dispatch": dispatch})
    return profile


# --- the simulator --------------------------------------------------------------------------------


def simulate(gangs: Sequence[Gang], profile: Profile, latency: Latency) -> Outcome:
    """Return what the simulator makes of it."""
    gpus = gpu_arrays([Nodes(NODES, GPUS, "A100", 80.0)], shares=profile.max_jobs_per_gpu)
    beliefs = Beliefs()
    jobs = [_believed(gang, beliefs) for gang in gangs]
    classes = 1 + max(job.interference_class for job in jobs)
    slowdown = np.zeros((classes, classes))
    for job in jobs:
        if job.own_slowdown is not None:
            slowdown[job.interference_class] = job.own_slowdown[:classes]
    slowdown[:, UNKNOWN] = slowdown[UNKNOWN] = 0.0
    truth = Truth(
        class_names=tuple(map(str, range(classes))),
        slowdown=slowdown,
        job_class=np.array([job.interference_class for job in jobs]),
        memory=[MemoryCourse(gang.memory_gib, 0.0, 0.0) for gang in gangs],
        memory_gib=np.full(len(gpus), 80.0),
        gpu_utilisation=np.array([float(gang.utilisation) for gang in gangs]),
        preemption_cost_s=latency.start_s + latency.preemption_s,
    )
    trace = [
        TraceJob(gang.name, gang.arrives_s, gang.pods, gang.duration_s + latency.start_s)
        for gang in gangs
    ]
    return Engine(trace, jobs, gpus, profile, truth).run()


def _believed(gang: Gang, beliefs: Beliefs) -> Job:
    load = unpredicted_load(gang.demand)
    job = policy_job(gang.name, gang.demand, load, queued_at_s=gang.arrives_s)
    return beliefs.of(replace(job, remaining_s=gang.duration_s), load)


# --- the control plane ----------------------------------------------------------------------------


class Site:
    """Tandem with one profile on a control plane of its own."""

    def __init__(self, plane: ControlPlane, installation: Installation) -> None:
        self.plane = plane
        self.installation = installation

    def namespace(self, name: str) -> str:
        """Make a namespace and wait until pods may be made in it."""
        head = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        self.plane.apply(head)
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        wait_until(lambda: self.plane.http.get(account).is_success, f"{name} is set up")
        return name

    def submit(self, namespace: str, gang: Gang) -> None:
        """Create the Job of a gang."""
        path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self.plane.http.post(path, json=job_of(gang)).raise_for_status()

    def run(self, namespace: str, gangs: Sequence[Gang]) -> tuple[Training, Watching]:
        """Submit gangs at their times and follow them to the end of the last."""
        beliefs = Beliefs()
        jobs = {gang.name: _believed(gang, beliefs) for gang in gangs}
        with (
            Training(self.plane.http, namespace, lambda a, b: _slower(jobs, a, b)) as training,
            Watching(self.plane, namespace) as watching,
        ):
            began = time.monotonic()
            for gang in gangs:
                time.sleep(max(0.0, began + gang.arrives_s - time.monotonic()))
                training.expect(gang.name, gang.pods, gang.duration_s)
                self.submit(namespace, gang)
            total_s = sum(gang.duration_s * gang.pods for gang in gangs)
            wait_until(training.all_ended, "all have ended", timeout_s=300 + 2 * total_s)
        return training, watching


class Watching:
    """An oracle: reads pods from the API server alone, once a second."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        import threading

        self._plane = plane
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self.most_on_a_gpu = 0
        self.longest_partial_s = 0.0
        self._partial_since: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Watching:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._stop.wait(1.0):
            answer = self._plane.http.get(self._path)
            if answer.is_success:
                self._see(answer.json()["items"])

    def _see(self, pods: list[dict[str, Any]]) -> None:
        now, holders, bound = time.monotonic(), {}, {}
        for pod in pods:
            if pod["status"].get("phase") in ("Succeeded", "Failed"):
                continue
            annotations = pod["metadata"].get("annotations", {})
            for gpu in filter(None, annotations.get(names.VISIBLE_DEVICES, "").split(",")):
                holders[gpu] = holders.get(gpu, 0) + 1
            job = pod["metadata"]["labels"]["job-name"]
            some = bound.setdefault(job, [0, int(annotations[names.GANG_SIZE])])
            some[0] += bool(pod["spec"].get("nodeName"))
        self.most_on_a_gpu = max(self.most_on_a_gpu, *holders.values(), 0)
        partial = {job for job, (have, size) in bound.items() if 0 < have < size}
        # Pods that have ended are gone from the count: a gang that is ending is not a partial one.
        self._partial_since = {j: self._partial_since.get(j, now) for j in partial}
        longest = max((now - since for since in self._partial_since.values()), default=0.0)
        self.longest_partial_s = max(self.longest_partial_s, longest)


def job_of(gang: Gang) -> dict[str, Any]:
    """Return a gang as an indexed Job."""
    annotations = {
        names.MEMORY: f"{gang.memory_gib}Gi",
        names.UTILIZATION: f"{gang.utilisation}",
        names.CHECKPOINT: "true",
        names.GANG_SIZE: f"{gang.pods}",
    }
    container = {"name": "c", "image": "train:1", "resources": {"limits": {names.RESOURCE: 1}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": gang.name},
        "spec": {
            "completions": gang.pods,
            "parallelism": gang.pods,
            "completionMode": "Indexed",
            "template": {
                "metadata": {"annotations": annotations},
                "spec": {"restartPolicy": "Never", "containers": [container]},
            },
        },
    }


@contextmanager
def site(profile: Profile) -> Iterator[Site]:
    """Start a control plane with Tandem and eight GPUs."""
    nodes = [Node(f"n{index}", cpu=256, pods=400) for index in range(NODES)]
    with tempfile.TemporaryDirectory() as folder, ControlPlane.start(nodes=nodes) as plane:
        installation = Installation(plane, Path(folder))
        installation.install({"profile": profile.model_dump(mode="json"), **_SETTINGS})
        report_gpus(plane.http, [node.name for node in nodes], GPUS, profile.max_jobs_per_gpu)
        yield Site(plane, installation)


def measure_latency(at: Site) -> Latency:
    """Return what a start costs, and what a preemption adds: on a cluster that is else empty."""
    starts = []
    for index, pods in enumerate((1, 2, 4, 1, 4)):
        namespace = at.namespace(f"start-{index}")
        training, _ = at.run(namespace, [Gang("one", 0.0, pods, 5.0, 8, 90)])
        starts.append(training.runs["one"].completion_s - 5.0)
    start_s = median(starts)
    extra = []
    for index in range(3):
        namespace = at.namespace(f"preempt-{index}")
        most = NODES * GPUS
        long, short = Gang("long", 0.0, most, 30.0, 70, 90), Gang("short", 14.0, most, 5.0, 70, 90)
        training, _ = at.run(namespace, [long, short])
        extra.append(training.runs["short"].completion_s - 5.0 - start_s)
    return Latency(round(start_s, 2), round(max(0.0, median(extra)), 2))


def _slower(jobs: Mapping[str, Job], job: str, other: str) -> float:
    own = jobs[job].own_slowdown
    return 0.0 if own is None else float(own[jobs[other].interference_class])


def compare(name: str, gangs: Sequence[Gang], latency: Latency, scale: float = 1.0) -> Compared:
    """Run one profile in both worlds."""
    profile = scaled(name, scale)
    simulated = simulate(gangs, profile, latency)
    simulated_s = float(np.mean(simulated.end_s - simulated.submit_s))
    with site(profile) as at:
        training, watching = at.run(at.namespace("workload"), gangs)
    measured_s = fmean(run.completion_s for run in training.runs.values())
    return Compared(
        name, len(gangs), round(measured_s, 2), round(simulated_s, 2),
        int(simulated.preemptions.sum()),
        round(watching.longest_partial_s, 1), watching.most_on_a_gpu,
    )  # fmt: skip


def main() -> None:
    """Measure the latencies, then each profile; `--json` for machines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--load", type=float, default=1.25)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--profile", action="append", choices=PROFILES)
    parser.add_argument("--latency", nargs=2, type=float, metavar=("START_S", "PREEMPTION_S"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    gangs = workload(args.seed, args.jobs, args.load)
    if args.latency:
        latency = Latency(*args.latency)
    else:
        with site(scaled("tiresias-l")) as at:
            latency = measure_latency(at)
    print(f"{len(gangs)} jobs, load {args.load:g}, seed {args.seed}, {platform.machine()}")
    print(f"measured first: {latency.start_s:.2f} s a start, {latency.preemption_s:.2f} s more")
    found = []
    for name in args.profile or PROFILES:
        found.append(compare(name, gangs, latency))
        one = found[-1]
        print(
            f"{one.profile:<12} plane {one.plane_s:7.1f} s  simulator {one.simulator_s:7.1f} s "
            f" {one.off:+.1%} (bar {BAR:.0%})  partial gang {one.longest_partial_s:g} s  at most "
            f"{one.most_on_a_gpu} a GPU",
            flush=True,
        )
    if args.json:
        rows = [{**asdict(one), "off": round(one.off, 4)} for one in found]
        args.json.write_text(json.dumps({"latency": asdict(latency), "profiles": rows}, indent=1))


if __name__ == "__main__":
    main()
