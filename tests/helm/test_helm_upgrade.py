"""Upgrade, rollback and, last of all, uninstallation of the chart on a real API server."""

from __future__ import annotations

import pytest
from helm_cluster import ChartCluster
from helm_render import ROOT

from controlplane import wait_until
from controlplane.installation import CHART, RELEASE
from tandem.contracts import names

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("helm"),
]
WEBHOOK = ("mutatingwebhookconfiguration", "tandem")


def test_upgrade_and_rollback_keep_the_webhook_working_and_pods_running(
    cluster: ChartCluster,
) -> None:
    plane, team = cluster.plane, cluster.team()
    cluster.submit(team, "before")
    uid = cluster.await_run(team, "before")["metadata"]["uid"]
    bundles = [w["clientConfig"].get("caBundle") for w in plane.get(*WEBHOOK)["webhooks"]]
    assert all(bundles)

    values = str(cluster.installation.helm_values())
    change = ("--values", values, "--set", "webhook.timeoutSeconds=7")
    cluster.installation.helm("upgrade", RELEASE, str(CHART), *change)
    webhooks = plane.get(*WEBHOOK)["webhooks"]
    assert {webhook["timeoutSeconds"] for webhook in webhooks} == {7}
    assert [webhook["clientConfig"].get("caBundle") for webhook in webhooks] == bundles
    cluster.submit(team, "after", memory="4Gi")
    cluster.await_run(team, "after")

    cluster.installation.helm("rollback", RELEASE, "1")
    webhooks = plane.get(*WEBHOOK)["webhooks"]
    assert {webhook["timeoutSeconds"] for webhook in webhooks} == {5}
    assert [webhook["clientConfig"].get("caBundle") for webhook in webhooks] == bundles
    survivor = cluster.pod_of(team, "before")
    assert (survivor["metadata"]["uid"], survivor["status"]["phase"]) == (uid, "Running")
    plane.kubectl("delete", "namespace", team)


def uninstall(cluster: ChartCluster) -> None:
    """Uninstall the chart, if it is installed, and end the services: their accounts are gone."""
    cluster.installation.helm("uninstall", RELEASE, "--ignore-not-found")
    for name in ("agent-n0", names.SCHEDULER_NAME, "extender", "predictor"):
        cluster.plane.processes[name].terminate()
    # With the agent ends its pod, which bound its token; no grace period has to be played.
    cluster.plane.kubectl(
        "delete", "pods", "--all", "-n", names.AGENT_NAMESPACE, "--grace-period=0", "--force",
        "--ignore-not-found",
    )  # fmt: skip


def test_uninstall_leaves_running_pods_and_names_those_that_wait(cluster: ChartCluster) -> None:
    plane, team = cluster.plane, cluster.team()
    cluster.submit(team, "fits", memory="1Gi")
    cluster.await_run(team, "fits")
    # More memory than any GPU has: its turn never comes.
    cluster.submit(team, "too-large", memory="500Gi")
    wait_until(lambda: cluster.pod_of(team, "too-large")["spec"], "the pod that waits is there")

    uninstall(cluster)
    assert cluster.runs(team, "fits")
    left = plane.get("mutatingwebhookconfigurations,validatingadmissionpolicies")["items"]
    assert left == []
    # As docs/install.md tells to look for them.
    waiting = plane.kubectl(
        "get", "pods", "-A", "--field-selector=status.phase=Pending",
        "-o=custom-columns=NAMESPACE:.metadata.namespace,NAME:.metadata.name,GATES:.spec.schedulingGates[*].name",
    )  # fmt: skip
    gated = {line.split()[1] for line in waiting.splitlines() if names.SCHEDULING_GATE in line}
    assert cluster.pod_of(team, "too-large")["metadata"]["name"] in gated
    assert plane.get("crd", "gpujobs.tandem.gpu"), "the definitions and what they hold are kept"


def test_examples_and_plain_manifests_are_accepted(cluster: ChartCluster) -> None:
    """Without Helm, on the definitions that Helm has left behind."""
    plane, team = cluster.plane, cluster.team()
    uninstall(cluster)
    plane.await_gone(names.AGENT_NAMESPACE)
    plane.kubectl(
        "apply", "--server-side", "--force-conflicts", "-k", str(ROOT / "deploy" / "manifests")
    )
    # The webhook of these manifests leads to pods that are not there.
    plane.kubectl("delete", *WEBHOOK)
    plane.kubectl("delete", "validatingadmissionpolicybindings", "tandem-pods")
    for path in sorted((ROOT / "deploy" / "examples").glob("*.yaml")):
        if path.stem in ("kind", "jobset"):  # no objects of this cluster
            continue
        if "namespace: research" in path.read_text():
            plane.kubectl("apply", "-f", str(path))
        else:
            plane.kubectl("apply", "-n", team, "--dry-run=server", "-f", str(path))
