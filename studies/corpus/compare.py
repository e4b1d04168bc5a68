"""Each exported graph against what its framework counts, and the page of all of them.

    python -m studies.corpus.compare DIRECTORY [--page FILE]

A graph is correct where parameters, FLOPs of the forward pass and the bytes that training keeps
are within 2 %, 5 % and 10 % of the framework's own counts; or it is refused with a way out.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.tables import markdown
from predictor.errors import GraphError
from predictor.graph.features import extract_features
from predictor.graph.symbols import SymbolSizes

#: Relative tolerance of each figure.
BARS = {"parameters": 0.02, "flops": 0.05, "saved_bytes": 0.10}
#: Why graphs are outside of a bar, by the beginning of their names.
LIMITS = {
    "albert.": "the pooler, whose output is not asked for, is no part of the export",
    "lora-bert.": "which weights are frozen the graph does not say; too much is kept",
    "mobilenet-v2.int8-static": "the quantiser folds ReLU6 into its ranges; too little is kept",
    "t5.": "a learned bias makes the fused attention of the CPU keep the output of Softmax",
    "timm-poolformer.": "GroupNorm is exported as InstanceNormalization and a product",
}
#: A graph that is accepted below this share of its cost would be treated as nearly free.
_FREE = 0.1


@dataclass(frozen=True)
class Compared:
    """One graph: ratios of ours over the framework's count, or the words of the refusal.

    `ratios` has the keys of BARS for which the framework has a count.
    """

    name: str
    exporter: str
    family: str
    ratios: dict[str, float]
    refusal: str = ""
    way_out: str = ""

    @property
    def outside(self) -> list[str]:
        """The figures beyond their bar."""
        return [key for key, ratio in self.ratios.items() if abs(ratio - 1) > BARS[key]]

    @property
    def nearly_free(self) -> bool:
        """Whether the graph is accepted at less than a tenth of its cost."""
        return any(self.ratios.get(key, 1.0) < _FREE for key in ("flops", "saved_bytes"))

    @property
    def limit(self) -> str:
        """Why it is outside of a bar, where that is known."""
        key = f"{self.name}.{self.exporter}"
        return next((why for begin, why in LIMITS.items() if key.startswith(begin)), "")

    @property
    def verdict(self) -> str:
        """In words: correct, refused, or what is outside its bar."""
        if self.refusal:
            return f"refused: {self.refusal}" + ("" if self.way_out else " (no way out)")
        if not self.outside:
            return "correct"
        figures = ", ".join(key.replace("_", " ") for key in self.outside)
        return f"{figures}: {self.limit}" if self.limit else figures


def compared(directory: Path, name: str) -> Compared:
    """Compare the graph `name` (without its ending) of a directory with its facts."""
    facts = json.loads((directory / f"{name}.json").read_text())
    sizes = SymbolSizes(sequence_length=facts.get("sequence", 128))
    of_graph = {key: facts[key] for key in ("name", "exporter", "family")}
    try:
        features = extract_features((directory / f"{name}.onnx").read_bytes(), sizes)
    except GraphError as error:
        return Compared(**of_graph, ratios={}, refusal=error.message, way_out=error.hint)
    ours = {
        "parameters": features.parameters,
        "flops": features.flops,
        "saved_bytes": features.saved_activation_bytes,
    }
    return Compared(
        **of_graph, ratios={key: ours[key] / facts[key] for key in BARS if facts.get(key)}
    )


def failed(directory: Path) -> list[dict[str, Any]]:
    """Return the facts of the models that an exporter could not export."""
    found = [json.loads(file.read_text()) for file in sorted(directory.glob("*.json"))]
    return [facts for facts in found if "error" in facts]


_HEAD = """# Graphs as exporters write them

Written by `make corpus` (`python -m studies.corpus.compare DIRECTORY --page
docs/evidence/results/corpus.md`). Every model is built from its library with random weights,
exported, and read by the code that serves pushes. The table has the figures of the predictor over
the framework's own counts of one sample: parameters and floating buffers, FLOPs of the forward pass
(a multiply-add is two), and the bytes that autograd saves for the backward pass. TensorFlow and JAX
do not say what they save. The bars are 2 %, 5 % and 10 %.
"""


def page(graphs: list[Compared], failures: list[dict[str, Any]]) -> str:
    """Return the page: a summary by exporter, every graph, what could not be exported."""
    summary = []
    for exporter in (*sorted({graph.exporter for graph in graphs}), "all"):
        own = [g for g in graphs if exporter in (g.exporter, "all")]
        refused = [g for g in own if g.refusal]
        summary.append([
            exporter, len(own), sum(g.verdict == "correct" for g in own),
            f"{sum(bool(g.way_out) for g in refused)} of {len(refused)}",
            sum(bool(g.outside) for g in own), sum(g.nearly_free for g in own),
        ])  # fmt: skip
    found = [
        [graph.name, graph.family, graph.exporter,
         *(f"{graph.ratios[key]:.3f}" if key in graph.ratios else "-" for key in BARS),
         graph.verdict]
        for graph in graphs
    ]  # fmt: skip
    columns = ["exporter", "graphs", "correct", "refused with a way out", "outside a bar",
               "below a tenth of the cost"]  # fmt: skip
    of_graphs = ["model", "family", "exporter", "parameters", "FLOPs", "saved bytes", ""]
    parts = [_HEAD, markdown(columns, summary), "", markdown(of_graphs, found)]
    if failures:
        words = [" ".join(each["error"].split())[:160].replace("|", "\\|") for each in failures]
        lost = [[f["name"], f["exporter"], said] for f, said in zip(failures, words, strict=True)]
        parts += ["", "## What could not be exported", "",
                  markdown(["model", "exporter", "words of the exporter"], lost)]  # fmt: skip
    return "\n".join(parts) + "\n"


def main() -> None:
    """Print the comparison of every graph, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    names = sorted(file.stem for file in options.directory.glob("*.onnx"))
    graphs = [compared(options.directory, name) for name in names]
    for graph in graphs:
        ratios = " ".join(f"{key} {ratio:.3f}" for key, ratio in graph.ratios.items())
        print(f"{graph.name}.{graph.exporter}: {ratios} {graph.verdict}")
    if options.page:
        options.page.write_text(page(graphs, failed(options.directory)))


if __name__ == "__main__":
    main()
