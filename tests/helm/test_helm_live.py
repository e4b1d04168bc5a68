"""The chart on a real API server: installed by Helm, its accounts used by the services."""

from __future__ import annotations

import pytest
from helm_cluster import ChartCluster

from tandem.contracts import names
from tandem.controlplane import wait_until
from tandem.errors import TandemError

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("helm"),
]


def test_a_job_runs_with_the_charts_own_accounts_settings_and_policies(
    cluster: ChartCluster,
) -> None:
    team = cluster.team()
    cluster.submit(team, "train")
    pod = cluster.await_run(team, "train")
    assert pod["metadata"]["annotations"][names.VISIBLE_DEVICES].startswith("GPU-n0-")
    bound = cluster.plane.get("validatingadmissionpolicybindings")["items"]
    assert {one["metadata"]["name"] for one in bound} >= {
        "tandem-agent-own-node",
        "tandem-assignments",
        "tandem-devices",
        "tandem-pods",
        "tandem-resources",
    }


@pytest.mark.parametrize(
    ("namespace", "account"),
    [
        (names.NAMESPACE, "tandem-scheduler"),
        (names.NAMESPACE, "tandem-predictor"),
        (names.AGENT_NAMESPACE, "tandem-agent"),
    ],
)
def test_no_account_of_ours_may_do_everything(
    cluster: ChartCluster, namespace: str, account: str
) -> None:
    user = f"system:serviceaccount:{namespace}:{account}"
    for verb, what in (
        ("*", "*"),
        ("create", "pods"),
        ("get", "secrets"),
        ("update", "nodes"),
        ("create", "clusterrolebindings"),
        ("repair", "gpujobs.tandem.gpu"),
    ):
        with pytest.raises(TandemError):
            cluster.plane.kubectl("auth", "can-i", verb, what, "-A", f"--as={user}")


def test_tenants_with_view_see_their_jobs_and_write_none(cluster: ChartCluster) -> None:
    team = cluster.team()
    cluster.plane.kubectl(
        "create", "rolebinding", "viewer", "-n", team, "--clusterrole=view", "--user=viewer"
    )

    def can(verb: str) -> bool:
        question = ("auth", "can-i", verb, "gpujobs.tandem.gpu", "-n", team, "--as=viewer")
        try:
            cluster.plane.kubectl(*question)
        except TandemError:
            return False
        return True

    wait_until(lambda: can("list"), "the rights are joined to those of view")
    assert not can("create")
    assert not can("patch")


def test_while_the_webhook_is_away_others_are_admitted_and_ours_are_refused(
    cluster: ChartCluster,
) -> None:
    plane, team = cluster.plane, cluster.team()
    extender = plane.processes["extender"]
    extender.pause()
    try:
        with pytest.raises(TandemError, match=r"failed calling webhook.*workloads\.tandem\.gpu"):
            cluster.submit(team, "ours")
        plane.kubectl("run", "other", "-n", team, "--image=other:1")
    finally:
        extender.resume()
    assert plane.get("jobs", "-n", team)["items"] == []
    cluster.submit(team, "ours")
    cluster.await_run(team, "ours")
