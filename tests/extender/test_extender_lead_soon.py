"""How soon a replica knows that its kube-scheduler leads, and what it answers until then."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from extender_builders import NOW

from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.leader import LeaseWatch
from scheduler_extender.verbs import binding
from scheduler_extender.verbs.binding import Binder, Leadership
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import LEASES
from tandem.policy.catalog import load_profile

MINE = {"holderIdentity": "me_1", "leaseTransitions": 3, "renewTime": rfc3339(NOW)}


class Watched:
    """A Lease, and the watch of the pod whose host name is `me`."""

    def __init__(self) -> None:
        self.api = MemoryCluster()
        self.api.create(LEASES, {"metadata": {"name": "lease"}, "spec": {}}, "ns")
        self.changed = threading.Event()
        self.lease = LeaseWatch(self.api, "ns", "lease", "me", lambda: NOW, self.changed.set)

    def write(self, **spec: object) -> None:
        self.api.patch(LEASES, "lease", {"spec": {"leaseDurationSeconds": 12, **spec}}, "ns")


def test_a_call_of_kube_scheduler_makes_the_lease_be_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scheduler_extender.leader.POLL_S", 3600.0)
    watched = Watched()
    watched.lease.start()
    try:
        watched.write(**MINE)
        assert watched.lease.term() == ""
        watched.lease.hurry()
        assert watched.changed.wait(60)
        assert watched.lease.term() == "me_1.3"
    finally:
        watched.lease.stop()


def test_a_replica_stands_by_only_where_a_look_since_then_says_so() -> None:
    watched = Watched()
    assert not watched.lease.stands_by(0.0)
    watched.lease.look()
    after = time.monotonic()
    assert watched.lease.stands_by(0.0)
    assert not watched.lease.stands_by(after)
    watched.write(**MINE)
    watched.lease.look()
    assert not watched.lease.stands_by(0.0)
    watched.api.delete(LEASES, "lease", "ns")
    other = LeaseWatch(watched.api, "ns", "lease", "me", lambda: NOW)
    other.look()
    assert other.stands_by(time.monotonic()), "without a Lease there is no election to wait for"


def test_a_lease_that_cannot_be_read_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scheduler_extender.leader.POLL_S", 0.01)
    watched = Watched()
    watched.write(**(MINE | {"renewTime": "yesterday"}))
    watched.lease.start()
    try:
        assert not watched.changed.wait(0.1)
        watched.write(**MINE)
        assert watched.changed.wait(60)
        assert watched.lease.active()
    finally:
        watched.lease.stop()


class Replica:
    """A binder whose lead is set by hand."""

    def __init__(self, *, leads: bool = False, stands_by: bool = False) -> None:
        self.leads, self.stands_by, self.hurried = leads, stands_by, 0
        self.binder = Binder(
            ClusterState(now_s=NOW),
            load_profile("tandem").pipeline(),
            MemoryCluster(),
            ThreadPoolExecutor(1),
            stamp=lambda: "stamp",
            leadership=Leadership(
                may_bind=lambda: self.leads,
                stands_by=lambda _: self.hurried > 0 and self.stands_by,
                hurry=self.hurry,
            ),
        )

    def hurry(self) -> None:
        self.hurried += 1


@pytest.mark.parametrize(
    ("replica", "follows"),
    [
        (Replica(leads=True), True),
        (Replica(stands_by=True), True),
        (Replica(), False),
    ],
    ids=["leads", "stands-by", "takes-over"],
)
def test_no_binding_is_to_follow_while_another_leader_is_fenced_off(
    replica: Replica, follows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "_LEAD_S", 0.03)
    assert asyncio.run(replica.binder.may_follow()) is follows
    assert bool(replica.hurried) is not replica.leads


def test_a_takeover_that_ends_in_time_delays_the_answer_and_refuses_nothing() -> None:
    replica = Replica()

    async def scenario() -> bool:
        asked = asyncio.create_task(replica.binder.may_follow())
        await asyncio.sleep(0)
        replica.leads = True
        return await asked

    assert asyncio.run(scenario())


async def under_way(replica: Replica, count: int) -> tuple[asyncio.Event, list[asyncio.Task[str]]]:
    """Let so many Bindings be under way that end with an event, the first at once with it."""
    ended = asyncio.Event()

    async def one() -> str:
        await ended.wait()
        return ""

    known = replica.binder._under_way
    for index in range(count):
        task = asyncio.create_task(one())
        known[f"uid-{index}"] = binding._UnderWay("n0", task)
        task.add_done_callback(lambda _, uid=f"uid-{index}": known.pop(uid))
    await asyncio.sleep(0)
    return ended, [each.task for each in known.values()]


def test_filter_waits_for_the_end_of_a_binding_where_many_are_under_way() -> None:
    async def scenario() -> None:
        replica = Replica(leads=True)
        ended, tasks = await under_way(replica, binding.MOST_UNDER_WAY)
        asked = asyncio.create_task(replica.binder.may_follow())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not asked.done()
        ended.set()
        assert await asked
        await asyncio.gather(*tasks)

    asyncio.run(scenario())


@pytest.mark.parametrize("count", [binding.MOST_UNDER_WAY - 1, binding.MOST_UNDER_WAY])
def test_filter_answers_though_no_binding_ends(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer delay nothing; with more, as when the API server is away, the wait has an end."""
    monkeypatch.setattr(binding, "_FEWER_WITHIN_S", 0.03)

    async def scenario() -> None:
        replica = Replica(leads=True)
        ended, tasks = await under_way(replica, count)
        assert await replica.binder.may_follow()
        assert replica.binder.under_way == count
        ended.set()
        await asyncio.gather(*tasks)

    asyncio.run(scenario())
