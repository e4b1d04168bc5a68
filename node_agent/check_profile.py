"""Compares `tandem.progress.profile` with known work: `python -m node_agent.check --profile`.

Training loops of PyTorch run one after the other on the first GPU, which no other process may use
then: one that keeps the GPU busy, some that wait for data, one of small kernels. What the profile
says that the GPU was busy for is compared with the kernels that CUDA's own tracing saw of the same
loop, and with NVML's utilisation while the loop ran.

`python -m node_agent.check_profile LOOP` is such a loop; it prints what it found as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import node_agent
from node_agent.check_report import Report
from node_agent.nvml import Gpu, Nvml, NvmlGoneError
from tandem import progress

#: Percentage points by which a utilisation may be off.
BAR_POINTS = 10.0
_ROOT = Path(node_agent.__file__).parents[1]
_LOOP_S = 300.0
_TRACED_STEPS = 20
#: NVML's first samples are of before the loop.
_SETTLES_S = 0.5


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop: a model, how long each step waits for data, and how the loop is written.

    `reads_loss` makes the CPU wait for the GPU in each step, as a loop does that prints its loss.
    """

    name: str
    width: int = 4096
    layers: int = 8
    batch: int = 4096
    wait_ms: float = 0.0
    reads_loss: bool = True
    forwards: int = 1
    seconds: float = 4.0  # for which it runs while it is looked at


LOOPS = (
    Loop("a GPU that is kept busy"),
    Loop("a loop that never waits for the GPU", reads_loss=False),
    Loop("100 ms of waiting for data in each step", wait_ms=100),
    Loop("10 ms of waiting for data in each step", wait_ms=10),
    Loop("waiting for data, two batches in each step", wait_ms=50, forwards=2),
    Loop("small kernels", width=128, layers=64, batch=64),
    Loop("small kernels and waiting for data", width=128, layers=64, batch=64, wait_ms=10),
)


def run(folder: Path, python: str = sys.executable) -> bool:
    """Run all loops with an interpreter's PyTorch, write the report, return whether all held."""
    report, nvml = Report(), Nvml()
    try:
        gpus = nvml.open()
        report.found("a GPU is found", len(gpus), "1 or more", bool(gpus))
        report.facts |= {"driver": nvml.driver_version}
        for loop in LOOPS if gpus else ():
            _look(loop, gpus[0], python, report)
    except NvmlGoneError as error:
        report.found("a GPU is found", error, "1 or more", held=False)
    finally:
        nvml.close()
    title, command = "Profiles of training loops", "python -m node_agent.check --profile"
    return report.write(folder, "profile-check", title, command)


def _look(loop: Loop, gpu: Gpu, python: str, report: Report) -> None:
    path = filter(None, (str(_ROOT), os.environ.get("PYTHONPATH")))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    command = [python, "-m", "node_agent.check_profile", json.dumps(asdict(loop))]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    percents: list[float] = []
    said: dict[str, Any] = {}
    for line in process.stdout:
        said |= json.loads(line) if line.startswith("{") else {}
        if line.startswith("runs"):
            percents = _percents(gpu, loop.seconds)
    code = process.wait(_LOOP_S)
    if code or not percents:
        report.found(loop.name, f"ended with {code}, {said}", "a profile", held=False)
        return
    report.facts.setdefault("loops", {})[loop.name] = {**asdict(loop), **said}
    nvml = sum(percents) / len(percents)
    for what, seen in (("kernels by CUDA's tracing", said["traced"]), ("NVML", nvml)):
        report.found(
            f"{loop.name}: by the profile and by {what}",
            f"{said['profile']:.0f} and {seen:.0f} %",
            f"within {BAR_POINTS:.0f} points",
            abs(said["profile"] - seen) <= BAR_POINTS,
        )


def _percents(gpu: Gpu, seconds: float) -> list[float]:
    """Return NVML's samples of utilisation until the loop has run, in percent."""
    end = time.monotonic() + seconds - _SETTLES_S
    time.sleep(_SETTLES_S)
    load, percents = gpu.load(), []
    while time.monotonic() < end:
        time.sleep(0.25)
        load = gpu.load()
        percents += [sample.percent for sample in load.samples] if load else []
    return percents


# --- the loop -----------------------------------------------------------------------------------


def train(loop: Loop) -> None:
    """Run a loop for a while, then trace some of its steps, and print both utilisations."""
    import torch

    layers: list[Any] = []
    for _ in range(loop.layers):
        layers += [torch.nn.Linear(loop.width, loop.width), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = torch.randn(loop.batch, loop.width, device="cuda")

    def step() -> None:
        for _ in range(loop.forwards):
            time.sleep(loop.wait_ms / 1e3 / loop.forwards)
            loss = model(data).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if loop.reads_loss:
            loss.item()
        progress.step()

    for _ in range(10):
        step()
    torch.cuda.synchronize()
    print("runs", flush=True)
    with progress.profile() as profile:
        _until(time.monotonic() + loop.seconds, step, torch.cuda.synchronize)
    print(
        json.dumps({"profile": float(profile.annotations()["tandem.gpu/utilization"])}), flush=True
    )
    print(json.dumps({"steps": profile.iterations, "traced": _traced(torch, step)}), flush=True)


def _until(end: float, step: Callable[[], None], wait: Callable[[], None]) -> None:
    steps = 0
    while time.monotonic() < end:
        step()
        steps += 1
        if steps % 50 == 0:  # a CPU that runs seconds ahead would not end in time
            wait()


def _traced(torch: Any, step: Callable[[], None]) -> float:  # noqa: ANN401 - no dependency
    """Return the share of time in which a kernel ran, in percent, over some steps."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as traced:
        for _ in range(_TRACED_STEPS):
            step()
        torch.cuda.synchronize()
    spans = sorted(
        (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in traced.profiler.kineto_results.events()
        if "CUDA" in str(event.device_type()) and "Sync" not in event.name()
    )
    busy, reached = 0, spans[0][0]
    for begin, end in spans:
        busy += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return float(100 * busy / (reached - spans[0][0]))


if __name__ == "__main__":
    train(Loop(**json.loads(sys.argv[1])))
