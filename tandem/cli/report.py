"""`tandem report`: what jobs had of GPUs in the last days, from /v1/status/report."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tandem.cli.forms import Form, reports
from tandem.cli.output import clean, out, print_json, print_table
from tandem.cli.reach import Reader, reads_once
from tandem.cli.report_figures import (
    FIGURES,
    PREDICTED,
    hours,
    neighbours_of,
    predicted_hours,
    waits_of,
)
from tandem.cli.screen import in_words
from tandem.cli.shadow import print_shadow_report
from tandem.cli.views import LimitOption, NamespaceOption, say, shown
from tandem.errors import UsageError

Document = dict[str, Any]


class By(StrEnum):
    """The rows of a report."""

    NAMESPACE = "namespace"
    USER = "user"
    MODEL = "model"
    GPU_TYPE = "gpu-type"
    DAY = "day"


@reads_once
@reports
def report(
    read: Reader,
    namespace: NamespaceOption = None,
    days: Annotated[int, typer.Option("--days", min=1, max=30, help="How many, with today.")] = 7,
    by: Annotated[By, typer.Option("--by", help="What a row is.")] = By.NAMESPACE,
    price: Annotated[
        list[str] | None,
        typer.Option("--price", metavar="TYPE=PRICE", help="Price of a GPU-hour; repeatable."),
    ] = None,
    jobs: Annotated[
        bool, typer.Option("--jobs", help="List the single jobs that have ended, the latest first.")
    ] = False,
    csv_: Annotated[bool, typer.Option("--csv", help="Print CSV, in GPU-seconds.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write one HTML file with plots.")
    ] = None,
    shadow: Annotated[
        bool,
        typer.Option(
            "--shadow",
            help="In shadow mode: what Tandem would have done with all jobs; --days, --json.",
        ),
    ] = False,
    limit: LimitOption = None,
    form: Form = Form.TABLE,
) -> None:
    """Show what jobs had of GPUs, and what sharing saved.

    asked: GPUs times the time from the queue to the end. held: GPUs times the time that containers
    ran. used: utilisation times held. saved: what the same work would have taken more without
    sharing. lost: what neighbours have slowed down. A price is that of each type whose name has it.
    """
    if shadow:
        print_shadow_report(read, days, form)
        return
    prices = prices_of(price or [])
    query = {"days": str(days), "by": by.value}
    found = read.of_namespace("/v1/status/report", namespace, query)
    if not found["rows"]:
        read.check_namespace(namespace)
    _check_types(prices, found)
    priced(found, prices)
    if html is not None:
        from tandem.cli.report_page import page

        others = {
            each.value: found
            if each is by
            else priced(
                read.of_namespace("/v1/status/report", namespace, query | {"by": each}), prices
            )
            for each in By
        }
        html.write_text(page(found, others), encoding="utf-8")
        out.print(f"{clean(html)}: {clean(found['from'])} to {clean(found['to'])}", highlight=False)
    elif form is Form.JSON:
        print_json(found)
    elif csv_:
        _print_csv(found["jobs"] if jobs else found["rows"])
    elif jobs:
        _print_jobs(found, limit, with_cost=bool(prices))
    else:
        _print_rows(found, by, limit, with_cost=bool(prices))


def prices_of(given: Sequence[str]) -> dict[str, float]:
    """Return prices of a GPU-hour by a part of the name of a type.

    Raises:
        UsageError: one is no TYPE=PRICE.
    """
    prices = {}
    for each in given:
        name, _, text = each.rpartition("=")
        try:
            prices[name.lower()] = float(text)
        except ValueError:
            prices[name.lower()] = -1.0
        if not name or not 0 <= prices[name.lower()] < float("inf"):
            raise UsageError(f"{each!r} is no price", "write TYPE=PRICE, such as A100=2.5")
    return prices


def _check_types(prices: Mapping[str, float], found: Document) -> None:
    """Raise UsageError for a price of a type of which no GPU was had: it may be misspelt."""
    types = found["total"]["occupiedGpuSecondsByType"]
    for name in prices:
        if types and not any(name in gpu_type.lower() for gpu_type in types):
            raise UsageError(
                f"--price: no GPU of a type {name!r} was used", f"there are {', '.join(types)}"
            )


def priced(found: Document, prices: Mapping[str, float]) -> Document:
    """Add to each row and job of a report what it cost; None where a type has no price."""
    if prices:
        for row in (*found["rows"], found["total"]):
            row["cost"] = _cost(row["occupiedGpuSecondsByType"], prices)
        for job in found["jobs"]:
            job["cost"] = _cost({job["gpuType"]: job["occupiedGpuSeconds"]}, prices)
    return found


def _cost(by_type: Mapping[str, float], prices: Mapping[str, float]) -> float | None:
    """Return the cost; of prices whose names a type has, that with the longest name counts."""
    cost = 0.0
    for gpu_type, gpu_seconds in by_type.items():
        fitting = [name for name in prices if name in gpu_type.lower()]
        if not fitting and gpu_seconds > 0:
            return None
        if fitting:
            cost += gpu_seconds / 3600 * prices[max(fitting, key=len)]
    return round(cost, 2)


def _print_rows(found: Document, by: By, limit: int | None, *, with_cost: bool) -> None:
    rows = shown(found["rows"], limit, "--limit 0")
    heads = [by.value, "jobs", *FIGURES, "waited", *(["cost"] if with_cost else [])]
    cells = [
        (
            row["key"] or "-",
            row["jobs"],
            *(f"{hours(row, figure):,.1f}" for figure in FIGURES),
            in_words(row["waitedSeconds"] / row["jobs"]) if row["jobs"] else "-",
            *([_money(row)] if with_cost else []),
        )
        for row in (*rows, found["total"] | {"key": "total"})
    ]
    print_table(f"GPU-hours, {found['from']} to {found['to']}", heads, cells)
    total = found["total"]
    parts = [
        f"{predicted_hours(total, figure):,.1f} of {figure}"
        for figure in PREDICTED
        if abs(predicted_hours(total, figure)) >= 0.05
    ]
    if parts:
        say(f"Predicted, not measured: {', '.join(parts)}.")
    if waits := waits_of(total):
        most = "; ".join(f"{words} ({in_words(s)})" for words, s in waits[:5])
        say(f"Waits by reason: {most}{'; and others' if len(waits) > 5 else ''}.")
    if found["since"] and found["since"] > found["from"]:
        say(f"The record begins on {found['since']}.")


def _print_jobs(found: Document, limit: int | None, *, with_cost: bool) -> None:
    rows = shown(found["jobs"], limit, "--limit 0")
    heads = ["job", "phase", "waited", "ran", "held h", "slower", "next to"]
    cells = [
        (
            f"{row['namespace']}/{row['name']}",
            row["phase"],
            in_words(row["waitSeconds"]),
            in_words(row["runSeconds"]),
            f"{row['heldGpuSeconds'] / 3600:,.2f}",
            "-" if row["slowdown"] is None else f"{row['slowdown']:.0%}",
            ", ".join(neighbours_of(row)) or "-",
            *([_money(row)] if with_cost else []),
        )
        for row in rows
    ]
    print_table(
        f"Jobs that ended, {found['from']} to {found['to']}",
        [*heads, *(["cost"] if with_cost else [])],
        cells,
    )
    if found["jobsNotShown"]:
        say(f"{found['jobsNotShown']:,} more are in the sums alone.")


def _money(row: Mapping[str, Any]) -> str:
    return "-" if row["cost"] is None else f"{row['cost']:,.2f}"


def _print_csv(rows: Sequence[Document]) -> None:
    """Print what every program reads: a line each, without what has parts of its own."""
    if not rows:
        return
    names = [name for name, value in rows[0].items() if not isinstance(value, dict | list)]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_harmless(row[name]) for name in names])


def _harmless(value: object) -> object:
    """Return a cell that no spreadsheet takes for a formula: tenants choose names."""
    if isinstance(value, str):
        text = clean(value)
        return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
    return value
