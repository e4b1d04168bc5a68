"""Kueue's quotas over jobs of Tandem, on a control plane, with Kueue itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from controlplane_binaries import need_control_plane
from kind_examples import Object
from kinds_cluster import LENDER, KindsCluster

from controlplane import ControlPlane, Node, operators, wait_until
from tandem.contracts import names
from tandem.contracts.levels import levels_of

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.operators,
    pytest.mark.xdist_group("kueue"),
    pytest.mark.timeout(900),
]

API = "/apis/kueue.x-k8s.io/v1beta2"
QUEUE_NAME = "kueue.x-k8s.io/queue-name"
NODE = "n0"  # of two GPUs
WHOLE = {names.EXCLUSIVE: "true"}
BOTH_WAYS = ("resource", "claims")
QUEUES = "gpus"


class KueueCluster(KindsCluster):
    """One node that hands its GPUs over by claims, under a ClusterQueue that may have one GPU."""

    def begin(self) -> None:
        self.start(["kueue"], (NODE,), "dra-queue")
        counted = [names.RESOURCE, operators.CLAIMED_GPUS]
        quotas = [{"name": each, "nominalQuota": 1} for each in counted]
        self.plane.apply(
            [
                _of_kueue("ResourceFlavor", "default", {}),
                _of_kueue(
                    "ClusterQueue",
                    QUEUES,
                    {
                        "namespaceSelector": {},
                        "resourceGroups": [
                            {
                                "coveredResources": counted,
                                "flavors": [{"name": "default", "resources": quotas}],
                            }
                        ],
                    },
                ),
            ]
        )

    def tenant(self) -> str:
        """Make a namespace with a queue and a template of claims."""
        team = self.team()
        request = {"deviceClassName": names.QUEUE_CLASS, "count": 1}
        template = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "one-gpu"},
            "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}},
        }
        queue = _of_kueue("LocalQueue", QUEUES, {"clusterQueue": QUEUES})
        self.apply(team, [template, queue])
        return team

    def suspended(self, team: str, name: str) -> bool:
        job = self._read(f"/apis/batch/v1/namespaces/{team}/jobs/{name}")
        return bool(job["spec"].get("suspend"))

    def counted(self, way: str) -> int:
        """Return how many GPUs Kueue counts as used, as asked for in one way."""
        queue = self._read(f"{API}/clusterqueues/{QUEUES}")
        name = names.RESOURCE if way == "resource" else operators.CLAIMED_GPUS
        for flavor in queue.get("status", {}).get("flavorsUsage", ()):
            for each in flavor["resources"]:
                if each["name"] == name:
                    return int(each.get("total", 0))
        return 0

    def claims(self, team: str) -> list[Object]:
        return list(
            self._read(f"/apis/resource.k8s.io/v1/namespaces/{team}/resourceclaims")["items"]
        )


def _of_kueue(kind: str, name: str, spec: Object) -> Object:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def job(
    name: str, way: str, annotations: dict[str, str] | None = None, queue: str = QUEUES
) -> Object:
    """Return a Job that asks for one GPU, for a queue of Kueue's where one is named."""
    container: dict[str, Any] = {"name": "train", "image": "train:1"}
    spec: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
    if way == "resource":
        container["resources"] = {"limits": {names.RESOURCE: 1}}
    else:
        container["resources"] = {"claims": [{"name": "gpu"}]}
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {QUEUE_NAME: queue} if queue else {}},
        "spec": {"template": {"metadata": {"annotations": annotations or {}}, "spec": spec}},
    }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KueueCluster]:
    need_control_plane("helm")
    if operators.missing([operators.by_name("kueue")]):
        pytest.skip("no operator kueue is built here: `make operators` builds it")
    with ControlPlane.start([Node(NODE, cpu=32)]) as plane:
        config = {"admission": {"gpu_claims": True}}
        cluster = KueueCluster(plane, tmp_path_factory.mktemp("kueue"), config)
        cluster.begin()
        yield cluster


@pytest.fixture
def cluster(site: KueueCluster) -> Iterator[KueueCluster]:
    yield site
    site.remove_teams()


@pytest.mark.parametrize("way", BOTH_WAYS)
def test_kueues_quota_counts_what_tandem_gives(cluster: KueueCluster, way: str) -> None:
    team = cluster.tenant()
    cluster.apply(team, [job("first", way)])
    (pod,) = cluster.await_running(team, 1)
    wait_until(lambda: cluster.counted(way) == 1, "Kueue counts its GPU")
    # The node has a second GPU; Kueue's quota has not.
    cluster.apply(team, [job("second", way)])
    wait_until(lambda: cluster.suspended(team, "second"), "the second one is suspended")
    assert len(cluster.running(team)) == 1
    cluster.let_end([pod])
    wait_until(lambda: not cluster.suspended(team, "second"), "its turn comes", timeout_s=60)
    (other,) = cluster.await_running(team, 1)
    assert other["metadata"]["name"].startswith("second")
    wait_until(lambda: cluster.counted(way) == 1, "Kueue counts that one's alone")


def test_what_kueue_takes_back_frees_its_gpu(cluster: KueueCluster) -> None:
    team = cluster.tenant()
    cluster.apply(team, [job("taken", "claims")])
    cluster.await_running(team, 1)
    assert len(cluster.claims(team)) == 1
    cluster.merge(f"{API}/clusterqueues", QUEUES, {"spec": {"stopPolicy": "HoldAndDrain"}})
    try:
        wait_until(lambda: not cluster.claims(team), "its claim is gone", timeout_s=60)
        assert cluster.suspended(team, "taken")
    finally:
        cluster.merge(f"{API}/clusterqueues", QUEUES, {"spec": {"stopPolicy": "None"}})
    cluster.await_running(team, 1)


@pytest.mark.parametrize("way", BOTH_WAYS)
def test_a_job_of_kueues_gives_way_in_tandems_order_and_comes_back(
    cluster: KueueCluster, way: str
) -> None:
    lender, team = cluster.team(LENDER), cluster.tenant()
    cluster.apply(lender, [job("own", "resource", WHOLE, queue="")])
    cluster.await_running(lender, 1)
    cluster.apply(team, [job("borrower", way, WHOLE | {names.CHECKPOINT: "true"})])
    (before,) = cluster.await_running(team, 1)
    wait_until(lambda: cluster.counted(way) == 1, "Kueue counts its GPU")
    # The lender asks for its second GPU, which Kueue has admitted another job to.
    cluster.apply(lender, [job("back", "resource", WHOLE, queue="")])
    lent = cluster.await_running(lender, 2)
    assert not cluster.running(team)
    assert cluster.counted(way) == 1
    cluster.let_end(lent)
    (after,) = cluster.await_running(team, 1)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    cluster.let_end([after])
    wait_until(lambda: cluster.counted(way) == 0, "Kueue counts nothing", timeout_s=60)


def test_tandem_reads_the_levels_of_kueues_topology(cluster: KueueCluster) -> None:
    levels = ("topology.kubernetes.io/zone", "rack")
    spec = {"levels": [{"nodeLabel": each} for each in levels]}
    cluster.plane.apply(_of_kueue("Topology", "racks", spec))
    assert levels_of(cluster.plane.get("topologies.kueue.x-k8s.io", "racks")) == levels
