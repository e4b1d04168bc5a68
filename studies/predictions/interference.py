"""How well interference is predicted, on measured pairs of V100 and P100.

    python -m studies.predictions.interference MATRIX.json [--json FILE]

MATRIX.json holds steps/s as the Gavel project measured them: `J[gpu][a]["null"]` solo and
`J[gpu][a][b] = [a's, b's]` on one GPU, 0 where a pair ran out of memory. The file is not
part of this repository. Its workloads are known by name; they were rebuilt as graphs, and
`studies.predictions.features` has their features.
"""

from __future__ import annotations

import argparse
import json
import re
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

from predictor.interference.pairs import MeasuredJob, MeasuredPair
from predictor.load.equations import pair_step, training_step
from predictor.training.interference import compare, table
from predictor.training.selection import Pairs, across_gpus, candidates, choose, mean_absolute_error
from studies.predictions.features import features
from studies.predictions.measured import GAVEL
from tandem.contracts.resources import Load, Source
from tandem.gpu_types import find_gpu

Matrix = dict[str, dict[str, dict[str, Any]]]

_NAME = re.compile(r"(?P<family>[\w-]+)(?: \(batch size (?P<batch>\d+)\))?")


def load_of(name: str, gpu_name: str, solo_steps_s: float | None) -> tuple[str, Load]:
    """Return (family, load) of a workload on a GPU; with its solo rate, if that is known.

    Without it, its figures are those by which the service prices pairs that were not measured.
    """
    match = _NAME.fullmatch(name)
    assert match is not None, name
    family = match["family"]
    gpu = find_gpu(gpu_name)
    assert gpu is not None, gpu_name
    model, _ = GAVEL[family]
    graph, batch = features()[model], int(match["batch"] or 1)
    if solo_steps_s:
        step = training_step(graph, batch, gpu, 1 / solo_steps_s)
    else:
        step = pair_step(graph, batch, gpu)
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
        solo = {name: rates["null"] for name, rates in jobs.items()}
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
