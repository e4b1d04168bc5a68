"""How often the service of running jobs is written: less often where many run."""

from __future__ import annotations

import pytest
from queue_builders import raw_pod, settled
from test_queue_controller import Cluster, run
from test_queue_first_status import Counted

from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.queue.gangs import reconcile
from tandem.kube.resource import PODS


async def writes_in_s(cluster: Cluster, seconds: int) -> int:
    """Return how many statuses are written while a job runs for that time."""
    cluster.add_node("n0")
    cluster.api.create(PODS, raw_pod("p"))
    await cluster.cycle()
    cluster.bind_as_planned("p")
    state = {"name": "main", "state": {"running": {"startedAt": rfc3339(cluster.now)}}}
    cluster.api.patch(
        PODS, "p", {"status": {"containerStatuses": [state]}}, "default", subresource="status"
    )
    await cluster.cycle()
    assert cluster.gpujob("pod-p")["status"]["phase"] == "Running"
    assert isinstance(cluster.api, Counted)
    before, work = cluster.api.statuses, cluster.controller.work
    for _ in range(seconds // 10):
        cluster.now += 10
        work.go()
        work.wake()
        await settled(work)
        work.hold()
    return cluster.api.statuses - before


@pytest.mark.parametrize(
    ("per_s", "written"), [(40.0, 10), (1 / 60, 10), (1 / 300, 2)], ids=["few", "at-most", "many"]
)
def test_the_service_of_all_that_run_is_written_at_a_bounded_rate(
    monkeypatch: pytest.MonkeyPatch, per_s: float, written: int
) -> None:
    """Of one job that runs, in ten minutes; the rate is that of all."""
    monkeypatch.setattr(reconcile, "COUNTS_PER_S", per_s)
    cluster = Cluster(Counted())
    cluster.add_node("n1")

    async def scenario() -> None:
        assert await writes_in_s(cluster, 600) == written

    run(scenario)
