"""The gates and the choice of victims on their own: what is written, and what is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from queue_builders import gang, pod, raw_pod

from scheduler_extender.cluster.gang_index import Gangs
from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.parsing import parse_gpu_job, parse_pod
from scheduler_extender.cluster.pods import pod_info
from scheduler_extender.cluster.records import GpuJobRecord
from scheduler_extender.cluster.workloads import ENDLESS
from scheduler_extender.cluster.writes import Writer
from scheduler_extender.config import QueueConfig
from scheduler_extender.queue.pods.gates import Gates
from scheduler_extender.queue.pods.preemption import BUDGETS, Preempter
from scheduler_extender.queue.steps.decisions import OVERDUE, method_of
from scheduler_extender.queue.steps.effects import (
    Effects,
    EvictPods,
    Executor,
    Owners,
    ReadWorkload,
    Suspend,
)
from scheduler_extender.queue.steps.lifecycle import LEAVES_WITHIN_S
from tandem.contracts import names
from tandem.contracts.resources import Phase, Plan, PodPlan
from tandem.kube.errors import (
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    TooManyRequests,
)
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_JOBS, JOBS, PODS
from tandem.reasons.causes import Cause, Reason
from tandem.reasons.words import in_full, sentence

NOW = 1_800_000_000.0
FOREIGN = {"name": "example.com/data-is-there"}


class Recording(MemoryCluster):
    """An API server in memory that notes the patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches: list[tuple[str, dict]] = []
        self.refuses_nominations: KubeError | None = None

    def patch(self, resource: Any, name: str, body: Any, *args: Any, **kwargs: Any) -> Any:
        status = kwargs.get("subresource") == "status"
        self.patches.append((f"{name}/status" if status else name, body))
        if status and self.refuses_nominations:
            raise self.refuses_nominations
        return super().patch(resource, name, body, *args, **kwargs)


def done(work: Awaitable[object] | None) -> bool:
    """Do the work, if there is any; say whether there was."""
    if work is None:
        return False

    async def do() -> None:
        await work

    asyncio.run(do())
    return True


class Picture:
    """Takes in what was written, as the live state does."""

    def apply(self, kind: str, record: object) -> None:
        self.last = kind, record

    def held(self, kind: str, raw: Any) -> None:
        return None


class Gate:
    """A planned gang of one pod on the API server, and the gates."""

    def __init__(self, *, gates: list[dict] | None = None, hold: bool = False, **plan: Any) -> None:
        self.now = NOW
        self.api = Recording()
        raw = raw_pod("p", gated=False)
        ours = [{"name": names.SCHEDULING_GATE}]
        raw["spec"]["schedulingGates"] = ours if gates is None else gates
        self.stored = self.api.create(PODS, raw, "default")
        self.writer = Writer(self.api, Picture(), lambda *_: None, lambda: self.now)  # type: ignore[arg-type]
        self.gangs = Gangs(lambda: self.now)
        self.gates = Gates(Executor(self.writer, lambda: self.now), self.gangs, lambda: self.now)
        uid = self.stored["metadata"]["uid"]
        places = [PodPlan(pod="p", uid=plan.get("uid", uid), node="n0", gpus=["g0"])]
        made = Plan(made_at=rfc3339(NOW), deadline=rfc3339(NOW + 30), pods=places)
        info = pod_info(self.stored)
        self.gang = gang(info, phase=Phase.ADMITTED, plan=made if plan.get("made", True) else None)
        if hold:
            held = replace_spec(self.gang.record, hold=True)
            self.gang = Gang(self.gang.key, held, {info.uid: info})
        self.gang.put(info)

    def step(self) -> bool:
        """Do what is due; say whether anything was."""
        return done(self.gates.step(self.gang))

    def seen(self) -> None:
        """Let the gang know the pod as the API server has it."""
        self.gang.put(pod_info(self.api.get(PODS, "p", "default")))

    def plan(self, made: Plan | None) -> None:
        """Give the gang another plan, or none."""
        assert self.gang.record is not None
        status = self.gang.record.status.model_copy(update={"plan": made})
        record = replace(self.gang.record, status=status)
        self.gang = Gang(self.gang.key, record, self.gang.pods)

    def later_plan(self, node: str) -> Plan:
        """Return a plan of now with another node."""
        (place,) = self.gang.job.plan
        places = [place.model_copy(update={"node": node})]
        made_at, deadline = rfc3339(self.now), rfc3339(self.now + 30)
        return Plan(made_at=made_at, deadline=deadline, pods=places)

    def nominated(self) -> str:
        return self.api.get(PODS, "p", "default").get("status", {}).get("nominatedNodeName", "")

    def left(self) -> list[dict]:
        return self.api.get(PODS, "p", "default")["spec"].get("schedulingGates") or []


def replace_spec(record: GpuJobRecord | None, **changes: Any) -> GpuJobRecord:
    assert record is not None
    return replace(record, spec=record.spec.model_copy(update=changes))


# --- gates --------------------------------------------------------------------------------------


def test_a_planned_pod_is_nominated_then_opened_by_writes_that_name_it_exactly() -> None:
    gate = Gate()
    assert gate.step()
    (first, nomination), (second, opening) = gate.api.patches
    metadata = gate.stored["metadata"]
    assert (first, second) == ("p/status", "p")
    exact = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
    assert nomination == {"metadata": exact, "status": {"nominatedNodeName": "n0"}}
    assert opening["metadata"]["uid"] == metadata["uid"]
    after_the_first = str(int(metadata["resourceVersion"]) + 1)
    assert opening["metadata"]["resourceVersion"] == after_the_first
    fixed = {names.GPU_JOB: "pod-p"}  # by the same write
    assert opening["metadata"]["annotations"] == {names.WAKE: rfc3339(NOW)} | fixed
    assert gate.left() == []
    assert gate.nominated() == "n0"


def test_a_pod_that_was_nominated_before_a_crash_is_only_opened() -> None:
    gate = Gate()
    gate.api.patch(
        PODS, "p", {"status": {"nominatedNodeName": "n0"}}, "default", subresource="status"
    )
    gate.seen()
    gate.api.patches.clear()
    assert gate.step()
    assert [name for name, _ in gate.api.patches] == ["p"]
    assert gate.left() == []


def test_a_nomination_of_somebody_else_gives_way_to_the_planned_node() -> None:
    gate = Gate()
    gate.api.patch(
        PODS, "p", {"status": {"nominatedNodeName": "n9"}}, "default", subresource="status"
    )
    gate.seen()
    assert gate.step()
    assert gate.nominated() == "n0"


@pytest.mark.parametrize("error", [Invalid(422, "no"), Forbidden(403, "no")])
def test_a_gate_opens_where_the_node_may_not_be_nominated(error: KubeError) -> None:
    gate = Gate()
    gate.api.refuses_nominations = error
    assert gate.step()
    assert gate.left() == []
    assert gate.nominated() == ""


def test_an_open_pod_gets_the_node_of_its_next_plan_by_one_write() -> None:
    gate = Gate()
    assert gate.step()
    gate.seen()
    gate.now += 10
    gate.plan(gate.later_plan("n1"))
    gate.api.patches.clear()
    assert gate.step()
    assert [name for name, _ in gate.api.patches] == ["p/status"]
    assert gate.nominated() == "n1"
    gate.seen()
    assert not gate.step()


def test_a_nomination_ends_with_its_plan() -> None:
    gate = Gate()
    assert gate.step()
    gate.seen()
    gate.now += 30
    gate.api.patches.clear()
    assert gate.step()
    ((name, body),) = gate.api.patches
    assert (name, body["status"]) == ("p/status", {"nominatedNodeName": None})
    assert gate.nominated() == ""
    gate.seen()
    assert not gate.step()


@pytest.mark.parametrize("made", [True, False], ids=["gated", "open"])
def test_a_pod_without_a_plan_keeps_no_nomination(made: bool) -> None:
    gate = Gate(made=False, **({} if made else {"gates": []}))
    gate.api.patch(
        PODS, "p", {"status": {"nominatedNodeName": "n9"}}, "default", subresource="status"
    )
    gate.seen()
    assert gate.step()
    assert gate.nominated() == ""
    assert gate.left() == ([{"name": names.SCHEDULING_GATE}] if made else [])


def test_a_nomination_that_may_not_be_cleared_is_tried_once_for_each_version() -> None:
    gate = Gate()
    assert gate.step()
    gate.seen()
    gate.now += 30
    gate.api.refuses_nominations = Forbidden(403, "no")
    assert gate.step()
    assert not gate.step()
    gate.api.patch(PODS, "p", {"metadata": {"labels": {"a": "b"}}}, "default")
    gate.seen()
    assert gate.step()


def test_a_nomination_of_kube_scheduler_s_under_a_live_plan_is_left_alone() -> None:
    gate = Gate()
    assert gate.step()
    gate.api.patch(
        PODS, "p", {"status": {"nominatedNodeName": "n1"}}, "default", subresource="status"
    )
    gate.seen()
    assert not gate.step()


def test_a_pod_that_changed_since_is_not_written() -> None:
    gate = Gate()
    gate.api.patch(PODS, "p", {"metadata": {"labels": {"a": "b"}}}, "default")
    with pytest.raises(Conflict):
        gate.step()
    assert gate.left() == [{"name": names.SCHEDULING_GATE}]


@pytest.mark.parametrize("order", [1, -1])
def test_gates_of_other_controllers_stay_and_keep_ours_closed(order: int) -> None:
    both = [{"name": names.SCHEDULING_GATE}, FOREIGN][::order]
    gate = Gate(gates=both)
    assert not gate.step()
    assert gate.left() == both
    assert gate.api.patches == []


@pytest.mark.parametrize(
    "setup",
    [{"hold": True}, {"uid": "another"}, {"made": False}],
    ids=["on-hold", "plan-of-another-pod", "no-plan"],
)
def test_the_gate_stays_closed(setup: dict) -> None:
    gate = Gate(**setup)
    assert not gate.step()
    assert gate.left() == [{"name": names.SCHEDULING_GATE}]
    assert gate.gates.refusal(next(iter(gate.gang.pods.values()))) != ""


@pytest.mark.parametrize(("passed_s", "opens"), [(29.9, True), (30.0, False), (31.0, False)])
def test_a_plan_opens_gates_until_its_deadline(passed_s: float, opens: bool) -> None:
    gate = Gate()
    gate.now += passed_s
    assert gate.step() is opens
    assert (gate.left() == []) is opens


def test_a_withdrawn_plan_opens_nothing() -> None:
    gate = Gate()
    gate.gates.withdrawn = {(gate.gang.key, rfc3339(NOW)): "exceeds the quota"}
    assert not gate.step()
    gate.gates.withdrawn = {(gate.gang.key, rfc3339(NOW - 60)): "an earlier plan did"}
    assert gate.step()


def test_a_pod_that_was_woken_for_this_plan_is_not_written_again() -> None:
    gate = Gate()
    assert gate.step()
    gate.gang.put(pod_info(gate.api.get(PODS, "p", "default")))
    assert not gate.step()


def test_a_planned_pod_that_is_bound_already_is_not_written() -> None:
    gate = Gate(gates=[])
    gate.api.bind("default", "p", "n0", uid=gate.stored["metadata"]["uid"])
    gate.gang.put(pod_info(gate.api.get(PODS, "p", "default")))
    assert not gate.step()
    assert gate.api.patches == []


def test_an_open_pod_is_woken_for_its_plan_and_its_gates_are_not_touched() -> None:
    gate = Gate()
    assert gate.step()
    gate.seen()
    gate.now += 10
    gate.plan(gate.later_plan("n0"))
    assert gate.step()
    body = gate.api.patches[-1][1]
    assert body["metadata"]["annotations"][names.WAKE] == rfc3339(gate.now)
    assert "spec" not in body


@pytest.mark.parametrize("error", [Invalid(422, "no"), Forbidden(403, "no")])
def test_a_pod_whose_gate_may_not_be_removed_gets_an_event_and_ends_no_cycle(
    error: KubeError,
) -> None:
    gate = Gate()
    said: list[tuple[str, str]] = []
    gate.writer._tell = lambda _, reason, note, kind: said.append((reason, note))

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    gate.api.patch = refuse  # type: ignore[method-assign]
    assert gate.step()
    assert said == [("GateNotRemoved", str(error))]


def test_the_answer_of_an_opened_gate_is_taken_in_at_once() -> None:
    gate = Gate()
    assert gate.step()
    stored = gate.api.get(PODS, "p", "default")["metadata"]
    kind, record = gate.writer._state.last
    assert (kind, record.resource_version) == ("pods", stored["resourceVersion"])


def test_a_pod_of_which_no_job_is_known_may_not_be_bound() -> None:
    gate = Gate()
    info = next(iter(gate.gang.pods.values()))
    assert "has not seen the pod yet" in gate.gates.refusal(info)
    gate.gangs.observe(parse_pod(gate.stored))
    assert "has not seen the pod yet" in gate.gates.refusal(info), "its GPUJob is not there yet"


# --- who may be preempted -------------------------------------------------------------------------


def runs(kind: str = "Job", *, checkpoint: bool = True, **more: Any) -> Gang:
    """A gang that has run since NOW - 100 s, on the workload `kind`."""
    status = {"running_since": rfc3339(NOW - 100), **more.pop("status", {})}
    holder = bound("p", **more)
    made = gang(holder, phase=more.get("phase", Phase.RUNNING), **status)
    assert made.record is not None
    spec = made.record.spec
    workload = spec.workload.model_copy(update={"kind": kind, "api_version": version(kind)})
    demand = spec.demand.model_copy(update={"checkpoint": checkpoint})
    record = replace(
        made.record, spec=spec.model_copy(update={"workload": workload, "demand": demand})
    )
    return Gang(made.key, record, {holder.uid: holder})


def version(kind: str) -> str:
    known = {
        "Job": "batch/v1",
        "JobSet": "jobset.x-k8s.io/v1alpha2",
        "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
        "RayCluster": "ray.io/v1",
    }
    return known.get(kind, "apps/v1")


def bound(name: str, *, deleting: bool = False, **_: Any) -> Any:
    notes = {names.VISIBLE_DEVICES: "g0", names.CHECKPOINT: "true"}
    raw = raw_pod(name, nodeName="n0", annotations=notes, gated=False)
    raw["metadata"] |= {"uid": f"uid-{name}", "resourceVersion": "1"}
    if deleting:
        raw["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    raw["status"] = {"phase": "Running"}
    return pod_info(raw)


def without_pods(of: Gang) -> Gang:
    return Gang(of.key, of.record, {})


def gives_way_s(of: Gang, **settings: Any) -> float:
    chosen = {"min_run_s": 0.0, "max_preemptions_per_hour": 4, **settings}
    api = MemoryCluster()
    writer = Writer(api, Picture(), lambda *_: None, lambda: NOW)  # type: ignore[arg-type]
    executor = Executor(writer, lambda: NOW)
    return Preempter(writer, executor, QueueConfig(**chosen), lambda: NOW).gives_way_s(of)


def test_a_running_job_that_saves_its_state_may_be_preempted_after_its_minimum_run() -> None:
    assert gives_way_s(runs()) == NOW - 100
    assert gives_way_s(runs(), min_run_s=300.0) == NOW + 200
    # The run counts from when it came back, not from its first start.
    back = runs(status={"started_at": rfc3339(NOW - 5000)})
    assert gives_way_s(back, min_run_s=300.0) == NOW + 200


@pytest.mark.parametrize("kind", sorted(ENDLESS))
def test_services_and_notebooks_are_never_preempted(kind: str) -> None:
    assert gives_way_s(runs(kind)) == float("inf")


def test_the_kinds_without_an_end_are_these() -> None:
    assert {"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Notebook"} <= ENDLESS
    assert ENDLESS.isdisjoint({"Job", "JobSet", "Pod", "PyTorchJob", "MPIJob"})


@pytest.mark.parametrize(
    "of",
    [
        lambda: runs(checkpoint=False),
        lambda: runs(phase=Phase.SUSPENDED),
        lambda: runs(phase=Phase.PREEMPTING),
        lambda: runs(status={"running_since": None}),
        lambda: runs("Pod"),
        lambda: without_pods(runs()),
    ],
    ids=[
        "saves-nothing",
        "suspended",
        "preempting",
        "not-begun",
        "no-new-pods",
        "no-pods",
    ],
)
def test_others_are_never_preempted(of: Any) -> None:
    assert gives_way_s(of()) == float("inf")


def test_a_gang_of_which_a_pod_goes_already_is_left_alone_until_it_should_be_gone() -> None:
    assert gives_way_s(runs(deleting=True)) == NOW + LEAVES_WITHIN_S


@pytest.mark.parametrize(
    ("ago_s", "most", "earliest"),
    [
        ([], 1, -100),
        ([1000], 1, 2600),  # the cap ends an hour after that preemption
        ([1000], 2, -100),
        ([3000, 1000], 2, 600),
        ([9000, 8000, 1000], 2, -100),  # only one within the hour
        ([3599], 1, 1),
        ([3701], 1, -100),
        ([2000, 1000, 500], 2, 2600),
        ([100], 0, float("inf")),
        ([], 0, float("inf")),
    ],
)
def test_a_job_is_preempted_so_often_an_hour_at_most(
    ago_s: list[float], most: int, earliest: float
) -> None:
    before = [rfc3339(NOW - each) for each in ago_s]
    of = runs(status={"preempted_at": before})
    assert gives_way_s(of, max_preemptions_per_hour=most) == NOW + earliest


def test_a_pod_that_took_the_name_of_a_victim_is_not_evicted() -> None:
    api = MemoryCluster()
    api.create(PODS, raw_pod("p", gated=False), "default")
    writer = Writer(api, Picture(), lambda *_: None, lambda: NOW)  # type: ignore[arg-type]
    victim = bound("p")
    with pytest.raises(Conflict):
        asyncio.run(Executor(writer, lambda: NOW).carry_out(gang(victim), (EvictPods((victim,)),)))
    assert [pod["metadata"]["name"] for pod in api.list(PODS)] == ["p"]


# --- giving up GPUs -------------------------------------------------------------------------------


class Noting(MemoryCluster):
    """An API server that notes the writes in order, and may refuse to list budgets."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []
        self.refuses: KubeError | None = None

    def replace(self, resource: Any, *args: Any, **kwargs: Any) -> Any:
        self.writes.append(f"replace {resource.plural}")
        return super().replace(resource, *args, **kwargs)

    def patch(self, resource: Any, *args: Any, **kwargs: Any) -> Any:
        self.writes.append(f"patch {resource.plural}")
        return super().patch(resource, *args, **kwargs)

    def evict(self, namespace: str, pod: str, **kwargs: Any) -> None:
        self.writes.append(f"evict {pod}")
        super().evict(namespace, pod, **kwargs)

    def list(self, resource: Any, *args: Any, **kwargs: Any) -> Any:
        if resource == BUDGETS and self.refuses:
            raise self.refuses
        return super().list(resource, *args, **kwargs)


NEEDED = Cause(Reason.NEEDED, job="default/new")


class Going:
    """A Job of one pod that runs, and the preempter."""

    def __init__(self, *, kind: str = "Job", labels: dict[str, str] | None = None) -> None:
        self.now = NOW
        self.api = Noting()
        body = {"metadata": {"name": "j"}, "spec": {}}
        uid = self.api.create(JOBS, body, "default")["metadata"]["uid"]
        raw = raw_pod("p", gated=False, labels=labels, nodeName="n0")
        raw["metadata"]["annotations"] = {names.VISIBLE_DEVICES: "g0"}
        raw["status"] = {"phase": "Running"}
        stored = self.api.create(PODS, raw, "default")
        made = runs(kind)
        assert made.record is not None
        workload = made.record.spec.workload.model_copy(update={"uid": uid})
        spec = made.record.spec.model_copy(update={"workload": workload})
        created = self.api.create(
            GPU_JOBS,
            {
                "metadata": {"name": made.record.name},
                "spec": spec.wire(),
                "status": made.record.status.wire(),
            },
            "default",
        )
        self.pod = pod_info(stored)
        self.gang = Gang(made.key, parse_gpu_job(created), {self.pod.uid: self.pod})
        self.said: list[tuple[str, str, str]] = []
        writer = Writer(
            self.api,
            self,  # type: ignore[arg-type]
            lambda _, reason, note, kind: self.said.append((reason, note, kind)),
            lambda: self.now,
        )
        executor = Executor(writer, lambda: self.now)
        self.preempter = Preempter(writer, executor, QueueConfig(), lambda: self.now)

    def held(self, kind: str, raw: Any) -> None:
        return None

    def apply(self, kind: str, record: Any) -> None:
        """Take in what was written, as the live state does."""
        if kind == "gpujobs":
            self.gang.record = record

    def budget(self, name: str, allowed: int, selector: dict[str, Any], namespace: str) -> None:
        body = {
            "metadata": {"name": name},
            "spec": {"selector": selector},
            "status": {"disruptionsAllowed": allowed},
        }
        self.api.create(BUDGETS, body, namespace)

    def leave(self) -> bool:
        async def do() -> bool:
            return await self.preempter.leave(self.gang, NEEDED)

        return asyncio.run(do())

    def suspended(self) -> bool:
        return bool(self.api.get(JOBS, "j", "default")["spec"].get("suspend"))


@pytest.mark.parametrize("asks", [ReadWorkload, partial(Suspend, True)])
def test_an_answer_that_comes_after_the_gpujob_was_deleted_decides_nothing(
    asks: Callable[..., ReadWorkload | Suspend],
) -> None:
    going, decided = Going(), []

    def then(answer: object, _: float) -> Effects:
        decided.append(answer)
        return ()

    async def ask(*, deleted: bool) -> None:
        carried = asyncio.create_task(
            going.preempter._executor.carry_out(going.gang, (asks(then),))
        )
        await asyncio.sleep(0)  # the request is under way
        if deleted:
            going.gang.record = None
        await carried

    asyncio.run(ask(deleted=False))
    assert len(decided) == 1
    asyncio.run(ask(deleted=True))
    assert len(decided) == 1


def test_the_intention_is_written_before_the_owner_is_asked_and_both_at_once() -> None:
    going = Going()
    assert going.leave()
    assert going.api.writes == ["replace gpujobs", "patch jobs"]
    assert going.suspended()
    status = going.api.get(GPU_JOBS, going.gang.key[1], "default")["status"]
    assert status["phase"] == "Preempting"


@pytest.mark.parametrize(
    "error", [Forbidden(403, "no"), NotFound(404, "no such resource"), Invalid(422, "no")]
)
def test_no_job_is_preempted_while_budgets_cannot_be_read(error: KubeError) -> None:
    going = Going()
    going.api.refuses = error
    assert not going.leave()
    assert going.api.writes == []
    assert going.preempter.spared(going.gang.key)
    # The owner's status names it, and others of that namespace's budgets without a name.
    reported = going.preempter.spared_causes()
    assert str(error) in in_full(reported(("default", "waits")))
    assert str(error) not in in_full(reported(("other", "waits")))
    going.now += 60
    assert not going.preempter.spared(going.gang.key)


@pytest.mark.parametrize(
    ("allowed", "selector", "namespace", "goes"),
    [
        (0, {"matchLabels": {"app": "train"}}, "default", False),
        (1, {"matchLabels": {"app": "train"}}, "default", True),
        (0, {"matchLabels": {"app": "web"}}, "default", True),
        (0, {"matchLabels": {"app": "train"}}, "other", True),
    ],
    ids=["none-left", "one-left", "of-other-pods", "of-another-namespace"],
)
def test_a_budget_counts_for_the_pods_that_it_selects_in_its_namespace(
    allowed: int, selector: dict, namespace: str, goes: bool
) -> None:
    going = Going(labels={"app": "train"})
    going.budget("fine", 5, {"matchLabels": {"app": "train"}}, "default")
    going.budget("zz", allowed, selector, namespace)
    assert going.leave() is goes
    assert going.suspended() is goes


def test_one_that_a_budget_protects_is_left_alone_for_a_while_and_then_looked_at_again() -> None:
    going = Going(labels={"app": "train"})
    going.budget("b", 0, {"matchLabels": {"app": "train"}}, "default")
    assert not going.leave()
    assert not going.preempter.expire()
    going.now += 59.9
    assert going.preempter.spared(going.gang.key)
    (why,) = going.preempter.spared_causes()(("default", "waits"))
    assert "disruption budget b allows 0 disruptions, 1 pod of" in sentence(why)
    assert not going.preempter.expire()
    going.now += 0.1
    assert not going.preempter.spared(going.gang.key)
    assert going.preempter.expire()
    assert not going.preempter.expire(), "said once"
    going.preempter.forget(going.gang.key)
    assert going.preempter.spared_causes()(("default", "waits")) == ()


def test_what_was_asked_for_without_effect_is_asked_for_again_after_a_while() -> None:
    going = Going()
    going.leave()

    def step() -> bool:
        return done(going.preempter.step(going.gang))

    going.api.writes.clear()
    going.now += 4.9
    assert not step()
    going.now += 0.2
    assert step()
    assert going.api.writes == ["patch jobs"], "its pods are not evicted yet"
    going.now += 60
    assert step()
    assert going.api.writes[-1] == "evict p"


def test_pods_that_go_already_are_not_asked_again() -> None:
    going = Going()
    going.leave()
    going.gang.put(replace(going.pod, deleting=True))
    going.now += 3600
    going.gang.record = replace(
        going.gang.record,
        status=going.gang.record.status.model_copy(update={"reason": OVERDUE}),
    )
    assert going.preempter.step(going.gang) is None


def test_a_gang_goes_with_its_pods_on_their_way_and_without_those_that_are_gated() -> None:
    going = Going(kind="LeaderWorkerSet")
    for name, gated in (("on-its-way", False), ("gated", True)):
        stored = going.api.create(PODS, raw_pod(name, gated=gated), "default")
        going.gang.put(pod_info(stored))
    going.leave()
    assert set(going.api.writes) == {"replace gpujobs", "evict p", "evict on-its-way"}


@pytest.mark.parametrize(
    ("name", "kind", "method"),
    [
        ("job-j", "Job", "suspend"), ("jobset-j", "JobSet", "suspend"), ("gang-g", "Job", "evict"),
        ("group-g", "Job", "evict"), ("raycluster-j", "RayCluster", "suspend"),
        ("leaderworkerset-j", "LeaderWorkerSet", "evict"), ("pod-p", "Pod", ""),
    ],
)  # fmt: skip
def test_how_a_gang_is_made_to_give_up_its_gpus(name: str, kind: str, method: str) -> None:
    made = runs(kind).record
    assert made is not None
    if kind == "Pod":
        workload = made.spec.workload.model_copy(update={"api_version": "v1"})
        made = replace_spec(made, workload=workload)
    assert method_of(replace(made, name=name)) == method


def test_an_owner_that_cannot_rest_has_its_pods_evicted() -> None:
    going = Going(kind="LeaderWorkerSet")
    going.leave()
    assert going.api.writes == ["replace gpujobs", "evict p"]
    assert not going.suspended()


def test_a_pod_that_a_budget_keeps_from_eviction_gets_an_event_and_the_others_go() -> None:
    going = Going(kind="LeaderWorkerSet")

    def refuse(*_: Any, **__: Any) -> None:
        raise TooManyRequests(429, "the budget allows no disruption")

    going.api.evict = refuse  # type: ignore[method-assign]
    assert going.leave()
    assert going.said == [("NotPreempted", "the budget allows no disruption", "Warning")]


# --- owners ---------------------------------------------------------------------------------------


def owned(uid: str, api: MemoryCluster) -> tuple[Owners, GpuJobRecord]:
    made = gang(pod("p"))
    assert made.record is not None
    workload = made.record.spec.workload.model_copy(update={"uid": uid})
    writer = Writer(api, Picture(), lambda *_: None, lambda: NOW)  # type: ignore[arg-type]
    return Owners(writer), replace_spec(made.record, workload=workload)


def test_the_owner_is_suspended_and_resumed() -> None:
    api = MemoryCluster()
    uid = api.create(JOBS, {"metadata": {"name": "j"}, "spec": {}}, "default")["metadata"]["uid"]
    owners, record = owned(uid, api)
    assert asyncio.run(owners.suspend(record, True)) == ""
    assert api.get(JOBS, "j", "default")["spec"] == {"suspend": True}
    assert asyncio.run(owners.suspend(record, False)) == ""
    assert api.get(JOBS, "j", "default")["spec"] == {"suspend": False}


def test_another_object_of_the_owner_s_name_is_not_suspended() -> None:
    api = MemoryCluster()
    api.create(JOBS, {"metadata": {"name": "j"}, "spec": {}}, "default")
    owners, record = owned("uid-of-the-former", api)
    assert asyncio.run(owners.suspend(record, True)) == "another Job has the name j by now"
    assert api.get(JOBS, "j", "default")["spec"] == {}


def test_another_object_of_the_owner_s_name_is_not_read_as_the_owner() -> None:
    api = MemoryCluster()
    api.create(JOBS, {"metadata": {"name": "j"}, "status": {"succeeded": 1}}, "default")
    owners, record = owned("uid-of-the-former", api)
    with pytest.raises(NotFound):
        asyncio.run(owners.get(record.spec.workload, record.namespace))


def test_an_owner_in_another_namespace_is_not_touched() -> None:
    api = MemoryCluster()
    uid = api.create(JOBS, {"metadata": {"name": "j"}, "spec": {}}, "other")["metadata"]["uid"]
    owners, record = owned(uid, api)
    assert asyncio.run(owners.suspend(record, True)) != ""
    assert api.get(JOBS, "j", "other")["spec"] == {}
