"""Two pairs of kube-scheduler and extender: one takes over, and the other's acts take no effect."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from e2e_cluster import TandemCluster, job

from node_agent.stub.stub import StubGpu, StubState, build, environment
from tandem.contracts import names
from tandem.controlplane import ControlPlane, Node, binaries, wait_until
from tandem.controlplane.installation import MANIFESTS, Installation

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("takeover"),
    pytest.mark.timeout(900),
]

WHOLE = {"tandem.gpu/exclusive": "true"}


class Pair:
    """A kube-scheduler and its extender, with a host name of their own."""

    def __init__(self, plane: ControlPlane, folder: Path, name: str) -> None:
        self.plane, self.name = plane, name
        folder.mkdir()
        self.installation = Installation(plane, folder)

    def start(self) -> None:
        settings = {"leader": {"hostname": self.name}}
        self.extender = self.installation.start_extender(settings, name=f"extender-{self.name}")
        config = yaml.safe_load((MANIFESTS / "scheduler.yaml").read_text())
        config["extenders"][0]["urlPrefix"] = self.installation.verbs_url
        account = self.plane.service_account_kubeconfig(names.NAMESPACE, "tandem-scheduler")
        self.scheduler = self.plane.start_scheduler(
            f"scheduler-{self.name}", config=config, kubeconfig=account, hostname=self.name
        )

    @property
    def processes(self) -> tuple:
        return self.scheduler, self.extender


@pytest.fixture
def pairs(tmp_path: Path) -> Iterator[tuple[TandemCluster, Pair, Pair]]:
    """One GPU; the first pair leads, the second stands by."""
    absent = binaries.missing()
    if absent:
        pytest.skip(f"no {', '.join(absent)} on this machine. {binaries.how_to_get()}")
    with ControlPlane.start(nodes=[Node("n0", cpu=32)]) as plane:
        cluster = TandemCluster(plane, tmp_path)
        cluster.installation.apply_manifests()
        first, second = (Pair(plane, tmp_path / name, name) for name in ("pair-a", "pair-b"))
        first.installation.start_predictor()
        second.installation._ports["predictor"] = first.installation._ports["predictor"]
        first.start()
        state = tmp_path / "n0.gpus"
        StubState(gpus=[StubGpu(uuid="GPU-n0-0")]).write(state)
        cluster.installation.start_agent("n0", environment(build(tmp_path), state))
        wait_until(lambda: holder(plane).startswith("pair-a_"), "the first pair leads")
        second.start()
        yield cluster, first, second


def holder(plane: ControlPlane) -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases/{names.LEASE_NAME}"
    answer = plane.http.get(path)
    return (answer.json()["spec"].get("holderIdentity") or "") if answer.is_success else ""


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_the_second_pair_takes_over_and_the_first_does_nothing_any_more(
    pairs: tuple[TandemCluster, Pair, Pair], how: str
) -> None:
    cluster, first, _ = pairs
    namespace = cluster.namespace()
    cluster.apply_job(namespace, job("holds", annotations=WHOLE))
    cluster.running(namespace, "holds", timeout_s=60)
    for name in ("next", "last"):
        cluster.apply_job(namespace, job(name, annotations=WHOLE))
        cluster.waiting_reason(namespace, name)
    began = time.monotonic()
    for process in first.processes:
        getattr(process, how)()
    cluster.let_end(namespace, "holds")

    def one_runs() -> str:
        pods = cluster.pods(namespace)
        running = [p for p in pods if p["status"].get("phase") == "Running"]
        return running[0]["metadata"]["labels"]["job-name"] if running else ""

    assert wait_until(one_runs, "the second pair has placed the next", timeout_s=60)
    print(f"{how}: {time.monotonic() - began:.1f} s until the other pair's Binding")
    assert holder(cluster.plane).startswith("pair-b_")
    if how == "pause":
        # The old leader wakes up in the middle of what it did: nothing of it may take effect.
        for process in first.processes:
            process.resume()
        until = time.monotonic() + 8.0
        while time.monotonic() < until:
            assert all(len(pods) <= 1 for pods in cluster.holders().values())
            time.sleep(0.5)
        assert holder(cluster.plane).startswith("pair-b_")
