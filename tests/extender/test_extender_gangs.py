"""Which pods belong to which gang, whatever order the events come in."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from extender_builders import NOW, gpu_job, load, pod
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scheduler_extender.cluster.gangs import NO_ENTRIES, Gang
from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.parsing import parse_pod
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.cluster.workers import declared_of, figures_of
from scheduler_extender.config import QueueConfig
from scheduler_extender.queue.order.queue_state import QueueState
from scheduler_extender.queue.order.quota_accounts import Accounts
from scheduler_extender.quotas.config import Quota
from tandem.contracts import names
from tandem.contracts.resources import WorkloadRef
from tandem.policy.catalog import load_profile

QUOTAS = QueueConfig(quotas=(Quota(namespace="*", gpus=1),))

NAMES, GANGS, NAMESPACES = ("a", "b", "c"), ("g", "h"), ("ml", "nlp")


class View:
    """What the queue derives from a state: gangs, places, quota accounts."""

    def __init__(self, state: ClusterState, clock: Any) -> None:
        self.gangs, self._ledger = state.gangs, state.ledger
        self._clock = clock

    def picture(self) -> dict:
        gangs = {
            key: (gang.record, dict(sorted(gang.pods.items())))
            for key, gang in self.gangs.by_key.items()
        }
        queue_state = QueueState(load_profile("tandem").order)
        for gang in self.gangs.by_key.values():
            if gang.record is not None:
                queue_state.put(gang, self._clock(), float("inf"))
        quotas = QUOTAS.model_copy(update={"quotas": (Quota(namespace="*", gpus=1),)})
        turn = Accounts(quotas, self.gangs, self._ledger, queue_state, self._clock, None).turn()
        return {"gangs": gangs, "held": +Counter(turn.held)}


class Membership(RuleBasedStateMachine):
    """Events come late, twice or in another order; labels and owners change, and mean nothing.

    The webhook has fixed the GPUJob of each pod when it was created.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.state = ClusterState(now_s=NOW, clock=lambda: self.now)
        self.view = View(self.state, lambda: self.now)
        self.version = 0
        self.births = 0
        self.truth: dict[tuple[str, str, str], dict] = {}
        self.late: list[tuple[str, dict]] = []  # said, and not heard yet
        self.heard: list[tuple[str, dict]] = []
        self.gone: list[tuple[str, dict]] = []

    def send(self, kind: str, obj: dict, late: bool = False) -> None:
        self.version += 1
        key = (kind, obj["metadata"]["namespace"], obj["metadata"]["name"])
        known = self.truth.get(key)
        if known is None:
            self.births += 1
        uid = known["metadata"]["uid"] if known else f"u{self.births}"
        obj["metadata"] |= {"uid": uid, "resourceVersion": str(self.version)}
        self.truth[key] = obj
        if late:
            self.late.append((kind, obj))
        else:
            self.hear(kind, obj)

    def hear(self, kind: str, obj: dict) -> None:
        self.heard.append((kind, obj))
        self.state.upsert(kind, obj)

    @rule(
        name=st.sampled_from(NAMES),
        namespace=st.sampled_from(NAMESPACES),
        gang=st.sampled_from(("", *GANGS)),
        label=st.sampled_from(("", *GANGS)),
        owner=st.sampled_from(("", "j1", "j2")),
        where=st.sampled_from(("", "n0")),
        phase=st.sampled_from(("Pending", "Running", "Succeeded")),
        late=st.booleans(),
    )
    def pod_changes(self, name, namespace, gang, label, owner, where, phase, late) -> None:
        obj = pod(
            name,
            namespace=namespace,
            annotations={"tandem.gpu/gang": gang} if gang else {},
            node_name=where,
            devices="g0" if where else "",
            phase=phase if where else "Pending",
        )
        if label:
            obj["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": label}
        if owner:
            obj["metadata"]["ownerReferences"] = [
                {"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": owner}
                | {"controller": True}
            ]
        known = self.truth.get(("pods", namespace, name))
        obj["metadata"].setdefault("annotations", {})[names.GPU_JOB] = (
            known["metadata"]["annotations"][names.GPU_JOB] if known else parse_pod(obj).gpujob[1]
        )
        self.send("pods", obj, late)

    @rule(
        name=st.sampled_from(("gang-g", "group-h", "job-j1", "pod-a")),
        namespace=st.sampled_from(NAMESPACES),
        who=st.integers(1, 8),
        phase=st.sampled_from(("Queued", "Admitted", "Running")),
    )
    def gpu_job_changes(self, name, namespace, who, phase) -> None:
        plan = [(f"u{who}", "n0", ["g0"])] if phase == "Admitted" else None
        obj = gpu_job(name, namespace=namespace, plan=plan, job_load=load(9))
        obj["status"] |= {"phase": phase, "queuedAt": rfc3339(NOW), "waitingSince": rfc3339(NOW)}
        self.send("gpujobs", obj)

    @rule(choose=st.randoms(use_true_random=False))
    def something_goes(self, choose) -> None:
        if self.truth:
            key = choose.choice(sorted(self.truth))
            obj = self.truth.pop(key)
            self.gone.append((key[0], obj))
            self.state.delete(key[0], obj)

    @rule(choose=st.randoms(use_true_random=False))
    def something_late_comes(self, choose) -> None:
        if self.late:
            self.hear(*self.late.pop(choose.randrange(len(self.late))))

    @rule(choose=st.randoms(use_true_random=False))
    def something_old_is_heard_again(self, choose) -> None:
        if self.heard:
            self.state.upsert(*choose.choice(self.heard))
        if self.gone:
            self.state.delete(*choose.choice(self.gone))

    @rule(seconds=st.sampled_from((1, 40)))
    def time_passes(self, seconds) -> None:
        self.now += seconds
        self.state.tick(self.now)

    @invariant()
    def it_equals_a_rebuild(self) -> None:
        self.state.check()
        rebuilt = ClusterState(now_s=self.now, clock=lambda: self.now)
        view = View(rebuilt, lambda: self.now)
        for kind, obj in self.gone:
            rebuilt.delete(kind, obj)
        for kind, obj in sorted(self.heard, key=lambda e: int(e[1]["metadata"]["resourceVersion"])):
            rebuilt.upsert(kind, obj)
        assert self.view.picture() == view.picture()

    @invariant()
    def each_pod_is_in_the_gang_of_its_birth(self) -> None:
        for record in self.state.pods():
            assert record.gpujob[1] == record.pod.annotations[names.GPU_JOB]

    @invariant()
    def each_pod_is_in_one_gang_and_counts_once(self) -> None:
        gangs = self.view.gangs.by_key
        seen = Counter(uid for gang in gangs.values() for uid in gang.pods)
        assert seen == Counter(record.uid for record in self.state.pods())
        assert all(gang.record is not None or gang.pods for gang in gangs.values())
        most = Counter(record.namespace for record in self.state.pods())
        held = self.view.picture()["held"]
        assert all(held[namespace] <= most[namespace] for namespace in held)


Membership.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, derandomize=True, print_blob=True
)
TestMembership = pytest.mark.slow(Membership.TestCase)


@pytest.mark.parametrize("seed", range(8))
def test_counts_by_what_pods_ask_for_are_those_of_the_pods_that_are_there(seed: int) -> None:
    choose = random.Random(seed)
    gang = Gang(("ml", "gang-g"))
    had_loads = False
    for _ in range(300):
        name = f"p{choose.randrange(6)}"
        known = gang.pods.get(name)
        if known is not None and choose.random() < 0.4:
            gang.remove(name, NOW)
        else:
            raw = pod(
                name,
                choose.choice((1, 1, 2)),
                uid=name,
                memory=choose.choice(("10Gi", "10Gi", "10Gi", "20Gi")) if seed % 2 else "10Gi",
                cpu=choose.choice(("1", "2")),
                node_name=choose.choice(("", "", "n0")),
                phase=choose.choice(("Pending", "Pending", "Succeeded")),
                annotations={names.CHECKPOINT: "true"} if choose.random() < 0.2 else None,
            )
            gang.put(parse_pod(raw).pod)
        live = [each for each in gang.pods.values() if not each.finished]
        unbound = [each for each in live if not each.node_name]
        had_loads = had_loads or len({figures_of(declared_of(each)) for each in live}) > 1
        assert gang.has_loads == had_loads
        assert gang.asks == len({(each.gpus, declared_of(each)) for each in live})
        assert [each.name for each in gang.live_pods()] == sorted(each.name for each in live)
        assert [each.name for each in gang.waiting_pods()] == sorted(e.name for e in unbound)
        assert gang.most_gpus == max((each.gpus for each in unbound), default=0)
        assert (gang.unbound, gang.blocked) == (len(unbound), 0)
        assert sorted(e.name for role in gang.roles() for e in role) == sorted(e.name for e in live)
        assert not NO_ENTRIES


@pytest.mark.parametrize("job_first", [True, False])
def test_a_pod_and_its_gpujob_have_what_is_equal_in_both_once(job_first: bool) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
    raw = pod("p", uid="p")
    raw["metadata"]["ownerReferences"] = [owner]
    job = gpu_job("job-j")
    job["spec"]["workload"] = {key: owner[key] for key in ("apiVersion", "kind", "name", "uid")}
    state = ClusterState(now_s=NOW)
    for kind, each in [("gpujobs", job), ("pods", raw)][:: 1 if job_first else -1]:
        state.upsert(kind, each)
    found, gang = state.pod("p"), state.gangs.by_key["ml", "job-j"]
    assert found is not None
    assert found.gpujob == ("ml", "job-j")
    assert found.gpujob is gang.key
    assert found.pod.owner is gang.job.spec.workload
    other = pod("q", uid="q")
    other["metadata"]["ownerReferences"] = [owner | {"kind": "Batch"}]
    other["metadata"]["annotations"][names.GPU_JOB] = "job-j"
    state.upsert("pods", other)
    assert gang.pods["q"].owner == WorkloadRef(
        api_version="batch/v1", kind="Batch", name="j", uid="u"
    )
    state.check()
