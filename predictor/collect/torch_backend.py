"""One configuration on the device: built, warmed up, timed. The only module that trains."""

from __future__ import annotations

import contextlib
import platform
import statistics
import threading
import time
from collections.abc import Iterator
from importlib import metadata, util
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from predictor.collect import models
from predictor.collect.catalog import LIBRARIES, Model

#: Steps that may be under way at once: a loop that reads its loss waits for the one before.
_IN_FLIGHT = 2
_WARM_UP_STEPS = 3
_WARM_UP_S = 0.6
_LEARNING_RATE = 1e-4
#: Cycles of a GPU's clock in a second, more or less: how long a kernel that only waits is to run.
_CLOCK_HZ = 2e9
_COURSE_S = 0.3
_QUANTILES = 21


class OutOfMemory(Exception):  # noqa: N818 - an outcome to record, not an error of ours
    """The configuration does not fit on the device."""


class TorchBackend:
    """Builds and runs configurations on a device: `cuda`, or `cpu` for a dry run."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.cuda = device.startswith("cuda")
        if not self.cuda:
            torch.set_num_threads(1)
        torch.manual_seed(0)

    def info(self) -> dict[str, Any]:
        """Return what the header says of the machine as PyTorch sees it."""
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        for name in (*LIBRARIES, "onnx", "onnxscript"):
            if util.find_spec(name):
                with contextlib.suppress(metadata.PackageNotFoundError):
                    versions[name] = metadata.version(name)
        gpu: dict[str, Any] = {"model": "cpu", "memoryBytes": None}
        if self.cuda:
            has = torch.cuda.get_device_properties(0)
            gpu = {
                "model": has.name,
                "memoryBytes": has.total_memory,
                "multiprocessors": has.multi_processor_count,
                "computeCapability": f"{has.major}.{has.minor}",
            }
            versions |= {"cuda": torch.version.cuda, "cudnn": str(torch.backends.cudnn.version())}
        return {
            "gpu": gpu,
            "versions": versions,
            "libraries": [name for name in LIBRARIES if util.find_spec(name)],
            "uuid": str(getattr(torch.cuda.get_device_properties(0), "uuid", ""))
            if self.cuda
            else "",
        }

    def describe(self, model: Model, sequence: int | None) -> dict[str, Any]:
        """Return a model's graph and layers; uses no GPU."""
        from predictor.collect.graphs import describe

        return describe(model, sequence)

    def prepare(self, model: Model, config: dict[str, Any]) -> dict[str, Any]:
        """Build the configuration and run it until it is warm."""
        with _out_of_memory():
            self._step = _Training(model, config, self.device)
            started = time.monotonic()
            steps = 0
            while steps < _WARM_UP_STEPS or time.monotonic() - started < _WARM_UP_S * self.cuda:
                self._step()
                self._wait()
                steps += 1
        return self._memory()

    def measure(self, seconds: float) -> dict[str, Any]:
        """Run steps for a while; returns their times and the memory that they took."""
        with _out_of_memory():
            if self.cuda:
                torch.cuda.reset_peak_memory_stats()
            started = time.monotonic()
            times = self._timed_steps(started + seconds)
            ended = time.monotonic()
        return {
            "startedAt": started,
            "endedAt": ended,
            "iterations": len(times),
            "iterationS": statistics.median(times),
            "iterationMeanS": (ended - started) / len(times),
            **self._memory(),
        }

    def details(self) -> dict[str, Any]:
        """Return the active time of a step, and the course of memory; GPU only."""
        if not self.cuda:
            return {}
        with _out_of_memory():
            return {"activeS": self._active(), "memoryCourse": self._course()}

    def _timed_steps(self, deadline: float) -> list[float]:
        """Run steps until the deadline, two at least; return the time of each, seconds."""
        if not self.cuda:
            times: list[float] = []
            while len(times) < _IN_FLIGHT or time.monotonic() < deadline:
                started = time.monotonic()
                self._step()
                times.append(time.monotonic() - started)
            return times
        marks = [_mark()]
        while len(marks) <= _IN_FLIGHT or time.monotonic() < deadline:
            self._step()
            marks.append(_mark())
            marks[-_IN_FLIGHT].synchronize()
        marks[-1].synchronize()
        return [a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)]

    def _active(self) -> float:
        """Return what a step takes of the GPU when no kernel has to wait to be started.

        The GPU is kept waiting while the host queues a whole step; then it runs back to back. A
        step that itself waits for the GPU (amp's scaler does) shows some of the host's time.
        """
        found = []
        for _ in range(3):
            torch.cuda.synchronize()
            started = time.monotonic()
            self._step()
            wait_s = min(2 * (time.monotonic() - started) + 0.01, 0.5)
            torch.cuda.synchronize()
            torch.cuda._sleep(int(wait_s * _CLOCK_HZ))
            before = _mark()
            self._step()
            after = _mark()
            after.synchronize()
            found.append(before.elapsed_time(after) / 1e3)
        return min(found)

    def _course(self) -> dict[str, Any]:
        """Return the quantiles of allocated memory over some steps, bytes, and its peaks."""
        seen: list[int] = []
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(0.0005):
                seen.append(torch.cuda.memory_allocated())

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        deadline = time.monotonic() + _COURSE_S
        while time.monotonic() < deadline:
            self._step()
            self._wait()
        stop.set()
        watcher.join()
        if len(seen) < _QUANTILES:
            return {}
        seen.sort()
        low, high = seen[0], seen[-1]
        level = low + 0.75 * (high - low)
        picked = [seen[i * (len(seen) - 1) // (_QUANTILES - 1)] for i in range(_QUANTILES)]
        return {
            "samples": len(seen),
            "quantilesBytes": picked,
            "shareInUpperQuarter": sum(s > level for s in seen) / len(seen),
        }

    def _memory(self) -> dict[str, Any]:
        if not self.cuda:
            return {}
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return {
            "allocatedPeakBytes": torch.cuda.max_memory_allocated(),
            "reservedPeakBytes": torch.cuda.max_memory_reserved(),
            "reservedBytes": torch.cuda.memory_reserved(),
            "deviceUsedBytes": total - free,
        }

    def _wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()


class _Training:
    """A step of training, called over and over on the same batch."""

    def __init__(self, model: Model, config: dict[str, Any], device: str) -> None:
        sequence = config.get("sequence")
        self._model: nn.Module = models.build(model, sequence).to(device).train()
        self._inputs = models.inputs(model, config["batch"], sequence, device)
        self._device = device.split(":")[0]
        parameters = self._model.parameters()
        self._optimizer: torch.optim.Optimizer
        if config["optimizer"] == "adam":
            self._optimizer = torch.optim.AdamW(parameters, _LEARNING_RATE)
        else:
            momentum = 0.9 if config["optimizer"] == "momentum" else 0.0
            self._optimizer = torch.optim.SGD(parameters, _LEARNING_RATE, momentum)
        precision = config["precision"]
        self._half = {"amp": torch.float16, "bf16": torch.bfloat16}.get(precision)
        if self._half is torch.float16 and self._device == "cpu":
            self._half = torch.bfloat16  # a dry run: not every CPU build has the other
        scaled = precision == "amp" and self._device == "cuda"
        self._scaler = torch.cuda.amp.GradScaler() if scaled else None

    def __call__(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        if self._half is None:
            loss = models.loss(self._model(self._inputs))
        else:
            with torch.autocast(self._device, dtype=self._half):
                loss = models.loss(self._model(self._inputs))
        if self._scaler is None:
            loss.backward()
            self._optimizer.step()
            return
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()


def _mark() -> Any:  # noqa: ANN401 - an event of PyTorch
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


@contextlib.contextmanager
def _out_of_memory() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
            raise OutOfMemory(str(error)[:200]) from None
        raise
