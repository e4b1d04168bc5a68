"""The extender killed (SIGKILL) at chosen points of admission, binding and preemption.

Five of the twenty points in `make test`, drawn by a seed that is printed; each of them ten times in
`make chaos`, within one stream of jobs on several nodes, so that each death finds others under way.
The replica that takes over goes on from what the API server has.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from controlplane_binaries import need_control_plane
from e2e_cluster import TandemCluster, job
from e2e_training import Trainer
from repeated_faults import SHARE, record, times
from seeds import SEED

from controlplane import ControlPlane, Node, wait_until
from scheduler_extender.faults import POINTS, VARIABLE
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
DEATHS = times(1, 10)
NODES = tuple(f"n{i}" for i in range(min(DEATHS, 4)))
POLL_S = 0.3
RESTARTED = Path(__file__).with_name("e2e_restarted.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TandemCluster]:
    """Two GPUs a node, a boundary that is soon crossed."""
    need_control_plane()
    print(f"seed {SEED}")
    profile = load_profile("tiresias-l").model_dump(mode="json")
    profile["order"] |= {"thresholds_gpu_s": [BOUNDARY]}
    settings = {
        "profile": profile,
        "queue": {"min_run_s": 0, "preemption_cost_s": 0, "max_preemptions_per_hour": 100},
    }
    with ControlPlane.start(nodes=[Node(name, cpu=64) for name in NODES]) as plane:
        cluster = TandemCluster(plane, tmp_path_factory.mktemp("tandem"))
        cluster.start(gpus_per_node=2, nodes=NODES, settings=settings)
        argv = plane.processes["extender"].argv
        plane.processes["extender"].kill()
        deaths_file(cluster).touch()
        plane.run(
            "extender",
            [sys.executable, RESTARTED, deaths_file(cluster), *argv[argv.index("--config") :]],
            env={VARIABLE: f"@{fault_file(cluster)}"},
        )
        url = f"{cluster.installation.verbs_url}/readyz"
        wait_until(lambda: _answers(url), "the extender is ready")
        yield cluster


def fault_file(cluster: TandemCluster) -> Path:
    return cluster.plane.folder / "fault"


def deaths_file(cluster: TandemCluster) -> Path:
    return cluster.plane.folder / "deaths"


class Supervisor:
    """Has the extender die at `point`, DEATHS times, and sees what that does to GPUs and gangs.

    Anew some seconds after it is ready again, so that it gets on in between and dies amid other
    things.
    """

    def __init__(self, cluster: TandemCluster, namespace: str, point: str) -> None:
        self.cluster = cluster
        self._namespace = namespace
        self._point = point
        self._random = random.Random(f"{SEED} {point}")
        self._rearm_at_s = 0.0  # 0: when it is ready again
        self._died_at_s = 0.0
        self._partial_since_s: dict[str, float] = {}  # gang -> since when
        self.deaths = 0
        self._died_before = self._died()
        self.back_s: list[float] = []  # from each death until it was ready again
        self.overbooked: list[dict[str, list[str]]] = []
        self.partial_s = 0.0  # the longest time for which only a part of a gang had a node
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        fault_file(cluster).write_text(point)

    def __enter__(self) -> Supervisor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        url = f"{self.cluster.installation.verbs_url}/readyz"
        while not self._stop.wait(POLL_S):
            now = time.monotonic()
            died = self._died() - self._died_before
            if died > self.deaths:
                self.deaths = died
                self._died_at_s, self._rearm_at_s = now, 0.0
            elif self.deaths > len(self.back_s) and _answers(url):
                self.back_s.append(now - self._died_at_s)
                self._rearm_at_s = now + self._random.uniform(0, 3)
            elif self.deaths < DEATHS and self._rearm_at_s and now > self._rearm_at_s:
                fault_file(self.cluster).write_text(self._point)
                self._rearm_at_s = 0.0
            held = self.cluster.holders()
            if any(len(pods) > 1 for pods in held.values()):
                self.overbooked.append(held)
            self._look_at_gangs(now)

    def _died(self) -> int:
        return len(deaths_file(self.cluster).read_text().splitlines())

    def _look_at_gangs(self, now: float) -> None:
        bound: dict[str, int] = defaultdict(int)
        for pod in self.cluster.pods(self._namespace):
            bound[pod["metadata"].get("labels", {}).get("job-name", "")] += bool(
                pod["spec"].get("nodeName")
                and pod["status"].get("phase") not in ("Succeeded", "Failed")
                and "deletionTimestamp" not in pod["metadata"]
            )
        in_part = {name for name, pods in bound.items() if name.startswith("long") and pods == 1}
        self._partial_since_s = {name: self._partial_since_s.get(name, now) for name in in_part}
        for since_s in self._partial_since_s.values():
            self.partial_s = max(self.partial_s, now - since_s)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).is_success
    except httpx.TransportError:
        return False


class Lane:
    """Gangs that give way to short jobs and come back, on a node of their own, until it is enough.

    Whatever was begun is finished: no job is lost.
    """

    def __init__(
        self, cluster: TandemCluster, namespace: str, node: str, trainer: Trainer, sup: Supervisor
    ) -> None:
        self._cluster, self._namespace, self._node = cluster, namespace, node
        self._trainer, self._supervisor = trainer, sup
        self._jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"

    def go(self) -> int:
        """Return how many jobs ended."""
        for turn in range(3 * DEATHS):
            self._turn(f"long-{self._node}-{turn}", f"short-{self._node}-{turn}")
            if self._supervisor.deaths >= DEATHS:
                break
        return 2 * (turn + 1)

    def _turn(self, long: str, short: str) -> None:
        self._trainer.expect(long, 28.0)
        self._submit(long, pods=2)
        runs = self._trainer.runs
        wait_until(lambda: runs[long].spans, f"{long} runs", timeout_s=300, poll_s=POLL_S)
        time.sleep(BOUNDARY / 2)
        self._trainer.expect(short, 3.0)
        self._submit(short, pods=1)
        wait_until(
            lambda: runs[long].ended_s and runs[short].ended_s,
            f"{long} and {short} have ended", timeout_s=300, poll_s=POLL_S,
        )  # fmt: skip
        for name in (long, short):
            wait_until(
                lambda name=name: self._gpujob(name).get("phase") == "Completed",
                f"the GPUJob of {name} is completed", poll_s=POLL_S,
            )  # fmt: skip
            # Counted once: not what was counted before a kill again. Times have whole seconds.
            trained, ran = runs[name].trained_s(), runs[name].ran_s()
            attained = self._gpujob(name)["attainedGpuSeconds"]
            assert trained - max(6, 0.35 * trained) <= attained <= ran + 6, name
        for name in (long, short):  # what has ended is tidied away, for all of it is listed often
            self._cluster.plane.http.delete(
                f"{self._jobs}/{name}", params={"propagationPolicy": "Background"}
            ).raise_for_status()

    def _gpujob(self, name: str) -> dict:
        found = self._cluster.gpujobs(self._namespace)
        return next(
            (one.get("status", {}) for one in found if one["metadata"]["name"] == f"job-{name}"), {}
        )

    def _submit(self, name: str, pods: int) -> None:
        """Apply a Job as often as it takes: while the extender is away, its webhook refuses.

        Its pods have a GPU each and start together.
        """
        described = job(name, annotations=CHECKPOINT)
        described["spec"] |= {"completionMode": "Indexed", "completions": pods, "parallelism": pods}
        described["spec"]["template"]["spec"]["nodeSelector"] = {
            "kubernetes.io/hostname": self._node
        }

        def applied() -> bool:
            answer = self._cluster.plane.http.post(self._jobs, json=described)
            return answer.is_success or answer.status_code == httpx.codes.CONFLICT

        wait_until(applied, f"{name} is applied", poll_s=POLL_S)


@pytest.mark.parametrize("point", CHOSEN)
def test_killed_there_nothing_is_lost_and_nothing_done_twice(
    cluster: TandemCluster, point: str
) -> None:
    namespace = cluster.namespace()
    with (
        Trainer(cluster.plane, namespace) as trainer,
        Supervisor(cluster, namespace, point) as supervisor,
        ThreadPoolExecutor(len(NODES)) as threads,
    ):
        lanes = [Lane(cluster, namespace, node, trainer, supervisor) for node in NODES]
        ended = sum(threads.map(Lane.go, lanes))
        wait_until(lambda: supervisor.deaths >= DEATHS, f"{point} was reached")
    assert supervisor.deaths == DEATHS
    assert cluster.plane.processes["extender"].running  # it ended by no other death
    assert not supervisor.overbooked
    if SHARE:  # a time: `make chaos` measures it on a machine of its own
        assert supervisor.partial_s < 60
    cluster.remove(namespace)
    record(
        "9", f"extender killed at {point}", DEATHS, jobs_ended=ended,
        gang_in_part_s=[supervisor.partial_s], ready_again_s=supervisor.back_s,
    )  # fmt: skip
