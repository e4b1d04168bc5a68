"""Upgrade, rollback and, last of all, uninstallation of the chart on a real API server."""

from __future__ import annotations

import contextlib
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from helm_cluster import ChartCluster
from helm_render import ROOT, run_helm

from tandem.contracts import names
from tandem.controlplane import wait_until
from tandem.controlplane.installation import CHART, RELEASE

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


def test_to_the_previous_chart_and_back_under_a_stream_of_jobs(
    cluster: ChartCluster, tmp_path: Path
) -> None:
    plane, team = cluster.plane, cluster.team()
    previous = previous_chart(tmp_path)
    cluster.submit(team, "long")
    uid = cluster.await_run(team, "long")["metadata"]["uid"]
    refused = bindings(cluster, "refused")

    values = ("--values", str(cluster.installation.helm_values()))
    with stream(cluster, team) as names_of_jobs:
        for chart in (previous, CHART):
            cluster.installation.helm("upgrade", RELEASE, str(chart), *values)

    def done() -> bool:
        jobs = {
            job["metadata"]["name"]: job["status"] for job in plane.get("jobs", "-n", team)["items"]
        }
        return all(jobs[name].get("succeeded") for name in names_of_jobs)

    wait_until(done, f"all {len(names_of_jobs)} jobs have ended well", timeout_s=240, poll_s=1)
    assert len(names_of_jobs) >= 5
    assert bindings(cluster, "refused") == refused
    assert not [
        job for job in plane.get("jobs", "-n", team)["items"] if job["status"].get("failed")
    ]
    survivor = cluster.pod_of(team, "long")
    assert (survivor["metadata"]["uid"], survivor["status"]["phase"]) == (uid, "Running")
    plane.kubectl("delete", "namespace", team)


def previous_chart(folder: Path) -> Path:
    """Return the chart of an earlier commit: the latest that differs from ours and is whole."""
    log = ("git", "log", "-6", "--format=%H", "--", "helm/tandem")
    answer = subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=False)
    for commit in answer.stdout.split()[1:]:
        archive = folder / f"{commit}.tar"
        command = ("git", "archive", "--output", archive, commit, "helm/tandem")
        subprocess.run(command, cwd=ROOT, check=True)
        with tarfile.open(archive) as tar:
            tar.extractall(folder / commit, filter="data")
        chart = folder / commit / "helm" / "tandem"
        if run_helm("lint", str(chart)).returncode == 0:
            return chart
    pytest.skip("no earlier chart: this is no git checkout, or one without history")


def bindings(cluster: ChartCluster, outcome: str) -> float:
    """Return how many bindings the extender has counted with this outcome."""
    text = httpx.get(f"{cluster.installation.verbs_url}/metrics", trust_env=False).text
    name = f'tandem_extender_bindings_total{{outcome="{outcome}"}} '
    return sum(
        float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name)
    )


@contextlib.contextmanager
def stream(cluster: ChartCluster, namespace: str) -> Iterator[list[str]]:
    """Submit short jobs one after another; yield the list of their names, which grows."""
    submitted: list[str] = []
    over = threading.Event()

    def submit() -> None:
        while not over.wait(0.2):
            name = f"short-{len(submitted)}"
            cluster.submit(namespace, name, memory="1Gi", seconds=0.5)
            submitted.append(name)

    thread = threading.Thread(target=submit)
    thread.start()
    try:
        yield submitted
    finally:
        over.set()
        thread.join(60)


def uninstall(cluster: ChartCluster) -> None:
    """Uninstall the chart, if it is installed, and end the services: their accounts are gone."""
    cluster.installation.helm("uninstall", RELEASE, "--ignore-not-found")
    for name in ("agent-n0", names.SCHEDULER_NAME, "extender", "predictor"):
        cluster.plane.processes[name].terminate()


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
