"""The extender killed (SIGKILL) at chosen points of admission, binding and preemption.

Five of the twenty points in `make test`, drawn by a seed that is printed; each of them ten times in
`make chaos`. Whoever takes over goes on from what the API server has.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from e2e_cluster import TandemCluster, job
from e2e_training import Trainer
from repeated_faults import SEED, SHARE, record, times

from scheduler_extender.faults import POINTS, VARIABLE
from tandem.controlplane import ControlPlane, Node, binaries, wait_until
from tandem.errors import TandemError
from tandem.policy.catalog import load_profile

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("queue-faults"),
    pytest.mark.timeout(3600),
]

CHOSEN = POINTS if SHARE else random.Random(SEED).sample(POINTS, 5)
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
        argv = plane.processes["extender"].argv
        plane.processes["extender"].kill()
        plane.run("extender", argv, env={VARIABLE: f"@{fault_file(cluster)}"})
        url = f"{cluster.installation.verbs_url}/readyz"
        wait_until(lambda: _answers(url), "the extender is ready")
        yield cluster


def fault_file(cluster: TandemCluster) -> Path:
    return cluster.plane.folder / "fault"


class Supervisor:
    """What kubelet does: starts the extender again when it has died. And an oracle meanwhile."""

    def __init__(self, cluster: TandemCluster, namespace: str, point: str) -> None:
        self.cluster = cluster
        self._namespace = namespace
        self._partial_since_s = 0.0
        self.deaths = 0
        self.overbooked: list[dict[str, list[str]]] = []
        self.partial_s = 0.0  # the longest time for which only a part of the gang had a node
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._process = cluster.plane.processes["extender"]
        fault_file(cluster).write_text(point)

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
                self._process.start()
            held = self.cluster.holders()
            if any(len(pods) > 1 for pods in held.values()):
                self.overbooked.append(held)
            self._look_at_gang(time.monotonic())

    def _look_at_gang(self, now: float) -> None:
        bound = [
            pod
            for pod in self.cluster.pods(self._namespace)
            if pod["metadata"].get("labels", {}).get("job-name") == "long"
            and pod["spec"].get("nodeName")
            and pod["status"].get("phase") not in ("Succeeded", "Failed")
            and "deletionTimestamp" not in pod["metadata"]
        ]
        if len(bound) != 1:
            self._partial_since_s = 0.0
            return
        self._partial_since_s = self._partial_since_s or now
        self.partial_s = max(self.partial_s, now - self._partial_since_s)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).is_success
    except httpx.TransportError:
        return False


def submit(cluster: TandemCluster, namespace: str, name: str, pods: int) -> None:
    """Apply a Job as often as it takes: while the extender is away, its webhook refuses.

    Its pods have a GPU each and start together.
    """
    described = job(name, annotations=CHECKPOINT)
    described["spec"] |= {"completionMode": "Indexed", "completions": pods, "parallelism": pods}

    def applied() -> bool:
        try:
            cluster.apply_job(namespace, described)
        except TandemError:
            return False
        return True

    wait_until(applied, f"{name} is applied")


@pytest.mark.parametrize("point", CHOSEN)
def test_killed_there_nothing_is_lost_and_nothing_done_twice(
    cluster: TandemCluster, point: str
) -> None:
    repeats = times(1, 10)
    partial_s = [killed_at(cluster, point) for _ in range(repeats)]
    record("9", f"extender killed at {point}", repeats, gang_in_part_s=partial_s)


def killed_at(cluster: TandemCluster, point: str) -> float:
    """A gang gives way to a short job and comes back, with one SIGKILL on the way.

    Returns for how long only a part of the gang had a node: it starts and ends pod by pod.
    """
    namespace = cluster.namespace()
    path = f"/apis/tandem.gpu/v1alpha1/namespaces/{namespace}/gpujobs"

    def jobs() -> dict[str, dict]:
        items = cluster.plane.http.get(path).json()["items"]
        return {each["metadata"]["name"]: each.get("status", {}) for each in items}

    with (
        Trainer(cluster.plane, namespace) as trainer,
        Supervisor(cluster, namespace, point) as supervisor,
    ):
        trainer.expect("long", 28.0)
        submit(cluster, namespace, "long", pods=2)
        cluster.running(namespace, "long", timeout_s=180)
        time.sleep(BOUNDARY / 2)
        trainer.expect("short", 3.0)
        submit(cluster, namespace, "short", pods=1)
        wait_until(trainer.all_ended, "both have ended", timeout_s=300)

        def closed() -> bool:
            return [status.get("phase") for status in jobs().values()] == ["Completed"] * 2

        wait_until(closed, "both GPUJobs are completed")
        wait_until(lambda: supervisor.deaths, f"{point} was reached")
    assert supervisor.deaths == 1
    assert not supervisor.overbooked
    assert supervisor.partial_s < 60
    for name in ("long", "short"):
        trained = trainer.runs[name].trained_s()
        # Counted once: not what was counted before the kill again. Times have whole seconds.
        attained = jobs()[f"job-{name}"]["attainedGpuSeconds"]
        assert attained == pytest.approx(trained, rel=0.35, abs=6), name
    cluster.remove(namespace)
    return supervisor.partial_s
