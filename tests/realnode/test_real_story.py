"""The story of a day on a real node: jobs share GPUs, wait, give way, go on, and outgrow theirs."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from real_cluster import RealCluster, job, why_not

from controlplane import wait_until
from tandem.policy.catalog import load_profile

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("real"),
    pytest.mark.timeout(900),
]

GIB = 1 << 30
#: GPU-seconds after which a job gives way to a new one.
BOUNDARY_GPU_S = 15.0
#: About half a minute of training; the loss of every tenth iteration is recorded.
ITERATIONS = 240
TRAINING = [f"--iterations={ITERATIONS}", "--checkpoints=/checkpoints/long"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    """Two GPUs on one node. Jobs share as by default, and give way to those with less service."""
    if reason := why_not():
        pytest.skip(f"no real nodes: {reason}")
    profile = load_profile("tandem").model_dump(mode="json")
    preempting = load_profile("tiresias-l").model_dump(mode="json")
    profile |= {key: preempting[key] for key in ("order", "dispatch")}
    profile["order"] |= {"thresholds_gpu_s": [BOUNDARY_GPU_S]}
    del profile["order"]["slice_s"]  # its default, infinity, is no value of Helm's
    queue = {"min_run_s": 0, "preemption_cost_s": 0, "max_preemptions_per_hour": 100}
    values = {
        "scheduler": {"extender": {"config": {"profile": profile, "queue": queue}}},
        "agent": {"config": {"guard": {"mode": "evict"}}},
    }
    with RealCluster.start(1, values) as cluster:
        yield cluster


@pytest.fixture
def namespace(cluster: RealCluster) -> Iterator[str]:
    """A namespace of the test's own; nothing of it is left afterwards, on the node neither."""
    name = cluster.namespace()
    yield name
    cluster.empty(name)


def small(name: str, *args: str, **annotations: str) -> dict:
    notes = {"memory": "20Gi", "utilization": "30", **annotations}
    return job(name, *args, annotations={f"tandem.gpu/{k}": v for k, v in notes.items()})


def test_three_jobs_share_two_gpus_and_an_exclusive_one_waits_and_says_why(
    cluster: RealCluster, namespace: str
) -> None:
    for name in ("left", "right", "third"):
        cluster.apply(namespace, small(name, "--iterations=100000", "--gpu-memory-gib=18"))
    pods = {name: cluster.running(namespace, name) for name in ("left", "right", "third")}

    # What the runtime has given each container is what its pod was bound to, and nothing else.
    for name, pod in pods.items():
        given = cluster.gpus_of(pod)
        assert given == set(pod["metadata"]["annotations"]["tandem.gpu/visible-devices"].split(","))
        assert len(given) == 1, name
    holders = cluster.holders()
    assert sorted(holders.values()) == [1, 2]
    cluster.wait_measured({pod["metadata"]["uid"] for pod in pods.values()})

    cluster.apply(namespace, small("whole", "--iterations=5", exclusive="true"))

    def reason() -> str:
        status = cluster.status(namespace, "whole")
        return status.get("message", "") if status.get("reason") == "Waiting" else ""

    said = wait_until(reason, "the GPUJob says why it waits")
    print(said)
    assert "0 of 2 GPUs can take it now" in said
    causes = cluster.status(namespace, "whole")["causes"]
    assert sum(cause.get("gpus", 0) for cause in causes) == len(holders), "each GPU has its reason"
    assert not cluster.pod(namespace, "whole")["spec"].get("nodeName")

    for name in pods:
        cluster.plane.kubectl("delete", "job", name, "-n", namespace, "--wait=false")
    cluster.succeeded(namespace, "whole")


def test_a_long_job_gives_way_saves_and_ends_with_the_bits_of_an_undisturbed_run(
    cluster: RealCluster, namespace: str
) -> None:
    # The same training without a GPU: no queue ever touches it.
    cluster.apply(namespace, job("undisturbed", f"--iterations={ITERATIONS}", gpus=0))
    notes = {"tandem.gpu/checkpoint": "true", "tandem.gpu/exclusive": "true"}
    cluster.apply(namespace, job("long", *TRAINING, annotations=notes, gpus=2, volume=True))
    first = cluster.running(namespace, "long")
    time.sleep(BOUNDARY_GPU_S / 2 + 1)
    cluster.apply(namespace, small("short", "--iterations=20"))
    began = time.monotonic()
    cluster.succeeded(namespace, "short")
    print(f"the short job was done {time.monotonic() - began:.1f} s after it came")

    result = cluster.succeeded(namespace, "long")
    undisturbed = cluster.succeeded(namespace, "undisturbed")
    last = cluster.pods(namespace, "long")[-1]
    assert last["metadata"]["uid"] != first["metadata"]["uid"]
    assert 0 < result["begins_at"] < ITERATIONS
    assert result["iterations"] == undisturbed["iterations"] == ITERATIONS
    assert result["losses"] == undisturbed["losses"]
    assert result["digest"] == undisturbed["digest"]
    assert len(result["losses"]) == ITERATIONS // 10


def test_a_job_that_outgrew_its_prediction_is_evicted_and_asks_for_more(
    cluster: RealCluster, namespace: str
) -> None:
    grows = ["--iterations=100000", "--gpu-memory-gib=18", "--grow-at=50", "--grow-to-gib=59"]
    cluster.apply(namespace, small("greedy", *grows, checkpoint="true"))
    greedy = cluster.running(namespace, "greedy")
    # Two more: one of them shares the GPU with it.
    for name in ("one", "two"):
        cluster.apply(namespace, small(name, "--iterations=100000", "--gpu-memory-gib=18"))
        cluster.running(namespace, name)

    def replaced() -> bool:
        uids = {pod["metadata"]["uid"] for pod in cluster.pods(namespace, "greedy")}
        return bool(uids - {greedy["metadata"]["uid"]})

    began = time.monotonic()
    wait_until(replaced, "the greedy job has a new pod", timeout_s=180)
    print(f"replaced {time.monotonic() - began:.1f} s after its neighbours ran")
    load = cluster.status(namespace, "greedy")["load"]
    assert load["memorySource"] == "observed"
    assert load["memoryP95Bytes"] > 59 * GIB
    for name in ("one", "two"):
        assert cluster.running(namespace, name)["status"]["phase"] == "Running"
