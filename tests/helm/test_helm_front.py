"""The extender as a process on a real control plane: floods, its loopback, and refusals."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from controlplane_binaries import need_control_plane
from helm_cluster import ChartCluster

from controlplane import ControlPlane, Node, wait_until
from controlplane.installation import Installation
from node_agent.stub import StubGpu, StubState, build, environment
from proof import flood
from tandem.contracts import names
from tandem.errors import TandemError
from tandem.local.processes import Process, free_port

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("takeover"),
]


class Site:
    """Tandem by its chart, with the certificates that its pod's two containers share."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.cluster = ChartCluster(plane, folder)
        self.plane, self.shared = plane, folder / "shared"
        self.installation = Installation(plane, folder, values={})
        self.installation.apply_manifests()
        self.installation.start_predictor()
        self.verbs, self.probes = free_port(), free_port()
        given = self.installation.settings("scheduler", "extender")
        assert given["verbs"] == {"shared_with_scheduler": "/run/tandem-verbs"}
        self.extender: Process = self.installation.start_extender(
            {
                "verbs": {"port": self.verbs, "shared_with_scheduler": str(self.shared)},
                "probes": {"host": "127.0.0.1", "port": self.probes},
            },
            ready_at_public=True,
        )
        config = self.installation.settings("scheduler")
        (extender,) = config["extenders"]
        extender["urlPrefix"] = f"https://127.0.0.1:{self.verbs}"
        for key, path in extender["tlsConfig"].items():
            extender["tlsConfig"][key] = path.replace("/run/tandem-verbs", str(self.shared))
        account = plane.service_account_kubeconfig(names.NAMESPACE, "tandem-scheduler")
        plane.start_scheduler("tandem-scheduler", config=config, kubeconfig=account)
        StubState(gpus=[StubGpu("GPU-0"), StubGpu("GPU-1")]).write(folder / "gpus")
        self.installation.start_agent("n0", environment(build(folder), folder / "gpus"))

    def pids(self) -> list[int]:
        """Return the extender's process and the one in front of it."""
        children = Path(f"/proc/{self.extender.pid}/task/{self.extender.pid}/children").read_text()
        front = [
            int(pid)
            for pid in children.split()
            if b"serving.front" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        return [self.extender.pid, *front]


@pytest.fixture
def site(running: Site) -> Iterator[Site]:
    """The chart with a scheduler's pod; the jobs of a test leave the GPUs when it ends."""
    yield running
    running.cluster.remove_teams(set(running.cluster.teams))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    need_control_plane("helm")
    with ControlPlane.start(nodes=[Node("n0", cpu=32)]) as plane:
        yield Site(plane, tmp_path_factory.mktemp("front"))


def test_the_scheduler_of_the_pod_places_jobs_and_no_other_client_reaches_the_verbs(
    site: Site,
) -> None:
    team = site.cluster.team()
    site.cluster.submit(team, "ours")
    pod = site.cluster.await_run(team, "ours")
    assert pod["metadata"]["annotations"][names.VISIBLE_DEVICES].startswith("GPU-")
    url = f"127.0.0.1:{site.verbs}/bind"
    binding = {"PodName": "p", "PodNamespace": team, "PodUID": "u", "Node": "n0"}
    for address in (f"http://{url}", f"https://{url}"):
        with pytest.raises(httpx.TransportError):
            httpx.post(address, json=binding, verify=False, trust_env=False)
    known = ssl.create_default_context(cafile=site.shared / "ca.crt")
    known.load_cert_chain(*(site.shared / "client" / name for name in ("tls.crt", "tls.key")))
    with httpx.Client(verify=known, trust_env=False) as client:
        answer = client.post(f"https://{url}", json=binding)
    assert answer.json()["Error"], "there is no such pod"
    for path in site.shared.rglob("*.key"):
        assert path.stat().st_mode & 0o077 == 0


def test_an_extender_that_starts_again_is_known_to_its_scheduler(site: Site) -> None:
    before = (site.shared / "ca.crt").read_bytes()
    site.extender.kill()
    site.extender.start()
    health = f"http://127.0.0.1:{site.probes}/readyz"
    wait_until(lambda: _status(health) == 200, "the extender is ready again", timeout_s=120)
    assert (site.shared / "ca.crt").read_bytes() == before
    team = site.cluster.team()
    site.cluster.submit(team, "again")
    site.cluster.await_run(team, "again")


def test_floods_of_the_public_port_fail_neither_probe_nor_webhook_nor_scheduler(site: Site) -> None:
    health = f"http://127.0.0.1:{site.probes}/healthz"
    pids = site.pids()
    assert len(pids) == 2
    # A pod has an address of its own; requests are counted by address, the API server's too.
    found = flood.measure(site.installation.public_url, health, pids, source="127.0.0.2")
    report = os.environ.get("TANDEM_FLOOD_REPORT")
    if report:
        Path(report).write_text(yaml.safe_dump(found))
    assert [each["failed_health"] for each in found.values()] == [0, 0, 0]
    sizes = [a["bytes"] for each in found.values() for a in each["answers"] if "bytes" in a]
    assert max(sizes) < 16_000
    assert all(each["memory_largest_mib"][1] < 350 for each in found.values())
    assert site.pids() == pids, "no process was replaced"
    team = site.cluster.team()
    site.cluster.submit(team, "after")
    site.cluster.await_run(team, "after")


def affinity(terms: int) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    required = {"nodeSelectorTerms": [term] * terms}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def job(**spec: Any) -> dict[str, Any]:
    limits = {"limits": {names.RESOURCE: "1"}}
    container = {"name": "train", "image": "train:1", "resources": limits}
    template = {"spec": {"restartPolicy": "Never", "containers": [container], **spec}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "wide"},
        "spec": {"template": template},
    }


def refusal(site: Site, namespace: str, body: dict[str, Any]) -> str:
    """Create an object; return what is said where it is refused."""
    try:
        site.plane.kubectl("create", "-n", namespace, "-f", "-", stdin=yaml.safe_dump(body))
    except TandemError as error:
        return str(error.message)
    return ""


def test_a_pod_with_15000_terms_is_refused_at_apply_with_the_reason(site: Site) -> None:
    team = site.cluster.team()
    wide = job(affinity=affinity(15_000))
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "wide"},
        "spec": wide["spec"]["template"]["spec"],
    }
    for body in (wide, pod):
        said = refusal(site, team, body)
        assert "at most 256 entries" in said
        assert "there are 30000" in said
    assert refusal(site, team, job(affinity=affinity(2))) == ""


def test_our_scheduler_is_refused_without_gpus_at_apply_and_at_creation(site: Site) -> None:
    team = site.cluster.team()
    body = job(schedulerName=names.SCHEDULER_NAME)
    del body["spec"]["template"]["spec"]["containers"][0]["resources"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "none"},
        "spec": body["spec"]["template"]["spec"],
    }
    for refused in (body, pod):
        assert "only pods that request tandem.gpu/gpu" in refusal(site, team, refused)


def test_a_quota_on_nvidias_resource_goes_on_counting_in_an_adopted_namespace(site: Site) -> None:
    team = site.cluster.team()
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus"},
        "spec": {"hard": {f"requests.{names.NVIDIA_RESOURCE}": "1"}},
    }
    assert refusal(site, team, quota) == ""
    site.plane.kubectl("label", "namespace", team, f"{names.ADOPT_LABEL}=true")

    def kept() -> bool:
        found = site.plane.get("resourcequotas", "-n", team)["items"]
        status = {each["metadata"]["name"]: each.get("status", {}) for each in found}
        bound = status.get("tandem-gpus", {}).get("hard", {})
        return bool(bound.get(f"requests.{names.RESOURCE}") == "1")

    wait_until(kept, "the quota has its counterpart", timeout_s=60)
    said = []
    for index in range(2):
        pod = job()["spec"]["template"]
        limits = {"limits": {names.NVIDIA_RESOURCE: "1"}}
        pod["spec"]["containers"][0]["resources"] = limits
        name = {"metadata": {"name": f"stock-{index}"}}
        said.append(refusal(site, team, {"apiVersion": "v1", "kind": "Pod", **name, **pod}))
    assert said[0] == ""
    assert "exceeded quota: tandem-gpus" in said[1]


def _status(url: str) -> int:
    try:
        return httpx.get(url, trust_env=False, timeout=5).status_code
    except httpx.TransportError:
        return 0
