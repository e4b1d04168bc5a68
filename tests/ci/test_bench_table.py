"""The tables of benchmarks have their figures whole, also where one could not be measured."""

from __future__ import annotations

import pytest

from benchmarks.scheduler import quantile_bounds_ms
from benchmarks.size import Reports, Size, table
from benchmarks.verbs import Cell, report

CELLS = [
    Cell(
        nodes=nodes, pods=nodes * pods, requests=500, filter_p50_ms=12.345, filter_p99_ms=23.456,
        prioritize_p50_ms=9.876, prioritize_p99_ms=19.87, sum_p50_ms=21.222, sum_p99_ms=43.333,
        refused_p50_ms=14.555, server_cpu_ms=11.777, rss_mib=512.4, cold_start_s=17.25,
    )
    for nodes in (1000, 5000)
    for pods in (0, 8)
]  # fmt: skip


@pytest.mark.parametrize("columns", ["", "80"])
def test_no_figure_is_cut(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    else:
        monkeypatch.delenv("COLUMNS", raising=False)
    report(CELLS)
    printed = capsys.readouterr().out
    assert "…" not in printed
    for figure in ("12.345", "9.876", "21.222", "43.333", "14.555", "11.777", "512", "17.25"):
        assert printed.count(figure) == len(CELLS), figure
    assert "8 / 20" in printed


def test_a_queue_that_took_too_long_has_no_figures_and_the_others_have_theirs() -> None:
    verbs = {"cold_start_s": 9.5, "rss_mib": 400.4, "sum_p50_ms": 4.5, "sum_p99_ms": 7.2}
    reports = [Reports(rate, rate - 1, 0.25, 1.5, 3.5, 411.0) for rate in (1.0, 84.0, 500.0)]
    cycles = {
        "queued": 33_333, "plan_p50_s": 0.16, "plan_p99_s": 0.21, "question_max_s": 0.0123,
        "carry_out_max_s": 0.004, "lag_p99_s": 0.005, "lag_max_s": 0.03,
    }  # fmt: skip
    measured = Size(5000, 90_032, 245_000_000, 2000, verbs, reports, cycles)
    without = Size(15_000, 270_032, 735_000_000, 2000, verbs, reports, {"queued": 100_000})
    rows = [line.strip("| ").split(" | ") for line in table([measured, without]).splitlines()]
    assert {len(row) for row in rows} == {3, 1}, "the line under the head has no words"
    figures = {row[0]: row[1:] for row in rows}
    assert figures["nodes"] == ["5,000", "15,000"]
    assert figures["their JSON, MB"] == ["245", "735"]
    assert figures["each 10 s: a second, sent"] == ["500, 499", "500, 499"]
    assert figures["each 10 s: MB a second"] == ["1.00", "1.00"]
    assert figures["waiting jobs, all GPUs taken"] == ["33,333", "100,000"]
    assert figures["a cycle, p50, s"] == ["0.16", "none"]
    assert figures["its question, on the loop, at most, ms"] == ["12.3", "none"]


def test_a_percentile_of_a_histogram_is_the_bound_of_its_bucket() -> None:
    buckets = {0.001: 50, 0.002: 98, 0.005: 99, float("inf"): 100}
    assert quantile_bounds_ms(buckets) == (1, 5)
    assert quantile_bounds_ms({0.001: 0, 0.005: 1, float("inf"): 2}) == (5, float("inf"))
    assert quantile_bounds_ms({}) == ()
    assert quantile_bounds_ms({0.001: 0, float("inf"): 0}) == ()
