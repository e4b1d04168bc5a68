"""docs/install.md, followed line by line on a real API server.

Two things a machine without a container engine lacks are played by the test: kwok reports the
pods as running, and the services run as processes with the accounts and settings of the chart.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from controlplane_binaries import need_control_plane
from helm_render import ROOT

from controlplane import ControlPlane, Node, binaries
from controlplane.installation import Installation
from node_agent.stub import StubGpu, StubState, build, environment
from tandem.contracts import names

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("helm"),
]
PAGE = ROOT / "docs" / "install.md"
PREREQUISITES = [
    {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "nvidia"},
        "handler": "nvidia",
    }
]


def commands() -> Iterator[list[str]]:
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for line in block.splitlines():
            assert line.startswith("$ "), line
            yield shlex.split(line.removeprefix("$ "))


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    need_control_plane("helm")
    labels = {"nvidia.com/gpu.present": "true"}
    with ControlPlane.start(nodes=[Node("cpu-0"), Node("gpu-0", labels)], scheduler=True) as plane:
        plane.apply(PREREQUISITES)
        yield plane


def test_every_command_of_the_page_does_what_it_says(plane: ControlPlane, tmp_path: Path) -> None:
    said = {}
    installation = Installation(plane, tmp_path, values={})
    for command in commands():
        changes_release = command[0] == "helm" and command[1] != "install"
        if changes_release:
            reach_webhook(installation, in_cluster=True)
        said[shlex.join(command)] = run(plane, *command)
        if command[:2] == ["helm", "install"]:
            start_services(installation, tmp_path)
        elif changes_release and command[1] != "uninstall":
            reach_webhook(installation)

    def output(*words: str) -> str:
        (found,) = [text for line, text in said.items() if all(word in line for word in words)]
        return found

    assert "successfully rolled out" in output("rollout", "tandem-scheduler")
    assert output("daemonset").split()[-1]
    assert re.search(r"^gpu-0\b", output("get gpunodes"), re.MULTILINE)
    assert "Running" in output("get gpujobs")
    assert len(said) >= 20


def run(plane: ControlPlane, *command: str) -> str:
    tools = {Path(binaries.require(name)).parent for name in ("kubectl", "helm")}
    path = ":".join([*map(str, tools), os.environ["PATH"]])
    answer = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PATH": path, "KUBECONFIG": str(plane.kubeconfig())},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert answer.returncode == 0, f"{shlex.join(command)}\n{answer.stdout}{answer.stderr}"
    return answer.stdout


def start_services(installation: Installation, folder: Path) -> None:
    installation.start_predictor()
    reach_webhook(installation)
    installation.start_extender({})
    installation.start_scheduler()
    StubState(gpus=[StubGpu("GPU-0")]).write(folder / "gpus")
    installation.start_agent("gpu-0", environment(build(folder), folder / "gpus"))


def reach_webhook(installation: Installation, *, in_cluster: bool = False) -> None:
    """Let the API server find the webhook where the process listens: there are no Services here.

    Before Helm looks at it again, it is as Helm left it.
    """
    plane = installation.plane
    configuration = plane.get("mutatingwebhookconfiguration", "tandem")
    for webhook in configuration["webhooks"]:
        client = webhook["clientConfig"]
        path = "/mutate-adopted" if webhook["name"].startswith("adopted") else "/mutate"
        where = {"url": installation.public_url + path}
        if in_cluster:
            service = {"namespace": names.NAMESPACE, "name": "tandem-webhook"}
            where = {"service": {**service, "path": path, "port": 443}}
        webhook["clientConfig"] = where | {"caBundle": client.get("caBundle")}
    plane.kubectl("replace", "-f", "-", stdin=yaml.safe_dump(configuration))
