"""From the services of an earlier commit to ours and back, under a stream of jobs.

A pair of scheduler and extender is replaced as a rolling update does it: the new one comes first
and stands by, then the old one is deleted. Chart, predictor and agent are replaced as well.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from controlplane_binaries import need_control_plane
from helm_cluster import ChartCluster
from helm_render import ROOT, run_helm

from controlplane import ControlPlane, Node, wait_until
from controlplane.installation import RELEASE, Installation
from node_agent.stub import StubGpu, StubState, build, environment
from tandem.contracts import names

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("takeover"),
    pytest.mark.timeout(900),
]
CODE = ("tandem", "scheduler_extender", "predictor", "node_agent", "helm", "deploy")
SERVICES = ("scheduler_extender", "predictor", "node_agent")


def git(*args: str) -> str:
    answer = subprocess.run(("git", *args), cwd=ROOT, capture_output=True, text=True, check=False)
    return answer.stdout if answer.returncode == 0 else ""


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of the latest commit with other services than ours, which our libraries suit."""
    if git("rev-parse", "--is-shallow-repository").strip() == "true":
        git("fetch", "--quiet", "--deepen=50")
    changed = git("status", "--porcelain", "--", *CODE).strip()
    commits = git("log", "-40", "--format=%H", "--", *SERVICES).split()
    folder = tmp_path_factory.mktemp("previous")
    for commit in commits if changed else commits[1:]:
        checkout = folder / commit
        archive = folder / f"{commit}.tar"
        if not git("archive", "--output", str(archive), commit, *CODE) and not archive.exists():
            continue
        shutil.unpack_archive(archive, checkout)
        if runs(checkout):
            print(f"the earlier version is {git('log', '-1', '--format=%h %s', commit).strip()}")
            return checkout
    pytest.skip("no earlier version: this is no git checkout, or its history cannot be had")


def runs(checkout: Path) -> bool:
    """Tell whether chart and services of a checkout are whole, and its own."""
    env = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}
    for module in SERVICES:
        code = f"import {module}, {module}.__main__; print({module}.__file__)"
        answer = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
        )
        if answer.returncode != 0 or not answer.stdout.startswith(str(checkout)):
            return False
    return run_helm("lint", str(checkout / "helm" / "tandem")).returncode == 0


class Version:
    """The services of one checkout on a plane: a pair, a predictor and the agent of n0."""

    def __init__(self, plane: ControlPlane, folder: Path, name: str, source: Path) -> None:
        folder.mkdir()
        self.plane, self.name = plane, name
        self.installation = Installation(plane, folder, values={}, source=source)
        self.refused = 0.0

    def chart(self, url: str) -> None:
        """Install the chart, or go over to it; the API server finds the webhook at `url`."""
        values = f"webhook.url={url}"
        for path in sorted((self.installation.chart / "crds").glob("*.yaml")):
            self.plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))
        self.installation.helm(
            "upgrade", "--install", RELEASE, str(self.installation.chart),
            "--create-namespace", "--skip-crds", "--set", values,
        )  # fmt: skip

    def start(self, gpus: dict[str, str]) -> None:
        self.predictor = self.installation.start_predictor(f"predictor-{self.name}")
        self.extender = self.installation.start_extender(
            {"leader": {"hostname": self.name}}, name=f"extender-{self.name}"
        )
        self.scheduler = self.installation.start_scheduler(f"scheduler-{self.name}", self.name)
        if running := self.plane.processes.get("agent-n0"):
            running.terminate()
        self.installation.start_agent("n0", gpus)

    def end(self) -> None:
        """End as kubelet ends a pod: kube-scheduler, then its sidecar."""
        self.scheduler.terminate()
        self.refused = self.bindings("refused")
        self.extender.terminate()
        self.predictor.terminate()

    def bindings(self, outcome: str) -> float:
        text = httpx.get(f"{self.installation.verbs_url}/metrics", trust_env=False).text
        name = f'tandem_extender_bindings_total{{outcome="{outcome}"}} '
        lines = [line for line in text.splitlines() if line.startswith(name)]
        return sum(float(line.removeprefix(name)) for line in lines)


@contextlib.contextmanager
def stream(cluster: ChartCluster, namespace: str) -> Iterator[list[str]]:
    """Submit short jobs one after another; yield the list of their names, which grows."""
    submitted: list[str] = []
    over = threading.Event()
    errors: list[BaseException] = []

    def submit() -> None:
        try:
            while not over.wait(0.5):
                name = f"short-{len(submitted)}"
                cluster.submit(namespace, name, memory="1Gi", seconds=0.5)
                submitted.append(name)
        except BaseException as error:
            errors.append(error)
            raise

    thread = threading.Thread(target=submit)
    thread.start()
    try:
        yield submitted
    finally:
        over.set()
        thread.join(60)
    assert errors == []


def test_to_our_version_and_back_under_a_stream_of_jobs(previous: Path, tmp_path: Path) -> None:
    need_control_plane("helm")
    StubState(gpus=[StubGpu(uuid=f"GPU-n0-{i}") for i in range(8)]).write(tmp_path / "gpus")
    gpus = environment(build(tmp_path), tmp_path / "gpus")
    with ControlPlane.start(nodes=[Node("n0", cpu=64)]) as plane:
        sources = {"before": previous, "ours": ROOT, "after": previous}
        versions = [Version(plane, tmp_path / n, n, source) for n, source in sources.items()]
        now = versions[0]
        now.chart(now.installation.public_url)
        now.start(gpus)
        cluster = ChartCluster(plane, tmp_path)
        team = cluster.team()
        cluster.submit(team, "long")
        uid = cluster.await_run(team, "long")["metadata"]["uid"]

        with stream(cluster, team) as submitted:
            for following in versions[1:]:
                placed = len(submitted)
                wait_until(lambda n=placed: len(submitted) >= n + 3, "jobs come", timeout_s=60)
                following.chart(now.installation.public_url)
                following.start(gpus)
                call(plane, following.installation.public_url)
                now.end()
                now = following
                wait_until(
                    lambda: holder(plane).startswith(f"{following.name}_"),  # noqa: B023
                    f"{following.name} leads",
                    timeout_s=60,
                )

        def done() -> bool:
            jobs = {
                job["metadata"]["name"]: job["status"]
                for job in plane.get("jobs", "-n", team)["items"]
            }
            return all(jobs[name].get("succeeded") for name in submitted)

        wait_until(done, f"all {len(submitted)} jobs have ended well", timeout_s=180, poll_s=1)
        jobs = plane.get("jobs", "-n", team)["items"]
        assert not [job for job in jobs if job["status"].get("failed")]
        refused = [version.refused for version in versions[:-1]] + [now.bindings("refused")]
        assert refused == [0, 0, 0]
        survivor = cluster.pod_of(team, "long")
        assert (survivor["metadata"]["uid"], survivor["status"]["phase"]) == (uid, "Running")
        print(f"{len(submitted)} jobs over {' -> '.join(sources)}: none failed, none refused")


def call(plane: ControlPlane, url: str) -> None:
    """Do what the Service does when a pod becomes ready: the API server calls that one."""
    webhooks = plane.get("mutatingwebhookconfiguration", "tandem")["webhooks"]
    patch = [
        {
            "op": "replace",
            "path": f"/webhooks/{index}/clientConfig/url",
            "value": f"{url}/{hook['clientConfig']['url'].rpartition('/')[2]}",
        }
        for index, hook in enumerate(webhooks)
    ]
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/tandem"
    kind = {"content-type": "application/json-patch+json"}
    plane.http.patch(path, json=patch, headers=kind).raise_for_status()


def holder(plane: ControlPlane) -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases/{names.LEASE_NAME}"
    answer = plane.http.get(path)
    return (answer.json()["spec"].get("holderIdentity") or "") if answer.is_success else ""
