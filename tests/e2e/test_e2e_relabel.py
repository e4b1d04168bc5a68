"""Labels and owners that a tenant changes on running pods, on a real API server and with agents."""

from __future__ import annotations

from typing import Any

import pytest
from e2e_cluster import DEVICES, TandemCluster, job
from test_e2e_agent import GIB, Site, namespace, site

from controlplane import wait_until
from tandem.contracts import names
from tandem.contracts.placement import parse_placed_with

__all__ = ["namespace", "site"]  # fixtures

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("relabel"),
    pytest.mark.timeout(900),
]

MERGE = {"Content-Type": "application/merge-patch+json"}
DECOY = {names.COSCHEDULING_GROUP_LABEL: "decoy"}

Object = dict[str, Any]


def patch(cluster: TandemCluster, pod: Object, metadata: Object) -> None:
    """Change a pod as its tenant may."""
    known = pod["metadata"]
    path = f"/api/v1/namespaces/{known['namespace']}/pods/{known['name']}"
    answer = cluster.plane.http.patch(path, json={"metadata": metadata}, headers=MERGE)
    assert answer.is_success, answer.text


def moves(cluster: TandemCluster, pod: Object, group: str) -> None:
    """Give a pod the label of another group, and another owner."""
    owner = pod["metadata"]["ownerReferences"][0] | {"name": "other", "controller": True}
    labels = {names.COSCHEDULING_GROUP_LABEL: group, names.JOBSET_LABEL: group}
    patch(cluster, pod, {"labels": labels, "ownerReferences": [owner]})


def names_of(cluster: TandemCluster, space: str) -> set[str]:
    return {each["metadata"]["name"] for each in cluster.gpujobs(space)}


@pytest.fixture
def decoy(site: Site, namespace: str) -> str:
    """Return the GPUJob of a group that declares nearly a whole GPU, and runs elsewhere."""
    wanted = {"tandem.gpu/memory": "79Gi", "tandem.gpu/utilization": "1"}
    described = job("decoy", annotations=wanted)
    template = described["spec"]["template"]
    template["metadata"]["labels"] = DECOY
    template["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "b"}
    site.cluster.apply_job(namespace, described)
    site.cluster.running(namespace, "decoy")
    assert "group-decoy" in names_of(site.cluster, namespace)
    return "group-decoy"


def test_the_binding_says_what_a_pod_was_placed_with(site: Site, namespace: str) -> None:
    site.starts(namespace, "plain", "a", memory="8Gi")
    pod = site.cluster.running(namespace, "plain")
    notes = pod["metadata"]["annotations"]
    assert notes[names.GPU_JOB] == "job-plain"
    placed = parse_placed_with(notes[names.PLACED_WITH])
    assert placed is not None
    assert (placed.gpu_job, placed.memory_bytes) == ("job-plain", 8 * GIB)


def test_a_relabelled_pod_that_outgrows_is_blamed_and_not_its_neighbour(
    site: Site, namespace: str, decoy: str
) -> None:
    host, cluster = site.hosts["a"], site.cluster
    site.starts(namespace, "liar", "a", memory="8Gi")
    liar = cluster.running(namespace, "liar")
    host.runs(liar, 8)
    site.starts(namespace, "innocent", "a", memory="30Gi")
    innocent = cluster.running(namespace, "innocent")
    host.runs(innocent, 30)
    host.knows(liar, innocent)

    moves(cluster, liar, "decoy")
    host.runs(liar, 48)
    wait_until(lambda: site.is_going(liar) or site.is_going(innocent), "one of them is evicted")
    assert site.is_going(liar)
    assert site.still_runs(innocent)
    host.ends(liar)


def test_a_relabelled_exclusive_pod_keeps_its_gpu_to_itself(site: Site, namespace: str) -> None:
    host, cluster = site.hosts["a"], site.cluster
    small = {"tandem.gpu/memory": "1Mi", "tandem.gpu/utilization": "1"}
    tiny = job("tiny", annotations=small)
    template = tiny["spec"]["template"]
    template["metadata"]["labels"] = DECOY
    template["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "b"}
    cluster.apply_job(namespace, tiny)
    cluster.running(namespace, "tiny")
    whole = job("whole", annotations={"tandem.gpu/exclusive": "true"})
    whole["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "a"}
    cluster.apply_job(namespace, whole)
    pod = cluster.running(namespace, "whole")
    assert pod["metadata"]["annotations"][DEVICES] == host.gpu

    moves(cluster, pod, "decoy")
    site.starts(namespace, "next", "a", memory="1Gi")
    # Its message shows that it was tried on that GPU, and by which rule it was refused.
    site.waits(namespace, "next", "does not share its GPU")
    next_pod = cluster.pod_of(namespace, "next")
    assert next_pod is not None
    assert not next_pod["spec"].get("nodeName")


def test_forty_labels_on_a_running_pod_make_no_gpujob(site: Site, namespace: str) -> None:
    cluster = site.cluster
    site.starts(namespace, "one", "a", memory="1Gi")
    pod = cluster.running(namespace, "one")
    for number in range(40):
        # Its owner stays: the garbage collector would take the GPUJobs of one that is not there.
        patch(cluster, pod, {"labels": {names.COSCHEDULING_GROUP_LABEL: f"g{number}"}})
    # A job that comes later has its GPUJob, so that all of the above has been seen.
    site.starts(namespace, "late", "a", memory="1Gi")
    cluster.running(namespace, "late")
    assert names_of(cluster, namespace) == {"job-one", "job-late"}
