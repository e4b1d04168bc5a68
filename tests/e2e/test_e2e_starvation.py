"""A stream of short jobs keeps a long one out only for as long as the promotion rule allows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from controlplane_binaries import need_control_plane
from e2e_cluster import TandemCluster, job
from e2e_training import Trainer
from prometheus_client.parser import text_string_to_metric_families
from repeated_faults import record

from controlplane import ControlPlane, Node, wait_until
from tandem.errors import TandemError
from tandem.policy.catalog import load_profile

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("queue-faults"),
    pytest.mark.timeout(900),
]

BOUNDARY = 6.0
KNOB, LIMIT_S = 1.0, 12.0
SHORT_S = 2.0
CHECKPOINT = {"tandem.gpu/checkpoint": "true"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TandemCluster]:
    """One GPU, a boundary that is soon crossed, promotion after a dozen seconds or so."""
    need_control_plane()
    profile = load_profile("tiresias-l").model_dump(mode="json")
    profile["order"] |= {
        "thresholds_gpu_s": [BOUNDARY], "promote_knob": KNOB, "starve_limit_s": LIMIT_S,
    }  # fmt: skip
    settings = {
        "profile": profile,
        "queue": {"min_run_s": 0, "preemption_cost_s": 0, "max_preemptions_per_hour": 100},
    }
    with ControlPlane.start(nodes=[Node("n0", cpu=64)]) as plane:
        cluster = TandemCluster(plane, tmp_path_factory.mktemp("tandem"))
        cluster.start(gpus_per_node=1, nodes=("n0",), settings=settings)
        yield cluster


class Stream:
    """Keeps two short jobs waiting all the time."""

    def __init__(self, cluster: TandemCluster, namespace: str, trainer: Trainer) -> None:
        self._cluster, self._namespace, self._trainer = cluster, namespace, trainer
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._submit, daemon=True)
        self.names: list[str] = []

    def waiting(self) -> int:
        ran = [name for name in self.names if self._trainer.runs[name].spans]
        return len(self.names) - len(ran)

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _submit(self) -> None:
        while not self._over.wait(0.2):
            if self.waiting() < 2:
                name = f"short-{len(self.names)}"
                self._trainer.expect(name, SHORT_S)
                try:
                    self._cluster.apply_job(self._namespace, job(name, annotations=CHECKPOINT))
                except TandemError:
                    del self._trainer.runs[name]
                    continue
                self.names.append(name)


def test_a_long_job_runs_again_within_the_promote_rule(cluster: TandemCluster) -> None:
    namespace = cluster.namespace()
    path = f"/apis/tandem.gpu/v1alpha1/namespaces/{namespace}/gpujobs/job-long"

    def status() -> dict:
        return cluster.plane.http.get(path).json().get("status", {})

    def promotions() -> float:
        url = f"{cluster.installation.verbs_url}/metrics"
        families = text_string_to_metric_families(httpx.get(url, trust_env=False).text)
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == "tandem_queue_promotions_total"
        )

    with Trainer(cluster.plane, namespace) as trainer:
        trainer.expect("long", 600.0)
        cluster.apply_job(namespace, job("long", annotations=CHECKPOINT))
        cluster.running(namespace, "long")
        with Stream(cluster, namespace, trainer) as stream:
            wait_until(lambda: status().get("phase") == "Suspended", "the long one gives way")
            began, ran_s = time.monotonic(), trainer.runs["long"].trained_s()
            before = len(stream.names)
            wait_until(
                lambda: trainer.runs["long"].trained_s() > ran_s + 1, "it runs again", timeout_s=240
            )
            waited_s = time.monotonic() - began
            overtook = stream.waiting()
            short = len(stream.names) - before
    assert promotions() >= 1
    assert status()["promotedGpuSeconds"] >= BOUNDARY
    # It came back while others wanted the GPU, and many had been before it meanwhile.
    assert overtook >= 1
    assert short >= 2
    rule_s = max(KNOB * ran_s, LIMIT_S)
    record("starvation", "a stream of short jobs", 1, rule_s=[rule_s], waited_s=[waited_s])
    cluster.remove(namespace)
