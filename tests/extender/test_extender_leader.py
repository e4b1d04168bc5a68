"""Whether this replica acts: by the Lease of the kube-scheduler next to it, and by no other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from extender_builders import NOW

from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.writes import PARALLEL_WRITES, Writer
from scheduler_extender.leader import LeaseWatch
from tandem.kube.errors import Conflict, KubeError, unreachable
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import LEASES

DURATION_S = 15


class Away(MemoryCluster):
    """An API server that can be away."""

    away = False

    def get(self, *args: Any, **kwargs: Any) -> Any:
        if self.away:
            raise unreachable("away", maybe_done=True)
        return super().get(*args, **kwargs)


class Pair:
    """A Lease, a clock, and the watch of the replica on host `ours`."""

    def __init__(self) -> None:
        self.now = NOW
        self.api = Away()
        self.api.create(LEASES, {"metadata": {"name": "tandem-scheduler"}, "spec": {}}, "system")
        self.changes = 0
        self.watch = LeaseWatch(
            self.api, "system", "tandem-scheduler", "ours", lambda: self.now, self.changed
        )

    def changed(self) -> None:
        self.changes += 1

    def held_by(self, holder: str | None, *, renewed_s: float = NOW, **spec: Any) -> None:
        renewed = {"renewTime": rfc3339(renewed_s), "leaseDurationSeconds": DURATION_S}
        body = {"spec": {"holderIdentity": holder, **renewed, **spec}}
        self.api.patch(LEASES, "tandem-scheduler", body, "system")
        self.watch.look()


def test_a_replica_is_active_while_the_scheduler_on_its_host_holds_the_lease() -> None:
    pair = Pair()
    assert not pair.watch.active()
    pair.held_by("ours_7c1f")
    assert pair.watch.active()
    assert pair.watch.term() == "ours_7c1f.None"


@pytest.mark.parametrize(
    "holder",
    ["theirs_7c1f", "ours-2_7c1f", "not-ours_7c1f", "ours", "", None, "7c1f_ours", "_ours"],
)
def test_the_lease_of_another_is_not_taken_for_its_own(holder: str | None) -> None:
    pair = Pair()
    pair.held_by(holder)
    assert not pair.watch.active()
    assert pair.watch.term() == ""


def test_a_host_name_with_underscores_is_compared_as_a_whole() -> None:
    pair = Pair()
    pair.held_by("ours_too_7c1f")
    assert not pair.watch.active()


@pytest.mark.parametrize(
    ("passed_s", "active"), [(0, True), (14.9, True), (15, False), (99, False)]
)
def test_activity_ends_with_the_last_renewal_that_was_seen(passed_s: float, active: bool) -> None:
    pair = Pair()
    pair.held_by("ours_7c1f")
    pair.api.away = True
    pair.now += passed_s
    pair.watch.look()
    assert pair.watch.active() is active
    assert bool(pair.watch.term()) is active


def test_a_renewal_prolongs_activity_and_a_loss_ends_it_at_once() -> None:
    pair = Pair()
    pair.held_by("ours_7c1f")
    pair.now += 10
    pair.held_by("ours_7c1f", renewed_s=pair.now)
    pair.now += 10
    assert pair.watch.active()
    pair.held_by("theirs_0001", renewed_s=pair.now)
    assert not pair.watch.active()


@pytest.mark.parametrize(
    "spec", [{"renewTime": None}, {"leaseDurationSeconds": None}, {"leaseDurationSeconds": 0}]
)
def test_a_lease_without_an_end_is_not_held(spec: dict) -> None:
    pair = Pair()
    pair.held_by("ours_7c1f", **spec)
    assert not pair.watch.active()


def test_each_election_is_a_term_of_its_own() -> None:
    pair = Pair()
    pair.held_by("ours_7c1f", leaseTransitions=3)
    first = pair.watch.term()
    pair.held_by("ours_7c1f", leaseTransitions=5)
    assert pair.watch.term() not in ("", first)
    pair.held_by("ours_9999", leaseTransitions=5)
    assert pair.watch.term() not in ("", first)


def test_a_change_of_the_term_is_reported_once() -> None:
    pair = Pair()
    pair.held_by("theirs_0001")
    assert pair.changes == 0
    pair.held_by("ours_7c1f")
    pair.watch.look()
    assert pair.changes == 1
    pair.held_by("theirs_0001")
    assert pair.changes == 2


def test_a_watch_that_was_stopped_is_active_no_more() -> None:
    pair = Pair()
    pair.held_by("ours_7c1f")
    pair.watch.stop()
    assert not pair.watch.active()


def test_the_lease_is_read_from_its_own_namespace() -> None:
    pair = Pair()
    ours = {"holderIdentity": "ours_7c1f", "renewTime": rfc3339(NOW), "leaseDurationSeconds": 15}
    pair.api.create(LEASES, {"metadata": {"name": "tandem-scheduler"}, "spec": ours}, "default")
    pair.watch.look()
    assert not pair.watch.active()


# --- writes of the queue ------------------------------------------------------------------------


class Recording:
    """A call that notes that it was made."""

    calls = 0

    def __call__(self, *args: Any) -> str:
        self.calls += 1
        return "done"


def writer(may_write: Any) -> Writer:
    made = Writer(MemoryCluster(), None, lambda *_: None, lambda: NOW)  # type: ignore[arg-type]
    made.may_write = may_write
    return made


def test_a_replica_that_leads_no_more_writes_nothing() -> None:
    call = Recording()

    async def scenario() -> None:
        leads = True
        one = writer(lambda: leads)
        assert await one.call(call) == "done"
        leads = False
        with pytest.raises(Conflict, match="another replica leads"):
            await one.call(call)

    asyncio.run(scenario())
    assert call.calls == 1


def test_leadership_is_asked_for_right_before_each_write_and_not_when_it_was_decided() -> None:
    leads, call = True, Recording()

    async def scenario() -> None:
        nonlocal leads
        one = writer(lambda: leads)
        blocked = asyncio.Event()
        # All turns are taken; the call waits for its own, and the lead is lost meanwhile.
        turns = [one.turns.acquire() for _ in range(PARALLEL_WRITES)]
        await asyncio.gather(*turns)
        late = asyncio.create_task(one.call(call))
        await asyncio.sleep(0)
        leads = False
        blocked.set()
        one.turns.release()
        with pytest.raises(KubeError):
            await late

    asyncio.run(scenario())
    assert call.calls == 0
