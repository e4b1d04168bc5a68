"""A short generated workload on a real control plane; the long one is `studies.plane`."""

from __future__ import annotations

import pytest
from controlplane_binaries import need_control_plane

from studies.plane.jobs import scaled, workload
from studies.plane.site import site

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("workload"),
    pytest.mark.timeout(900),
]

SCALE = 0.3  # most jobs take three to six seconds


def test_gangs_under_tiresias_all_end_whole_and_never_two_on_a_gpu() -> None:
    need_control_plane()
    gangs = workload(7, 12, 1.25, scale=SCALE)
    assert {gang.pods for gang in gangs} == {1, 2, 4}
    with site(scaled("tiresias-l", SCALE)) as at:
        training, watching = at.run(at.namespace("workload"), gangs)
    assert all(run.trained_s >= run.duration_s for run in training.runs.values())
    assert watching.most_on_a_gpu == 1
    print(f"a gang was in part for {watching.longest_partial_s:.1f} s at most")
