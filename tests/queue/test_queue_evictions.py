"""What agents ask to evict: checked, carried out once, and remembered in the job's next need."""

from dataclasses import replace

import pytest
from queue_builders import GIB, gang, load, pod, raw_pod
from test_queue_controller import NOW, SHARED, Cluster, run

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.queue.pods.evictions import LEFT_S, RETRY_S, SAVES_S, _named
from scheduler_extender.queue.pods.memory_needs import HEADROOM, outgrown, raised, raised_in_steps
from tandem.contracts.placement import PlacedWith
from tandem.contracts.resources import EvictionRequest, GPUJobStatus, Source, SubBatch
from tandem.kube.errors import NotFound, TooManyRequests, Unavailable
from tandem.kube.resource import GPU_NODES, PODS

STAMP = "2027-01-15T08:00:00Z"  # NOW
BUDGET = TooManyRequests(
    429,
    "the budget allows no disruption",
    details={"causes": [{"reason": "DisruptionBudget", "message": "needs 1, has 1"}]},
)


KEEP = {"metadata": {"finalizers": ["example.com/keep"]}}


def two_that_share() -> Cluster:
    """Return two pods that share the one GPU of n0; each is thought to need 12 GiB."""
    cluster = Cluster()
    cluster.add_node("n0")
    for name in ("greedy", "innocent"):
        cluster.api.create(PODS, raw_pod(name, annotations=SHARED))
        run(cluster.cycle)
        cluster.bind_as_planned(name)
    run(cluster.cycle)
    return cluster


cluster = pytest.fixture(two_that_share)


def ask(cluster: Cluster, pod: str = "greedy", node: str = "n0", **changes: object) -> None:
    request = {
        "namespace": "default",
        "pod": pod,
        "uid": cluster.pod(pod)["metadata"]["uid"],
        "gpu": "GPU-n0-0",
        "reason": "holds 60.0 GiB where 12.0 GiB were predicted",
        "requestedAt": STAMP,
        "memoryBytes": 60 * GIB,
        **changes,
    }
    report(cluster, node, [request])


def report(cluster: Cluster, node: str, requests: list, observed_at: str = STAMP) -> None:
    status = {"observedAt": observed_at, "evictionRequests": requests}
    cluster.api.patch(GPU_NODES, node, {"status": status}, subresource="status")


def exists(cluster: Cluster, pod: str) -> bool:
    try:
        cluster.pod(pod)
    except NotFound:
        return False
    return True


def test_pod_that_outgrew_goes_and_both_get_an_event(cluster: Cluster) -> None:
    ask(cluster)
    run(cluster.cycle)
    assert not exists(cluster, "greedy")
    assert exists(cluster, "innocent")
    said = {(pod, reason): note for pod, reason, note in cluster.said}
    assert "60.0 GiB where 12.0 GiB" in said["greedy", "MemoryOutgrown"]
    assert "default/greedy" in said["innocent", "NeighbourEvicted"]


def test_a_need_is_raised_to_the_memory_of_the_gpu_at_most(cluster: Cluster) -> None:
    ask(cluster, memoryBytes=1 << 40)
    run(cluster.cycle)
    assert cluster.gpujob("pod-greedy")["status"]["load"]["memoryP95Bytes"] == 80 * GIB


def test_need_is_raised_before_the_pod_goes(cluster: Cluster, monkeypatch) -> None:
    needs = []

    def evict(namespace, pod, *, uid):
        needs.append(cluster.gpujob("pod-greedy")["status"]["load"])

    monkeypatch.setattr(cluster.api, "evict", evict)
    ask(cluster)
    run(cluster.cycle)
    assert [need["memoryP95Bytes"] for need in needs] == [round(60 * GIB * (1 + HEADROOM))]
    assert needs[0]["memorySource"] == "observed"


def test_the_gpujob_says_that_its_need_was_observed_and_what_was_seen(cluster: Cluster) -> None:
    ask(cluster)
    run(cluster.cycle)
    status = cluster.gpujob("pod-greedy")["status"]
    (said,) = (each for each in status["conditions"] if each["type"] == "Predicted")
    assert (said["status"], said["reason"]) == ("True", "Observed")
    assert said["message"].startswith("held 60.0 GiB on GPU-n0-0")


def test_a_job_of_which_nothing_was_predicted_has_no_need_to_raise() -> None:
    request = EvictionRequest(
        namespace="default", pod="p", uid="uid-p", gpu="g0", reason="full", requested_at=STAMP,
        memory_bytes=60 * GIB,
    )  # fmt: skip
    known = gang(pod("p"))
    assert known.record is not None
    assert outgrown(known, request, 80 * GIB, NOW) is not None
    status = known.record.status.model_copy(update={"load": None})
    unpredicted = Gang(known.key, replace(known.record, status=status), known.pods)
    assert outgrown(unpredicted, request, 80 * GIB, NOW) is None
    deleted = Gang(known.key, None, known.pods)
    assert outgrown(deleted, request, 80 * GIB, NOW) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"uid": "of-another-pod"},
        {"gpu": "GPU-n1-0"},
        {"node": "n1"},
    ],
)
def test_agent_cannot_ask_for_what_is_not_on_its_gpu(cluster: Cluster, changes) -> None:
    cluster.add_node("n1")
    ask(cluster, **changes)
    run(cluster.cycle)
    assert exists(cluster, "greedy")
    assert cluster.gpujob("pod-greedy")["status"]["load"]["memorySource"] == "formula"


def test_stale_request_is_not_carried_out(cluster: Cluster) -> None:
    ask(cluster)
    cluster.now = NOW + 151
    run(cluster.cycle)
    assert exists(cluster, "greedy")


def test_request_that_is_withdrawn_is_forgotten(cluster: Cluster) -> None:
    ask(cluster)
    report(cluster, "n0", [])
    run(cluster.cycle)
    assert exists(cluster, "greedy")


def test_disruption_budget_is_respected_reported_and_tried_again(
    cluster: Cluster, monkeypatch
) -> None:
    tried = []

    def evict(namespace, pod, *, uid):
        tried.append(pod)
        raise BUDGET

    monkeypatch.setattr(cluster.api, "evict", evict)
    ask(cluster, memoryBytes=12 * GIB)
    for _ in range(3):
        run(cluster.cycle)
    assert tried == ["greedy"]
    cluster.now += RETRY_S
    run(cluster.cycle)
    assert tried == ["greedy"] * 2
    notes = [note for pod, reason, note in cluster.said if reason == "EvictionForbidden"]
    assert "the budget allows no disruption" in notes[0]


def test_no_job_is_placed_next_to_a_pod_that_may_not_be_evicted(
    cluster: Cluster, monkeypatch
) -> None:
    def evict(namespace, pod, *, uid):
        raise BUDGET

    monkeypatch.setattr(cluster.api, "evict", evict)
    cluster.api.patch(PODS, "greedy", KEEP, "default")
    ask(cluster, memoryBytes=75 * GIB)
    cluster.set_phase("innocent", "Succeeded")
    cluster.api.create(PODS, raw_pod("late", annotations=SHARED))
    run(cluster.cycle)
    run(cluster.cycle)
    assert cluster.gated("late"), "75 GiB and 10 GiB do not fit into 80 GiB"


def test_no_job_joins_a_gpu_until_what_is_asked_of_it_is_done(
    cluster: Cluster, monkeypatch
) -> None:
    """Though memory and shares would suffice by what is predicted."""

    def evict(namespace, pod, *, uid):
        raise BUDGET

    monkeypatch.setattr(cluster.api, "evict", evict)
    ask(cluster, memoryBytes=12 * GIB)
    cluster.set_phase("innocent", "Succeeded")
    cluster.api.create(PODS, raw_pod("late", annotations=SHARED))
    run(cluster.cycle)
    run(cluster.cycle)
    assert cluster.gated("late")
    report(cluster, "n0", [])
    run(cluster.cycle)
    run(cluster.cycle)
    assert not cluster.gated("late")


def test_neighbour_in_a_budgets_way_gets_an_event_and_the_outcome_is_counted(
    cluster: Cluster, monkeypatch
) -> None:
    answers = [BUDGET, Unavailable(500, "more than one budget")]

    def evict(namespace, pod, *, uid):
        if answers:
            raise answers.pop(0)

    monkeypatch.setattr(cluster.api, "evict", evict)
    outcomes = cluster.controller.evictions.outcomes
    ask(cluster, memoryBytes=12 * GIB)
    for _ in range(4):
        run(cluster.cycle)
        cluster.now += RETRY_S
    assert +outcomes == {"evicted": 1, "forbidden": 1, "failed": 1}
    reasons = [reason for pod, reason, _ in cluster.said if pod == "innocent"]
    assert reasons.count("MemoryAtRisk") == 1
    ask(cluster, uid="of-another-pod")
    for _ in range(2):
        run(cluster.cycle)
        cluster.now += RETRY_S
    assert outcomes["refused"] == 1


def test_failed_eviction_does_not_hold_up_the_queue(cluster: Cluster, monkeypatch) -> None:
    def evict(namespace, pod, *, uid):
        raise Unavailable(0, "no answer")

    monkeypatch.setattr(cluster.api, "evict", evict)
    ask(cluster)
    cluster.add_node("n1")
    cluster.api.create(PODS, raw_pod("late", annotations=SHARED))
    run(cluster.cycle)
    run(cluster.cycle)
    assert not cluster.gated("late")


def test_a_request_that_is_done_is_not_carried_out_again(cluster: Cluster, monkeypatch) -> None:
    """Its pod takes its time to end, and the agent goes on asking."""
    evicted = []
    monkeypatch.setattr(cluster.api, "evict", lambda _, pod, **how: evicted.append((pod, how)))
    ask(cluster)
    for _ in range(4):
        run(cluster.cycle)
        cluster.now += RETRY_S
    assert evicted == [("greedy", {"uid": cluster.pod("greedy")["metadata"]["uid"]})]


def test_a_pod_that_goes_already_is_not_evicted(cluster: Cluster, monkeypatch) -> None:
    evicted = []
    monkeypatch.setattr(cluster.api, "evict", lambda _, pod, **__: evicted.append(pod))
    cluster.api.patch(PODS, "greedy", KEEP, "default")
    cluster.api.delete(PODS, "greedy", "default")
    ask(cluster)
    run(cluster.cycle)
    assert evicted == []


def test_the_request_of_a_node_that_is_gone_is_not_carried_out(cluster: Cluster) -> None:
    ask(cluster)
    cluster.api.delete(GPU_NODES, "n0")
    run(cluster.cycle)
    assert exists(cluster, "greedy")


@pytest.mark.parametrize(("namespace", "said"), [("default", "default/p"), ("other", "A pod of")])
def test_a_pod_of_another_namespace_is_reported_without_its_name(namespace: str, said: str) -> None:
    reader = replace(pod("q"), namespace=namespace)
    assert _named(pod("p"), reader).startswith(said)


def test_all_ways_to_run_a_batch_are_raised_by_the_factor_of_the_one_that_outgrew() -> None:
    parts = [
        SubBatch(steps=n, memory_base_bytes=4 * GIB // n, memory_peak_bytes=8 * GIB // n, stretch=1)
        for n in (2, 4)
    ]
    status = GPUJobStatus(load=load(10, 2), sub_batches=parts)
    whole, raised_parts = raised_in_steps(status, 1, 20 * GIB, 80 * GIB)
    assert whole.memory_p95_bytes == round(22 * GIB)
    assert [each.memory_peak_bytes for each in raised_parts] == pytest.approx(
        [4 * GIB * 22 / 12, 2 * GIB * 22 / 12], rel=1e-6
    )
    # Two micro-batches held 6 GiB where 4 were said: everything needs 1.65 times as much.
    whole, raised_parts = raised_in_steps(status, 2, 6 * GIB, 80 * GIB)
    assert whole.memory_p95_bytes == pytest.approx(12 * GIB * 1.65, rel=1e-6)
    assert raised_parts[0].memory_peak_bytes == pytest.approx(4 * GIB * 1.65, rel=1e-6)


def test_next_run_is_placed_by_what_the_last_one_showed(cluster: Cluster) -> None:
    owned = raw_pod("first", annotations=SHARED, owner=("ReplicaSet", "grows"))
    cluster.add_node("n1")
    cluster.api.create(PODS, owned)
    run(cluster.cycle)
    cluster.bind_as_planned("first")
    run(cluster.cycle)
    ask(cluster, "first", "n1", gpu="GPU-n1-0")
    run(cluster.cycle)
    report(cluster, "n1", [])
    cluster.api.create(PODS, owned | {"metadata": owned["metadata"] | {"name": "second"}})
    for _ in range(3):
        run(cluster.cycle)
    assert cluster.gpujob("replicaset-grows")["status"]["load"]["memoryP95Bytes"] > 60 * GIB


def test_need_is_never_lowered_and_ends_at_what_the_gpu_has() -> None:
    assert raised(load(), 1 * GIB, 80 * GIB) == load()
    assert raised(load(), 79 * GIB, 80 * GIB).memory_p95_bytes == 80 * GIB
    more = raised(load(base_gib=10, extra_gib=2), 40 * GIB, 80 * GIB)
    assert more.memory_base_bytes + more.memory_peak_extra_bytes == 40 * GIB
    assert more.memory_source is Source.OBSERVED


def test_a_budget_does_not_protect_a_pod_that_outgrew_what_it_was_placed_with(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evict(namespace: str, pod: str, *, uid: str) -> None:
        raise BUDGET

    monkeypatch.setattr(cluster.api, "evict", evict)
    ask(cluster)
    run(cluster.cycle)
    assert not exists(cluster, "greedy")
    assert exists(cluster, "innocent")
    assert +cluster.controller.evictions.outcomes == {"deleted": 1}
    (note,) = [note for pod, reason, note in cluster.said if reason == "MemoryOutgrown"]
    assert "A disruption budget does not protect it from that." in note


def test_what_a_pod_was_placed_with_decides_and_not_what_was_raised_since(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The need was raised by an attempt that failed; the next attempt still knows who outgrew."""
    answers = [Unavailable(503, "busy"), BUDGET]

    def evict(namespace: str, pod: str, *, uid: str) -> None:
        raise answers.pop(0)

    monkeypatch.setattr(cluster.api, "evict", evict)
    placed = PlacedWith(gpu_job="pod-greedy", memory_base_bytes=12 * GIB)
    notes = {"tandem.gpu/placed-with": placed.text()}
    cluster.api.patch(PODS, "greedy", {"metadata": {"annotations": notes}}, "default")
    ask(cluster)
    run(cluster.cycle)
    assert exists(cluster, "greedy")
    cluster.now += RETRY_S
    run(cluster.cycle)
    assert not exists(cluster, "greedy")


@pytest.mark.parametrize(("grace_s", "left_s"), [(2**31 - 1, LEFT_S), (3600, LEFT_S), (45, 45)])
def test_a_pod_that_is_being_deleted_and_outgrows_its_memory_is_given_less_time(
    grace_s: int, left_s: int, cluster: Cluster
) -> None:
    cluster.controller.terminations._max_grace_s = 2**31
    cluster.api.patch(PODS, "greedy", KEEP, "default")
    cluster.api.delete(PODS, "greedy", "default", grace_period_s=grace_s)
    ask(cluster)
    run(cluster.cycle)
    assert cluster.pod("greedy")["metadata"]["deletionGracePeriodSeconds"] == grace_s
    cluster.now += SAVES_S
    run(cluster.cycle)
    assert cluster.pod("greedy")["metadata"]["deletionGracePeriodSeconds"] == left_s
    assert cluster.controller.evictions.outcomes["shortened"] == (left_s != grace_s)


def test_an_evicted_pod_that_takes_its_time_is_given_less(cluster: Cluster) -> None:
    grace = {"spec": {"terminationGracePeriodSeconds": 3600}}
    cluster.api.patch(PODS, "greedy", KEEP | grace, "default")
    ask(cluster)
    run(cluster.cycle)
    assert cluster.pod("greedy")["metadata"]["deletionGracePeriodSeconds"] == 3600
    cluster.now += SAVES_S
    run(cluster.cycle)
    assert cluster.pod("greedy")["metadata"]["deletionGracePeriodSeconds"] == LEFT_S
    assert +cluster.controller.evictions.outcomes == {"evicted": 1, "shortened": 1}
