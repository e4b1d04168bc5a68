"""Simulated nodes: each a file that drives the NVML stub, and a /proc for the agent to read.

The agent of a node is the real one and reads both through its usual ways; it cannot tell.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from uuid import NAMESPACE_DNS, uuid5

from node_agent.stub import FakeProc, StubGpu, StubProcess, StubState, Wave
from tandem.contracts import names
from tandem.kube.client import Object
from tandem_demo.physics import slowdown
from tandem_demo.workload import GIB, DemoJob

GPU_MODEL = "Tesla V100-SXM2-16GB"
GPU_MEMORY_BYTES = 16 * GIB
#: What the driver keeps for itself.
GPU_RESERVED_BYTES = 400 << 20
_PEAK_SHARE = 6  # in the peak one sixth of the time
_ITERATION_US = 300_000  # long enough for the agent to see peaks and levels apart


@dataclass(slots=True)
class _Process:
    job: DemoJob
    gpu: int
    pid: int


@dataclass(slots=True)
class SimulatedNode:
    """A node with GPUs, under `folder`."""

    name: str
    gpus: int
    folder: Path
    _processes: dict[str, _Process] = field(default_factory=dict)  # by pod uid
    _proc: FakeProc = field(init=False)
    _pids: count[int] = field(default_factory=lambda: count(4242))

    def __post_init__(self) -> None:
        """Write the files of an idle node."""
        self.folder.mkdir(parents=True)
        self._proc = FakeProc(self.proc)
        self._write()

    @property
    def state(self) -> Path:
        """The file that drives the NVML stub."""
        return self.folder / "nvml.state"

    @property
    def proc(self) -> Path:
        """A stand-in for /proc."""
        return self.folder / "proc"

    def uuids(self) -> list[str]:
        """Return the UUIDs of the GPUs, in the order of their indices."""
        return [f"GPU-{uuid5(NAMESPACE_DNS, f'{self.name}-{i}')}" for i in range(self.gpus)]

    def manifest(self) -> Object:
        """Return the Node object."""
        resources = {"cpu": "32", "memory": "256Gi", "pods": "110"}
        return {
            "metadata": {"name": self.name, "labels": {"kubernetes.io/hostname": self.name}},
            "spec": {"taints": [{"key": names.GPU_TAINT, "effect": "NoSchedule"}]},
            "status": {
                "allocatable": resources,
                "capacity": resources,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }

    def start(self, pod_uid: str, job: DemoJob, uuid: str) -> None:
        """Let a process of the pod appear on the GPU."""
        process = _Process(job, self.uuids().index(uuid), next(self._pids))
        self._processes[pod_uid] = process
        self._proc.add(process.pid, pod_uid)
        self._write()

    def end(self, pod_uid: str) -> None:
        """Let the pod's process be gone."""
        self._proc.remove(self._processes.pop(pod_uid).pid)
        self._write()

    def _write(self) -> None:
        boards = [
            StubGpu(
                uuid,
                GPU_MODEL,
                GPU_MEMORY_BYTES,
                GPU_RESERVED_BYTES,
                # A process's share of each window is its share of the time.
                window_us=_ITERATION_US,
            )
            for uuid in self.uuids()
        ]
        totals: Counter[int] = Counter()
        for each in self._processes.values():
            totals[each.gpu] += each.job.utilisation
        processes = [_stub_process(each, totals[each.gpu]) for each in self._processes.values()]
        StubState(boards, processes).write(self.state)


def _stub_process(process: _Process, total: int) -> StubProcess:
    """Return the process as NVML shows it: peaks of one job fall where those of others do not.

    `total` is the utilisation that all jobs of its GPU ask for, in percent. A job that is slowed
    down gets so much less of the GPU's time: by that the agents measure it.
    """
    job = process.job
    busy_us = _ITERATION_US * job.utilisation / (100 * slowdown(job.utilisation, total))
    peak_us = _ITERATION_US // _PEAK_SHARE
    phase_us = process.pid * peak_us % _ITERATION_US
    return StubProcess(
        process.gpu,
        process.pid,
        memory=round(job.memory_gib * GIB),
        extra=round(job.peak_extra_gib * GIB),
        peaks=Wave(_ITERATION_US, peak_us, phase_us),
        sm=100,
        mem=job.utilisation // 2,
        active=Wave(_ITERATION_US, round(busy_us), phase_us),
    )
