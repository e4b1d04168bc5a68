"""What is away comes back: the API server, the extender, the deletions without an event."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from controlplane_binaries import need_control_plane
from e2e_cluster import TandemCluster, job
from e2e_pairs import answers
from prometheus_client.parser import text_string_to_metric_families
from repeated_faults import record, times
from seeds import SEED

from controlplane import ControlPlane, Node, Process, wait_until
from controlplane.gpus import report_gpus
from controlplane.wire import Wire
from scheduler_extender.faults import POINTS, VARIABLE
from tandem.contracts import names
from tandem.kube.client import KubeClient
from tandem.kube.pace import Pace
from tandem.kube.reflector import Reflector
from tandem.kube.resource import CONFIG_MAPS

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("chaos"),
    pytest.mark.timeout(7200),
]

NODES, GPUS = 8, 8
WAVE = NODES * GPUS
#: Seconds for which something is away: a few, or as many as the full check asks for.
API_AWAY_S = times(10, 300)
EXTENDER_AWAY_S = times(10, 600)


class Site:
    """Tandem with the default scheduler, and the extender's line to the API server."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.cluster = TandemCluster(plane, folder)
        self.wire = Wire(int(plane.url.rpartition(":")[2]))
        installation = self.cluster.installation
        installation.apply_manifests()
        report_gpus(plane.http, [f"n{i}" for i in range(NODES)], GPUS)
        installation.start_predictor()
        account = plane.service_account_kubeconfig(names.NAMESPACE, "tandem-scheduler")
        document = yaml.safe_load(account.read_text())
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.wire.port}"
        mine = folder / "by-wire.kubeconfig"
        mine.write_text(yaml.safe_dump(document))
        self.fault = folder / "fault"
        self.extender = installation.start_extender(
            {"stale_after_s": 86_400, "kubeconfig": str(mine)}, env={VARIABLE: f"@{self.fault}"}
        )
        installation.start_scheduler()

    def metric(self, name: str, **labels: str) -> float:
        url = f"{self.cluster.installation.verbs_url}/metrics"
        text = httpx.get(url, trust_env=False, timeout=30).raise_for_status().text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def bound(self, namespace: str) -> list[str]:
        return [
            pod["metadata"]["name"]
            for pod in self.plane.http.get(f"/api/v1/namespaces/{namespace}/pods").json()["items"]
            if pod["spec"].get("nodeName")
        ]


def kept_alive(plane: ControlPlane, over: threading.Event) -> None:
    """Start again what gives up while the API server is away, as a kubelet does."""
    programs: list[Process] = [
        plane.processes[name] for name in ("kube-controller-manager", "extender")
    ]
    while not over.wait(0.5):
        for program in programs:
            program.start()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    need_control_plane()
    nodes = [Node(f"n{i}", cpu=256, pods=500) for i in range(NODES)]
    with ControlPlane.start(nodes=nodes, scheduler=True) as plane:
        site = Site(plane, tmp_path_factory.mktemp("chaos"))
        over = threading.Event()
        keeper = threading.Thread(target=kept_alive, args=(plane, over), daemon=True)
        try:
            keeper.start()
            yield site
        finally:
            over.set()
            keeper.join()
            site.wire.close()


@pytest.fixture
def namespace(site: Site) -> Iterator[str]:
    name = site.cluster.namespace()
    yield name
    site.cluster.remove(name)


def test_api_server_away(site: Site, namespace: str) -> None:
    """Nothing is bound meanwhile, what was queued runs soon after, and no client lists in a
    storm."""
    site.cluster.apply_job(namespace, job("before"))
    before = site.cluster.running(namespace, "before")["metadata"]["uid"]
    bound = site.metric("tandem_extender_bindings_total", outcome="bound")
    lists = site.metric("tandem_extender_lists_total")
    server = site.plane.processes["kube-apiserver"]
    server.kill()
    time.sleep(API_AWAY_S)
    meanwhile = site.metric("tandem_extender_lists_total") - lists
    assert site.metric("tandem_extender_bindings_total", outcome="bound") == bound
    server.start()
    site.plane.wait_ready()
    back = time.monotonic()
    wait_until(lambda: site.cluster.accepts(namespace, job("after")), "a job is accepted")
    site.cluster.running(namespace, "after", timeout_s=180)
    right_s = time.monotonic() - back
    pod = site.cluster.pod_of(namespace, "before")
    assert pod is not None
    assert (pod["metadata"]["uid"], pod["status"]["phase"]) == (before, "Running")
    # One list at most each 4 s of each of the four resources, whether it is answered or not.
    assert meanwhile <= 4 * (API_AWAY_S / 4 + 2)
    after = site.metric("tandem_extender_lists_total") - lists - meanwhile
    assert after <= 4 * (right_s / 4 + 2)
    record(
        "5", "API server away", 1,
        away_s=API_AWAY_S, right_again_s=[right_s], lists_meanwhile=meanwhile, lists_after=after,
    )  # fmt: skip


def test_a_watch_that_goes_silent_is_noticed(site: Site, namespace: str) -> None:
    """The connection stays open and tells nothing more. As in use only in `make chaos`: 75 s."""
    full = times(0, 1) > 0
    pace = Pace() if full else Pace(read_timeout_s=5.0)
    seen = threading.Event()
    account = site.cluster.installation._folder / "by-wire-admin.kubeconfig"
    document = yaml.safe_load(site.plane.kubeconfig().read_text())
    with Wire(int(site.plane.url.rpartition(":")[2])) as wire:
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{wire.port}"
        account.write_text(yaml.safe_dump(document))
        client = KubeClient.load(account)
        reflector = Reflector(
            client,
            CONFIG_MAPS,
            lambda _, item: seen.set() if item["metadata"]["name"] == "new" else None,
            namespace=namespace,
            pace=pace,
        )
        reflector.start()
        assert reflector.synced.wait(60)
        # The watch itself is under way, not only the list before it.
        wait_until(lambda: reflector._response is not None, "it watches")
        wire.mute()
        began = time.monotonic()
        site.plane.kubectl("create", "configmap", "new", "-n", namespace)
        assert seen.wait(300)
        noticed_s = time.monotonic() - began
        reflector.stop()
        client.close()
    record("5", "silent watch", 1, read_timeout_s=pace.read_timeout_s, noticed_s=[noticed_s])


def test_extender_away(site: Site, namespace: str) -> None:
    """Pods that are not ours run all the while; ours run soon after its return."""
    cluster, plane = site.cluster, site.plane
    cluster.apply_job(namespace, job("before"))
    before = cluster.running(namespace, "before")["metadata"]["uid"]
    # Those that wait behind the gate when it goes: more than there is room for.
    whole = {"tandem.gpu/exclusive": "true"}
    for index in range(2):
        cluster.apply_job(namespace, job(f"big-{index}", gpus=GPUS + 1, annotations=whole))
    extender = site.extender
    extender.pause()  # a hung one is worse than a dead one: it keeps its connections
    try:
        until = time.monotonic() + EXTENDER_AWAY_S
        others = 0
        while time.monotonic() < until:
            plane.kubectl("run", f"other-{others}", "-n", namespace, "--image=other:1")
            plane.kubectl(
                "wait", "-n", namespace, f"pod/other-{others}", "--for=condition=Ready",
                "--timeout=120s",
            )  # fmt: skip
            others += 1
            time.sleep(min(5.0, EXTENDER_AWAY_S / 4))
        assert not cluster.accepts(namespace, job("refused"))
    finally:
        extender.kill()  # the probe fails, the kubelet ends it, and starts it again
    began = time.monotonic()
    url = f"{cluster.installation.verbs_url}/readyz"
    wait_until(lambda: extender.running and answers(url), "the extender is back")
    returned_s = time.monotonic() - began
    wait_until(lambda: cluster.accepts(namespace, job("ours")), "ours is accepted")
    cluster.running(namespace, "ours", timeout_s=180)
    right_s = time.monotonic() - began - returned_s
    pod = cluster.pod_of(namespace, "before")
    assert pod is not None
    assert (pod["metadata"]["uid"], pod["status"]["phase"]) == (before, "Running")
    record(
        "6", "extender away", 1,
        away_s=EXTENDER_AWAY_S, others_run_meanwhile=others, ours_run_s=[right_s],
    )  # fmt: skip


def test_killed_at_every_step_of_bind(site: Site, namespace: str) -> None:
    """Every pod is bound once, to a GPU of its own, and nothing stays held."""
    kills = times(5, 200)
    order = random.Random(SEED)
    steps = [point for point in POINTS if point.startswith("bind-")]
    for number in range(kills):
        point = order.choice(steps)
        site.fault.write_text(point)
        create(site, namespace, [f"killed-{number}"])
        wait_until(lambda: not site.fault.exists(), f"{point} is reached", timeout_s=180)
        wait_until(lambda: len(site.bound(namespace)) == 1, "the pod is bound", timeout_s=180)
        assert all(len(pods) == 1 for pods in site.cluster.holders().values())
        path = f"/api/v1/namespaces/{namespace}/pods/killed-{number}"
        site.plane.http.request("DELETE", path, json={"gracePeriodSeconds": 0})
        wait_until(lambda: not site.cluster.pods(namespace), "the pod is gone")
    wait_until(lambda: answers(f"{site.cluster.installation.verbs_url}/readyz"), "it is ready")
    wait_until(lambda: site.metric("tandem_extender_pods_holding") == 0, "nothing is held")
    record("1", "extender killed while it binds", kills)


def test_deletions_without_an_event_leak_nothing(site: Site, namespace: str) -> None:
    """Waves of pods are placed and deleted while the extender hears nothing.

    The API server restarts meanwhile: it has forgotten the deletions when the extender asks.
    """
    waves = times(1, -(-10_000 // WAVE))
    forgotten_s = []
    for wave in range(waves):
        create(site, namespace, [f"w{wave}-{index}" for index in range(WAVE)])
        wait_until(
            lambda: len(site.bound(namespace)) == WAVE, "all are bound", timeout_s=600, poll_s=1
        )
        site.wire.hold()
        try:
            path = f"/api/v1/namespaces/{namespace}/pods"
            site.plane.http.request("DELETE", path, json={"gracePeriodSeconds": 0})
            wait_until(lambda: not site.cluster.pods(namespace), "all are gone", poll_s=0.5)
            server = site.plane.processes["kube-apiserver"]
            server.restart()
            site.plane.wait_ready()
        finally:
            site.wire.let_go()
        began = time.monotonic()
        wait_until(
            lambda: site.metric("tandem_extender_pods_holding") == 0,
            "nothing is held any more",
            timeout_s=180,
            poll_s=0.5,
        )
        forgotten_s.append(time.monotonic() - began)
    record("10", "lost deletions", waves, pods=waves * WAVE, nothing_held_s=forgotten_s)


def create(site: Site, namespace: str, pods: list[str]) -> None:
    """Create pods that take a whole GPU each; the webhook may be away for a moment."""

    def manifest(name: str) -> dict:
        limits = {names.RESOURCE: 1}
        return {
            "metadata": {"name": name, "annotations": {names.EXCLUSIVE: "true"}},
            "spec": {
                "containers": [{"name": "c", "image": "i:1", "resources": {"limits": limits}}]
            },
        }

    def made(name: str) -> bool:
        path = f"/api/v1/namespaces/{namespace}/pods"
        return site.plane.http.post(path, json=manifest(name)).status_code in (201, 409)

    for name in pods:
        wait_until(lambda name=name: made(name), f"{name} is made", poll_s=0.5)
