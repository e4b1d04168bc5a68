"""The extender killed (SIGKILL) at chosen points of admission, binding and preemption.

`TANDEM_FAULTS` says how many of the points are tried, drawn by a seed that is printed; `all` tries
each. Whoever takes over goes on from what the API server has.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from e2e_cluster import TandemCluster, job
from e2e_training import Trainer

from scheduler_extender.faults import POINTS, VARIABLE
from tandem.controlplane import ControlPlane, Node, binaries, wait_until
from tandem.errors import TandemError
from tandem.policy.catalog import load_profile

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("queue-faults"),
    pytest.mark.timeout(1800),
]

#: Another one in each run, but the same in all its workers: they must agree on the tests there are.
SEED = (
    os.environ.get("TANDEM_SEED")
    or os.environ.get("PYTEST_XDIST_TESTRUNUID")
    or str(random.SystemRandom().randrange(10**6))
)
WANTED = os.environ.get("TANDEM_FAULTS", "5")
CHOSEN = POINTS if WANTED == "all" else random.Random(SEED).sample(POINTS, int(WANTED))
CHECKPOINT = {"tandem.gpu/checkpoint": "true"}
BOUNDARY = 10.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TandemCluster]:
    """Two GPUs, a boundary that is soon crossed."""
    absent = binaries.missing()
    if absent:
        pytest.skip(f"no {', '.join(absent)} on this machine. {binaries.how_to_get()}")
    print(f"seed {SEED}")
    profile = load_profile("tiresias-l").model_dump(mode="json")
    profile["order"] |= {"thresholds_gpu_s": [BOUNDARY]}
    settings = {
        "profile": profile,
        "queue": {"min_run_s": 0, "preemption_cost_s": 0, "max_preemptions_per_hour": 100},
    }
    with ControlPlane.start(nodes=[Node("n0", cpu=64)]) as plane:
        cluster = TandemCluster(plane, tmp_path_factory.mktemp("tandem"))
        cluster.start(gpus_per_node=2, nodes=("n0",), settings=settings)
        yield cluster


class Supervisor:
    """What kubelet does: starts the extender again when it has died. And an oracle meanwhile."""

    def __init__(self, cluster: TandemCluster, point: str) -> None:
        self.cluster = cluster
        self.deaths = 0
        self.overbooked: list[dict[str, list[str]]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        plane = cluster.plane
        self._argv = plane.processes["extender"].argv
        plane.processes["extender"].kill()
        self._process = plane.run("extender", self._argv, env={VARIABLE: point})
        url = f"{cluster.installation.verbs_url}/readyz"
        wait_until(lambda: _answers(url), "the extender is ready")

    def __enter__(self) -> Supervisor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.3):
            if not self._process.running:
                self.deaths += 1
                self._process = self.cluster.plane.run("extender", self._argv)
            held = self.cluster.holders()
            if any(len(pods) > 1 for pods in held.values()):
                self.overbooked.append(held)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).is_success
    except httpx.TransportError:
        return False


def submit(cluster: TandemCluster, namespace: str, name: str, gpus: int) -> None:
    """Apply a Job as often as it takes: while the extender is away, its webhook refuses."""

    def applied() -> bool:
        try:
            cluster.apply_job(namespace, job(name, gpus=gpus, annotations=CHECKPOINT))
        except TandemError:
            return False
        return True

    wait_until(applied, f"{name} is applied", timeout_s=60)


@pytest.mark.parametrize("point", CHOSEN)
def test_killed_there_nothing_is_lost_and_nothing_done_twice(
    cluster: TandemCluster, point: str
) -> None:
    namespace = cluster.namespace()
    with Trainer(cluster.plane, namespace) as trainer, Supervisor(cluster, point) as supervisor:
        trainer.expect("long", 14.0)
        submit(cluster, namespace, "long", gpus=2)
        cluster.running(namespace, "long", timeout_s=90)
        time.sleep(BOUNDARY / 2)
        trainer.expect("short", 3.0)
        submit(cluster, namespace, "short", gpus=1)
        wait_until(trainer.all_ended, "both have ended", timeout_s=150)
        path = f"/apis/tandem.gpu/v1alpha1/namespaces/{namespace}/gpujobs"

        def closed() -> bool:
            items = cluster.plane.http.get(path).json()["items"]
            return [each["status"].get("phase") for each in items] == ["Completed"] * 2

        wait_until(closed, "both GPUJobs are completed", timeout_s=60)
    assert supervisor.deaths == 1, f"{point} was not reached"
    assert not supervisor.overbooked
    services = {
        each["metadata"]["name"]: each["status"]["attainedGpuSeconds"]
        for each in cluster.plane.http.get(path).json()["items"]
    }
    for name, gpus in (("long", 2), ("short", 1)):
        trained = trainer.runs[name].trained_s() * gpus
        # Counted once: not what was counted before the kill again. Times have whole seconds.
        assert services[f"job-{name}"] == pytest.approx(trained, rel=0.35, abs=6), name
    cluster.remove(namespace)
