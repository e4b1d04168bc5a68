"""What pages of results say in words follows from the tables that stand there."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping

import pytest

from benchmarks.pages import FOLDER
from benchmarks.tables import less, spread, tables_of
from studies.papers import (
    horus,
    ojpp_measured,
    ojpp_memory,
    sjf_bsbf,
    sjf_bsbf_loads,
    sjf_bsbf_testbed,
    tiresias_placement,
    tiresias_trace,
    xonar_orders,
)
from studies.predictions import first

Words = Callable[..., Mapping[str, str]]
#: By page: its writer's template, its words, and the tables that they are made from.
PAGES: dict[str, tuple[str, Words, tuple[int, ...]]] = {
    "horus": (horus.PAGE, horus.words, (3, 4)),
    "ojpp-measured": (
        ojpp_measured.PAGE,
        lambda *t: ojpp_measured.words(*t[:3], t[3:]),
        (0, 2, 5, 6, 7),
    ),
    "ojpp-memory": (ojpp_memory.PAGE, ojpp_memory.words, (0, 1)),
    "sjf-bsbf": (sjf_bsbf.PAGE, sjf_bsbf.words, (0, 1)),
    "sjf-bsbf-loads": (sjf_bsbf_loads.PAGE, sjf_bsbf_loads.words, (0, 1)),
    "sjf-bsbf-testbed": (sjf_bsbf_testbed.PAGE, sjf_bsbf_testbed.words, (0, 1)),
    "tiresias-placement": (tiresias_placement.PAGE, tiresias_placement.words, (0,)),
    "tiresias-trace": (tiresias_trace.PAGE, tiresias_trace.words, (0, 1, 2)),
    "xonar-orders": (xonar_orders.PAGE, xonar_orders.words, (0,)),
}


@pytest.mark.parametrize("name", PAGES)
def test_the_prose_of_a_page_has_the_figures_of_its_tables(name: str) -> None:
    template, words, used = PAGES[name]
    page = (FOLDER / f"{name}.md").read_text()
    tables = list(tables_of(page))
    said = words(*(tables[at] for at in used))
    shown = set[str]()
    for paragraph in template.split("\n\n"):
        fields = {field for _, field, _, _ in string.Formatter().parse(paragraph) if field}
        if fields and fields <= said.keys():
            shown |= fields
            assert " ".join(paragraph.format(**said).split()) in " ".join(page.split())
    assert shown == said.keys()


def test_what_is_said_of_first_predictions_follows_from_their_tables() -> None:
    page = (FOLDER / "predictions.md").read_text()
    at = page.index("## First predictions and sharing")
    spreads, shares, *_ = tables_of(page[at:])
    chosen = float(page[at:].partition("interquartile range ")[2].split()[0])
    assert first.outside(spreads, shares, chosen) in page


def test_a_table_is_read_as_it_is_printed() -> None:
    text = "| a | b | c |\n|---|---|---|\n| x | 0.31 ± 0.05 / 0.82 | 1,234 (-3 to +4.5) |\n"
    (table,) = tables_of(f"before\n\n{text}\nafter")
    assert table.rows == ["x"]
    assert table.columns == ["b", "c"]
    assert table.figures("x", "b") == [0.31, 0.05, 0.82]
    assert table.figures("x", 2) == [1234.0, -3.0, 4.5]
    assert table.across("x") == [0.31, 1234.0]


def test_rows_that_begin_alike_are_named_by_more_cells() -> None:
    (table,) = tables_of("| a | b | c |\n|---|---|---|\n| x | y | 1 |\n| x | z | 2 |\n")
    assert table.rows == ["x, y", "x, z"]
    assert table.figure("x, z", "c") == 2.0
    (table,) = tables_of("| a | b | c |\n|---|---|---|\n| x | y | 1 |\n| x | y | 2 |\n")
    assert table.rows == ["x, y, 1", "x, y, 2"]


def test_a_span_that_reads_the_same_is_one_figure() -> None:
    assert spread([2.6, 3.4]) == "3"
    assert spread([5.0, 12.9, 7.0]) == "5 to 13"
    assert less(3.0, 4.0) == 25.0
