"""The report on a trained load model: figures, a page, and a calibration plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Strings = NDArray[np.str_]

#: [Horus] Table 4: RMSLE of utilisation on random folds of its authors' own profiles.
PAPER = {"linear": 0.188, "lightgbm": 0.193, "xgboost": 0.133, "forest": 0.150}
_SIDE, _PAD = 260, 40


def held_out_figures(
    measured: Floats,
    upper: Floats,
    predicted: Floats,
    bounds: Floats,
    columns: Mapping[str, Any],
    rmsle: Callable[[Floats, Floats], float],
) -> dict[str, Any]:
    """Return what held-out predictions were worth; all (rows,).

    `upper` is what `bounds` are to cover: the peak, or the p95 of utilisation. `columns` has the
    `formula`'s predictions and the names of `family` and `gpu`.
    """
    formula = columns["formula"]

    def by(names: Strings) -> dict[str, dict[str, float]]:
        return {
            str(name): {
                "rows": int((names == name).sum()),
                "rmsle": round(rmsle(measured[names == name], predicted[names == name]), 4),
                "formula": round(rmsle(measured[names == name], formula[names == name]), 4),
                "under_predicted": round(float((bounds < upper)[names == name].mean()), 4),
            }
            for name in np.unique(names)
        }

    return {
        "rows": len(measured),
        "rmsle": round(rmsle(measured, predicted), 4),
        "median_ratio": round(float(np.median(predicted / np.maximum(measured, 1e-9))), 4),
        "under_predicted": round(float((bounds < upper).mean()), 4),
        "mean_over_allocation": round(float(np.mean(bounds / np.maximum(measured, 1e-9)) - 1), 4),
        "by_family": by(columns["family"]),
        "by_gpu": by(columns["gpu"]),
    }


def markdown(card: dict[str, Any], parts: list[str]) -> str:
    """Return the report as a page."""
    errors, details = card["errors"], card["details"]
    targets = list(errors["formula"])
    counts = ", ".join(f"{name}: {count}" for name, count in card["trained_on"].items())
    lines = [
        "# Load model",
        "",
        f"Trained on: {counts}. Published parts: {', '.join(parts)}; the formula answers the rest.",
        "",
        "All errors are on architecture families that were left out of training (grouped folds);",
        "the upper bounds are calibrated on the other folds' families.",
        "",
        "## RMSLE",
        "",
        f"| | {' | '.join(targets)} |",
        f"|---|{'---|' * len(targets)}",
    ]
    lines += [
        f"| {name} | {' | '.join(f'{by[target]:.3f}' for target in targets)} |"
        for name, by in errors.items()
    ]
    lines += [
        "",
        f"The paper's utilisation: {', '.join(f'{k} {v:.3f}' for k, v in PAPER.items())}; on folds"
        " that may share architectures, and on other models and GPUs, so the figures are not of"
        " one scale.",
    ]
    for target, figures in details["held_out"].items():
        lines += [
            "",
            f"## {target}",
            "",
            "What corrects the formula of what was learned: "
            + ", ".join(f"{name} {w:.0%}" for name, w in details["weights"][target].items())
            + ".",
            "",
            f"{figures['rows']} profiles; above the upper bound: "
            f"{figures['under_predicted']:.1%}; the bound is on average "
            f"{figures['mean_over_allocation']:.0%} more than measured. The 90 % interval has the "
            f"factor {np.exp(details['spreads'][target]):.2f}.",
        ]
        for title in ("gpu", "family"):
            lines += [
                "",
                f"| {title} | profiles | RMSLE | the formula's | above the bound |",
                "|---|---|---|---|---|",
            ]
            lines += [
                f"| {name} | {f['rows']} | {f['rmsle']:.3f} | {f['formula']:.3f} | "
                f"{f['under_predicted']:.1%} |"
                for name, f in figures[f"by_{title}"].items()
            ]
    return "\n".join(lines) + "\n"


def scatter(plots: dict[str, tuple[Floats, Floats, Floats]]) -> str:
    """Return the calibration plot: predicted (dots) and upper bound (ticks) against measured.

    `plots` has (measured, predicted, bound) by target; axes are logarithmic, held-out rows only.
    """
    width = _PAD + len(plots) * (_SIDE + _PAD)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_SIDE + 2 * _PAD}" '
        'font-family="sans-serif" font-size="12">'
    ]
    for column, (target, (measured, predicted, bound)) in enumerate(plots.items()):
        x0 = _PAD + column * (_SIDE + _PAD)
        shown = np.log10(np.maximum(np.stack([measured, predicted, bound]), 1e-9))
        low, high = float(shown.min()), float(shown.max())
        scale = _SIDE / max(high - low, 1e-9)
        x = x0 + (shown[0] - low) * scale
        y = _PAD + _SIDE - (shown[1:] - low) * scale
        out.append(f'<text x="{x0}" y="{_PAD - 10}">{target}: predicted over measured</text>')
        out.append(
            f'<rect x="{x0}" y="{_PAD}" width="{_SIDE}" height="{_SIDE}" fill="none" '
            f'stroke="#999"/><line x1="{x0}" y1="{_PAD + _SIDE}" x2="{x0 + _SIDE}" '
            f'y2="{_PAD}" stroke="#999"/>'
        )
        for px, py, top in zip(x, y[0], y[1], strict=True):
            out.append(
                f'<path d="M{px - 2:.1f} {top:.1f}h4" stroke="#c60"/>'
                f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2" fill="#06c" fill-opacity=".6"/>'
            )
    out.append("</svg>\n")
    return "\n".join(out)
