"""What a pod was placed with, and which GPUJob it belongs to, as annotations say it."""

from __future__ import annotations

import json

import pytest

from tandem.contracts import names
from tandem.contracts.gangs import derived_name, gpujob_name
from tandem.contracts.placement import PlacedWith, parse_placed_with

GIB = 1 << 30


def test_the_figures_are_read_back_as_they_were_written() -> None:
    placed = PlacedWith(
        gpu_job="job-a",
        memory_base_bytes=8 * GIB,
        memory_peak_extra_bytes=2 * GIB,
        peak_probability=0.25,
        utilization=40.0,
    )
    assert json.loads(placed.text()) == {
        "gpuJob": "job-a",
        "memoryBaseBytes": 8 * GIB,
        "memoryPeakExtraBytes": 2 * GIB,
        "peakProbability": 0.25,
        "utilization": 40.0,
    }
    assert parse_placed_with(placed.text()) == placed
    assert placed.memory_bytes == 10 * GIB


def test_what_is_unknown_is_absent() -> None:
    placed = PlacedWith(gpu_job="job-a", exclusive=True)
    assert placed.text() == '{"gpuJob":"job-a","exclusive":true}'
    assert placed.memory_bytes is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"gpuJob":""}',
        '{"gpuJob":"a","memoryBaseBytes":-1}',
        '{"gpuJob":"a","memoryBaseBytes":1e400}',
        '{"gpuJob":"a","memoryBaseBytes":2305843009213693952}',
        '{"gpuJob":"a","utilization":NaN}',
        '{"gpuJob":"a","utilization":Infinity}',
        '{"gpuJob":"a","peakProbability":1.5}',
        '{"gpuJob":"a"}' + " " * 2000,
    ],
)
def test_figures_that_cannot_be_true_are_none(text: str) -> None:
    assert parse_placed_with(text) is None


def test_the_longest_figures_can_be_read() -> None:
    placed = PlacedWith(
        gpu_job="j" * 253,
        role="r" * 63,
        memory_base_bytes=2**60,
        memory_peak_extra_bytes=2**60,
        peak_probability=0.1 + 0.2,
        utilization=100 / 3,
        exclusive=True,
    )
    assert parse_placed_with(placed.text()) == placed


def test_labels_and_owners_are_not_read_once_the_gpujob_is_fixed() -> None:
    labels = {names.JOBSET_LABEL: "decoy", names.COSCHEDULING_GROUP_LABEL: "decoy"}
    fixed = {names.GPU_JOB: "job-a", names.GANG: "decoy"}
    assert gpujob_name("p", fixed, labels, ("Job", "decoy")) == "job-a"
    assert derived_name("p", fixed, labels, ("Job", "decoy")) == "gang-decoy"
