"""The chart on a real API server: installed by Helm, its accounts used by the services."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import onnx
import pytest
import yaml
from helm_cluster import ChartCluster
from helm_render import RETRAINING, render
from typer.testing import CliRunner

from controlplane import wait_until
from tandem.cli.main import build_app
from tandem.contracts import names
from tandem.contracts.prediction import Feedback
from tandem.errors import TandemError

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_squeezenet.onnx"

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


@pytest.fixture
def driver(cluster: ChartCluster) -> Iterator[str]:
    """The chart's DRA driver, without its pods, while a test runs: its account."""
    label = "app.kubernetes.io/component"
    rendered = render("--set", "dra.enabled=true")
    ours = [o for o in rendered if o["metadata"].get("labels", {}).get(label) == "dra"]
    cluster.plane.apply(ours)
    yield f"system:serviceaccount:{names.AGENT_NAMESPACE}:tandem-dra"
    cluster.plane.kubectl("delete", "-f", "-", stdin=yaml.safe_dump_all(ours))


def test_the_driver_of_the_chart_writes_slices_of_no_node_but_its_own(
    cluster: ChartCluster, driver: str
) -> None:
    cluster.plane.kubectl("auth", "can-i", "create", "resourceslices", f"--as={driver}")
    with pytest.raises(TandemError):
        cluster.plane.kubectl("auth", "can-i", "list", "resourceclaims", "-A", f"--as={driver}")
    pool = {"name": "n0", "generation": 1, "resourceSliceCount": 1}
    metadata = {"name": "n0-tandem"}
    one = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata}
    spec = {"driver": names.GROUP, "nodeName": "n0", "pool": pool, "devices": []}
    text = json.dumps(one | {"spec": spec})

    def refused() -> bool:
        # A policy is in force some moments after it was made.
        asked = ("create", "--dry-run=server", "-f", "-", f"--as={driver}")
        try:
            cluster.plane.kubectl(*asked, stdin=text)
        except TandemError as error:
            return "ResourceSlices of its own node" in str(error)
        return False

    wait_until(refused, "a driver of no node is refused", timeout_s=60)


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
    cluster.await_webhook(team)
    cluster.submit(team, "ours")
    cluster.await_run(team, "ours")


def test_with_failure_policy_ignore_our_pods_wait_for_the_webhook_all_the_same(
    cluster: ChartCluster,
) -> None:
    """A Job is let through; the policies refuse its pods, which lack the gate, until then."""
    plane, team = cluster.plane, cluster.team()
    extender = plane.processes["extender"]
    fail_if_away(cluster, "Ignore")
    extender.pause()
    try:
        wait_until(lambda: submitted(cluster, team), "the API server ignores us", timeout_s=60)

        def refused() -> bool:
            events = plane.get("events", "-n", team)["items"]
            return any("tandem-pods" in event["message"] for event in events)

        wait_until(refused, "the policy refuses the pod", timeout_s=120)
        said = CliRunner().invoke(
            build_app(), ["doctor", "--json", "--kubeconfig", str(plane.kubeconfig())]
        )
        (found,) = [
            each for each in json.loads(said.stdout)["checks"] if each["check"] == "webhook"
        ]
        assert (found["outcome"], "failurePolicy: Ignore" in found["says"]) == ("failed", True)
        plane.kubectl("run", "other", "-n", team, "--image=other:1")
        assert cluster.pod_of(team, "ours")["spec"] == {}
    finally:
        extender.resume()
        fail_if_away(cluster, "Fail")
    wait_until(lambda: cluster.runs(team, "ours"), "the job runs", timeout_s=240)
    # The extender replaces the process in front that it has not heard while it was stopped.
    cluster.await_webhook(team)


def submitted(cluster: ChartCluster, team: str) -> bool:
    try:
        cluster.submit(team, "ours")
    except TandemError:
        return False
    return True


def fail_if_away(cluster: ChartCluster, policy: str) -> None:
    """Set the failure policy of the first two webhooks, as the chart's value does."""
    patch = [
        {"op": "replace", "path": f"/webhooks/{index}/failurePolicy", "value": policy}
        for index in (0, 1)
    ]
    cluster.plane.kubectl(
        "patch", "mutatingwebhookconfiguration", "tandem", "--type=json", "-p", json.dumps(patch)
    )


def test_a_quota_of_the_namespace_counts_shares(cluster: ChartCluster) -> None:
    plane, team = cluster.plane, cluster.team()
    plane.apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "shares", "namespace": team},
            "spec": {"hard": {f"requests.{names.RESOURCE}": "1"}},
        }
    )

    def used() -> str | None:
        status = plane.get("resourcequota", "shares", "-n", team).get("status", {})
        return status.get("used", {}).get(f"requests.{names.RESOURCE}")

    wait_until(lambda: used() == "0", "the quota is counted", timeout_s=60)
    cluster.submit(team, "fits")
    cluster.await_run(team, "fits")
    wait_until(lambda: used() == "1", "one share is used", timeout_s=60)
    cluster.submit(team, "beyond")

    def refused() -> bool:
        events = plane.get("events", "-n", team)["items"]
        return any("exceeded quota: shares" in event["message"] for event in events)

    wait_until(refused, "the pod of the second is refused", timeout_s=120)


def test_retraining_runs_by_its_own_command_with_its_own_account(
    cluster: ChartCluster, tmp_path: Path
) -> None:
    """On what the cluster has seen: one kind of run, from which nothing better can be learned."""
    plane, team = cluster.plane, cluster.team()
    (cronjob,) = (each for each in render(*RETRAINING) if each["kind"] == "CronJob")
    plane.apply(cronjob)
    pod = cronjob["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    _, *arguments = container["command"]
    account = plane.service_account_kubeconfig(names.NAMESPACE, pod["serviceAccountName"])

    url = cluster.installation.predictor_url
    tandem = Path(sys.executable).with_name("tandem")
    token = cluster.installation.predictor_token()
    push = [tandem, "model", "push", LIGHT, "--name", "net", "--namespace", team, "--server", url]
    push += ["--token", token]
    subprocess.run(push, check=True, capture_output=True)
    seen = Feedback(
        namespace=team, model="net", batch_size=8, gpu_model="Tesla T4", memory_base_bytes=1 << 30,
        memory_peak_bytes=2 << 30, utilisation_percent=40.0,
    )  # fmt: skip
    answer = httpx.post(
        f"{url}/v1/feedback",
        json=seen.wire(),
        headers={"authorization": f"Bearer {token}"},
        trust_env=False,
    )
    answer.raise_for_status()
    done = subprocess.run(
        [tandem, *(a.replace("/artifacts", str(tmp_path / "artifacts")) for a in arguments)],
        env={**os.environ, "KUBECONFIG": str(account)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())  # in lines as wide as a terminal
    assert "1 kinds of runs were seen in the cluster" in said
    assert "The model in use stays" in said
