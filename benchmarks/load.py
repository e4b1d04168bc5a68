"""How well times of iterations are predicted for architectures that were not seen.

    python -m benchmarks.load DATA [--json FILE]

DATA is a directory with `colocation/gavel-oracle-v100-p100.json` (solo steps/s of 26
configurations, by the Gavel project) and `pollux/APPLICATION/placements.csv` (step times by batch,
by the AdaptDL project); neither is part of this repository. They hold measured times and nothing of
memory or utilisation, and their workloads have no graphs: features are derived by hand from the
published architectures, good to a factor. Whole families are held out, each in its turn.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import numpy as np

from benchmarks.interference import WORKLOADS, load_of, workload
from predictor.load_evaluation import FORMULA, held_out, learners, load_table, rmsle
from predictor.load_model import ITERATION
from predictor.profiles import Origin, Profile
from tandem.contracts.prediction import Optimizer
from tandem.contracts.resources import GraphFeatures

#: Its testbed had T4s: the measured 136 images/s of ResNet-50 are such a GPU's.
POLLUX_GPU = "Tesla T4"
#: Family and features of each application.
POLLUX: dict[str, tuple[str, GraphFeatures]] = {
    "imagenet": ("ResNet-50", WORKLOADS["ResNet-50"]),
    "cifar10": ("ResNet-18", WORKLOADS["ResNet-18"]),
    # BERT-base on questions of 384 tokens.
    "bert": ("BERT", workload(70.7, 110.0, 470.0, 400)),
    # 416 x 416 images.
    "yolov3": ("YOLOv3", workload(65.9, 61.9, 400.0, 250)),
    # Five bidirectional layers of width 1,024 on about three seconds.
    "deepspeech2": ("DeepSpeech2", workload(25.0, 84.0, 35.0, 1500)),
    "ncf": ("NCF", workload(0.0005, 0.7, 0.01, 25)),
}


def profiles(data: Path) -> list[Profile]:
    """Return every measured configuration on one GPU."""
    found = []
    matrix = json.loads((data / "colocation" / "gavel-oracle-v100-p100.json").read_text())
    for gpu, jobs in matrix.items():
        for name, beside in jobs.items():
            family, _ = load_of(name, gpu, None)
            batch = int(name.rpartition("size ")[2].rstrip(")")) if "size " in name else 1
            found.append(_profile(family, WORKLOADS[family], batch, gpu, 1 / beside["null"]))
    for application, (family, features) in POLLUX.items():
        with (data / "pollux" / application / "placements.csv").open() as file:
            for row in csv.DictReader(file):
                if row["placement"] == "1":
                    batch, seconds = int(row["local_bsz"]), float(row["step_time"])
                    found.append(_profile(family, features, batch, POLLUX_GPU, seconds))
    return found


def _profile(family: str, features: GraphFeatures, batch: int, gpu: str, seconds: float) -> Profile:
    return Profile(
        name=f"{family} {batch}", family=family, origin=Origin.MEASURED, features=features,
        batch_size=batch, optimizer=Optimizer.MOMENTUM, gpu_model=gpu, iteration_s=seconds,
    )  # fmt: skip


def report(measured: list[Profile]) -> dict[str, dict[str, float]]:
    """Return by candidate: RMSLE of milliseconds, the median error, and within a factor of two."""
    table = load_table(measured)
    rows = table.rows(ITERATION)
    seconds = table.measured[ITERATION][rows]
    predicted = {FORMULA: table.formula[ITERATION][rows]}
    for name, make in learners().items():
        predicted[name] = held_out(table, ITERATION, make, rows)
    found = {}
    for name, ours in predicted.items():
        ratio = np.abs(np.log(ours / seconds))
        found[name] = {
            "rmsle_ms": rmsle(1e3 * seconds, 1e3 * ours),
            "median_error": float(np.exp(np.median(ratio)) - 1),
            "within_factor_two": float(np.mean(ratio <= np.log(2))),
        }
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    measured = profiles(options.data)
    families = len({profile.family for profile in measured})
    print(f"{len(measured)} configurations of {families} families, families held out\n")
    result = report(measured)
    print(f"{'':24}{'RMSLE (ms)':>12}{'median error':>14}{'within x 2':>12}")
    for name, errors in result.items():
        print(
            f"{name:24}{errors['rmsle_ms']:12.3f}{errors['median_error']:14.0%}"
            f"{errors['within_factor_two']:12.0%}"
        )
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
