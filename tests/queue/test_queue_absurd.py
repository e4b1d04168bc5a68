"""Demands that no cluster can meet say so, and keep no other from being planned."""

import pytest
from queue_builders import raw_pod
from test_queue_controller import Cluster, run

from scheduler_extender.config import QueueConfig
from scheduler_extender.quotas.config import Quota
from tandem.kube.resource import PODS
from tandem.policy.catalog import load_profile

HUGE = str(10**18)


@pytest.mark.parametrize(
    ("gpus", "annotations"),
    [
        ("1E", {}),
        ("9E", {"tandem.gpu/gang": "g", "tandem.gpu/gang-size": "1"}),
        (1, {"tandem.gpu/gang": "g", "tandem.gpu/gang-size": HUGE}),
        (1, {"tandem.gpu/gang": "g", "tandem.gpu/gang-size": "9" * 5000}),
        ("1E", {"tandem.gpu/gang": "g", "tandem.gpu/gang-size": "2000"}),
        (1, {"tandem.gpu/batch-size": "9" * 30, "tandem.gpu/model": "m"}),
        (1, {"tandem.gpu/memory": "9Ei"}),
        (1, {"tandem.gpu/iterations": "9" * 30, "tandem.gpu/memory": "1Gi"}),
        (1, {"tandem.gpu/memory": "1" + "0" * 29}),
    ],
)
@pytest.mark.parametrize("profile", ["tandem", "tiresias-l"])
@pytest.mark.filterwarnings("error::RuntimeWarning")  # of NumPy: a number that does not fit
def test_a_demand_beyond_all_measure_stops_no_other_job(
    gpus: object, annotations: dict, profile: str
) -> None:
    settings = QueueConfig(
        reserve_after_s=3, quotas=(Quota(namespace="default", gpus=1, max_gpus=4),)
    )
    cluster = Cluster(profile=load_profile(profile), settings=settings)
    cluster.add_node("n0", gpus=2)

    async def scenario() -> None:
        for index in range(2):
            raw = raw_pod(f"absurd-{index}", gpus=gpus, annotations=annotations)
            cluster.api.create(PODS, raw)
        cluster.api.create(PODS, raw_pod("modest"))
        for _ in range(4):
            await cluster.cycle()
            cluster.now += 5
        assert not cluster.gated("modest")
        assert cluster.controller.work.failures == 0

    run(scenario)
