"""The messages that users see most, word for word as docs/messages.md has them."""

from __future__ import annotations

import pytest
from queue_builders import GIB, create_with_owner, on_the_page, pod, raw_pod
from test_queue_controller import Cluster, run
from test_queue_evictions import ask, two_that_share
from test_queue_preemption import Training

from scheduler_extender.learning.separation import Move
from scheduler_extender.predictions import without_predictor
from scheduler_extender.queue.measuring.learning_loop import cause_of_move
from scheduler_extender.quotas.config import Quota
from scheduler_extender.quotas.grants import Stake, Turn
from tandem.contracts.annotations import AnnotationError, parse_demand
from tandem.contracts.resources import Demand
from tandem.kube.resource import GPU_JOBS, PODS
from tandem.reasons.words import sentence


def test_waiting_preempted_and_suspended() -> None:
    cluster, messages = Training(), []

    async def scenario() -> None:
        cluster.submit("first", gpus=2)
        await cluster.pass_s(0)
        cluster.submit("second")
        await cluster.pass_s(1)
        messages.append(cluster.status("second")["message"])
        await cluster.pass_s(150)
        await cluster.pass_s(1)
        messages.append(cluster.status("first")["message"])
        cluster.job_controller_deletes("first")
        await cluster.pass_s(1)
        messages.append(cluster.status("first")["message"])

    run(scenario)
    assert messages == [
        "It needs 1 GPU (0 of 2 GPUs can take it now). On 2 GPUs, all places for jobs are taken"
        " (on one of them 1 of 1). One comes free when a job there ends.",
        "It gives up its GPUs. It starts again when it is its turn. Another job goes before it"
        " (default/job-second).",
        "It gave up its GPUs and waits for others. The GPU time that it has had still counts for"
        " its place in the queue. Another job goes before it (default/job-second).",
    ]
    assert all(on_the_page(message) for message in messages)
    assert on_the_page(cluster.said[0][2])
    assert cluster.said[0] == (
        "second-2",
        "Waiting",
        "It needs 1 GPU. On some GPUs, all places for jobs are taken. For figures: kubectl describe"
        " gpujob job-second",
    )


def test_a_pod_that_waits_is_the_reason_again_once_others_of_its_job_have_begun() -> None:
    cluster = Cluster()
    cluster.add_node("n0", gpus=2)
    for name in ("a", "b", "c"):
        annotations = {"tandem.gpu/exclusive": "true"}
        body = raw_pod(name, annotations=annotations, owner=("Job", "j"))
        create_with_owner(cluster.api, body)
    for second in range(30):
        if second == 12:
            for name in ("a", "b"):
                cluster.bind_as_planned(name)
        cluster.now += 1
        run(cluster.cycle)
    status = cluster.gpujob("job-j")["status"]
    assert (status["phase"], status["reason"]) == ("Running", "Waiting")
    assert "0 of 2 GPUs can take it now" in status["message"]


@pytest.mark.filterwarnings("error::RuntimeWarning")  # the cluster has no GPUs
def test_hold_and_the_refusal_of_a_pod_without_a_plan() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        cluster.api.create(PODS, raw_pod("p"))
        await cluster.cycle()
        refused = cluster.controller.gates.refusal(
            pod("p", uid=cluster.pod("p")["metadata"]["uid"])
        )
        assert refused == (
            "the pod waits for its turn; the status of GPUJob pod-p gives the reason"
        )
        assert on_the_page(refused)
        cluster.api.patch(GPU_JOBS, "pod-p", {"spec": {"hold": True}}, "default")
        await cluster.cycle()
        status = cluster.gpujob("pod-p")["status"]
        assert (status["reason"], status["message"]) == (
            "Held",
            "An administrator holds it. It goes on when they let it: tandem resume.",
        )
        assert on_the_page(status["message"])

    run(scenario)


def test_evicted_by_the_memory_guard() -> None:
    cluster = two_that_share()
    ask(cluster)
    run(cluster.cycle)
    said = {(name, reason): note for name, reason, note in cluster.said}
    assert said["greedy", "MemoryOutgrown"] == (
        "Evicted from n0/0: holds 60.0 GiB where 12.0 GiB were predicted. Its next run is"
        " placed with more memory."
    )
    assert said["innocent", "NeighbourEvicted"] == (
        "default/greedy was evicted from n0/0, whose memory was nearly used up."
    )
    assert on_the_page(said["greedy", "MemoryOutgrown"])
    assert on_the_page(said["innocent", "NeighbourEvicted"])


@pytest.mark.parametrize(
    ("sufferer", "measured", "message"),
    [
        ("a", True, "It was too slow next to other jobs (40% slower on n0/0 next to ml/b,"
                    " measured). It starts again on other GPUs."),
        ("b", False, "Other jobs were too slow next to it (ml/b on n0/0 by 40%, reported by its"
                     " pods). It starts again on other GPUs."),
    ],
)  # fmt: skip
def test_moved(sufferer: str, measured: bool, message: str) -> None:
    move = Move(
        ("ml", "a"), ("n0", "GPU-0"), (("ml", "b"),), ("ml", sufferer), 0.4, measured, cost_gib=10.0
    )
    assert sentence(cause_of_move(move, "n0/0")) == message
    assert on_the_page(message)


def test_quota() -> None:
    stakes = {("vision", "a"): Stake(held=16, wants=16, endless=False)}
    turn = Turn([Quota(namespace="vision", gpus=16, borrow=False)], stakes)
    refused = turn.refusal(("vision", "b"), 2)
    assert refused is not None
    said = sentence(refused)
    assert said == (
        "Namespace vision would hold more than its share of GPUs, and may not borrow (16 held, 2"
        " more asked for, a share of 16). It starts when another job of the namespace ends."
    )
    assert on_the_page(said)


def test_wrong_value() -> None:
    with pytest.raises(AnnotationError) as error:
        parse_demand({"tandem.gpu/memory": "12 apples"}, 1)
    assert str(error.value) == (
        'metadata.annotations[tandem.gpu/memory]: "12 apples" is not allowed: must be a quantity'
        " of memory per GPU from 1Mi to 1Pi, such as 12Gi or 1500Mi"
    )
    assert on_the_page(str(error.value))


def test_predictor_unreachable() -> None:
    why = "the predictor does not answer"
    said = without_predictor(Demand(gpus_per_pod=1, model="bert"), why)
    assert said.explanation == "the predictor does not answer; the job gets whole GPUs"
    assert on_the_page(said.explanation)
    declared = Demand(gpus_per_pod=1, model="bert", declared_memory_bytes=GIB)
    assert without_predictor(declared, why).explanation == f"{why}; its declared memory counts"
