"""A report as one HTML file: tables and plots, without scripts and without anything from elsewhere.

Each plot is an image inside the file. Its content policy allows nothing else, so that names which
tenants chose do no harm; they are escaped as well.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tandem.cli.output import clean
from tandem.cli.report_figures import FIGURES, hours, neighbours_of, predicted_hours, waits_of
from tandem.errors import TandemError

Document = Mapping[str, Any]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
       color: #1a1a1a; background: #fff }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { padding: .25rem .75rem; border-bottom: 1px solid #ccc; text-align: left }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
img { max-width: 100%; height: auto }
"""
_TITLES = {
    "namespace": "Namespaces",
    "user": "Users",
    "model": "Models",
    "gpu-type": "Types of GPU",
    "day": "Days",
}
_MOST_ROWS = 20
_SAYS = {
    "asked": "GPUs times the time from the queue to the end",
    "held": "GPUs times the time that containers ran",
    "used": "utilisation times held",
    "saved": "what the same work would have taken more without sharing",
    "lost": "what neighbours have slowed down",
}


def page(found: Document, by: Mapping[str, Document]) -> str:
    """Return the page of a report, which `by` has by everything that rows may be."""
    total = found["total"]
    where = f"Namespace {found['namespace']}" if found["namespace"] else "The whole cluster"
    title = f"GPUs from {found['from']} to {found['to']}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(where)}: {escape(_summary(total))}</p>",
        "<dl>" + "".join(f"<dt>{k}</dt><dd>{v}.</dd>" for k, v in _SAYS.items()) + "</dl>",
        _image(_of_days(by["day"]["rows"]), "GPU-hours by day"),
        _waits(waits_of(total)),
        *(_section(name, _TITLES[name], by[name]["rows"]) for name in _TITLES),
        _jobs(found["jobs"]),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>\n"
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def _summary(total: Document) -> str:
    said = f"{total['jobs']:,} jobs ended. "
    said += ", ".join(f"{hours(total, figure):,.1f} GPU-hours {figure}" for figure in FIGURES)
    predicted = ", ".join(
        f"{predicted_hours(total, figure):,.1f} of {figure}" for figure in ("used", "saved", "lost")
    )
    cost = "" if total.get("cost") is None else f" Cost: {total['cost']:,.2f}."
    return f"{said}. Of these, predicted and not measured: {predicted}.{cost}"


def _section(by: str, title: str, rows: Sequence[Document]) -> str:
    if not rows:
        return ""
    shown = rows[-_MOST_ROWS:] if by == "day" else rows[:_MOST_ROWS]
    has_cost = "cost" in shown[0]
    heads = [by, "jobs", *FIGURES, "waited h", *(["cost"] if has_cost else [])]
    cells = [
        [
            row["key"] or "-",
            f"{row['jobs']:,}",
            *(f"{hours(row, figure):,.1f}" for figure in FIGURES),
            f"{row['waitedSeconds'] / 3600:,.1f}",
            *(["-" if row["cost"] is None else f"{row['cost']:,.2f}"] if has_cost else []),
        ]
        for row in shown
    ]
    more = len(rows) - len(shown)
    note = f"<p>{more:,} more are left out.</p>" if more else ""
    return f"<h2>{title}</h2>{_table(heads, cells)}{note}"


def _waits(waits: Sequence[tuple[str, float]]) -> str:
    if not waits:
        return ""
    cells = [[words, f"{s / 3600:,.1f}"] for words, s in waits]
    return f"<h2>Waits by reason</h2>{_table(['reason', 'hours'], cells)}"


def _jobs(jobs: Sequence[Document]) -> str:
    if not jobs:
        return ""
    heads = ["job", "waited h", "ran h", "GPU-hours", "slower", "next to"]
    cells = [
        [
            f"{job['namespace']}/{job['name']}",
            f"{job['waitSeconds'] / 3600:,.2f}",
            f"{job['runSeconds'] / 3600:,.2f}",
            f"{job['heldGpuSeconds'] / 3600:,.2f}",
            "-" if job["slowdown"] is None else f"{job['slowdown']:.0%}",
            ", ".join(neighbours_of(job)) or "-",
        ]
        for job in jobs[:_MOST_ROWS]
    ]
    return f"<h2>Latest jobs</h2>{_table(heads, cells)}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(tag: str, cells: Sequence[str]) -> str:
        scope = ' scope="col"' if tag == "th" else ""
        sides = ("", *[' class="n"'] * (len(cells) - 1))
        inner = "".join(
            f"<{tag}{scope}{side}>{escape(clean(cell))}</{tag}>"
            for side, cell in zip(sides, cells, strict=True)
        )
        return f"<tr>{inner}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table><thead>{line('th', heads)}</thead><tbody>{body}</tbody></table>"


def _of_days(rows: Sequence[Document]) -> bytes:
    """Return a plot of the figures by day, as SVG."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise TandemError(
            "plots need matplotlib", "pip install 'tandem-gpu[plots]', or --csv for a program"
        ) from error

    with mpl.rc_context({"svg.hashsalt": "tandem", "svg.fonttype": "path"}):
        figure = Figure(figsize=(10, 4), layout="constrained")
        axes = figure.add_subplot()
        days = [row["key"][5:] for row in rows]
        for name in FIGURES:
            axes.plot(days, [hours(row, name) for row in rows], marker="o", label=name)
        axes.set_ylabel("GPU-hours")
        axes.tick_params(axis="x", rotation=60)
        axes.legend()
        content = io.BytesIO()
        figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()


def _image(content: bytes, words: str) -> str:
    data = base64.b64encode(content).decode()
    return f'<img alt="{escape(words)}" src="data:image/svg+xml;base64,{data}">'
