"""The figure of docs/architecture.md: `python deploy/site/figures.py` writes it."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.patches import FancyBboxPatch

mpl.use("Agg")
mpl.rcParams |= {"svg.hashsalt": "tandem", "svg.fonttype": "none", "font.family": "sans-serif"}


FILE = Path(__file__).parents[2] / "docs" / "pictures" / "components.svg"
#: Text, centre and size of each box, in a plane of 12 by 6.
BOXES = {
    "user": ("kubectl apply", 1.3, 5.1, 1.9, 0.7),
    "api": ("kube-apiserver\npods, GPUJobs, GPUNodes", 5.9, 5.1, 3.6, 1.0),
    "scheduler": ("kube-scheduler", 1.35, 2.9, 2.5, 0.8),
    "extender": ("scheduler extender\nwebhook, queue, planner, verbs", 5.5, 2.9, 3.9, 1.1),
    "predictor": ("predictor\nONNX features, XGBoost", 10.4, 2.9, 2.9, 1.1),
    "agent": ("node agent\nNVML by process", 6.7, 0.8, 2.5, 1.0),
    "pods": ("training pods\non the GPUs of a node", 10.4, 0.8, 2.9, 1.0),
}
#: From, to, what goes that way, and where the text stands, relative to the middle.
ARROWS = (
    ("user", "api", "Job", 0.0, 0.17),
    ("api", "extender", "review,\nwatch", -0.62, 0.0),
    ("extender", "api", "gate, plan,\nBinding", 0.72, 0.0),
    ("api", "scheduler", "pods without\na gate", -0.85, 0.1),
    ("scheduler", "extender", "filter,\nbind", 0.0, 0.3),
    ("extender", "predictor", "load?", 0.0, 0.17),
    ("agent", "api", "GPUNode: memory,\nutilisation, speed", 1.35, 1.05),
    ("pods", "agent", "progress", 0.0, 0.17),
)  # fmt: skip


def components() -> Any:  # noqa: ANN401 - a figure of matplotlib's
    """Draw the components and what goes between them."""
    figure, axes = plt.subplots(figsize=(9, 4.5))
    axes.set(xlim=(0, 12), ylim=(0.1, 5.8))
    axes.axis("off")
    for text, x, y, width, height in BOXES.values():
        axes.add_patch(
            FancyBboxPatch(
                (x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0.02",
                facecolor="#eaf2fb", edgecolor="#33587a",
            )
        )  # fmt: skip
        axes.text(x, y, text, ha="center", va="center", fontsize=9)
    for start, end, text, right, up in ARROWS:
        (x0, y0), (x1, y1) = _ends(start, end)
        axes.annotate("", (x1, y1), (x0, y0), arrowprops={"arrowstyle": "->", "color": "#33587a"})
        axes.text(
            (x0 + x1) / 2 + right, (y0 + y1) / 2 + up, text, ha="center", va="center", fontsize=8
        )
    return figure


def _ends(start: str, end: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return where an arrow leaves one box and reaches another."""
    _, x0, y0, w0, h0 = BOXES[start]
    _, x1, y1, w1, h1 = BOXES[end]
    if abs(y0 - y1) < 0.1:
        side = np.sign(x1 - x0)
        return (x0 + side * w0 / 2, y0), (x1 - side * w1 / 2, y1)
    if {start, end} == {"agent", "api"}:  # around the extender
        return (x0 + 1.15, y0 + h0 / 2), (x1 + 1.7, y1 - h1 / 2)
    side = np.sign(y1 - y0)
    shift = 0.35 * side if {start, end} == {"api", "extender"} else 0.0
    along = 0.0 if shift else np.clip(x1 - x0, -w0 / 2.5, w0 / 2.5)
    return (x0 + shift + along, y0 + side * h0 / 2), (x1 + shift, y1 - side * h1 / 2)


def drawn(figure: Any) -> str:  # noqa: ANN401 - a figure of matplotlib's
    """Return a figure as SVG; equal figures give equal text."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return re.sub(r"[ \t]+$", "", text.getvalue(), flags=re.MULTILINE)


def main() -> int:
    """Write the figure; with `--check`, say whether it differs from what is there."""
    text = drawn(components())
    if "--check" not in sys.argv[1:]:
        FILE.write_text(text)
    elif FILE.read_text() != text:
        print(f"{FILE} is stale: make generate")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
