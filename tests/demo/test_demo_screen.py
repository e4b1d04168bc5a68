"""The tables of the demo, as a terminal shows them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tandem.contracts.resources import GPU, Phase
from tandem_demo.screen import moment
from tandem_demo.view import GpuRow, JobRow, View
from tandem_demo.workload import GIB, JOBS

REASON = "The memory is too small: 17.4 GiB needed, 15.6 GiB there, 1.8 GiB too little"
REPORT = GPU(
    uuid="GPU-0",
    index=0,
    model="V100",
    memory_bytes=16 * GIB,
    memory_used_bytes=6 * GIB,
    utilisation_percent=71.6,
)
VIEW = View(
    now_s=12.0,
    gpus=(GpuRow("node-a/0", REPORT, ("first", "second")), GpuRow("node-a/1", None, ())),
    jobs=(
        JobRow(JOBS[0], Phase.RUNNING, "node-a/0", 3.24, "", 8.31),
        JobRow(JOBS[1], Phase.QUEUED, "", None, REASON, None),
        JobRow(JOBS[2], None, "", None, ""),
    ),
)


def shown(width):
    screen = io.StringIO()
    Console(file=screen, width=width).print(moment(VIEW, width))
    return screen.getvalue().splitlines()


def test_gpus_show_who_is_on_them_and_what_their_agents_report():
    lines = shown(140)
    (first,) = (line for line in lines if line.strip().startswith("node-a/0"))
    assert first.split() == ["node-a/0", "first", "+", "second", "6.0", "/", "16", "72", "%"]
    (second,) = (line for line in lines if line.strip().startswith("node-a/1"))
    assert second.split() == ["node-a/1", "-", "-", "-"]


def test_jobs_show_where_they_run_or_why_they_wait():
    text = " ".join(" ".join(shown(200)).split())
    assert "resnet50-a 32 < 8.3 GiB Running node-a/0, 3.2 s" in text
    assert (
        "squeezenet-a 64 - Queued The memory is too small: 17.4 GiB needed, 15.6 GiB there, 1.8 GiB"
        " too little vgg19"
    ) in text


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_tables_fit_the_terminal(width):
    lines = shown(width)
    assert max(map(len, lines)) <= width
    for row in VIEW.jobs:
        assert any(row.job.name in line for line in lines)
