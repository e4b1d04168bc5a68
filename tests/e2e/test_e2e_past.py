"""What the report says of a run of jobs, held against the pods' own records.

Leaders are killed while the jobs run, some jobs fail, and some are deleted while they run. What
the pods' containers ran is read from the API server alone: from the events of a watch, since a
deleted pod is in no list.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from controlplane_binaries import need_control_plane
from e2e_cluster import TandemCluster
from e2e_pairs import two_pairs
from repeated_faults import record, times
from seeds import SEED

from controlplane import ControlPlane, Node, wait_until
from controlplane.gpus import report_gpus
from tandem.contracts import names

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("past"),
    pytest.mark.timeout(3600),
]

JOBS, KILLS = times(40, 1000), times(1, 20)
NODES, GPUS = 16, 8
PER_S = 1.5
RUNS_S = (10, 50)
#: Of a hundred jobs: which fail, and which are deleted once they run.
FAILS, DELETED = range(8), range(8, 16)
ENDED = ("Completed", "Failed")


class Records:
    """What the containers of all pods of a namespace ran, by the records of their kubelets."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._plane = plane
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._over = threading.Event()
        self.rewritten = 0
        self._seen: dict[str, tuple[str, float]] = {}  # its Job, and GPU-seconds, by uid
        self._version = str(self._list()["metadata"]["resourceVersion"])
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _list(self) -> Any:
        return self._plane.http.get(self._path).raise_for_status().json()

    def _watch(self) -> None:
        while not self._over.is_set():
            for event in self._plane.events_since(self._path, self._version):
                pod = event["object"]
                self._version = pod["metadata"]["resourceVersion"]
                self._take(pod)

    def _take(self, pod: dict[str, Any]) -> None:
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        for container in pod["status"].get("containerStatuses", ()):
            if ended := container["state"].get("terminated"):
                ran = _seconds(ended["finishedAt"]) - _seconds(ended["startedAt"])
                owner = pod["metadata"]["ownerReferences"][0]["name"]
                had = owner, int(limits[names.RESOURCE]) * ran
                # kwok ends some pods a second time, with a later end. A kubelet ends each once.
                self.rewritten += self._seen.setdefault(pod["metadata"]["uid"], had) != had

    def gpu_seconds(self) -> dict[str, float]:
        """Return the sums over the pods of each Job that have ended so far."""
        found: dict[str, float] = defaultdict(float)
        for owner, held in list(self._seen.values()):
            found[owner] += held
        return found

    @property
    def pods(self) -> int:
        """How many pods have ended so far."""
        return len(self._seen)

    def close(self) -> None:
        """Watch no more."""
        self._over.set()
        self._thread.join()


def _seconds(time_of_day: str) -> float:
    return datetime.fromisoformat(time_of_day).timestamp()


class Site:
    """GPUs of which agents have reported, and two pairs of kube-scheduler and extender."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        # Its pairs install themselves without the chart, which is what hands over by claims.
        self.cluster = TandemCluster(plane, folder, hand_over="environment")
        self.cluster.installation.apply_manifests()
        report_gpus(plane.http, [f"n{i}" for i in range(NODES)], GPUS)
        self.pairs = two_pairs(plane, folder)
        for pair in self.pairs:
            pair.start({"stale_after_s": 86_400})
        self.namespace = self.cluster.namespace()
        plane.kubectl("create", "serviceaccount", "operator", "-n", self.namespace)
        plane.kubectl(
            "create", "clusterrolebinding", "past-operator", "--clusterrole=cluster-admin",
            f"--serviceaccount={self.namespace}:operator",
        )  # fmt: skip
        self._token = plane.service_account_token(self.namespace, "operator")
        self._jobs = f"/apis/batch/v1/namespaces/{self.namespace}/jobs"

    def submit(self, number: int) -> None:
        """Create a job, as often as it takes while no webhook answers."""
        body = _job(number)
        wait_until(
            lambda: self.plane.http.post(self._jobs, json=body).is_success,
            f"{body['metadata']['name']} is accepted",
            timeout_s=120,
        )

    def gpujobs(self) -> list[dict[str, Any]]:
        return self.cluster.gpujobs(self.namespace)

    def open(self) -> list[str]:
        """Return the GPUJobs that have not ended."""
        return [
            each["metadata"]["name"]
            for each in self.gpujobs()
            if (each.get("status") or {}).get("phase") not in ENDED
        ]

    def delete_what_runs(self, numbers: set[int]) -> int:
        """Delete those of some jobs that run, take their numbers, and return how many they are."""
        running = {
            each["metadata"]["name"]
            for each in self.gpujobs()
            if (each.get("status") or {}).get("phase") == "Running"
        }
        found = [number for number in numbers if f"job-j{number}" in running]
        for number in found:
            body = {"propagationPolicy": "Background"}
            answer = self.plane.http.request("DELETE", f"{self._jobs}/j{number}", json=body)
            assert answer.status_code in (200, 404), answer.text
            numbers.remove(number)
        return len(found)

    def kill_the_leader(self) -> None:
        """Kill both processes of the pair that leads; start it anew once the other one leads."""
        old, new = self.pairs if self.pairs[0].leads() else self.pairs[::-1]
        for process in old.processes:
            process.kill()
        wait_until(new.leads, f"{new.name} leads", timeout_s=60)
        old.revive()

    def report(self) -> dict[str, Any]:
        """Return the sums of the namespace, by the extender of the pair that leads."""
        leader = next((pair for pair in self.pairs if pair.leads()), self.pairs[0])
        answer = httpx.get(
            f"{leader.installation.public_url}/v1/status/report",
            params={"days": 2, "namespace": self.namespace},
            headers={"Authorization": f"Bearer {self._token}"},
            verify=False,
            trust_env=False,
            timeout=30,
        )
        found: dict[str, Any] = answer.raise_for_status().json()
        return found


def _job(number: int) -> dict[str, Any]:
    chance = random.Random(f"{SEED}:{number}")
    pods, kind = chance.choice((1, 1, 2, 3)), number % 100
    annotations = {"kwok.tandem.gpu/run-duration": f"{chance.randint(*RUNS_S)}s"}
    if kind in FAILS:
        annotations["kwok.tandem.gpu/exit-code"] = "1"
    if chance.random() < 0.5:
        annotations[names.EXCLUSIVE] = "true"
    else:
        annotations |= {names.MEMORY: "8Gi", names.UTILIZATION: "20"}
    limits = {names.RESOURCE: chance.choice((1, 1, 2))}
    container = {"name": "train", "image": "train:1", "resources": {"limits": limits}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"j{number}"},
        "spec": {
            "completions": pods,
            "parallelism": pods,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": {
                "metadata": {"annotations": annotations},
                "spec": {"restartPolicy": "Never", "containers": [container]},
            },
        },
    }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    need_control_plane()
    nodes = [Node(f"n{i}", cpu=256, pods=200) for i in range(NODES)]
    with ControlPlane.start(nodes=nodes) as plane:
        site = Site(plane, tmp_path_factory.mktemp("past"))
        try:
            yield site
        finally:
            for pair in site.pairs:
                pair.wire.close()


def test_the_report_of_many_jobs_is_the_sum_of_the_pods_own_records(site: Site) -> None:
    records = Records(site.plane, site.namespace)
    over = threading.Event()
    between_s = JOBS / PER_S / (KILLS + 1)
    kills = itertools.count()

    def kill() -> None:
        while next(kills) < KILLS and not over.wait(between_s):
            site.kill_the_leader()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    began, to_delete, deleted = time.monotonic(), set[int](), 0
    for number in range(JOBS):
        time.sleep(max(0.0, began + number / PER_S - time.monotonic()))
        site.submit(number)
        if number % 100 in DELETED:
            to_delete.add(number)
        if number % 4 == 0:
            deleted += site.delete_what_runs(to_delete)
    give_up = time.monotonic() + 900
    while site.open():
        assert time.monotonic() < give_up, site.open()
        deleted += site.delete_what_runs(to_delete)
        time.sleep(1.0)
    over.set()
    killer.join()
    wait_until(
        lambda: site.report()["total"]["jobs"] >= JOBS, "all jobs are in the report", poll_s=1.0
    )
    time.sleep(12.0)  # longer than the pause between two writes of the past
    report, by_job = site.report(), records.gpu_seconds()
    held = sum(by_job.values())
    found = report["total"]
    records.close()
    twice = Counter(each["name"] for each in report["jobs"]) - Counter(
        {each["name"] for each in report["jobs"]}
    )
    more = found["heldGpuSeconds"] - held
    record(
        "past", "the report against the pods' own records", JOBS,
        kills=KILLS, pods=records.pods, ended_twice=records.rewritten, failed=found["failed"],
        deleted=deleted, held_gpu_s=round(held), more_percent=round(100 * more / held, 4),
    )  # fmt: skip
    assert not twice, json.dumps([each for each in report["jobs"] if each["name"] in twice])
    assert found["jobs"] == JOBS
    assert found["failed"] > 0
    assert deleted > 0
    off = {
        name: (had, by_job[name])
        for each in report["jobs"]
        for name, had in [(each["name"].removeprefix("job-"), each["heldGpuSeconds"])]
        if abs(had - by_job[name]) >= 1
    }
    assert abs(more) <= 1e-3 * held, f"in the report, by the pods: {off}"
