"""What agents see decides where work may go: the guard, lost GPUs, silence, no API server."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from controlplane_binaries import need_control_plane
from e2e_cluster import DEVICES, TandemCluster, job
from prometheus_client.parser import text_string_to_metric_families

from controlplane import ControlPlane, Node, wait_until
from node_agent.stub import (
    FakeProc,
    StubError,
    StubGpu,
    StubProcess,
    StubSlice,
    StubState,
    build,
    environment,
)
from tandem.contracts import names
from tandem.kube.client import KubeClient
from tandem.kube.errors import Unavailable
from tandem.kube.resource import GPU_NODES

pytestmark = [pytest.mark.controlplane, pytest.mark.slow, pytest.mark.xdist_group("agent")]

Object = dict[str, Any]

GIB = 1 << 30
GPU_IS_LOST = 15
#: How long the API server is away: 60 s here, 300 s for the full count.
AWAY_S = float(os.environ.get("TANDEM_API_AWAY_S", "60"))
STALE_S = 8.0
AGENT = {
    "shares": 3,
    "guard": {"mode": "evict"},
    "report_interval_s": 0.5,
    "health": {"rescan_s": 2.0},
}


class Host:
    """A node with one simulated 80 GiB GPU, the processes on it, and its agent."""

    def __init__(self, cluster: TandemCluster, name: str, folder: Path) -> None:
        self.name = name
        self.gpu = f"GPU-{name}"
        self._plane = cluster.plane
        self._state = StubState(gpus=[StubGpu(self.gpu)])
        self._file = folder / f"{name}.gpus"
        self._proc = FakeProc(folder / f"{name}.proc")
        self._pids: dict[str, int] = {}
        self._state.write(self._file)
        settings = {**AGENT, "proc": str(self._proc.root)}
        driver = environment(build(folder), self._file)
        self.agent = cluster.installation.start_agent(name, driver, settings)
        self._url = cluster.installation.agent_url(name)

    def runs(self, pod: Object, gib: float) -> None:
        """Let a pod's process hold so much memory on the GPU."""
        uid = pod["metadata"]["uid"]
        if uid not in self._pids:
            self._pids[uid] = 1000 + len(self._pids)
            self._proc.add(self._pids[uid], uid)
        others = [p for p in self._state.processes if p.pid != self._pids[uid]]
        self._state.processes = [*others, StubProcess(0, self._pids[uid], int(gib * GIB), sm=30)]
        self._state.write(self._file)

    def ends(self, pod: Object) -> None:
        """Let a pod's process be gone, as with its containers."""
        pid = self._pids[pod["metadata"]["uid"]]
        self._state.processes = [p for p in self._state.processes if p.pid != pid]
        self._state.write(self._file)
        self._proc.remove(pid)

    def is_lost(self, lost: bool) -> None:
        """Let the driver say that the GPU has fallen off the bus, or answer again."""
        self._state.errors = [StubError("*", GPU_IS_LOST, gpu=0)] if lost else []
        self._state.write(self._file)

    def uses(self, gib: float) -> None:
        """Let so much memory be in use by no process that the driver lists."""
        self._state.gpus = [replace(self._state.gpus[0], unlisted=int(gib * GIB))]
        self._state.write(self._file)

    def is_divided(self, *slices: str) -> None:
        """Let the GPU have these slices of MIG; none: it is whole."""
        self._state.gpus = [replace(self._state.gpus[0], mig=int(bool(slices)))]
        self._state.slices = [
            StubSlice(0, uuid, instance=number) for number, uuid in enumerate(slices, 1)
        ]
        self._state.write(self._file)
        expected = list(slices) or [self.gpu]
        wait_until(lambda: self.gpus() == expected, f"{self.name} reports {expected}")
        # They are other GPUs than the node first had, so that an operator has to agree.
        self._plane.kubectl("annotate", "gpunode", self.name, f"{names.INVENTORY}-")

    def gpus(self) -> list[str]:
        """Return the GPUs that the API server knows of the node."""
        return [gpu["uuid"] for gpu in self._plane.get("gpunode", self.name)["status"]["gpus"]]

    def clear(self) -> None:
        """Let no process be left, and no memory in use."""
        gpus = [replace(self._state.gpus[0], unlisted=0)]
        self._state = replace(self._state, gpus=gpus, processes=[], errors=[])
        self._state.write(self._file)

    def report(self) -> Object:
        """Return what the API server knows of the GPU."""
        status = self._plane.get("gpunode", self.name)["status"]
        return status["gpus"][0] | {"asks": status.get("evictionRequests", [])}

    def knows(self, *pods: Object) -> None:
        """Wait until the agent has reported the pods by name."""
        called = {pod["metadata"]["name"] for pod in pods}
        wait_until(
            lambda: called <= {use.get("pod") for use in self.report()["pods"]},
            f"the agent of {self.name} names {called}",
        )

    def measures(self) -> bool:
        """Say whether the agent answers, and has found memory in use."""
        with contextlib.suppress(httpx.TransportError):
            return self.metric("tandem_node_memory_bytes", kind="used") > 0
        return False

    def metric(self, name: str, **labels: str) -> float:
        """Return a series of the agent's /metrics."""
        return metric(self._url, name, **labels)


def metric(url: str, name: str, **labels: str) -> float:
    text = httpx.get(f"{url}/metrics", trust_env=False).raise_for_status().text
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


class Site:
    """Tandem with two hosts."""

    def __init__(self, cluster: TandemCluster, folder: Path) -> None:
        self.cluster = cluster
        self.hosts = {name: Host(cluster, name, folder) for name in ("a", "b")}

    def starts(
        self, namespace: str, name: str, host: str = "", memory: str = "20Gi", gpus: int = 1
    ) -> None:
        """Apply a job that declares its memory, for any host or for one."""
        wanted = {"tandem.gpu/memory": memory, "tandem.gpu/utilization": "20"}
        described = job(name, gpus=gpus, annotations=wanted)
        if host:
            described["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": host}
        self.cluster.apply_job(namespace, described)

    def pair(self, namespace: str, host: str, *jobs: str) -> list[Object]:
        """Start jobs that share a host's GPU, each holding what it declared."""
        pods = []
        for name in jobs:
            self.starts(namespace, name, host)
            pods.append(self.cluster.running(namespace, name))
            self.hosts[host].runs(pods[-1], 20)
        assert {pod["metadata"]["annotations"][DEVICES] for pod in pods} == {self.hosts[host].gpu}
        self.hosts[host].knows(*pods)
        return pods

    def is_going(self, pod: Object) -> bool:
        """Tell whether a pod is being deleted, or is gone."""
        pods = self.cluster.pods(pod["metadata"]["namespace"])
        now = {p["metadata"]["uid"]: p for p in pods}.get(pod["metadata"]["uid"])
        return now is None or "deletionTimestamp" in now["metadata"]

    def still_runs(self, pod: Object) -> bool:
        """Tell whether it is the same pod as before, running."""
        path = ("pod", "-n", pod["metadata"]["namespace"], pod["metadata"]["name"])
        now = self.cluster.plane.get(*path)
        same = now["metadata"]["uid"] == pod["metadata"]["uid"]
        return same and now["status"]["phase"] == "Running" and not self.is_going(pod)

    def event_of(self, pod: Object, reason: str) -> str:
        """Return what an event of this reason says on a pod, once there is one."""
        namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]

        def note() -> str:
            events = self.cluster.plane.get("events.events.k8s.io", "-n", namespace)["items"]
            said = [
                event["note"]
                for event in events
                if event["regarding"]["uid"] == uid and event["reason"] == reason
            ]
            return said[0] if said else ""

        return wait_until(note, f"{pod['metadata']['name']} gets an event {reason}")

    def waits(self, namespace: str, name: str, words: str) -> None:
        """Wait until a job waits for a reason with these words."""
        wait_until(
            lambda: words in self.cluster.waiting_reason(namespace, name),
            f"{name} waits because of {words!r}",
        )

    def load(self, namespace: str, name: str) -> Object:
        found: Object = self.cluster.plane.get("gpujob", f"job-{name}", "-n", namespace)
        return found["status"]["load"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    need_control_plane()
    folder = tmp_path_factory.mktemp("agent")
    with ControlPlane.start(nodes=[Node("a", cpu=32), Node("b", cpu=32)]) as plane:
        cluster = TandemCluster(plane, folder)
        cluster.installation.install({"max_jobs_per_gpu": 3, "stale_after_s": STALE_S})
        yield Site(cluster, folder)


@pytest.fixture
def namespace(site: Site) -> Iterator[str]:
    name = site.cluster.namespace()
    yield name
    site.cluster.plane.kubectl("delete", "namespace", name, "--wait=false")
    wait_until(lambda: not site.cluster.pods(name), f"the pods of {name} are gone", timeout_s=120)
    for host in site.hosts.values():
        host.clear()


def test_who_outgrew_its_prediction_is_evicted_and_its_next_run_asks_for_more(
    site: Site, namespace: str
) -> None:
    host, other = site.hosts["a"], site.hosts["b"]
    site.starts(namespace, "greedy")
    greedy = site.cluster.running(namespace, "greedy")
    home = greedy["spec"]["nodeName"]
    host, other = site.hosts[home], site.hosts["b" if home == "a" else "a"]
    host.runs(greedy, 20)
    (innocent,) = site.pair(namespace, home, "innocent")
    host.knows(greedy, innocent)

    host.runs(greedy, 58)
    began = time.monotonic()
    wait_until(lambda: site.is_going(greedy), "the greedy pod is evicted")
    print(f"evicted after {time.monotonic() - began:.1f} s")
    host.ends(greedy)

    assert site.still_runs(innocent)
    assert "58.0 GiB" in site.event_of(greedy, "MemoryOutgrown")
    assert f"{host.name}/0" in site.event_of(innocent, "NeighbourEvicted")
    load = site.load(namespace, "greedy")
    assert load["memorySource"] == "observed"
    assert load["memoryP95Bytes"] > 58 * GIB

    # Its next run goes where that much is free.
    def again() -> str:
        pods = site.cluster.plane.get("pods", "-n", namespace, "-l", "job-name=greedy")["items"]
        new = [pod for pod in pods if pod["metadata"]["uid"] != greedy["metadata"]["uid"]]
        return new[0]["spec"].get("nodeName", "") if new else ""

    assert wait_until(again, "the next run is placed") == other.name
    assert site.load(namespace, "greedy") == load


def test_a_budget_protects_no_pod_that_holds_more_than_it_was_placed_with(
    site: Site, namespace: str
) -> None:
    host, plane = site.hosts["a"], site.cluster.plane
    greedy, innocent = site.pair(namespace, "a", "kept", "neighbour")
    plane.apply(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "kept", "namespace": namespace},
            "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"job-name": "kept"}}},
        }
    )
    host.runs(greedy, 58)
    wait_until(lambda: site.is_going(greedy), "the greedy pod is deleted")
    host.ends(greedy)
    url = site.cluster.installation.verbs_url
    assert metric(url, "tandem_queue_guard_evictions_total", outcome="deleted") >= 1
    assert site.still_runs(innocent)


def test_a_lost_gpu_takes_no_new_work_until_it_has_been_well_for_a_while(
    site: Site, namespace: str
) -> None:
    host = site.hosts["a"]
    (resident,) = site.pair(namespace, "a", "resident")
    began = time.monotonic()
    host.is_lost(True)
    wait_until(lambda: host.report()["health"] == "Quarantined", "it is quarantined")
    print(f"quarantined after {time.monotonic() - began:.1f} s")
    site.starts(namespace, "new", "a")
    site.waits(namespace, "new", "nothing new starts because of a fault")
    assert site.still_runs(resident)
    host.is_lost(False)
    assert site.cluster.running(namespace, "new")["metadata"]["annotations"][DEVICES] == host.gpu


def test_no_job_is_planned_on_memory_that_no_listed_process_holds(
    site: Site, namespace: str
) -> None:
    host = site.hosts["a"]
    host.uses(70)
    wait_until(lambda: host.report().get("memoryUnlistedBytes") == 70 * GIB, "it is reported")
    report = host.report()
    assert (report["memoryForeignBytes"], report["shares"]) == (70 * GIB, 2)
    assert "70.0 GiB of memory are in use by no process that is listed" in report["sharesReason"]
    site.starts(namespace, "large", "a", memory="12Gi")
    site.waits(namespace, "large", "9.4 GiB there")
    site.starts(namespace, "small", "a", memory="8Gi")
    small = site.cluster.running(namespace, "small")
    # What a crash left behind is cleared later, and the GPU is whole again.
    host.uses(0)
    host.runs(small, 8)
    assert site.cluster.running(namespace, "large")["metadata"]["annotations"][DEVICES] == host.gpu


def test_a_pod_whose_processes_are_hidden_keeps_no_job_off_its_gpu(
    site: Site, namespace: str
) -> None:
    host = site.hosts["a"]
    site.starts(namespace, "hidden", "a", memory="40Gi")
    site.cluster.running(namespace, "hidden")
    host.uses(38)
    wait_until(lambda: host.report().get("memoryUsedBytes") == 38 * GIB, "its memory is reported")
    site.starts(namespace, "joins", "a", memory="30Gi")
    joins = site.cluster.running(namespace, "joins")
    assert joins["metadata"]["annotations"][DEVICES] == host.gpu
    assert host.report().get("memoryForeignBytes") == 0, "it is no foreign memory"


def test_where_an_agent_is_silent_nothing_new_is_shared(site: Site, namespace: str) -> None:
    host = site.hosts["a"]
    (resident,) = site.pair(namespace, "a", "resident")
    host.agent.pause()
    try:
        time.sleep(STALE_S + 1)
        site.starts(namespace, "joins", "a")
        site.waits(namespace, "joins", "nothing has been measured lately")
        # Elsewhere life goes on, and who runs there already runs on.
        site.starts(namespace, "elsewhere")
        assert site.cluster.running(namespace, "elsewhere")["spec"]["nodeName"] == "b"
        assert site.still_runs(resident)
    finally:
        host.agent.resume()
    began = time.monotonic()
    site.cluster.running(namespace, "joins")
    print(f"shared again after {time.monotonic() - began:.1f} s")


def test_slices_take_jobs_of_one_gpu_and_leave_the_others_to_whole_gpus(
    site: Site, namespace: str
) -> None:
    host = site.hosts["b"]
    host.is_divided("MIG-1", "MIG-2")
    try:
        report = host.report()
        assert report["slice"] == {"profile": "1g.10gb", "parent": host.gpu, "number": 0}
        assert report["shares"] == 1
        given = set()
        for name in ("one", "two"):
            site.starts(namespace, name, "b", memory="5Gi")
            given.add(site.cluster.running(namespace, name)["metadata"]["annotations"][DEVICES])
        assert given == {"MIG-1", "MIG-2"}
        site.starts(namespace, "third", "b", memory="5Gi")
        site.waits(namespace, "third", "all places for jobs are taken")
        site.starts(namespace, "wide", "b", memory="5Gi", gpus=2)
        site.waits(namespace, "wide", "only a job of one GPU can run")
    finally:
        host.is_divided()


@pytest.mark.timeout(AWAY_S + 240)
def test_agent_measures_on_while_the_api_server_is_away_and_tells_of_it_without_a_burst(
    site: Site, namespace: str
) -> None:
    host, plane = site.hosts["a"], site.cluster.plane
    greedy, innocent = site.pair(namespace, "a", "greedy", "innocent")
    written = host.metric("tandem_agent_reports_total", outcome="written")
    failed = host.metric("tandem_agent_reports_total", outcome="failed")
    server = plane.processes["kube-apiserver"]
    server.kill()
    began = time.monotonic()
    try:
        host.runs(greedy, 30)
        wait_until(
            lambda: host.metric("tandem_node_memory_bytes", kind="used") > 49 * GIB,
            "the agent sees what happens",
        )
        host.runs(greedy, 58)
        wait_until(
            lambda: host.metric("tandem_agent_eviction_requests") == 1, "the agent asks for help"
        )
        time.sleep(max(0.0, began + AWAY_S - time.monotonic()))
        attempts = host.metric("tandem_agent_reports_total", outcome="failed") - failed
    finally:
        server.restart()
        plane.wait_ready()
    back = time.monotonic()
    print(f"away {back - began:.0f} s, {attempts:.0f} attempts to report meanwhile")
    assert attempts <= 10 + AWAY_S / 15

    # Before anything else is waited for: all reports from the first on are counted.
    wait_until(
        lambda: host.metric("tandem_agent_reports_total", outcome="written") > written,
        "it reports again",
    )
    first = time.monotonic()
    print(f"reported {first - back:.1f} s after the return")
    plane.wait_scheduler("tandem-scheduler")
    # Kubernetes' controllers find their way back as well, but take over a minute.
    plane.processes["kube-controller-manager"].restart()
    assert site.still_runs(innocent)
    wait_until(lambda: site.is_going(greedy), "the greedy pod is evicted")
    print(f"evicted {time.monotonic() - back:.1f} s after the return")
    host.ends(greedy)
    time.sleep(max(0.0, first + 10 - time.monotonic()))
    # A heartbeat each 3 s fell due and failed all the while; none of them is made up for.
    after = host.metric("tandem_agent_reports_total", outcome="written") - written
    elapsed = time.monotonic() - first
    print(f"{after:.0f} reports in the first {elapsed:.0f} s")
    assert after <= 3 + elapsed
    assert site.still_runs(innocent)


def test_an_agent_that_starts_while_the_api_server_is_away_offers_its_gpu_again(
    site: Site, namespace: str
) -> None:
    host, plane = site.hosts["a"], site.cluster.plane
    (resident,) = site.pair(namespace, "a", "resident")
    account = KubeClient.load(site.cluster.installation.agent_account("a"))

    def reads_its_node() -> bool:
        with contextlib.suppress(Unavailable):
            return bool(account.get(GPU_NODES, "a"))
        return False

    def reads_in_the_end(_: int) -> None:
        wait_until(reads_its_node, "the agent's account reads its GPUNode", poll_s=0.001)

    server = plane.processes["kube-apiserver"]
    server.kill()
    try:
        host.agent.kill()
        host.agent.restart()
        wait_until(host.measures, "the agent measures again")
    finally:
        server.restart()
    # For its first 20 ms it refuses everybody. No service may take that for an answer.
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(reads_in_the_end, range(4)))
    plane.wait_ready()
    began = time.monotonic()
    plane.wait_scheduler("tandem-scheduler")
    plane.processes["kube-controller-manager"].restart()
    site.starts(namespace, "joins", "a")
    joined = site.cluster.running(namespace, "joins")
    print(f"shared again {time.monotonic() - began:.1f} s after the return")
    assert joined["metadata"]["annotations"][DEVICES] == host.gpu
    assert site.still_runs(resident)
