"""How well interference is predicted, on measured pairs of V100 and P100.

    python -m benchmarks.interference MATRIX.json [--json FILE]

MATRIX.json holds steps/s as the Gavel project measured them: `J[gpu][a]["null"]` solo and
`J[gpu][a][b] = [a's, b's]` beside one another, 0 where a pair ran out of memory. The file is not
part of this repository. Its workloads have no graphs; their features below are derived by hand from
the published architectures, and good to a factor, not to a percent.
"""

from __future__ import annotations

import argparse
import json
import re
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

from predictor.equations import training_step
from predictor.gpus import find_gpu
from predictor.pairs import MeasuredJob, MeasuredPair
from predictor.selection import Pairs, across_gpus, candidates, choose, mean_absolute_error
from predictor.training import compare, table
from tandem.contracts.resources import GraphFeatures, Load, Source

Matrix = dict[str, dict[str, dict[str, Any]]]

_NAME = re.compile(r"(?P<family>[\w-]+)(?: \(batch size (?P<batch>\d+)\))?")


def workload(
    gflops: float, parameters_m: float, activations_mib: float, kernels: int
) -> GraphFeatures:
    """Return features by sample, forward: nodes write each activation once, read about as much."""
    flops, parameter_bytes = gflops * 1e9, parameters_m * 4e6
    activation_bytes = activations_mib * 2**20
    return GraphFeatures(
        flops=flops, backward_flops=2 * flops, parameters=int(parameters_m * 1e6),
        parameter_bytes=int(parameter_bytes), activation_bytes=int(activation_bytes),
        saved_activation_bytes=int(activation_bytes), largest_tensor_bytes=0, tensor_skew=0,
        nodes=kernels, kernels=kernels, depth=kernels, op_counts={}, opset=17,
        bytes_moved=2 * activation_bytes + parameter_bytes,
    )  # fmt: skip


#: Per family. Sizes as in the projects that the measurements used.
WORKLOADS = {
    # 32 x 32 images, stem without stride: 0.56 G multiply-adds.
    "ResNet-18": workload(1.11, 11.2, 6.4, 67),
    # 224 x 224 images.
    "ResNet-50": workload(8.18, 25.6, 143.0, 175),
    # 6 + 6 layers of width 512, about 30 tokens on each side, vocabulary of 9,500.
    "Transformer": workload(3.0, 63.0, 16.0, 420),
    # Two LSTM layers of width 200, 35 steps, vocabulary of 33,278.
    "LM": workload(0.51, 14.0, 9.5, 85),
    # Auto-encoder of 20,108 items with a hidden layer of 200; moves more than it computes.
    "Recommendation": workload(0.016, 8.1, 0.25, 8),
    # Two generators with nine residual blocks, three passes each, and two discriminators.
    "CycleGAN": workload(700.0, 28.3, 2100.0, 640),
    # Four convolutions and an LSTM cell on 42 x 42 frames, 20 steps, several workers.
    "A3C": workload(0.06, 0.3, 2.0, 400),
}


def load_of(name: str, gpu_name: str, solo_steps_s: float | None) -> tuple[str, Load]:
    """Return (family, load) of a workload on a GPU; with its solo rate, if that is known."""
    match = _NAME.fullmatch(name)
    assert match is not None, name
    family = match["family"]
    gpu = find_gpu(gpu_name)
    assert gpu is not None, gpu_name
    seconds = 1 / solo_steps_s if solo_steps_s else None
    step = training_step(WORKLOADS[family], int(match["batch"] or 1), gpu, seconds)
    return family, Load(
        utilisation_percent=step.utilisation_percent, utilisation_p95_percent=100,
        memory_base_bytes=0, memory_peak_extra_bytes=0, peak_probability=0, memory_p95_bytes=0,
        utilisation_source=Source.FORMULA, memory_source=Source.FORMULA,
        iteration_s=step.seconds, compute_share=step.compute_share,
        bandwidth_share=step.bandwidth_share,
    )  # fmt: skip


def measured_pairs(matrix: Matrix, *, measured_solo: bool) -> list[MeasuredPair]:
    """Return every measured pair; `measured_solo`: use the solo rates, as after a first run."""
    found = []
    for gpu_name, jobs in matrix.items():
        solo = {name: beside["null"] for name, beside in jobs.items()}
        names = sorted(jobs)
        loads = {n: load_of(n, gpu_name, solo[n] if measured_solo else None) for n in names}
        for first, second in combinations_with_replacement(names, 2):
            rates = jobs[first].get(second, (0.0, 0.0))
            if min(rates) <= 0:
                continue
            sides = [
                MeasuredJob(name=n, family=loads[n][0], load=loads[n][1], speed=rate / solo[n])
                for n, rate in zip((first, second), rates, strict=True)
            ]
            found.append(MeasuredPair(gpu_model=gpu_name, first=sides[0], second=sides[1]))
    return found


def report(pairs: Pairs) -> dict[str, dict[str, float]]:
    """Return mean absolute errors of speed: by candidate, then by split."""
    errors = compare(pairs)
    for name, make in candidates().items():
        errors[name]["v100_to_p100"] = mean_absolute_error(make, pairs, across_gpus(pairs, "v100"))
    return errors


def main() -> None:
    """Print a table for each state of knowledge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrix", type=Path)
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--pairs", type=Path, help="write the pairs there, for `tandem train`")
    arguments = parser.parse_args()
    matrix = json.loads(arguments.matrix.read_text())
    if arguments.pairs:
        lines = (json.dumps(p.wire()) for p in measured_pairs(matrix, measured_solo=False))
        arguments.pairs.write_text("".join(line + "\n" for line in lines))
    results = {}
    for title, measured_solo in (("graphs only", False), ("graphs and solo step time", True)):
        results[title] = report(table(measured_pairs(matrix, measured_solo=measured_solo)))
        chosen = choose({name: e["unseen_model"] for name, e in results[title].items()})
        print(f"\n{title}: mean absolute error of speed (t_solo / t_colocated); chosen: {chosen}")
        print(f"{'':11}{'random':>8}{'pair':>8}{'model':>8}{'V->P':>8}")
        for name, errors in results[title].items():
            print(f"{name:11}" + "".join(f"{error:8.3f}" for error in errors.values()))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
