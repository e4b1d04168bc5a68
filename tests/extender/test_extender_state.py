"""What the extender believes of the cluster, whatever the order of events."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from extender_builders import GIB, NOW, gpu, gpu_job, gpu_node, load, node, pod
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from scheduler_extender.cluster.ledger import Claim, Hold
from scheduler_extender.cluster.objects import GRAVES_S, Objects
from scheduler_extender.cluster.pods import pod_info
from scheduler_extender.cluster.state import ClusterState
from tandem.contracts import names
from tandem.policy.job import Job


def state(*objects: tuple[str, dict], **settings) -> ClusterState:
    found = ClusterState(now_s=NOW, **settings)
    for kind, obj in objects:
        found.upsert(kind, obj)
    found.check()
    return found


def jobs(found: ClusterState, where: str = "n0") -> list[int]:
    return found.gpus.jobs[found.table.rows(where)].tolist()


def picture(found: ClusterState) -> dict:
    """All that is derived, by names instead of rows and handles."""
    cluster = found.snapshot()
    columns = {
        name: getattr(cluster.gpus, name).tolist()
        for name in found.table.writable
        if name not in ("residents", "gpu_type")
    }
    named = {handle: job for job, handle in found.ledger._handles.items()}
    residents = [[named.get(handle) for handle in row] for row in cluster.gpus.residents.tolist()]
    return {
        "nodes": [cluster.node_names[n] for n in cluster.gpus.node],
        "ids": cluster.gpu_ids,
        "residents": residents,
        "uses": dict(found.nodes.uses()),
        **columns,
    }


def test_a_bound_pod_holds_its_gpu_until_it_has_ended() -> None:
    found = state(
        ("pods", pod("a", node_name="n0", devices="g1", version=1)),
        ("gpunodes", gpu_node("n0", "g0", "g1")),
    )
    assert jobs(found) == [0, 1]
    going = pod("a", node_name="n0", devices="g1", version=2)
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found.upsert("pods", going)
    assert jobs(found) == [0, 1], "a pod that is going still runs"
    found.upsert("pods", pod("a", node_name="n0", devices="g1", phase="Succeeded", version=3))
    assert jobs(found) == [0, 0]
    found.check()


def test_an_older_version_and_a_late_answer_change_nothing() -> None:
    late = pod("a", node_name="n0", devices="g0", version=2)
    found = state(("gpunodes", gpu_node("n0", "g0")), ("pods", late))
    found.upsert("pods", pod("a", version=1))
    assert jobs(found) == [1]
    found.delete("pods", late)
    found.upsert("pods", late)
    assert jobs(found) == [0]
    assert found.pod_named("ml", "a") is None


def test_a_node_may_report_gpus_and_then_none() -> None:
    state = ClusterState(now_s=NOW)
    for reported in ((gpu("GPU-0"),), ()):
        state.upsert("gpunodes", gpu_node("n0", *reported))
        assert len(state.snapshot().gpu_ids) == len(reported)
        state.check()


def test_a_deletion_of_a_former_pod_spares_the_present_one_of_that_name() -> None:
    found = state(
        ("gpunodes", gpu_node("n0", "g0")),
        ("pods", pod("a", uid="new", node_name="n0", devices="g0", version=5)),
    )
    found.delete("pods", pod("a", uid="old", version=9))
    assert jobs(found) == [1]


def test_a_late_event_of_a_predecessor_does_not_displace_its_successor() -> None:
    found = state(
        ("gpunodes", gpu_node("n0", "g0", "g1")),
        ("pods", pod("a", uid="new", node_name="n0", devices="g0", version=5)),
        ("pods", pod("a", uid="old", node_name="n0", devices="g1", version=3)),
    )
    assert jobs(found) == [1, 0]


def test_a_deleted_object_is_remembered_for_as_long_as_a_request_may_take() -> None:
    objects = Objects()
    objects.tick(NOW)
    for index in range(3):
        objects.forget("pods", ("default", f"p{index}"), f"uid-{index}")
    objects.tick(NOW + 599)
    assert objects.is_gone("uid-0")
    objects.forget("pods", ("default", "late"), "uid-late")
    objects.tick(NOW + 601)
    assert [objects.is_gone(f"uid-{i}") for i in range(3)] == [False] * 3
    assert objects.is_gone("uid-late")
    for index in range(20_001):
        objects.forget("pods", ("default", "many"), f"many-{index}")
    assert not objects.is_gone("uid-late")
    assert objects.is_gone("many-20000")


def test_a_plan_holds_gpus_until_its_pod_is_bound_or_its_time_is_up() -> None:
    found = state(
        ("gpunodes", gpu_node("n0", "g0", "g1")),
        ("gpujobs", gpu_job("pod-a", plan=[("u", "n0", ["g0"])], version=1)),
    )
    assert jobs(found) == [1, 0], "even before the pod is known"
    found.upsert("pods", pod("a", uid="u", node_name="n0", devices="g1", version=1))
    assert jobs(found) == [0, 1], "where it was bound counts, once"
    found.delete("pods", pod("a", uid="u", version=2))
    assert jobs(found) == [0, 0], "the plan of a pod that is gone is void"
    found.upsert("gpujobs", gpu_job("pod-a", plan=[("v", "n0", ["g0"])], version=2))
    assert jobs(found) == [1, 0]
    found.tick(NOW + 30)
    assert jobs(found) == [0, 0]
    found.check()


def test_a_reservation_goes_when_the_watch_shows_the_binding() -> None:
    found = state(("gpunodes", gpu_node("n0", "g0")), ("pods", pod("a", uid="u", version=1)))
    record = found.pod("u")
    claim = Claim("n0", ("g0",), found.worker_to_hold(record.pod))
    found.reserve("u", claim)
    before = found.table.generation
    found.upsert("pods", pod("a", uid="u", node_name="n0", devices="g0", version=2))
    assert found.ledger.held("u") == (Hold.BOUND, claim)
    assert found.ledger.claim("u", Hold.RESERVED) is None
    assert found.table.generation == before, "nothing has changed for any other node"


def test_a_pod_that_failed_before_it_was_bound_holds_nothing_more() -> None:
    found = state(
        ("gpunodes", gpu_node("n0", "g0", "g1")),
        ("pods", pod("a", uid="u", version=1)),
        ("gpujobs", gpu_job("pod-a", plan=[("u", "n0", ["g0"])])),
    )
    found.reserve("u", Claim("n0", ("g1",), found.worker(found.pod("u").pod)))
    assert jobs(found) == [0, 1]
    found.upsert("pods", pod("a", uid="u", phase="Failed", version=2))
    assert jobs(found) == [0, 0]
    assert found.ledger.held("u") is None
    found.check()


def test_a_pod_that_is_being_deleted_before_it_was_bound_gives_up_its_plan() -> None:
    found = state(
        ("gpunodes", gpu_node("n0", "g0")),
        ("pods", pod("a", uid="u", version=1)),
        ("gpujobs", gpu_job("pod-a", plan=[("u", "n0", ["g0"])])),
    )
    assert jobs(found) == [1]
    going = pod("a", uid="u", version=2)
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found.upsert("pods", going)
    assert jobs(found) == [0]


def test_a_reservation_of_a_pod_that_was_never_seen_goes_when_the_pod_is_gone() -> None:
    found = state(("gpunodes", gpu_node("n0", "g0")))
    found.reserve("u", Claim("n0", ("g0",), Job(id="ml/pod-a")))
    assert jobs(found) == [1]
    found.delete("pods", pod("a", uid="u", version=2))
    assert jobs(found) == [0]
    assert found.ledger.held("u") is None


def test_a_released_reservation_holds_nothing_and_leaves_the_plan() -> None:
    found = state(
        ("gpunodes", gpu_node("n0", "g0", "g1")),
        ("pods", pod("a", uid="u", version=1)),
        ("gpujobs", gpu_job("pod-a", plan=[("u", "n0", ["g0"])])),
    )
    found.reserve("u", Claim("n0", ("g1",), found.worker(found.pod("u").pod)))
    found.release("u")
    assert jobs(found) == [1, 0]
    assert found.ledger.held("u")[0] is Hold.PLANNED


def test_a_gpu_that_an_annotation_names_twice_counts_once() -> None:
    found = state(
        ("gpunodes", gpu_node("n0", "g0")),
        ("pods", pod("a", node_name="n0", devices="g0,g0")),
    )
    assert jobs(found) == [1]
    assert found.gpus.memory_base_gib[found.table.rows("n0")].tolist() == [10]


def test_an_annotation_of_a_pod_that_asks_for_no_gpus_holds_none() -> None:
    found = state(
        ("gpunodes", gpu_node("n0", "g0")),
        ("pods", pod("a", gpus=0, memory=None, node_name="n0", devices="g0")),
    )
    assert jobs(found) == [0]


def test_a_plan_in_micro_batches_holds_what_they_need() -> None:
    planned = gpu_job("pod-a", plan=[("u", "n0", ["g0"])], job_load=load(20, 4, 0.5))
    whole = state(("gpunodes", gpu_node("n0", "g0")), ("gpujobs", planned))
    assert whole.gpus.memory_base_gib[whole.table.rows("n0")].tolist() == [20]
    part = {"steps": 2, "memoryBaseBytes": 6 * GIB, "memoryPeakBytes": 8 * GIB, "stretch": 1.5}
    split = gpu_job("pod-a", plan=[("u", "n0", ["g0"])], job_load=load(20, 4, 0.5))
    split["spec"]["demand"] |= {"accumulation": True, "batchSize": 64}
    split["status"] |= {"subBatches": [part]}
    split["status"]["plan"]["accumulationSteps"] = 2
    found = state(("gpunodes", gpu_node("n0", "g0")), ("gpujobs", split))
    assert found.gpus.memory_base_gib[found.table.rows("n0")].tolist() == [6]
    # The pod runs as it is planned, and as it was bound once it is.
    parts = {names.ACCUMULATION: "true"}
    found.upsert("pods", pod("a", uid="u", memory=None, version=1, annotations=parts))
    assert found.worker(found.pod("u").pod).memory_base_gib == 6
    steps = parts | {names.ACCUMULATION_STEPS: "1"}
    bound = pod("a", uid="u", memory=None, node_name="n0", devices="g0", annotations=steps)
    found.upsert("pods", bound)
    assert found.gpus.memory_base_gib[found.table.rows("n0")].tolist() == [20]


def test_a_pod_that_a_new_plan_leaves_out_gives_up_its_place() -> None:
    first = gpu_job("g", plan=[("u", "n0", ["g0"]), ("v", "n0", ["g1"])], version=1)
    found = state(("gpunodes", gpu_node("n0", "g0", "g1", "g2")), ("gpujobs", first))
    assert jobs(found) == [1, 1, 0]
    found.upsert("gpujobs", gpu_job("g", plan=[("v", "n0", ["g2"])], version=2))
    assert jobs(found) == [0, 0, 1]
    found.upsert("gpujobs", gpu_job("g", version=3))
    assert jobs(found) == [0, 0, 0]
    found.check()


def test_a_plan_that_has_ended_holds_nothing_even_when_its_event_is_late() -> None:
    found = state(("gpunodes", gpu_node("n0", "g0")))
    found.tick(NOW + 30)
    found.upsert("gpujobs", gpu_job("pod-a", plan=[("u", "n0", ["g0"])]))
    assert jobs(found) == [0]


def test_a_gpu_whose_memory_is_about_to_end_and_a_closed_one_take_no_more_jobs() -> None:
    request = {
        "namespace": "ml", "pod": "p", "uid": "u", "gpu": "g0", "reason": "full",
        "requestedAt": "2026-01-01T00:00:00Z", "memoryBytes": 1,
    }  # fmt: skip
    full = gpu_node("n0", "g0", "g1", "g2")
    full["status"]["evictionRequests"] = [request]
    found = state(("gpunodes", full))
    rows = found.table.rows("n0")
    assert found.gpus.shares[rows].tolist() == [1, 2, 2]
    found.close_gpus(frozenset({("n0", "g1")}))
    assert found.gpus.shares[rows].tolist() == [1, 1, 2]
    found.close_gpus(frozenset())
    found.upsert("gpunodes", gpu_node("n0", "g0", "g1", "g2"))
    assert found.gpus.shares[rows].tolist() == [2, 2, 2]


def test_a_closed_gpu_opens_again_without_a_report() -> None:
    found = state(("gpunodes", gpu_node("n0", "g0")), ("gpunodes", gpu_node("n1", "h0")))
    found.close_gpus(frozenset({("n0", "g0")}))
    found.close_gpus(frozenset({("n1", "h0")}))
    assert found.gpus.shares[found.table.rows("n0")].tolist() == [2]
    assert found.gpus.shares[found.table.rows("n1")].tolist() == [1]


def test_a_bound_pod_counts_as_its_gpujob_says_now_though_the_plan_is_over() -> None:
    """No Binding has noted its steps, so that those of the plan in the status count."""
    split = gpu_job("pod-a", plan=[("u", "n0", ["g0"])], job_load=load(20, 4, 0.5), version=1)
    split["spec"]["demand"] |= {"accumulation": True, "batchSize": 64}
    part = {"steps": 2, "memoryBaseBytes": 6 * GIB, "memoryPeakBytes": 8 * GIB, "stretch": 1.5}
    split["status"] |= {"subBatches": [part]}
    split["status"]["plan"]["accumulationSteps"] = 2
    parts = {names.ACCUMULATION: "true"}
    bound = pod("a", uid="u", memory=None, node_name="n0", devices="g0", annotations=parts)
    found = state(("gpunodes", gpu_node("n0", "g0")), ("pods", bound), ("gpujobs", split))
    found.tick(NOW + 30)
    assert found.gpus.memory_base_gib[found.table.rows("n0")].tolist() == [6]
    status = {name: value for name, value in split["status"].items() if name != "plan"}
    later = {**split, "metadata": {**split["metadata"], "resourceVersion": "2"}, "status": status}
    found.upsert("gpujobs", later)
    assert found.gpus.memory_base_gib[found.table.rows("n0")].tolist() == [20]
    found.check()


def test_the_members_of_a_gang_are_its_pods_by_name_and_no_others() -> None:
    ours = {names.GANG: "g"}
    found = state(
        *[("pods", pod(name, annotations=ours)) for name in ("c", "a", "b")],
        ("pods", pod("alone")),
        ("pods", pod("a", namespace="other", annotations=ours)),
    )
    assert [(one.pod.namespace, one.name) for one in found.members(("ml", "gang-g"))] == [
        ("ml", "a"), ("ml", "b"), ("ml", "c"),
    ]  # fmt: skip
    assert [one.name for one in found.members(("ml", "pod-alone"))] == ["alone"]
    assert found.members(("ml", "gang-unknown")) == []


def test_a_better_prediction_changes_what_the_running_pods_of_the_gang_count_for() -> None:
    found = state(
        ("gpunodes", gpu_node("n0", "g0")),
        ("pods", pod("a", memory=None, node_name="n0", devices="g0")),
    )
    assert found.gpus.exclusive.tolist()[:1] == [True], "nothing known: the whole GPU"
    found.upsert("gpujobs", gpu_job("pod-a", job_load=load(12, 4, 0.2)))
    row = found.table.rows("n0")[0]
    assert not found.gpus.exclusive[row]
    assert found.gpus.memory_base_gib[row] == pytest.approx(12)
    assert found.gpus.none_in_peak[row] == pytest.approx(0.8)
    found.check()


def test_a_demand_that_changes_counts_for_the_running_pods_of_the_gang() -> None:
    found = state(
        ("gpunodes", gpu_node("n0", "g0")),
        ("pods", pod("a", memory=None, node_name="n0", devices="g0")),
        ("gpujobs", gpu_job("pod-a", version=1)),
    )
    row = found.table.rows("n0")[0]
    assert found.gpus.exclusive[row]
    declared = gpu_job("pod-a", version=2)
    declared["spec"]["demand"] |= {"declaredMemoryBytes": 12 * GIB}
    found.upsert("gpujobs", declared)
    assert not found.gpus.exclusive[row]
    found.check()


def test_a_report_that_says_the_same_changes_no_row() -> None:
    found = state(
        ("gpunodes", gpu_node("n0", "g0", "g1")),
        ("pods", pod("a", node_name="n0", devices="g0")),
    )
    before = found.table.generation
    found.upsert("gpunodes", gpu_node("n0", "g0", "g1", observed_at_s=NOW + 1))
    assert found.table.generation == before
    taken = found.snapshot()
    found.upsert("gpunodes", gpu_node("n0", "g0", gpu("g1", 40)))
    assert not found.unchanged(taken, [1])
    assert found.gpus.memory_capacity_gib[found.table.rows("n0")].tolist() == [80, 40]


def test_reports_grow_stale_and_fresh_again() -> None:
    found = state(("gpunodes", gpu_node("n0", "g0")))
    found.tick(NOW + 150)
    assert found.gpus.fresh[found.table.rows("n0")].all()
    found.tick(NOW + 151)
    assert not found.gpus.fresh[found.table.rows("n0")].any()
    found.upsert("gpunodes", gpu_node("n0", "g0", observed_at_s=NOW + 151))
    assert found.gpus.fresh[found.table.rows("n0")].all()


def test_capacity_leaves_out_what_is_reserved_and_foreign_and_shares_are_capped() -> None:
    found = state(
        (
            "gpunodes",
            gpu_node(
                "n0",
                gpu("g0", 80, memoryReservedBytes=2**30, memoryForeignBytes=2**31, shares=7),
                gpu("g1", health="Quarantined", shares=1),
            ),
        )
    )
    rows = found.table.rows("n0")
    assert found.gpus.memory_capacity_gib[rows].tolist() == [77, 80]
    assert found.gpus.shares[rows].tolist() == [2, 1]
    assert found.gpus.healthy[rows].tolist() == [True, False]


def test_a_node_that_comes_back_takes_the_hole_of_its_like_and_sums_anew() -> None:
    bound = pod("a", node_name="n1", devices="x")
    found = state(
        ("gpunodes", gpu_node("n0", "a", "b")),
        ("gpunodes", gpu_node("n1", "x", "y")),
        ("pods", bound),
    )
    size = len(found.gpus)
    found.delete("gpunodes", gpu_node("n1"))
    found.upsert("gpunodes", gpu_node("n1", "x", "y", uid="again"))
    assert len(found.gpus) == size
    assert jobs(found, "n1") == [1, 0]
    found.upsert("gpunodes", gpu_node("n1", "x", "y", "z", uid="again"))
    assert jobs(found, "n1") == [1, 0, 0]
    assert found.snapshot().gpu_ids == ("a", "b", "x", "y", "z")
    found.check()


def test_the_live_view_is_read_only_and_a_snapshot_is_a_copy() -> None:
    found = state(("gpunodes", gpu_node("n0", "g0")))
    live, taken = found.gpus, found.snapshot()
    with pytest.raises(ValueError, match="read-only"):
        live.jobs[0] = 1
    found.upsert("pods", pod("a", node_name="n0", devices="g0"))
    assert live.jobs[0] == 1
    assert taken.gpus.jobs[0] == 0
    assert not found.unchanged(taken, [0])
    assert found.unchanged(found.snapshot(), [0])


def test_pods_of_everybody_use_up_a_node() -> None:
    found = state(
        ("nodes", node("n0", cpu="4")),
        ("gpunodes", gpu_node("n0", "g0")),
        ("gpunodes", gpu_node("n1", "g1")),
        ("pods", pod("web", gpus=0, node_name="n0", cpu="2500m")),
    )
    asks = pod_info(pod("new", cpu="1500m"))
    assert found.eligible_nodes(asks).tolist() == [True, False], "n1 has an agent but no Node"
    found.upsert("gpujobs", gpu_job("pod-b", plan=[("b", "n0", ["g0"])]))
    found.upsert("pods", pod("b", uid="b", cpu="1"))
    assert found.eligible_nodes(asks).tolist() == [False, False], "planned pods count"


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        ({}, False),
        ({"tolerations": [{"key": "tandem.gpu/gpu", "operator": "Exists"}]}, True),
        ({"tolerations": [{"operator": "Exists"}]}, True),
        ({"tolerations": [{"key": "tandem.gpu/gpu", "value": "no"}]}, False),
        ({"tolerations": [{"operator": "Exists"}], "nodeSelector": {"zone": "b"}}, False),
        ({"tolerations": [{"operator": "Exists"}], "nodeSelector": {"zone": "a"}}, True),
    ],
)
def test_taints_and_selectors_are_heeded(spec: dict, fits: bool) -> None:
    taint = {"key": "tandem.gpu/gpu", "effect": "NoSchedule"}
    found = state(
        ("nodes", node("n0", taints=[taint], labels={"zone": "a"})),
        ("gpunodes", gpu_node("n0", "g0")),
    )
    assert found.eligible_nodes(pod_info(pod("p", **spec))).tolist() == [fits]
    found.upsert("nodes", node("n0", taints=[taint], labels={"zone": "a"}, unschedulable=True))
    assert found.eligible_nodes(pod_info(pod("p", **spec))).tolist() == [False]


@pytest.mark.parametrize(
    ("operator", "values", "fits"),
    [
        ("In", ["a", "b"], True),
        ("NotIn", ["a"], False),
        ("Exists", [], True),
        ("DoesNotExist", [], False),
        ("Gt", ["1"], False),
    ],
)
def test_required_node_affinity_is_heeded(operator: str, values: list[str], fits: bool) -> None:
    found = state(("nodes", node("n0", labels={"zone": "a"})), ("gpunodes", gpu_node("n0", "g0")))
    term = {"matchExpressions": [{"key": "zone", "operator": operator, "values": values}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    asks = pod_info(pod("p", affinity={"nodeAffinity": required}))
    assert found.eligible_nodes(asks).tolist() == [fits]


NAMES, GPUS, NODES = ("a", "b", "c", "d"), ("g0", "g1", "g2"), ("n0", "n1")


class AnyOrder(RuleBasedStateMachine):
    """Events come late, twice, or out of order; what is believed equals what a rebuild believes."""

    def __init__(self) -> None:
        super().__init__()
        self.live = ClusterState(now_s=NOW)
        self.now = NOW
        self.version = 0
        self.truth: dict[tuple[str, str], dict] = {}
        self.sent: list[tuple[float, str, dict]] = []  # with the time of sending
        self.gone: list[tuple[str, dict, float]] = []  # with when it was last sent
        self.births = Counter[str]()

    @initialize()
    def two_nodes_report(self) -> None:
        for name in NODES:
            self.send("gpunodes", gpu_node(name, *GPUS))

    def send(self, kind: str, obj: dict) -> None:
        self.version += 1
        known = self.truth.get((kind, obj["metadata"]["name"]))
        if known is None:
            self.births[kind] += 1
        uid = f"u{self.births[kind]}" if kind == "pods" else f"{kind}-{self.births[kind]}"
        obj["metadata"]["uid"] = known["metadata"]["uid"] if known else uid
        obj["metadata"]["resourceVersion"] = str(self.version)
        self.truth[kind, obj["metadata"]["name"]] = obj
        self.sent.append((self.now, kind, obj))
        self.live.upsert(kind, obj)

    @rule(
        name=st.sampled_from(NAMES),
        where=st.sampled_from(("", *NODES)),
        devices=st.lists(st.sampled_from(GPUS), max_size=3),
        phase=st.sampled_from(("Pending", "Running", "Running", "Failed")),
        known=st.booleans(),
    )
    def pod_changes(self, name, where, devices, phase, known) -> None:
        memory = "10Gi" if known else None
        self.send(
            "pods",
            pod(name, node_name=where, devices=",".join(devices), phase=phase, memory=memory),
        )

    @rule(
        name=st.sampled_from(NODES),
        gpus=st.sets(st.sampled_from(GPUS)),
        shares=st.integers(0, 3),
        age=st.sampled_from((0, 140, 200)),
    )
    def agent_reports(self, name, gpus, shares, age) -> None:
        reported = [gpu(g, shares=shares) for g in sorted(gpus)]
        self.send("gpunodes", gpu_node(name, *reported, observed_at_s=self.now - age))

    @rule(
        name=st.sampled_from(NAMES),
        who=st.integers(1, 12),
        where=st.sampled_from(NODES),
        gpus=st.sets(st.sampled_from(GPUS), min_size=1),
        until=st.sampled_from((-1, 5, 50)),
        p=st.sampled_from((0.0, 0.2, 1.0)),
    )
    def job_changes(self, name, who, where, gpus, until, p) -> None:
        plan = [(f"u{who}", where, sorted(gpus))]
        self.send(
            "gpujobs",
            gpu_job(f"pod-{name}", plan=plan, deadline_s=self.now + until, job_load=load(9, 1, p)),
        )

    @rule(choose=st.randoms(use_true_random=False))
    def something_goes(self, choose) -> None:
        if self.truth:
            kind, name = choose.choice(sorted(self.truth))
            obj = self.truth.pop((kind, name))
            self.gone.append((kind, obj, self.now))
            self.live.delete(kind, obj)

    @rule(choose=st.randoms(use_true_random=False))
    def something_old_comes_again(self, choose) -> None:
        # No answer of the API server takes longer than deleted objects are remembered.
        late = [event for sent_s, *event in self.sent if sent_s >= self.now - GRAVES_S]
        if late:
            self.live.upsert(*choose.choice(late))
        if self.gone:
            index = choose.randrange(len(self.gone))
            kind, obj, sent_s = self.gone[index]
            if sent_s < self.now - GRAVES_S:  # forgotten since, and now news again
                self.gone[index] = (kind, obj, self.now)
            self.live.delete(kind, obj)

    @rule(seconds=st.sampled_from((1, 10, 160, 601)))
    def time_passes(self, seconds) -> None:
        self.now += seconds
        self.live.tick(self.now)

    @invariant()
    def it_equals_a_rebuild(self) -> None:
        self.live.check()
        rebuilt = ClusterState(now_s=self.now)
        for kind, obj, sent_s in self.gone:
            if sent_s >= self.now - GRAVES_S:
                rebuilt.delete(kind, obj)
        for (kind, _), obj in sorted(self.truth.items(), key=lambda item: item[0]):
            rebuilt.upsert(kind, obj)
        assert picture(self.live) == picture(rebuilt)


AnyOrder.TestCase.settings = settings(max_examples=50, stateful_step_count=25)
TestAnyOrder = pytest.mark.slow(AnyOrder.TestCase)


def test_a_picture_of_the_nodes_answers_by_the_number_of_a_pod() -> None:
    found = state(
        ("nodes", node("n0", cpu="2")),
        ("nodes", node("n1", cpu="64")),
        ("gpunodes", gpu_node("n0", "g0")),
        ("gpunodes", gpu_node("n1", "g1")),
        ("pods", pod("there", node_name="n1", devices="g1", cpu="63")),
    )
    asks = {3: pod_info(pod("small", cpu="1")), 7: pod_info(pod("large", cpu="4"))}
    shown = found.nodes_picture({number: (info,) for number, info in asks.items()})
    assert shown.eligible(3).tolist() == [True, True]
    assert shown.eligible(7).tolist() == [False, False]
    assert shown.capable(7).tolist() == [False, True]
    for number, info in asks.items():
        assert found.eligible_nodes(info).tolist() == shown.eligible(number).tolist()


def test_a_worker_has_as_many_gpus_as_its_pod_asks_for() -> None:
    found = state(("gpujobs", gpu_job("pod-a", gpus_per_pod=1)))
    assert found.worker(pod_info(pod("a", 4))).gpus_per_pod == 4
    assert found.worker(pod_info(pod("unknown", 2))).gpus_per_pod == 2


def test_a_job_past_its_shares_still_counts_in_the_sums() -> None:
    found = state(
        ("gpunodes", gpu_node("n0", "g0")),
        *[("pods", pod(f"p{i}", node_name="n0", devices="g0")) for i in range(3)],
    )
    assert jobs(found) == [3]
    assert found.gpus.memory_base_gib[0] == pytest.approx(30)
    assert np.array_equal(found.gpus.residents.shape, (1, 2))
    assert isinstance(found.worker(pod_info(pod("x"))), Job)


def test_pods_that_arrive_before_their_nodes_are_all_counted() -> None:
    """Pods and nodes are listed at the same time; a pod may come first, on any number of nodes."""
    state = ClusterState(now_s=NOW)
    for number in range(300):
        state.upsert("pods", pod(f"p{number}", node_name=f"n{number}", devices="a"))
    assert len(state.nodes.uses()) == 300
    state.check()


# --- rows of nodes that come and go -----------------------------------------------------------


@pytest.mark.parametrize("shares", [1, 2, 3])
def test_rows_beyond_the_first_buffers_take_no_job_until_their_node_says_so(shares: int) -> None:
    many = [f"g{number:03}" for number in range(200)]
    nodes = [gpu_node(f"n{i}", *many[50 * i : 50 * (i + 1)]) for i in range(4)]
    nodes.append(gpu_node("n4", "a"))
    found = state(*(("gpunodes", each) for each in nodes), max_jobs_per_gpu=shares)
    healthy = found.table.writable["healthy"]
    assert found.table.writable["residents"].shape[1] == found.gpus.residents.shape[1] == shares
    assert healthy[:201].all()
    assert not healthy[201:].any()
    assert not found.table.writable["fresh"][201:].any()


def test_the_layout_changes_whenever_a_node_goes() -> None:
    found = state(*(("gpunodes", gpu_node(f"n{n}", f"g{n}")) for n in range(3)))
    seen = [found.table.layout]
    for n in range(3):
        found.delete("gpunodes", gpu_node(f"n{n}", f"g{n}"))
        seen.append(found.table.layout)
    assert sorted(set(seen)) == seen
