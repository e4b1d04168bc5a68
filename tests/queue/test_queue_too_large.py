"""A job that the cluster could never hold hears so, and not that it waits for others to end."""

from __future__ import annotations

from typing import Any

import pytest
from queue_builders import raw_pod
from test_queue_controller import SHARED, Cluster, run
from test_queue_resources import Mixed

from scheduler_extender.quotas.config import Quota
from scheduler_extender.quotas.grants import Stake, Turn
from scheduler_extender.serving.api import explanation
from tandem.contracts import names
from tandem.kube.resource import PODS
from tandem.policy.catalog import load_profile
from tandem.reasons.causes import Cause, Reason

NEVER = "even if no other job ran"
#: What would change nothing for a job that is too large.
IN_VAIN = ("comes free", "when a job there ends", "has come free", "tried again at once")
WHOLE = {**SHARED, names.EXCLUSIVE: "true"}


def shown(cluster: Cluster, job: str) -> tuple[list[Cause], str]:
    status = cluster.gpujob(job)["status"]
    causes = [Cause(**{**each, "reason": Reason(each["reason"])}) for each in status["causes"]]
    return causes, status["message"]


def gang(cluster: Cluster, sizes: list[int]) -> None:
    """Create the pods of one gang, which ask for so many GPUs each."""
    notes = {**WHOLE, names.GANG: "g", names.GANG_SIZE: str(len(sizes))}
    for number, gpus in enumerate(sizes):
        cluster.api.create(PODS, raw_pod(f"p{number}", annotations=notes, gpus=gpus))


@pytest.mark.parametrize("taken", [False, True])
def test_more_gpus_on_one_node_than_any_node_has(taken: bool) -> None:
    cluster = Mixed()
    for name in ("n0", "n1"):
        cluster.node(name, gpus=2)
    if taken:
        for name in ("a", "b", "c", "d"):
            cluster.create(name)
            cluster.cycles(1)
            cluster.bind_as_planned(name)
    cluster.create("large", gpus=3)
    cluster.cycles()
    causes, message = shown(cluster, "pod-large")
    assert causes[0].reason is Reason.NEEDS_GPUS
    assert causes[1:] == [Cause(Reason.NODES_TOO_SMALL, value=3, bound=2)]
    assert NEVER in message
    assert not [words for words in IN_VAIN if words in message]
    record = cluster.state.pod_named("default", "large")
    assert record is not None
    answer: dict[str, Any] = explanation(cluster.state, load_profile("tandem").pipeline(), record)
    assert answer["message"] == message


def test_more_pods_than_there_are_gpus() -> None:
    cluster = Cluster()
    cluster.add_node("n0", gpus=2)
    gang(cluster, [1, 1, 1])
    run(cluster.cycle)
    causes, message = shown(cluster, "gang-g")
    assert causes[1:] == [Cause(Reason.CLUSTER_TOO_SMALL, value=3, bound=2)]
    assert "(3 needed, 2 there)" in message


@pytest.mark.parametrize(
    ("nodes", "sizes", "cause"),
    [
        ([2], [1, 2], Cause(Reason.CLUSTER_TOO_SMALL, value=3, bound=2)),
        ([3, 1], [2, 2], None),
        ([2, 2, 2], [3, 1], None),
        ([3, 1, 1], [2, 2, 1], None),
    ],
)
def test_roles_for_which_there_are_too_few(
    nodes: list[int], sizes: list[int], cause: Cause | None
) -> None:
    cluster = Cluster()
    for number, gpus in enumerate(nodes):
        cluster.add_node(f"n{number}", gpus=gpus)
    gang(cluster, sizes)
    run(cluster.cycle)
    causes, message = shown(cluster, "gang-g")
    assert NEVER in message
    assert not [words for words in IN_VAIN if words in message]
    if cause is not None:
        assert causes[0] == cause
    # What is there is less than what is needed, where a figure of it is given.
    for each in causes:
        if each.reason in (Reason.NODES_TOO_SMALL, Reason.CLUSTER_TOO_SMALL):
            assert each.bound is None or each.bound < (each.value or 0)


def test_a_large_job_that_an_empty_cluster_would_hold_waits_for_others() -> None:
    cluster = Mixed()
    cluster.node("n0", gpus=2)
    cluster.create("a")
    cluster.cycles(1)
    cluster.bind_as_planned("a")
    cluster.create("large", gpus=2)
    cluster.cycles()
    causes, message = shown(cluster, "pod-large")
    assert Reason.NODES_TOO_SMALL not in {each.reason for each in causes}
    assert NEVER not in message


def test_gpus_of_nodes_that_do_not_suit_count_for_nothing() -> None:
    cluster = Mixed()
    cluster.node("n0", gpus=2)
    cluster.node("n1", gpus=4, cpu="1")
    cluster.create("large", gpus=3, cpu="2")
    cluster.cycles()
    causes, _ = shown(cluster, "pod-large")
    assert causes[1] == Cause(Reason.NODES_TOO_SMALL, value=3, bound=2)
    assert Cause(Reason.NODE_TOO_SMALL, nodes=1, resource="cpu", amount="2") in causes


def test_a_job_that_needs_more_memory_than_any_gpu_has() -> None:
    cluster = Cluster()
    cluster.add_node("n0")
    notes = {names.MEMORY: "500Gi", names.UTILIZATION: "10"}
    cluster.api.create(PODS, raw_pod("large", annotations=notes))
    run(cluster.cycle)
    causes, message = shown(cluster, "pod-large")
    assert [each.reason for each in causes] == [Reason.NEEDS_GPUS, Reason.MEMORY_ALONE]
    assert "ends" not in message


@pytest.mark.parametrize(
    ("quota", "asked", "reason"),
    [
        (Quota(namespace="ml", max_gpus=4), 5, Reason.QUOTA_TOO_SMALL),
        (Quota(namespace="ml", max_gpus=4), 4, Reason.QUOTA),
        (Quota(namespace="ml", gpus=4, borrow=False), 5, Reason.QUOTA_TOO_SMALL),
        (Quota(namespace="ml", gpus=4, borrow=False), 4, Reason.QUOTA_SHARE),
        (Quota(namespace="ml", endless_gpus=4), 5, Reason.QUOTA_TOO_SMALL),
        (Quota(namespace="ml", endless_gpus=4), 4, Reason.QUOTA_ENDLESS),
    ],
)
def test_more_than_a_namespace_may_ever_hold(quota: Quota, asked: int, reason: Reason) -> None:
    stakes = {
        ("ml", "first"): Stake(held=1, wants=1, endless=True),
        ("ml", "second"): Stake(held=0, wants=asked, endless=True),
    }
    refused = Turn([quota], stakes).refusal(("ml", "second"), asked)
    assert refused is not None
    assert (refused.reason, refused.gpus, refused.bound) == (reason, asked, 4)
