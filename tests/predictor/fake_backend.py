"""Stands in for PyTorch: the figures of each configuration follow from its name and batch."""

from __future__ import annotations

import os
import time
from pathlib import Path


class OutOfMemory(Exception):  # noqa: N818 - as the real one is called
    pass


class FakeBackend:
    def __init__(self, device):
        self.device = device
        if folder := os.environ.get("FAKE_PIDS"):
            (Path(folder) / str(os.getpid())).touch()

    def info(self):
        gpu = {"model": os.environ.get("FAKE_GPU", "Fake GPU"), "memoryBytes": 40 << 30}
        return {"gpu": gpu, "versions": {"torch": "none"}, "libraries": [], "uuid": ""}

    def describe(self, model, sequence):
        if model.name == "alexnet":
            raise ValueError("cannot be exported")
        while file := os.environ.get("FAKE_EXPORT_WAITS_FOR_TWO_IN"):
            if Path(file).read_text().count('"kind":"solo"') >= 2:
                break
            time.sleep(0.01)
        return {
            "layers": {
                "flops": 1e9, "backwardFlops": 2e9, "elementwiseFlops": 1e7, "parameters": 1000000,
                "parameterBytes": 4000000, "activationBytes": 50000000,
                "savedActivationBytes": 40000000, "largestActivationBytes": 2000000,
                "largestTensorBytes": 40000, "tensorSkew": 0.01, "bytesMoved": 1e8, "nodes": 100,
                "kernels": 80, "depth": 60, "opCounts": {"Conv": 30, "Relu": 30}, "opset": 0,
                "inputShapes": {"input": [1, 3, 224, 224]},
            }
        }  # fmt: skip

    def prepare(self, model, config):
        self.batch = config["batch"]
        match model.name:
            case "vgg16":
                raise OutOfMemory("CUDA out of memory")
            case "lenet":
                print("a library that prints", flush=True)
                os.write(2, b"about to crash\n")
                os._exit(3)
            case "mlp":
                time.sleep(3600)
        return {}

    def measure(self, seconds):
        started = time.monotonic()
        time.sleep(seconds)
        return {
            "startedAt": started, "endedAt": time.monotonic(), "iterations": 10,
            "iterationS": 0.001 * self.batch, "iterationMeanS": 0.001 * self.batch,
            "allocatedPeakBytes": self.batch << 20, "reservedPeakBytes": self.batch << 21,
            "reservedBytes": self.batch << 21, "deviceUsedBytes": (self.batch << 21) + (1 << 29),
        }  # fmt: skip

    def details(self):
        return {"activeS": 0.0005 * self.batch}
