"""Each paper's profile with the chart's own defaults: two shares of a GPU, the project's predictor.

Only the profile is set. Five light jobs come to a node of two GPUs; who shares is decided by what
the predictor says of their graphs. A profile that these defaults cannot honour is refused at the
start, or says what to set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from controlplane_binaries import need_control_plane
from e2e_cluster import BOARD, BOARD_BYTES, DEVICES, TandemCluster, job

from controlplane import ControlPlane, Node, wait_until
from controlplane.installation import Installation
from node_agent.stub import StubGpu, StubState, build, environment
from tandem.policy.catalog import load_profile

pytestmark = [pytest.mark.controlplane, pytest.mark.slow, pytest.mark.xdist_group("profiles")]

GPUS, JOBS = 2, ("j1", "j2", "j3", "j4", "j5")
MODEL = "squeezenet"
#: Profiles, and how many of the jobs are on each GPU in the end.
ALONE, TWO_EACH = [1, 1], [2, 2]
PROFILES = {
    "tiresias-l": ALONE,
    "tiresias-g": ALONE,
    "horus": TWO_EACH,
    "horus-f": TWO_EACH,
    "ojpp": TWO_EACH,
    "ojpap": TWO_EACH,
    "sjf-bsbf": TWO_EACH,
    "xonar": TWO_EACH,
}
#: Of small pictures and few CPUs: the GPU waits for its input half of the time and more.
ANNOTATIONS = {
    "tandem.gpu/model": MODEL,
    "tandem.gpu/batch-size": "1",
    "tandem.gpu/iterations": "1000000",
    "tandem.gpu/checkpoint": "true",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TandemCluster]:
    """The chart as it comes, and one node with two GPUs; each test starts the extender."""
    need_control_plane()
    folder: Path = tmp_path_factory.mktemp("profiles")
    with ControlPlane.start(nodes=[Node("n0", cpu=32)]) as plane:
        cluster = TandemCluster(plane, folder)
        cluster.installation = installation = Installation(plane, folder, values={})
        installation.apply_manifests()
        installation.start_predictor()
        installation.start_scheduler()
        boards = [StubGpu(f"GPU-n0-{i}", name=BOARD, memory=BOARD_BYTES) for i in range(GPUS)]
        StubState(gpus=boards).write(folder / "n0.gpus")
        extender = installation.start_extender({})
        installation.start_agent("n0", environment(build(folder), folder / "n0.gpus"))
        extender.terminate()
        yield cluster


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_decides_by_the_charts_defaults(cluster: TandemCluster, name: str) -> None:
    extender = cluster.installation.start_extender({"profile": name}, f"extender-{name}")
    namespace = cluster.namespace()
    try:
        cluster.push(namespace, MODEL)
        for each in JOBS:
            cluster.apply_job(namespace, job(each, annotations=ANNOTATIONS))
        runs = sum(PROFILES[name])
        wait_until(
            lambda: (
                jobs_by_gpu(cluster, namespace) == PROFILES[name]
                and reasons(cluster, namespace)["Waiting"] == len(JOBS) - runs
            ),
            f"{name} has placed {runs} of the jobs, and the others wait",
            timeout_s=240,
        )
        predicted = [each["status"]["load"] for each in cluster.gpujobs(namespace)]
        assert {load["memorySource"] for load in predicted} <= {"model", "formula"}
    finally:
        cluster.remove(namespace)
        extender.terminate()
    wanted = load_profile(name).max_jobs_per_gpu
    says = f"set agent.config.shares profile={name} jobs={wanted} node=n0 shares=2"
    assert (says in extender.log.read_text()) == (wanted > 2)


def test_a_profile_that_the_defaults_cannot_honour_is_refused_at_the_start(
    cluster: TandemCluster,
) -> None:
    """Its turns are shorter than the least time for which a gang is left alone."""
    with pytest.raises(RuntimeError, match=r"queue\.min_run_s: profile gandiva looks again every"):
        cluster.installation.start_extender({"profile": "gandiva"}, "extender-gandiva")


def jobs_by_gpu(cluster: TandemCluster, namespace: str) -> list[int]:
    """Return how many of the jobs run on each GPU that has one."""
    running = Counter(
        pod["metadata"]["annotations"][DEVICES]
        for pod in cluster.pods(namespace)
        if pod["status"].get("phase") == "Running"
    )
    return sorted(running.values())


def reasons(cluster: TandemCluster, namespace: str) -> Counter[str]:
    """Return how many jobs have each reason."""
    return Counter(
        (each.get("status") or {}).get("reason", "") for each in cluster.gpujobs(namespace)
    )
