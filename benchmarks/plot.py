"""Plots of the papers' figures, as SVG files next to their pages; equal inputs give equal files."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.pages import FOLDER
from tandem.policy.units import Floats

Curves = Mapping[str, tuple[Sequence[float], Sequence[float]]]


@contextmanager
def _figure(name: str, columns: int = 1) -> Iterator[Any]:
    """Yield the axes of docs/evidence/results/`name`.svg, one for each column."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "tandem"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, columns, figsize=(3.0 + 3.5 * columns, 3.6), sharey=True)
    yield axes
    figure.tight_layout()
    FOLDER.mkdir(parents=True, exist_ok=True)
    figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


@contextmanager
def _axes(name: str, xlabel: str, ylabel: str) -> Iterator[Any]:
    """Yield the axes of docs/evidence/results/`name`.svg."""
    with _figure(name) as axes:
        yield axes
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        axes.grid(visible=True, alpha=0.3)


def bars(
    name: str, groups: Sequence[str], values: Mapping[str, Sequence[float]], ylabel: str
) -> None:
    """Draw one bar for each series in each group; `values` is by series, one value a group."""
    with _axes(name, "", ylabel) as axes:
        width = 0.8 / len(values)
        for i, (series, heights) in enumerate(values.items()):
            axes.bar(np.arange(len(groups)) + (i + 0.5) * width - 0.4, heights, width, label=series)
        axes.set_xticks(range(len(groups)), groups, rotation=20, ha="right")
        axes.legend(fontsize="small")


def lines(name: str, curves: Curves, xlabel: str, ylabel: str) -> None:
    """Draw curves, each given by its x and its y; one point alone is a marker."""
    with _axes(name, xlabel, ylabel) as axes:
        for label, (x, y) in curves.items():
            axes.plot(x, y, marker="*" if len(x) == 1 else "o", markersize=4, label=label)
        axes.legend(fontsize="small")


def growth(
    name: str,
    panels: Mapping[str, tuple[Sequence[float], Sequence[Hashable]]],
    curves: Mapping[str, Mapping[Any, float]],
    ylabel: str,
) -> None:
    """Draw one panel for each size that is varied, both axes logarithmic.

    `panels` has the x and the cases of each panel; `curves` the y of each case, by label.
    """
    with _figure(name, columns=len(panels)) as axes:
        for at, (xlabel, (x, cases)) in zip(axes, panels.items(), strict=True):
            for label, y in curves.items():
                at.loglog(x, [y[case] for case in cases], marker="o", markersize=4, label=label)
            at.set_xlabel(xlabel)
            at.grid(visible=True, which="both", alpha=0.3)
        axes[0].set_ylabel(ylabel)
        axes[0].legend(fontsize="small")


def distributions(
    name: str, samples: Mapping[str, Floats], xlabel: str, *, logarithmic: bool = False
) -> None:
    """Draw the share of each sample up to each value, at 101 quantiles."""
    with _axes(name, xlabel, "share up to this value") as axes:
        share = np.linspace(0, 1, 101)
        for label, sample in samples.items():
            axes.plot(np.quantile(sample, share), share, label=label)
        if logarithmic:
            axes.set_xscale("log")
        axes.legend(fontsize="small")


def boxes(name: str, samples: Mapping[str, Floats], ylabel: str) -> None:
    """Draw quartiles, and whiskers from the least to the most, of each sample."""
    with _axes(name, "", ylabel) as axes:
        axes.boxplot(list(samples.values()), whis=(0, 100))
        axes.set_xticks(range(1, len(samples) + 1), samples, rotation=20, ha="right")
