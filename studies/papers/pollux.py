"""The six applications of [Pollux] as measured: step times by placement and batch, iterations."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.tables import data_folder
from tandem.policy.job import SubBatch
from tandem.simulator.jobs import TraceJob

APPLICATIONS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
GPUS_PER_NODE = 4
CAPACITY_GIB = 11.0
#: Synthetic: what a worker holds whatever its batch (context, weights, optimizer), and what it
#: holds with the largest local batch measured, both as shares of the GPU.
FIXED_SHARE, FULL_SHARE = (0.10, 0.30), 0.95
#: NCF's largest measured batch is the largest of the application, and no bound of memory: its
#: layers are narrow. About 2 GiB with it.
NCF_FULL_SHARE = 0.2


def folder() -> Path:
    """Return the folder of the measurements."""
    return data_folder() / "pollux"


@dataclass(frozen=True)
class Application:
    """Step and synchronisation time by (GPUs, local batch) on the fewest nodes of four GPUs."""

    name: str
    local: dict[int, list[tuple[float, float, float]]]  # by GPUs: (local batch, step s, sync s)
    iterations: dict[int, int]  # by total batch
    fixed_share: float
    full_share: float

    @property
    def largest_local(self) -> float:
        """The largest local batch measured on any placement."""
        return max(batch for rows in self.local.values() for batch, _, _ in rows)

    def iteration_s(self, gpus: int, local_batch: float, steps: int) -> float:
        """Return the time of an iteration in `steps` micro-batches of `local_batch` a GPU.

        All but the last do not synchronise: [SJF-BSBF] Eq. (7), with the overlap as measured.
        Between measured batches on a line; below the smallest, its time.
        """
        batches, step, sync = (np.array(column) for column in zip(*self.local[gpus], strict=True))
        step_s = float(np.interp(local_batch, batches, step))
        sync_s = float(np.interp(local_batch, batches, sync))
        return (steps - 1) * (step_s - sync_s) + step_s

    def memory_gib(self, local_batch: float) -> float:
        """Return the memory of a worker: a fixed share, and one that grows with the batch."""
        per_item = (self.full_share - self.fixed_share) / self.largest_local
        return CAPACITY_GIB * (self.fixed_share + per_item * local_batch)


@dataclass(frozen=True)
class PolluxJob:
    """One row of a workload, with what it needs as submitted and in smaller sub-batches."""

    trace: TraceJob
    application: str
    memory_gib: float
    sub_batches: tuple[SubBatch, ...]


def applications(seed: int) -> dict[str, Application]:
    """Read the measurements; what memory holds whatever the batch is drawn with `seed`."""
    rng = np.random.default_rng(seed)
    iterations: dict[str, dict[int, int]] = {name: {} for name in APPLICATIONS}
    with (folder() / "iterations.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            iterations[row["application"]][int(row["batch_size"])] = int(row["iterations"])
    return {
        name: Application(
            name,
            _measured(name),
            iterations[name],
            float(rng.uniform(*FIXED_SHARE)) if name != "ncf" else FIXED_SHARE[0],
            NCF_FULL_SHARE if name == "ncf" else FULL_SHARE,
        )
        for name in APPLICATIONS
    }


def _measured(name: str) -> dict[int, list[tuple[float, float, float]]]:
    """Return the rows of the densest placements: nodes of four, and one with the rest."""
    local: dict[int, list[tuple[float, float, float]]] = {}
    with (folder() / name / "placements.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            digits = sorted(int(digit) for digit in row["placement"])
            gpus = sum(digits)
            if len(digits) == -(-gpus // GPUS_PER_NODE) and all(
                digit == GPUS_PER_NODE for digit in digits[1:]
            ):
                local.setdefault(gpus, []).append(_point(row))
    with (folder() / name / "scalability.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            gpus = int(row["num_replicas"])
            if gpus > 16 and int(row["num_nodes"]) == -(-gpus // GPUS_PER_NODE):
                local.setdefault(gpus, []).append(_point(row))
    return {gpus: sorted(rows) for gpus, rows in local.items()}


def _point(row: dict[str, str]) -> tuple[float, float, float]:
    return float(row["local_bsz"]), float(row["step_time"]), float(row["sync_time"])


def workload(name: str, apps: dict[str, Application]) -> list[PolluxJob]:
    """Read `workload-NAME.csv`. A batch too large for its GPUs is accumulated from the start."""
    jobs = []
    with (folder() / f"workload-{name}.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            app = apps[row["application"]]
            gpus, batch = int(row["num_replicas"]), int(row["batch_size"])
            at_s, iterations = float(row["time"]), app.iterations[batch]
            jobs.append(job_of(row["name"], app, at_s, gpus, batch, iterations))
    return jobs


def batches(name: str) -> list[int]:
    """Return the total batch of each job of `workload-NAME.csv`."""
    with (folder() / f"workload-{name}.csv").open(newline="") as file:
        return [int(row["batch_size"]) for row in csv.DictReader(file)]


def job_of(
    name: str, app: Application, submit_s: float, gpus: int, batch: int, iterations: int
) -> PolluxJob:
    """Return a job of `iterations` with a total batch, accumulated where its GPUs are too few."""
    steps = math.ceil(batch / gpus / app.largest_local)
    local = batch / gpus / steps
    alone = app.iteration_s(gpus, local, steps)
    trace = TraceJob(name, submit_s, gpus, alone * iterations)
    sub_batches = _halved(app, gpus, local, steps, alone)
    return PolluxJob(trace, app.name, app.memory_gib(local), sub_batches)


def _halved(
    app: Application, gpus: int, local: float, steps: int, alone: float
) -> tuple[SubBatch, ...]:
    """Return the batch halved down to one item; measured times that fall with it are noise."""
    found: list[SubBatch] = []
    stretch = 1.0
    while local / 2 >= 1:
        local, steps = local / 2, steps * 2
        stretch = max(stretch, app.iteration_s(gpus, local, steps) / alone)
        found.append(SubBatch(steps, app.memory_gib(local), 0.0, stretch))
    return tuple(found)
