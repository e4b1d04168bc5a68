"""NVML as the agent reads it: one of four GPUs answers with any value and any error at any call.

The values are put in between the binding and the agent, of the types that the binding returns.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml
import pytest
from agent_node import GIB, Pods, stamp, uid
from fuzz_batch import WATCHDOG, Batch

from node_agent.config import AgentSettings
from node_agent.monitor import Monitor
from node_agent.nvml import binding
from node_agent.pods import PodInfo
from node_agent.publish import gpu_node
from node_agent.stub import STATE_VARIABLE, FakeProc, StubGpu, StubProcess, StubState, build
from scheduler_extender.cluster.parsing import parse_gpu_node
from tandem.contracts.resources import GPUNodeStatus
from tandem.kube.resource import GPU_NODES
from tandem.kube.schema import schema_errors

pytestmark = [pytest.mark.slow, WATCHDOG]

START_S = 1_700_000_000.0
#: A session that is opened anew, as where a GPU is lost, begins the others' series of GPM anew.
GPUS = [StubGpu("GPU-a"), StubGpu("GPU-b", gpm=0.5), StubGpu("GPU-c"), StubGpu("GPU-d")]
BAD = 1
CODES = sorted({value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")})
_WHOLE = (
    0,
    1,
    2,
    99,
    100,
    101,
    1000,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**40 + 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -1,
    -300,
)
_FLOATS = (0.0, -1.0, 1e300, float("nan"), float("inf"), -float("inf"), 100.5, 5e-324)
_TEXTS = ("", "GPU-x", "GPU " * 40, "a\nb", "\x00", "é", "GPU-b", "x" * 300, ",", "[N/A]")


@dataclass
class Driver:
    """The binding, but for what one GPU answers while `rng` is set."""

    rng: random.Random | None = None
    chance: float = 0.0
    wrong: dict[str, Any] = field(default_factory=dict)
    _bad: int = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)
        if not name.startswith("nvmlDevice") or not callable(real):
            return real

        def call(*arguments: Any) -> Any:
            first = arguments[0] if arguments else None
            handle = isinstance(first, ctypes.Structure | ctypes._Pointer)
            bad = (name == "nvmlDeviceGetHandleByIndex" and first == BAD) or (
                handle and binding.address(first) == self._bad
            )
            if self.rng is not None and bad and self.wrong.get(name):
                if self.wrong[name] == "error":
                    code = self.rng.choice(CODES)
                    if code == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND and self.rng.random() < 0.5:
                        raise pynvml.NVMLLibraryMismatchError("no such symbol")
                    raise pynvml.NVMLError(code)
                answer = real(*arguments)
                return answer if name == "nvmlDeviceGetHandleByIndex" else other(answer, self.rng)
            answer = real(*arguments)
            if name == "nvmlDeviceGetHandleByIndex" and first == BAD:
                self._bad = binding.address(answer)
            return answer

        return call

    def spoil(self, rng: random.Random) -> None:
        """Choose which calls of the GPU go wrong, and how; `rng` says with which values."""
        calls = [name for name in dir(pynvml) if name.startswith("nvmlDeviceGet")]
        share = rng.choice((0.1, 0.3, 0.7, 1.0))
        self.wrong = {
            name: rng.choice(("error", "value", "value")) for name in calls if rng.random() < share
        }
        self.rng = rng


def other(answer: Any, rng: random.Random) -> Any:
    """Return an answer of the same type with other values in it."""
    if isinstance(answer, bool | str):
        return rng.choice(_TEXTS) if isinstance(answer, str) else answer
    if isinstance(answer, int):
        return rng.choice(_WHOLE)
    if isinstance(answer, float):
        return rng.choice(_FLOATS)
    if isinstance(answer, list | tuple):
        rows = [other(each, rng) if rng.random() < 0.7 else each for each in answer]
        if isinstance(answer, list) and rows:
            rows += [rng.choice(rows) for _ in range(rng.randrange(3))]
            rng.shuffle(rows)
        return type(answer)(rows)
    if isinstance(answer, ctypes.Structure) and hasattr(answer, "_fields_"):
        for name, kind, *_ in answer._fields_:
            if rng.random() < 0.6:
                fill(answer, name, kind, rng)
    elif hasattr(answer, "usedGpuMemory"):  # the binding's own row of a process
        answer.pid = rng.choice((answer.pid, 0, 2**32 - 1, answer.pid + 1))
        answer.usedGpuMemory = rng.choice(
            (None, 0, 2**64 - 1, 80 * GIB, 2**40, answer.usedGpuMemory)
        )
    return answer


def fill(answer: Any, name: str, kind: Any, rng: random.Random) -> None:
    if kind in (ctypes.c_float, ctypes.c_double):
        setattr(answer, name, rng.choice(_FLOATS))
    elif issubclass(kind, ctypes._SimpleCData) and isinstance(kind().value, int):
        setattr(answer, name, rng.choice(_WHOLE))


class Node:
    """Four GPUs, jobs on each, and a clock of their own."""

    def __init__(self, folder: Path, state_file: Path) -> None:
        self.file = state_file
        self.proc = FakeProc(folder / "proc")
        self.state = StubState(gpus=GPUS, clock_us=int(START_S * 1e6))
        self.pods = Pods()
        for index in range(len(GPUS)):
            for number, memory in enumerate((10, 20 + index)):
                pid = 100 * (index + 1) + number
                self.state.processes.append(
                    StubProcess(gpu=index, pid=pid, memory=memory * GIB, sm=20 + index)
                )
                self.proc.add(pid, uid(pid))
                self.pods[uid(pid)] = PodInfo(
                    namespace="ml",
                    name=f"p{pid}",
                    assigned=frozenset({GPUS[index].uuid}),
                    predicted_memory=12 * GIB,
                )
        self.driver = Driver()

    def run(self, spoilt: random.Random | None) -> GPUNodeStatus:
        """Return the report after four full readings; the GPU goes wrong before one of them."""
        self.state.clock_us = int(START_S * 1e6)
        monitor = Monitor(AgentSettings(node="n0", proc=self.proc.root), pods=self.pods)
        self.driver.rng = None
        begins = spoilt.randrange(3) if spoilt is not None else 9
        try:
            for step in range(4):
                if spoilt is not None and step == begins:
                    self.driver.spoil(spoilt)
                if spoilt is not None and step == 3 and spoilt.random() < 0.3:
                    self.driver.rng = None  # it is well again
                self.state.write(self.file)
                now_s = self.state.clock_us / 1e6
                at = stamp(self)
                monitor.tick(now_s, at)
                status = monitor.status(now_s, at)
                self.state.clock_us += 11_000_000
            return status
        finally:
            self.driver.rng = None
            monitor.close()

    @property
    def now_s(self) -> float:
        return self.state.clock_us / 1e6


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    library = build(Path(tempfile.gettempdir()) / f"tandem-nvml-stub-{os.getuid()}")
    ctypes.CDLL(str(library))
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "gpus"))
    made = Node(tmp_path, tmp_path / "gpus")
    monkeypatch.setattr(binding, "pynvml", made.driver)
    return made


def test_whatever_a_gpu_answers_the_others_are_reported_as_they_are(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    sound = {gpu.uuid: gpu.wire() for gpu in node.run(None).gpus}
    assert len(sound) == len(GPUS)
    others = [gpu.uuid for index, gpu in enumerate(GPUS) if index != BAD]

    def case(rng: random.Random) -> str:
        status = node.run(rng)
        reported = gpu_node("n0", status)
        text = json.dumps(reported, allow_nan=False)
        assert not schema_errors(GPU_NODES, json.loads(text)), "the API server refuses the report"
        raw = json.loads(text)
        raw["metadata"] |= {"uid": "u", "resourceVersion": "1"}
        parse_gpu_node(raw)
        found = {gpu.uuid: gpu.wire() for gpu in status.gpus}
        for name in others:
            assert found.get(name) == sound[name], f"{name} is reported otherwise"
        assert all(request.gpu not in others for request in status.eviction_requests)
        bad = found.get(GPUS[BAD].uuid)
        if bad is None:
            return "not listed"
        if bad == sound[GPUS[BAD].uuid]:
            return "as it is"
        return "in quarantine" if bad["health"] != "Healthy" else "reported as it can be read"

    Batch("values and errors of NVML", 60).run(case)
