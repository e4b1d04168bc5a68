"""The systems of the five papers on a control plane, each by a scenario that only it decides so.

The scenarios are those of `paper_scenarios`. Every other profile fails them in memory
(`tests/queue/test_queue_papers.py`); here each runs under its own profile and, where that is no
system with a scenario of its own, under the nearest other one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from controlplane_binaries import need_control_plane
from e2e_cluster import TandemCluster
from e2e_papers import NODES, SHARES, LiveCourse, SaidPredictor
from e2e_physics import Physics
from paper_scenarios import BOARD, SCENARIOS, Scenario

from controlplane import ControlPlane, Node

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.papers,
    pytest.mark.slow,
    pytest.mark.xdist_group("papers"),
]

BY_SYSTEM = {scenario.system: scenario for scenario in SCENARIOS}
Plane = tuple[TandemCluster, Physics, SaidPredictor]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A node of one GPU and one of two, with agents; the extender is started by each test."""
    need_control_plane()
    folder = tmp_path_factory.mktemp("papers")
    nodes = [Node(name, cpu=32) for name in NODES.values()]
    gpus = {name: number for number, name in NODES.items()}
    with ControlPlane.start(nodes=nodes) as plane, SaidPredictor() as predictor:
        cluster = TandemCluster(plane, folder)
        cluster.installation.apply_manifests()
        cluster.installation.start_scheduler()
        with Physics(cluster, folder, gpus, {}, shares=SHARES, board=BOARD) as physics:
            yield cluster, physics, predictor


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.system)
def test_the_system_decides_as_its_paper_says(plane: Plane, scenario: Scenario) -> None:
    """The paper's section is the scenario's."""
    course = LiveCourse(*plane, scenario, scenario.system)
    with course.under_its_profile():
        course.run()


@pytest.mark.parametrize(
    "scenario",
    [each for each in SCENARIOS if each.nearest not in BY_SYSTEM],
    ids=lambda scenario: scenario.nearest,
)
def test_the_nearest_other_profile_decides_otherwise(plane: Plane, scenario: Scenario) -> None:
    course = LiveCourse(*plane, scenario, scenario.nearest)
    with course.under_its_profile():
        course.run()
