"""The table of `make bench` has its figures whole, in a pipe and at 80 columns."""

from __future__ import annotations

import pytest

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
