"""The check of profiles, on a GPU whose clock a stand-in for PyTorch moves, in real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node_agent import check, check_profile
from node_agent.check_profile import Loop
from node_agent.stub import StubGpu, StubProcess

#: Each kernel takes 10 ms, and the CPU the same to start one where `width` is small. The process's
#: own clock is the simulated one: what is measured does not depend on the machine.
TORCH = """
import sys, time
from types import ModuleType, SimpleNamespace as Names
now, hooks, events = [0.0], [], []
time.sleep = lambda seconds: now.__setitem__(0, now[0] + seconds)
time.monotonic = lambda: now[0]
def kernel():
    events.append((now[0], "kernel"))
    time.sleep(0.01)
class Tensor:
    square = mean = backward = lambda self: self
    def item(self):
        return 0.0
class Linear:
    def __init__(self, width, _):
        self.small = width < 1024
    def run(self):
        time.sleep(0.01 * self.small)
        kernel()
class ReLU:
    run = lambda self: None
class Sequential:
    def __init__(self, *layers):
        self.layers = layers
    def cuda(self):
        return self
    def parameters(self):
        return []
    def __call__(self, data):
        for hook in list(hooks):
            hook(self, data)
        for layer in self.layers:
            layer.run()
        return Tensor()
class Event:
    def __init__(self, enable_timing):
        assert enable_timing
    def record(self):
        self.at = now[0]
    def query(self):
        return True
    def elapsed_time(self, other):
        return 1000 * (other.at - self.at)
def register(hook):
    hooks.append(hook)
    return Names(remove=lambda: hooks.remove(hook))
class Profile:
    def __init__(self, activities):
        assert activities == ["cuda"]
    def __enter__(self):
        events.clear()
        return self
    def __exit__(self, *_):
        time.sleep(1)  # what comes after the last kernel is no part of the loop
    @property
    def profiler(self):
        made = [Names(start_ns=lambda at=at: int(1e9 * at), duration_ns=lambda: 10_000_000,
                      device_type=lambda: "DeviceType.CUDA", name=lambda: "gemm")
                for at, _ in events]
        sync = Names(start_ns=lambda: 0, duration_ns=lambda: 10**12,
                     device_type=lambda: "DeviceType.CUDA", name=lambda: "Context Sync")
        cpu = Names(start_ns=lambda: 0, duration_ns=lambda: 10**12,
                    device_type=lambda: "DeviceType.CPU", name=lambda: "cudaLaunchKernel")
        return Names(kineto_results=Names(events=lambda: [sync, cpu, *made]))
optim = Names(SGD=lambda parameters, lr: Names(step=lambda: None, zero_grad=lambda: None))
nn = Names(Linear=Linear, ReLU=ReLU, Sequential=Sequential,
           modules=Names(module=Names(register_module_forward_pre_hook=register)))
profiler = Names(profile=Profile, ProfilerActivity=Names(CUDA="cuda"))
cuda = Names(is_available=lambda: True, synchronize=lambda: None, Event=Event,
             reset_peak_memory_stats=lambda: None, max_memory_reserved=lambda: 1 << 30,
             memory_reserved=lambda gpu: 0, device_count=lambda: 1, current_device=lambda: 0)
randn = lambda *shape, device: Tensor()
"""
LARGE = Loop("large kernels and waiting", layers=2, wait_ms=20, seconds=1.5)
SMALL = Loop("small kernels", width=128, layers=2, seconds=1.5)


def checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, dict[str, Any]]:
    out = folder / "out"
    monkeypatch.setattr("sys.argv", ["check", "--profile", "--out", str(out)])
    code = check.main()
    assert "| held |" in (out / "profile-check.md").read_text()
    report: dict[str, Any] = json.loads((out / "profile-check.json").read_text())
    return code, report


@pytest.fixture
def gpu(driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder from which children import; the one GPU is busy half of the time."""
    driver.state.gpus = [StubGpu("GPU-a")]
    driver.state.processes = [StubProcess(0, 1, memory=1 << 30, sm=50)]
    driver.state.clock_us = None  # samples come as time passes
    driver.apply()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


@pytest.mark.long
def test_what_waits_for_data_is_seen_and_what_waits_for_small_kernels_is_not(
    gpu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gpu / "torch.py").write_text(TORCH)
    monkeypatch.setattr(check_profile, "LOOPS", (LARGE, SMALL))
    code, report = checked(gpu, monkeypatch)
    assert code == 1
    seen = {each["what"]: (each["seen"], each["held"]) for each in report["findings"]}
    by_tracing, by_nvml = "by the profile and by kernels by CUDA's tracing", "by the profile and by"
    assert seen[f"{LARGE.name}: {by_tracing}"][1] is True
    assert seen[f"{LARGE.name}: {by_nvml} NVML"] == ("50 and 50 %", True)
    assert seen[f"{SMALL.name}: {by_tracing}"][1] is False
    assert seen[f"{SMALL.name}: {by_nvml} NVML"] == ("100 and 50 %", False)


def test_without_pytorch_nothing_is_said_to_hold(
    gpu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gpu / "torch.py").write_text("raise ImportError('no PyTorch')")
    monkeypatch.setattr(check_profile, "LOOPS", (LARGE,))
    code, report = checked(gpu, monkeypatch)
    assert code == 1
    assert [each["held"] for each in report["findings"]] == [True, False]


def test_without_a_gpu(driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.state.gpus = []
    driver.apply()
    code, report = checked(tmp_path, monkeypatch)
    assert code == 1
    assert [each["held"] for each in report["findings"]] == [False]
