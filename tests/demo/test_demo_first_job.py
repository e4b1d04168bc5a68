"""The front page's first job, command by command with its names as printed, and no cluster.

The extender, the predictor and an agent are the processes of a cluster; the API server is the one
in memory, and kube-scheduler and kubelet are the demo's. What the page enters with kubectl and helm
is entered on a real API server elsewhere (tests/helm, tests/cli/test_cli_live.py).
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem.contracts import names
from tandem.kube.resource import GPU_JOBS, GPU_NODES, NODES, PODS
from tandem.local.waiting import wait_until
from tandem_demo.api import ApiServer
from tandem_demo.run import simulated_nodes
from tandem_demo.scheduler import Scheduler
from tandem_demo.services import Services
from tandem_demo.workload import graph_files

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TANDEM = Path(sys.executable).with_name("tandem")


def section(heading: str) -> str:
    (found,) = (each for each in README.split("\n## ") if each.startswith(heading))
    return found


def entered(heading: str) -> list[str]:
    """Return the indented commands of a section, as a reader would enter them."""
    return [
        line.strip().partition(" #")[0].strip()
        for line in re.sub(r"(?s)```.*?```", "", section(heading)).splitlines()
        if line.startswith("    ") and line.strip()
    ]


PUSH = "A first job"
ASK = "Why does it wait"


def a_job() -> dict[str, Any]:
    (block,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    found: dict[str, Any] = yaml.safe_load(block)
    return found


class Site:
    """The services, with two nodes of two GPUs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nodes = simulated_nodes(4, folder)
        self.services = Services(folder, self._nodes)

    def __enter__(self) -> Site:
        self.services.__enter__()
        self.api = ApiServer(self.services.api_url)
        for node in self._nodes.values():
            self.api.create(NODES, node.manifest())
        self.services.start_agents()
        wait_until(lambda: self._gpus() == 4, "the agents report", timeout_s=60)
        self._scheduler = Scheduler.of(self.services.verbs_url)
        return self

    def __exit__(self, *_: object) -> None:
        self._scheduler.close()
        self.api.close()
        self.services.stop()

    def _gpus(self) -> int:
        return sum(len(node["status"].get("gpus") or ()) for node in self.api.list(GPU_NODES))

    def apply(self, job: dict[str, Any]) -> None:
        """Do as the controller of Jobs does: there is a pod for the Job."""
        metadata, template = job["metadata"], job["spec"]["template"]
        owner = {
            "apiVersion": job["apiVersion"], "kind": job["kind"], "name": metadata["name"],
            "uid": "uid-of-the-job", "controller": True,
        }  # fmt: skip
        pod = {
            "metadata": {
                **template["metadata"],
                "name": f"{metadata['name']}-x7k2p",
                "namespace": metadata["namespace"],
                "ownerReferences": [owner],
            },
            "spec": template["spec"],
        }
        self.api.create(PODS, pod)

    def until_bound(self, namespace: str) -> None:
        def bound() -> bool:
            pods = self.api.list(PODS)
            self._scheduler.step(pods, list(self._nodes), time.monotonic())
            return any(
                pod["spec"].get("nodeName") and pod["metadata"]["namespace"] == namespace
                for pod in pods
            )

        wait_until(bound, "the job is bound", timeout_s=60, poll_s=0.2)

    def run(self, command: str) -> str:
        """Enter a command in a folder that has the graph, as on a machine of a user."""
        program, *words = shlex.split(command)
        assert program == "tandem"
        answer = subprocess.run(
            [TANDEM, *words],
            cwd=self._folder,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(self._folder),
                "TANDEM_SERVER": self.services.api_url,
                "TANDEM_PREDICTOR": self.services.predictor_url,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert answer.returncode == 0, f"{command}\n{answer.stdout}{answer.stderr}"
        return answer.stdout + answer.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("first-job")
    with Site(folder) as found:
        shutil.copy(graph_files()["resnet50"], folder / "resnet50.onnx")
        yield found


def test_the_first_job_by_the_front_page_alone(site: Site) -> None:
    create, push, apply = entered(PUSH)
    job = a_job()
    where, name = job["metadata"]["namespace"], job["metadata"]["name"]
    assert create == f"kubectl create namespace {where}"
    said = site.run(push)
    model = job["spec"]["template"]["metadata"]["annotations"][names.MODEL]
    assert f"Pushed {model} to namespace {where}." in said
    assert apply == "kubectl apply -f job.yaml"
    site.apply(job)
    site.until_bound(where)
    running = f"job-{name}"
    wait_until(
        lambda: any(each["metadata"]["name"] == running for each in site.api.list(GPU_JOBS)),
        "the GPUJob is there",
    )
    answers = {each: site.run(each) for each in entered(ASK) if each.startswith("tandem ")
               and each != "tandem page"}  # fmt: skip
    assert list(answers) == [
        f"tandem why {name} -n {where}",
        f"tandem jobs -n {where}",
        "tandem top",
    ]
    why, jobs, top = answers.values()
    assert why.startswith(f"{where}/{running} (Job {name})")
    assert f"{model} is known" in why
    assert running in jobs
    assert f"{where}/{running}" in top
    # What the page says of kubectl names the same objects.
    described = [each for each in entered(ASK) if each.startswith("kubectl describe")]
    assert described == [f"kubectl describe gpujob {running} -n {where}"]


def test_the_page_command_leads_to_the_page_of_the_services(site: Site) -> None:
    said = site.run("tandem page --no-browser")
    assert said.strip() == f"{site.services.api_url}/status/"
