"""What follows for a gang in each stage, as values: no API server, no clock, no executor."""

from __future__ import annotations

from dataclasses import replace

import pytest
from queue_builders import gang, pod

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.queue.steps import decisions, lifecycle
from scheduler_extender.queue.steps.effects import (
    Effects,
    EvictPods,
    Reach,
    ReadWorkload,
    Suspend,
    WriteEvent,
    WriteStatus,
)
from scheduler_extender.queue.steps.waits import held, without_live_pods
from tandem.contracts import names
from tandem.contracts.resources import Phase, Preemption
from tandem.reasons.causes import Cause, Reason
from tandem.reasons.words import sentence

NOW = 1_800_000_000.0
HOLDS = replace(
    pod("p0", gated=False, annotations={names.VISIBLE_DEVICES: "g0"}),
    node_name="n0",
    phase="Running",
)
ON_ITS_WAY = pod("p1", gated=False)
ENDS = {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}


def going(method: str, for_s: float = 1.0, *pods: object) -> Gang:
    """Return a gang that was asked to give up its GPUs `for_s` ago."""
    asked = Preemption(by="another job", method=method, requested_at=rfc3339(NOW - for_s))
    return gang(*(pods or (HOLDS, ON_ITS_WAY, pod("p2"))), phase=Phase.PREEMPTING, preemption=asked)  # type: ignore[arg-type]


def written(effects: Effects) -> list[tuple[Phase, str]]:
    """Return the phases and reasons that are written, in order."""
    return [(e.status.phase, e.status.reason) for e in effects if isinstance(e, WriteStatus)]


def evicted(effects: Effects) -> list[str]:
    return [pod.name for e in effects if isinstance(e, EvictPods) for pod in e.pods]


def test_the_intention_is_the_only_effect_of_a_release() -> None:
    runs = gang(HOLDS, phase=Phase.RUNNING)
    (only,) = decisions.release(runs, Cause(Reason.NEEDED), NOW)
    assert written((only,)) == [(Phase.PREEMPTING, "Preempting")]
    assert runs.record is not None
    assert runs.record.status.phase is Phase.RUNNING, "the gang itself is not changed"


def test_an_owner_that_can_rest_is_suspended_and_its_pods_are_evicted_where_that_fails() -> None:
    some = going("suspend")
    (asks,) = decisions.ask(some)
    assert isinstance(asks, Suspend)
    assert asks.suspend
    assert asks.then("", NOW) == (Reach("preempt-asked"),)
    instead = asks.then("it has no field suspend", NOW)
    assert evicted(instead) == ["p0", "p1"], "also the pod on its way, not the gated one"
    (status,) = (e.status for e in instead if isinstance(e, WriteStatus))
    assert status.preemption is not None
    assert status.preemption.method == "evict"


@pytest.mark.parametrize(("for_s", "pods"), [(59.0, []), (60.0, ["p0", "p1"])])
def test_an_owner_that_has_not_stopped_its_pods_in_time_has_them_evicted(
    for_s: float, pods: list[str]
) -> None:
    (asks,) = decisions.ask(going("suspend", for_s))
    assert isinstance(asks, Suspend)
    assert evicted(asks.then("", NOW)) == pods


def test_pods_without_an_owner_that_can_rest_are_evicted_at_once() -> None:
    assert evicted(decisions.ask(going("evict"))) == ["p0", "p1"]


def test_a_gang_that_does_not_go_is_reported_on_the_pods_that_hold_gpus() -> None:
    effects = decisions.report_overdue(going("evict", 301.0), NOW)
    assert written(effects) == [(Phase.PREEMPTING, "PreemptionOverdue")]
    assert [e.pod.name for e in effects if isinstance(e, WriteEvent)] == ["p0"]


def test_a_gang_comes_back_when_its_owner_is_resumed() -> None:
    _, reads = decisions.come_back(going("suspend", 9.0, pod("p2")), NOW)
    assert isinstance(reads, ReadWorkload)
    assert written(reads.then(None, NOW)) == [(Phase.SUSPENDED, "Preempted")], "it is gone"
    assert written(reads.then(ENDS, NOW)) == [(Phase.FAILED, "Failed")]
    (resumes,) = reads.then({}, NOW)
    assert isinstance(resumes, Suspend)
    assert not resumes.suspend
    back = resumes.then("", NOW)
    assert written(back) == [(Phase.SUSPENDED, "Preempted")]
    assert back[0] == Reach("preempt-resumed")
    (message,) = (e.status.message for e in back if isinstance(e, WriteStatus))
    assert message.endswith("counts for its place in the queue. another job")
    assert resumes.then("no right to", NOW) == ()


def test_a_gang_whose_pods_have_ended_is_closed_where_its_workload_says_so() -> None:
    ended = replace(HOLDS, phase="Succeeded")
    (reads,) = decisions.end(gang(ended, phase=Phase.RUNNING), NOW)
    assert isinstance(reads, ReadWorkload)
    assert written(reads.then(ENDS, NOW)) == [(Phase.FAILED, "Failed")]
    assert reads.then(None, NOW) == ()
    assert reads.then({}, NOW) == (), "it may make more pods"
    (reads,) = decisions.end(gang(phase=Phase.RUNNING), NOW)
    assert isinstance(reads, ReadWorkload)
    assert written(reads.then({}, NOW)) == [(Phase.QUEUED, "PodsGone")]


def test_without_a_workload_that_can_be_read_only_pods_that_ended_close_a_gang() -> None:
    def of(*pods: PodInfo) -> Gang:
        made = gang(*pods, phase=Phase.RUNNING)
        assert made.record is not None
        workload = made.record.spec.workload.model_copy(update={"kind": "Unheard"})
        spec = made.record.spec.model_copy(update={"workload": workload})
        return Gang(made.key, replace(made.record, spec=spec), made.pods)

    ended = decisions.end(of(replace(HOLDS, phase="Succeeded")), NOW)
    assert written(ended) == [(Phase.COMPLETED, "Completed")]
    assert written(decisions.end(of(), NOW)) == [(Phase.QUEUED, "PodsGone")], "it may make others"


def test_a_pod_that_becomes_the_reason_of_a_wait_gets_one_event() -> None:
    gates = [{"name": "tandem.gpu/queue"}, {"name": "other/gate"}]
    blocked = pod("p0", gated=False, schedulingGates=gates)
    waits = gang(blocked)
    assert waits.record is not None
    assert blocked.blocked is not None
    status = lifecycle.waiting(waits.record.status, Reason.BLOCKED, [blocked.blocked], None, NOW)
    _, event = decisions.write(waits, status)
    said = sentence(blocked.blocked)
    assert event == WriteEvent(blocked, Reason.BLOCKED, said)
    reported = gang(blocked, reason="Blocked", message=said)
    assert decisions.write(reported, status) == (WriteStatus(status),)


def test_a_gpujob_whose_workload_has_pods_again_is_queued_and_keeps_its_service() -> None:
    closed = gang(
        pod("p0"), phase=Phase.COMPLETED, attained_gpu_seconds=7.0, finished_at=rfc3339(NOW)
    )
    effects = decisions.revive(closed, NOW + 60)
    assert written(effects) == [(Phase.QUEUED, "NewPods")]
    (status,) = (e.status for e in effects if isinstance(e, WriteStatus))
    assert (status.attained_gpu_seconds, status.finished_at) == (7.0, None)
    assert status.queued_at == status.waiting_since == rfc3339(NOW + 60)


def test_a_gang_that_starved_is_first_again_and_is_charged_from_now_on() -> None:
    starved = gang(pod("p0"), attained_gpu_seconds=9.0, queue=2)
    assert starved.record is not None
    status = lifecycle.promoted(starved.record.status, NOW)
    assert (status.queue, status.promoted_gpu_seconds, status.waiting_since) == (
        0, 9.0, rfc3339(NOW)
    )  # fmt: skip


def test_a_definition_of_an_earlier_release_drops_causes_and_has_no_status_written_for_ever() -> (
    None
):
    gates = [{"name": "tandem.gpu/queue"}, {"name": "other/gate"}]
    blocked = gang(pod("p0", gated=False, schedulingGates=gates))
    ended = gang(replace(HOLDS, phase="Failed"))
    for waits, follow in ((blocked, held), (ended, without_live_pods)):
        said = follow(waits, waits.job.status, NOW)
        assert said.causes
        dropped = said.model_copy(update={"causes": [], "found_at": None})
        assert follow(waits, dropped, NOW + 1) is dropped
