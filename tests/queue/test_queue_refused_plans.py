"""A gang whose plans kube-scheduler does not follow is placed again after a pause."""

from __future__ import annotations

from itertools import pairwise

import pytest
from queue_builders import create_with_owner, raw_pod
from test_queue_controller import SHARED, Cluster, run

from scheduler_extender.config import QueueConfig
from scheduler_extender.planning.anti_affinity import REST_S

KEY = ("default", "pod-p")
LIFE_S = 20.0
A_MOMENT_S = 2.0  # cycles, and the second in which each is looked at


@pytest.mark.parametrize("looks", [False, True])
def test_each_plan_after_a_refused_one_comes_at_the_end_of_the_pause(looks: bool) -> None:
    """Whether it is looked at in between or not, as where the watch shows a write of ours late."""
    cluster = Cluster(settings=QueueConfig(plan_life_s=LIFE_S))
    cluster.add_node("n0")
    create_with_owner(cluster.api, raw_pod("p", annotations=SHARED))
    made_s: list[float] = []
    made_at = ""
    while len(made_s) < 5:
        run(cluster.cycle)
        status = cluster.gpujob("pod-p")["status"]
        plan = status.get("plan")
        if plan and plan["madeAt"] != made_at:
            made_at = plan["madeAt"]
            made_s.append(cluster.now)
        elif not plan and looks and cluster.now - made_s[-1] < LIFE_S + A_MOMENT_S:
            cluster.controller.work.later(KEY, cluster.now + 1)
        cluster.now += 1
        cluster.state.tick(cluster.now)
        assert cluster.now - made_s[-1] < LIFE_S + 10 * REST_S, "it is not placed again"
    pauses = [later - before - LIFE_S for before, later in pairwise(made_s)]
    # Another node may do: only who was refused twice in a row rests.
    assert all(
        rest_s <= pause_s <= rest_s + A_MOMENT_S
        for pause_s, rest_s in zip(pauses, (0.0, REST_S, 2 * REST_S, 4 * REST_S), strict=True)
    ), pauses
