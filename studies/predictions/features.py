"""From the graphs of `studies.predictions.workloads` to `features.json`, as the service reads.

    python -m studies.predictions.features DIRECTORY

The file has the features of each graph by the name of its model, and nothing that was measured.
"""

from __future__ import annotations

import argparse
import json
from functools import cache
from pathlib import Path

from predictor.graph.features import extract_features
from tandem.contracts.resources import GraphFeatures

FILE = Path(__file__).with_name("features.json")


@cache
def features() -> dict[str, GraphFeatures]:
    """Return the features of every model that the shared data measured."""
    return {n: GraphFeatures.model_validate(f) for n, f in json.loads(FILE.read_text()).items()}


def main() -> None:
    """Extract all graphs of a directory, with the code that serves pushes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    found = {
        file.stem: extract_features(file.read_bytes()).wire()
        for file in sorted(directory.glob("*.onnx"))
    }
    text = ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in found.items())
    FILE.write_text("{\n" + text + "\n}\n")


if __name__ == "__main__":
    main()
