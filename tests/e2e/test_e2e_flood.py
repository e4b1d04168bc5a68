"""One tenant attacks in every way at once; the jobs of another tenant wait no longer for it.

`make test` floods for half a minute, `make chaos` for ten minutes. The stream of the honest tenant
is the same, by its seed, before the flood and during it.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from pathlib import Path
from statistics import mean
from typing import Any

import httpx
import pytest
import yaml
from controlplane_binaries import need_control_plane
from e2e_attacks import ATTACKS
from e2e_cluster import TandemCluster, job
from e2e_lasting_attacks import LEAKED, STOLEN
from e2e_pairs import answers, shipped_probes
from e2e_training import Trainer
from prometheus_client.parser import text_string_to_metric_families
from repeated_faults import SEED, SHARE, record, times

from controlplane import ControlPlane, Node, wait_until
from controlplane.installation import CHART
from controlplane.usage import Peaks
from tandem.contracts.quantity import parse_quantity

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("flood"),
    pytest.mark.timeout(3600),
]

FLOOD_S = times(30, 600)
#: The attacker may hold two of five GPUs. Its long job has one all the time. The other one is for
#: the jobs of its attacks; before the flood, a second long job has it.
GPUS, CAP = 5, 2
BETWEEN_JOBS_S, JOB_S = 3.0, 6.0  # three GPUs two thirds busy: some jobs wait for a GPU
EXCLUSIVE = {"tandem.gpu/exclusive": "true"}
RESIDENTS = ("resident", "second")
#: Where the chart's values have the memory limit of the container of each process.
LIMITS = {
    "extender": ("scheduler", "extender"),
    "predictor": ("predictor",),
    "agent-n0": ("agent",),
    "tandem-scheduler": ("scheduler", "kubeScheduler"),
}
MIB = 1 << 20


def chart_mib() -> dict[str, float]:
    """Return the memory limit of each process's container, in MiB, as the chart ships it."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    return {
        name: float(parse_quantity(reduce(getitem, path, values)["resources"]["limits"]["memory"]))
        / MIB
        for name, path in LIMITS.items()
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TandemCluster]:
    """Five GPUs, of which the attacker may hold two, and a node that was taken over."""
    need_control_plane()
    settings = {"queue": {"quotas": [{"namespace": "mallory", "max_gpus": CAP}]}}
    stolen = Node(STOLEN, taints=("stolen:NoSchedule",))
    with ControlPlane.start(nodes=[Node("n0", cpu=256, pods=2000), stolen]) as plane:
        cluster = TandemCluster(plane, tmp_path_factory.mktemp("tandem"))
        cluster.start(gpus_per_node=GPUS, nodes=("n0",), settings=settings)
        cluster.namespace("honest")
        cluster.namespace("mallory")
        plane.kubectl(
            "create", "rolebinding", "edit", "-n", "mallory", "--clusterrole=edit",
            "--serviceaccount=mallory:default",
        )  # fmt: skip
        plane.apply(kubelet("mallory"))
        for resident in RESIDENTS:
            cluster.apply_job("mallory", job(resident, annotations=EXCLUSIVE))
            cluster.running("mallory", resident)
        yield cluster


def kubelet(namespace: str) -> list[dict[str, Any]]:
    """An account that writes what a kubelet would of the attacker's containers."""
    group, where = "rbac.authorization.k8s.io", {"name": "kubelet", "namespace": namespace}
    rules = [{"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]}]
    subject = {"kind": "ServiceAccount", "name": "kubelet", "namespace": namespace}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": where},
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": where, "rules": rules},
        {"apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": where,
         "roleRef": {"apiGroup": group, "kind": "Role", "name": "kubelet"}, "subjects": [subject]},
    ]  # fmt: skip


class Probes:
    """Probes a port as the chart's liveness probe does, and counts the restarts that follow."""

    def __init__(self, url: str) -> None:
        _, self._probe = (each["liveness"] for each in shipped_probes())
        self._url = url
        self.failed = self.restarts = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> Probes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        in_a_row = 0
        while not self._over.wait(self._probe["periodSeconds"]):
            good = answers(self._url, self._probe.get("timeoutSeconds", 1))
            in_a_row = 0 if good else in_a_row + 1
            self.failed += not good
            if in_a_row >= self._probe.get("failureThreshold", 3):
                self.restarts += 1
                in_a_row = 0


class Oracle:
    """Reads pods from the API server alone: what the attacker holds, and what a GPU holds."""

    def __init__(self, cluster: TandemCluster) -> None:
        self._cluster = cluster
        self.most_of_attacker = self.most_on_a_gpu = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Oracle:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(2.0):
            # Only bound pods hold a GPU. A list of all pods would itself be a load.
            chosen = {"resourceVersion": "0", "fieldSelector": "spec.nodeName=n0"}
            pods = self._cluster.plane.http.get("/api/v1/pods", params=chosen)
            held: dict[str, int] = {}
            attackers: set[str] = set()
            for pod in pods.json().get("items", ()):
                if pod["status"].get("phase") in ("Succeeded", "Failed"):
                    continue
                devices = (pod["metadata"].get("annotations") or {}).get(
                    "tandem.gpu/visible-devices", ""
                )
                for gpu in filter(None, devices.split(",")):
                    held[gpu] = held.get(gpu, 0) + 1
                    if pod["metadata"]["namespace"] == "mallory":
                        attackers.add(gpu)
            self.most_of_attacker = max(self.most_of_attacker, len(attackers))
            self.most_on_a_gpu = max(self.most_on_a_gpu, *held.values(), 0)


def submit(cluster: TandemCluster, one: dict[str, Any]) -> None:
    """Create a Job that is deleted once it has ended, so that the list of pods stays short."""
    one["spec"]["ttlSecondsAfterFinished"] = 20
    path = "/apis/batch/v1/namespaces/honest/jobs"
    cluster.plane.http.post(path, json=one).raise_for_status()


def waits(cluster: TandemCluster, prefix: str, seconds: float) -> list[float]:
    """Submit the honest stream for that time; return how long each job waited, in seconds."""
    draw = random.Random(f"{SEED}-honest")
    with Trainer(cluster.plane, "honest") as trainer:
        due, until = time.monotonic(), time.monotonic() + seconds
        while due < until:
            time.sleep(max(0.0, due - time.monotonic()))
            name = f"{prefix}-{len(trainer.runs)}"
            trainer.expect(name, min(20.0, draw.expovariate(1 / JOB_S)))
            submit(cluster, job(name, annotations=EXCLUSIVE))
            due += draw.expovariate(1 / BETWEEN_JOBS_S)
        wait_until(trainer.all_ended, "the honest jobs have ended", timeout_s=300 + seconds)
        return [
            min(first for first, _ in run.spans.values()) - run.submitted_s
            for run in trainer.runs.values()
            if run.spans
        ]


def lag_counts(cluster: TandemCluster) -> dict[float, float]:
    """Return the histogram of the loop's lag: how many timers came at most so late."""
    text = httpx.get(f"{cluster.installation.verbs_url}/metrics", trust_env=False).text
    return {
        float(sample.labels["le"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "tandem_extender_loop_lag_seconds_bucket"
    }


def lag_p99_s(before: dict[float, float], after: dict[float, float]) -> float:
    """Return the upper bound of the bucket that holds the 99th percentile between two readings."""
    counts = {bound: after[bound] - before.get(bound, 0.0) for bound in sorted(after)}
    total = max(counts.values())
    return next(bound for bound, count in counts.items() if count >= 0.99 * total)


def attack(cluster: TandemCluster, seconds: float) -> subprocess.Popen[str]:
    plane = cluster.plane
    token, node_token, kubelet_token = (
        plane.folder / f"{name}.token" for name in ("mallory", "node", "kubelet")
    )
    token.write_text(plane.service_account_token("mallory", "default"))
    kubelet_token.write_text(plane.service_account_token("mallory", "kubelet"))
    agent = yaml.safe_load(cluster.installation.agent_account(STOLEN).read_text())
    node_token.write_text(agent["users"][0]["user"]["token"])
    script = Path(__file__).with_name("e2e_attacks.py")
    installation = cluster.installation
    seed = random.Random(f"{SEED}-attacks").randrange(2**31)
    command: list[Any] = [
        sys.executable, script, "--api", plane.url, "--ca", plane.ca_file, "--token-file", token,
        "--namespace", "mallory", "--public", installation.public_url,
        "--predictor", installation.predictor_url, "--agent", installation.agent_url("n0"),
        "--node-token-file", node_token, "--kubelet-token-file", kubelet_token,
        "--seconds", seconds, "--seed", seed,
    ]  # fmt: skip
    return subprocess.Popen([str(one) for one in command], stdout=subprocess.PIPE, text=True)


def test_flood_of_one_tenant_does_not_reach_another(cluster: TandemCluster) -> None:
    limits_mib = chart_mib()
    services = {name: cluster.plane.processes[name] for name in limits_mib}
    pids = {name: process.pid for name, process in services.items()}
    quiet = waits(cluster, "quiet", FLOOD_S)
    before = lag_counts(cluster)
    cluster.plane.kubectl("delete", "job", "-n", "mallory", RESIDENTS[1])
    attacker = attack(cluster, FLOOD_S + 5)
    try:
        with (
            Probes(f"{cluster.installation.probes_url}/healthz") as probes,
            Oracle(cluster) as oracle,
            Peaks(services) as memory,
        ):
            time.sleep(5)  # the flood is there when the honest stream begins
            cluster.push("honest", "squeezenet")
            flooded = waits(cluster, "flooded", FLOOD_S)
        output, _ = attacker.communicate(timeout=120)
    finally:
        attacker.kill()
    attacks = json.loads(output.splitlines()[-1])
    lag_s = lag_p99_s(before, lag_counts(cluster))
    peaks = {name: round(mib) for name, mib in memory.resident_mib.items()}
    record(
        "flood", "one tenant attacks in every way at once", FLOOD_S,
        jobs=len(flooded), quiet_wait_s=round(mean(quiet), 2),
        flooded_wait_s=round(mean(flooded), 2), probes_failed=probes.failed,
        loop_lag_p99_s=lag_s, peak_mib=peaks, attacks=attacks,
    )  # fmt: skip
    assert all(peaks.values())
    # Every attack was carried out.
    assert {one.step.__name__ for one in ATTACKS} == {n for n, a in attacks.items() if a["steps"]}
    assert not [name for name, each in attacks.items() if str(LEAKED) in each["answers"]]
    assert len(flooded) == len(quiet)
    assert {name: process.pid for name, process in services.items()} == pids
    assert all(process.running for process in services.values())
    assert probes.restarts == 0
    assert oracle.most_of_attacker <= CAP
    assert oracle.most_on_a_gpu <= 2
    assert all(peaks[name] <= limit for name, limit in limits_mib.items())
    if SHARE >= 1:  # the whole flood, on a machine that does nothing else
        assert mean(flooded) <= 1.25 * mean(quiet)
        assert lag_s <= 0.05
