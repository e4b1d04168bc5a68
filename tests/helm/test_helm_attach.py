"""With an existing scheduler: it calls the extender over TLS, with a certificate."""

from __future__ import annotations

import re
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from controlplane_binaries import need_control_plane
from helm_cluster import ChartCluster
from helm_render import ROOT

from controlplane import ControlPlane, Node, wait_until
from controlplane.installation import Installation
from node_agent.stub import StubGpu, StubState, build, environment
from tandem.contracts import names
from tandem.local.processes import free_port

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("takeover"),
]
PAGE = ROOT / "docs" / "install.md"
SERVICE = f"tandem-extender.{names.NAMESPACE}.svc"


def certificates(folder: Path) -> None:
    """Make the certificates by the commands of the page."""
    _, _, section = PAGE.read_text().partition("## With an existing scheduler\n")
    (block,) = re.findall(r"```sh\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    commands = block.partition("kubectl create secret")[0]
    subprocess.run(["bash", "-euc", commands], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def attached(tmp_path: Path) -> Iterator[tuple[ChartCluster, str]]:
    """Tandem attached to a scheduler with a profile of its own; and where its verbs are served."""
    need_control_plane("helm")
    certificates(tmp_path)
    with ControlPlane.start(nodes=[Node("n0", cpu=32)]) as plane:
        values = {"scheduler": {"attach": {"enabled": True}}}
        installation = Installation(plane, tmp_path, values=values)
        installation.apply_manifests()
        installation.start_predictor()
        port = free_port()
        files = {"tls_cert": "server.crt", "tls_key": "server.key", "client_ca": "ca.crt"}
        verbs = {key: str(tmp_path / name) for key, name in files.items()}
        installation.start_extender(
            {"verbs": {"host": "127.0.0.1", "port": port, **verbs}}, ready_at_public=True
        )
        start_scheduler(plane, tmp_path, port)
        StubState(gpus=[StubGpu("GPU-0")]).write(tmp_path / "gpus")
        installation.start_agent("n0", environment(build(tmp_path), tmp_path / "gpus"))
        yield ChartCluster(plane, tmp_path), f"https://127.0.0.1:{port}"


def start_scheduler(plane: ControlPlane, folder: Path, port: int) -> None:
    """Start the scheduler that is there already, with what the chart says that it needs."""
    found = plane.get("configmap", "tandem-scheduler", "-n", names.NAMESPACE)["data"]
    assert "scheduler.yaml" not in found
    given = yaml.safe_load(found["attach.yaml"])
    (extender,) = given["extenders"]
    assert extender["enableHTTPS"] is True
    extender["urlPrefix"] = f"https://127.0.0.1:{port}"
    files = {"caFile": "ca.crt", "certFile": "client.crt", "keyFile": "client.key"}
    extender["tlsConfig"] |= {key: str(folder / name) for key, name in files.items()}
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        **given,
        "profiles": [{"schedulerName": "default-scheduler"}, *given["profiles"]],
    }
    plane.start_scheduler("existing", config=config)


def test_one_scheduler_places_our_jobs_by_the_extender_and_others_as_ever(
    attached: tuple[ChartCluster, str], tmp_path: Path
) -> None:
    cluster, url = attached
    plane, team = cluster.plane, cluster.team()
    cluster.submit(team, "ours")
    pod = cluster.await_run(team, "ours")
    assert pod["metadata"]["annotations"][names.VISIBLE_DEVICES] == "GPU-0"
    plane.kubectl("run", "other", "-n", team, "--image=other:1")
    wait_until(
        lambda: plane.get("pod", "other", "-n", team)["spec"].get("nodeName"), "the other is placed"
    )

    # kube-scheduler asks the extender to bind each pod that names the resource.
    nothing = {"name": "main", "image": "zero:1", "resources": {"limits": {names.RESOURCE: 0}}}
    zero = {"metadata": {"name": "zero", "namespace": team}, "spec": {"containers": [nothing]}}
    plane.apply({"apiVersion": "v1", "kind": "Pod", **zero})
    wait_until(
        lambda: plane.get("pod", "zero", "-n", team)["spec"].get("nodeName"), "0 GPUs are placed"
    )

    def answers(*shows: str) -> bool:
        trust = ssl.create_default_context(cafile=tmp_path / "ca.crt")
        if shows:
            trust.load_cert_chain(*(tmp_path / name for name in shows))
        with httpx.Client(verify=trust, trust_env=False) as client:
            try:
                asked = client.build_request("GET", f"{url}/healthz")
                asked.extensions["sni_hostname"] = SERVICE
                return client.send(asked).is_success
            except httpx.TransportError:
                return False

    assert answers("client.crt", "client.key")
    assert not answers()
    assert not answers("server.crt", "server.key"), "a certificate for servers is none of a caller"
