"""How fast the predictor is: features of a graph in the sandbox, and a prediction over HTTP.

`python -m benchmarks.predictor [--requests 2000] [--json FILE]`

A prediction is what the scheduler asks about a job at admission: the load of a model that was
pushed, and the slowdowns beside 64 candidates, each over HTTP from the service in a process of its
own on this machine, one after the other. With `--artifacts` trained models answer, otherwise those
that the service has by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import onnx

from predictor.sandbox import Sandbox

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
CANDIDATES = 64
GRAPHS = ("densenet121", "resnet50")
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


def prediction(requests: int, artifacts: Path | None) -> dict[str, object]:
    """Return the times of load, of interference with 64 candidates, and of both together."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    trained = ["--artifacts", str(artifacts)] if artifacts else []
    service = subprocess.Popen(
        [sys.executable, "-m", "predictor", "--store", "memory", "--host", "127.0.0.1",
         "--port", str(port), "--log-level", "warning", *trained],
        env=os.environ,
    )  # fmt: skip
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            return _timed(client, requests)
    finally:
        service.terminate()
        service.wait(30)


def _timed(client: httpx.Client, requests: int) -> dict[str, object]:
    for _ in range(600):
        try:
            client.get("/readyz").raise_for_status()
            break
        except httpx.HTTPError:
            time.sleep(0.1)
    data = (LIGHT / "light_resnet50.onnx").read_bytes()
    client.post("/v1/models?name=net", content=data).raise_for_status()
    gpu = "Tesla V100-SXM2-16GB"
    loads = [
        client.post(
            "/v1/predict", json={"model": "net", "batchSize": batch, "gpuModel": gpu}
        ).json()
        for batch in range(1, CANDIDATES + 1)
    ]
    pair = {"candidates": [each["load"] for each in loads], "gpuModel": gpu}
    predicting, pricing, both = [], [], []
    answer: dict[str, object] = {}
    for number in range(requests):
        own = {"model": "net", "batchSize": 1 + number % 256, "gpuModel": gpu}
        started = time.perf_counter()
        load = client.post("/v1/predict", json=own).json()["load"]
        between = time.perf_counter()
        answer = client.post("/v1/interference", json=pair | {"job": load}).json()
        ended = time.perf_counter()
        predicting.append(between - started)
        pricing.append(ended - between)
        both.append(ended - started)
    assert len(answer["pairs"]) == CANDIDATES  # type: ignore[arg-type]
    return {
        "load": percentiles(predicting),
        f"interference_{CANDIDATES}": percentiles(pricing),
        "both": percentiles(both),
        "source": answer["source"],
    }


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=100, help="of each graph")
    parser.add_argument("--artifacts", type=Path, help="directory of trained models")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    result = {
        "features": features(options.repeats),
        "prediction": prediction(options.requests, options.artifacts),
    }
    print(f"{'':28}{'p50 ms':>10}{'p99 ms':>10}{'bar ms':>10}")
    for name, times in result["features"].items():
        bar = BAR_FEATURES_MS if name == "densenet121" else ""
        print(f"features of {name:16}{times['p50_ms']:10.1f}{times['p99_ms']:10.1f}{bar:>10}")
    for name, times in result["prediction"].items():
        if isinstance(times, dict):
            bar = BAR_PREDICTION_MS if name == "both" else ""
            print(f"prediction, {name:16}{times['p50_ms']:10.2f}{times['p99_ms']:10.2f}{bar:>10}")
    print(f"interference answered by: {result['prediction']['source']}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
