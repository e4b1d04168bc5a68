"""How fast the predictor is: features of a graph in the sandbox, and a prediction over HTTP.

`python -m benchmarks.predictor [--requests 2000] [--gpu NAME] [--json FILE]`

A prediction is the load of a model that was pushed and the slowdowns next to 64 candidates, asked
in one call (`both`) and one after the other (`in two calls`, as who knows the job's load already
asks for the second alone), over HTTP from the service in a process of its own on this machine, on
one connection of the standard library's client: what it takes to make JSON of the question and to
read the answer is in the figures. With `--artifacts` trained models answer, otherwise those that
the service has by itself. On a machine with other work the times are those of waiting for a core as
well; `CPU ms` is what the service itself used.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from predictor.service.sandbox import Sandbox

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
CANDIDATES = 64
GRAPHS = ("densenet121", "resnet50")
OK, BAD = 200, 300
BAR_FEATURES_MS, BAR_PREDICTION_MS = 150, 5


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Return p50 and p99, ms."""
    p50, p99 = np.percentile(np.array(seconds) * 1e3, [50, 99])
    return {"p50_ms": round(float(p50), 2), "p99_ms": round(float(p99), 2)}


def features(repeats: int) -> dict[str, dict[str, float]]:
    """Return the time from bytes to features in a warm sandbox."""
    found = {}
    with Sandbox() as sandbox:
        for name in GRAPHS:
            data = (LIGHT / f"light_{name}.onnx").read_bytes()
            sandbox.parse_file([data])
            times = []
            for _ in range(repeats):
                started = time.perf_counter()
                sandbox.parse_file([data])
                times.append(time.perf_counter() - started)
            found[name] = percentiles(times)
    return found


def prediction(requests: int, artifacts: Path | None, gpu: str) -> dict[str, object]:
    """Return the times of load, of interference with 64 candidates, and of both."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    trained = ["--artifacts", str(artifacts)] if artifacts else []
    service = subprocess.Popen(
        [sys.executable, "-m", "predictor", "--store", "memory", "--host", "127.0.0.1",
         "--port", str(port), "--log-level", "warning", *trained],
        env=os.environ,
    )  # fmt: skip
    try:
        return _timed(_Client(port), service.pid, requests, gpu)
    finally:
        service.terminate()
        service.wait(30)


class _Client:
    """One connection that is kept, made by the standard library's client."""

    def __init__(self, port: int) -> None:
        self._http = HTTPConnection("127.0.0.1", port, timeout=30)

    def wait_until_ready(self) -> None:
        for _ in range(1200):
            try:
                self._http.request("GET", "/readyz")
                answer = self._http.getresponse()
                answer.read()
                if answer.status == OK:
                    return
            except OSError:
                self._http.close()
            time.sleep(0.1)
        raise SystemExit("the predictor does not get ready")

    def post(self, path: str, body: bytes | dict[str, Any]) -> dict[str, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._http.request("POST", path, data, {"Content-Type": "application/json"})
        answer = self._http.getresponse()
        read = answer.read()
        if answer.status >= BAD:
            raise SystemExit(f"{path}: {answer.status} {read.decode()}")
        found: dict[str, Any] = json.loads(read)
        return found


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, all its threads, s."""
    return sum(
        int((task / "schedstat").read_text().split()[0]) / 1e9
        for task in Path(f"/proc/{pid}/task").iterdir()
    )


def _timed(client: _Client, pid: int, requests: int, gpu: str) -> dict[str, object]:
    client.wait_until_ready()
    client.post("/v1/models?name=net", (LIGHT / "light_resnet50.onnx").read_bytes())

    def load(batch: int) -> dict[str, Any]:
        asked = {"model": "net", "batchSize": batch, "gpuModel": gpu}
        return dict(client.post("/v1/predict", asked)["load"])

    candidates = [load(batch) for batch in range(1, CANDIDATES + 1)]

    def price(job: dict[str, Any]) -> dict[str, Any]:
        pair = {"job": job, "candidates": candidates, "gpuModel": gpu}
        return client.post("/v1/interference", pair)

    def measure(one: Callable[[int], object]) -> dict[str, float]:
        times = []
        used = _cpu_seconds(pid)
        for number in range(requests):
            started = time.perf_counter()
            one(1 + number % 256)
            times.append(time.perf_counter() - started)
        used = _cpu_seconds(pid) - used
        return percentiles(times) | {"cpu_ms": round(1e3 * used / requests, 2)}

    def both(batch: int) -> dict[str, Any]:
        asked = {"model": "net", "batchSize": batch, "gpuModel": gpu, "candidates": candidates}
        return client.post("/v1/predict", asked)

    answer = price(candidates[0])
    assert len(answer["pairs"]) == CANDIDATES
    assert both(1)["interference"] == answer
    return {
        "load": measure(load),
        f"interference_{CANDIDATES}": measure(lambda n: price(candidates[n % CANDIDATES])),
        "in two calls": measure(lambda n: price(load(n))),
        "both": measure(both),
        "source": answer["source"],
        "load_source": candidates[0]["utilisationSource"],
    }


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=100, help="of each graph")
    parser.add_argument("--artifacts", type=Path, help="directory of trained models")
    parser.add_argument("--gpu", default="Tesla V100-SXM2-16GB", help="type of GPU that is asked")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    result = {
        "features": features(options.repeats),
        "prediction": prediction(options.requests, options.artifacts, options.gpu),
    }
    print(f"{'':28}{'p50 ms':>10}{'p99 ms':>10}{'bar ms':>10}{'CPU ms':>10}")
    for name, times in result["features"].items():
        bar = BAR_FEATURES_MS if name == "densenet121" else ""
        print(f"features of {name:16}{times['p50_ms']:10.1f}{times['p99_ms']:10.1f}{bar:>10}")
    for name, times in result["prediction"].items():
        if isinstance(times, dict):
            bar = BAR_PREDICTION_MS if name == "both" else ""
            figures = f"{times['p50_ms']:10.2f}{times['p99_ms']:10.2f}{bar:>10}"
            print(f"prediction, {name:16}{figures}{times['cpu_ms']:10.2f}")
    answered = result["prediction"]
    print(f"utilisation answered by: {answered['load_source']}, pairs by: {answered['source']}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
