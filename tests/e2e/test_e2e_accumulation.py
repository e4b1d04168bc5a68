"""Gradient accumulation on a real control plane: from the predictor to the container."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from controlplane_binaries import need_control_plane
from e2e_cluster import TandemCluster, job

from controlplane import ControlPlane, Node
from controlplane.containers import resolved_environment

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("accumulation"),
]

STEPS = "TANDEM_ACCUMULATION_STEPS"
#: Half the GPU for some minutes, as far as is known.
HOLDER = {"tandem.gpu/memory": "16Gi", "tandem.gpu/utilization": "30"}
#: Three minutes of ResNet-50: 21 GiB at most with the batch as submitted, 11 GiB in two parts.
SPLITS = {
    "tandem.gpu/model": "resnet50",
    "tandem.gpu/batch-size": "128",
    "tandem.gpu/iterations": "1000",
    "tandem.gpu/accumulation": "true",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TandemCluster]:
    """One GPU of 32 GiB, under the profile that proposes steps."""
    need_control_plane()
    with ControlPlane.start(nodes=[Node("n0", cpu=32)]) as plane:
        cluster = TandemCluster(plane, tmp_path_factory.mktemp("tandem"))
        cluster.start(gpus_per_node=1, nodes=("n0",), settings={"profile": "sjf-bsbf"})
        yield cluster


def test_a_batch_that_does_not_fit_next_to_another_job_runs_in_parts(
    cluster: TandemCluster,
) -> None:
    namespace = cluster.namespace()
    cluster.push(namespace, "resnet50")
    cluster.apply_job(namespace, job("whole", annotations=SPLITS))
    alone = cluster.running(namespace, "whole")
    # On its own it runs as submitted, and its variable says so.
    assert resolved_environment(alone)["train"][STEPS] == "1"
    cluster.let_end(namespace, "whole")

    cluster.apply_job(namespace, job("holder", annotations=HOLDER))
    cluster.running(namespace, "holder")
    cluster.apply_job(namespace, job("splits", annotations=SPLITS))
    pod = cluster.running(namespace, "splits")
    # Two parts would fit. Each way to split has an interference of its own ([SJF-BSBF] Alg. 2):
    # by the predictions, four parts slow both jobs less than two do.
    assert pod["metadata"]["annotations"]["tandem.gpu/accumulation-steps"] == "4"
    assert resolved_environment(pod)["train"][STEPS] == "4"
    # The limit of its memory is that of the parts in which it runs, on the real API server's pod.
    limit = pod["metadata"]["annotations"]["tandem.gpu/memory-fraction"]
    assert 0 < float(limit) < 1
    read = resolved_environment(pod)["train"]
    assert read["TANDEM_MEMORY_FRACTION"] == limit
    assert read["XLA_PYTHON_CLIENT_MEM_FRACTION"] == limit
    assert read["PYTORCH_ALLOC_CONF"] == f"per_process_memory_fraction:{limit}"
    status = cluster.plane.get("gpujob", "job-splits", "-n", namespace)["status"]
    assert status["plan"]["accumulationSteps"] == 4
    assert [each["steps"] for each in status["subBatches"]] == [2**k for k in range(1, 8)]
    assert all(len(pods) == 2 for pods in cluster.holders().values())
    cluster.remove(namespace)
