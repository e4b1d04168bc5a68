"""Two pairs of kube-scheduler and extender: one takes over, and the other's acts take no effect.

The leader's pair is stopped, killed or cut off, or its extender alone hangs, always while a Binding
of its is under way, which arrives when the other pair has long placed the pod. Who wrote what is
read from the API server's audit log: each pair comes by a loopback address of its own.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from controlplane_binaries import need_control_plane
from e2e_cluster import TandemCluster, job
from e2e_pairs import (
    AUDIT_POLICY,
    Act,
    Pair,
    acts,
    holder,
    kubelet,
    lease_writes,
    stopped,
    two_pairs,
)
from repeated_faults import record, times
from seeds import SEED

from controlplane import ControlPlane, Node, wait_until
from node_agent.stub import StubGpu, StubState, build, environment
from tandem.contracts import names
from tandem.errors import TandemError

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("takeover"),
    pytest.mark.timeout(7200),
]

WHOLE = {"tandem.gpu/exclusive": "true"}
WAYS = ("paused", "killed", "cut-off", "hung-extender")


class Arena:
    """One GPU that two pairs would give away, and the jobs that want it."""

    #: What an earlier leader's kube-scheduler may still write about a pod that another has bound.
    says: tuple[str, ...] = ("pods/status",)
    settings: Mapping[str, Any] = {}
    agent: Mapping[str, Any] = {}

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.audit_log = folder / "audit.log"
        # By claims: test_e2e_claims_takeover.py.
        self.cluster = TandemCluster(plane, folder, hand_over="environment")
        self.cluster.installation.apply_manifests()
        self.prepare()
        self.pairs = two_pairs(plane, folder)
        first, second = self.pairs
        first.start(dict(self.settings))
        state = folder / "n0.gpus"
        StubState(gpus=[StubGpu(uuid="GPU-n0-0")]).write(state)
        self.cluster.installation.start_agent("n0", environment(build(folder), state), self.agent)
        wait_until(first.leads, "the first pair leads", timeout_s=60)
        second.start(dict(self.settings))
        self.namespace = self.cluster.namespace()
        self._jobs = 0
        self.late_bindings = 0
        self.successors_released = 0
        self.running = self.submit()
        self.cluster.running(self.namespace, self.running, timeout_s=120)

    def prepare(self) -> None:
        """Apply what is needed besides the manifests."""

    def submit(self) -> str:
        self._jobs += 1
        name = f"job-{self._jobs}"
        wait_until(
            lambda: self.cluster.accepts(self.namespace, job(name, annotations=WHOLE)),
            f"{name} is accepted",
            timeout_s=120,
        )
        return name

    def runs(self, name: str) -> bool:
        pod = self.cluster.pod_of(self.namespace, name)
        return pod is not None and pod["status"].get("phase") == "Running"

    def overbooked(self) -> bool:
        return any(len(pods) > 1 for pods in self.cluster.holders().values())

    def take_over(self, how: str) -> float:
        """Let the leader fail while it binds; return the seconds until the other has bound."""
        for pair in self.pairs:
            pair.restart_what_ended()
        wait_until(lambda: any(pair.leads() for pair in self.pairs), "a pair leads", timeout_s=60)
        old, new = self.pairs if self.pairs[0].leads() else self.pairs[::-1]
        waiting = self.submit()
        self.cluster.waiting_reason(self.namespace, waiting)
        old.fault.write_text("bind-reserved:1:stop")
        self.cluster.let_end(self.namespace, self.running)
        wait_until(lambda: stopped(old.extender), "a Binding is about to be sent", timeout_s=120)

        began = time.monotonic()
        if how == "paused":
            old.scheduler.pause()
            self._await(new, waiting)
            took_s = time.monotonic() - began
            for process in old.processes:
                process.resume()
        elif how == "hung-extender":
            with kubelet(old):
                wait_until(lambda: self.runs(waiting), f"{waiting} has been placed", timeout_s=180)
                took_s = time.monotonic() - began
        else:
            old.wire.hold()
            old.extender.resume()
            if how == "killed":
                # Other requests are held as well; the Binding is nearly always among them by then.
                time.sleep(3.0)
                for process in old.processes:
                    process.kill()
            self._await(new, waiting)
            took_s = time.monotonic() - began
            old.wire.let_go()
        if how == "hung-extender":
            # The pair that got the Lease may be the same, with an extender that was started anew.
            self._bound_once(waiting)
        else:
            self._nothing_of(old, new, waiting, surely=how == "paused")
            if how == "paused":
                # Ended before it knows that it leads no more, it would release the Lease of
                # the other: so it is started anew once it has ended by itself.
                wait_until(
                    lambda: not old.scheduler.running, f"{old.name} has stepped down", timeout_s=60
                )
        old.revive()
        if how != "hung-extender":
            self._leads_unless_released(old, new)
        self.running = waiting
        return took_s

    def _leads_unless_released(self, old: Pair, new: Pair) -> None:
        """Check that `new` leads still, unless the kube-scheduler of `old` released its Lease.

        `LeaderElector.tryRelease` of client-go reads the Lease anew, and then compares its own
        name with the holder that it remembers: a leader that was cut off while it gives up its
        Lease releases that of its successor when its requests arrive. Another election follows.
        Only such a write, found in the API server's audit log, excuses the loss of the Lease. The
        kube-scheduler that lost it ends itself when it notices, and is started anew only then.
        """
        if new.leads():
            return
        written = [
            act
            for act in lease_writes(self.audit_log)
            if act.name == names.LEASE_NAME and act.took_effect
        ]
        taken = max(act.when for act in written if act.address == new.address)
        released = [act for act in written if act.address == old.address and act.when > taken]
        assert released, (holder(self.plane), written[-5:])
        self.successors_released += 1
        wait_until(
            lambda: new.leads() or not new.scheduler.running,
            f"{new.name} leads again or has stepped down",
            timeout_s=60,
        )

    def _bound_once(self, waiting: str) -> None:
        pod = self.cluster.pod_of(self.namespace, waiting)
        assert pod is not None
        target = ("pods/binding", pod["metadata"]["name"])
        bound = [act for act in acts(self.audit_log) if (act.what, act.name) == target]
        assert len([act for act in bound if act.took_effect]) == 1, bound
        assert not self.overbooked()

    def _await(self, new: Pair, waiting: str) -> None:
        wait_until(lambda: self.runs(waiting), f"{new.name} has placed {waiting}", timeout_s=180)
        assert new.leads(), holder(self.plane)

    def _nothing_of(self, old: Pair, new: Pair, waiting: str, *, surely: bool) -> None:
        """Wait for the old leader's Binding to arrive; nothing of the old one took effect.

        A replica that was cut off or killed may not have come to send one, or its kubelet was
        quicker: then it is waited for only a while.
        """
        pod = self.cluster.pod_of(self.namespace, waiting)
        assert pod is not None
        name = pod["metadata"]["name"]

        def late(act: Act) -> bool:
            return (act.address, act.what, act.name) == (old.address, "pods/binding", name)

        def arrived() -> list[Act]:
            return [act for act in acts(self.audit_log) if late(act)]

        try:
            wait_until(
                arrived, "the old leader's Binding has arrived", timeout_s=180 if surely else 20
            )
        except TandemError:
            if surely:
                raise
        found = arrived()
        self.late_bindings += bool(found)
        assert [act.code for act in found] == [409] * len(found)
        everything = [act for act in acts(self.audit_log) if act.took_effect]
        bound = [act for act in everything if (act.what, act.name) == ("pods/binding", name)]
        assert [act.address for act in bound] == [new.address]
        # Bound by the new leader: whatever the old one has been answered since came too late. An
        # old kube-scheduler still says on the pod that its own attempt has failed: a condition.
        # It also tells, in an event about its Lease, that it does not lead any more.
        since = [act for act in everything if act.when > bound[0].when]
        said = [a for a in since if a.what == "events" and a.name.startswith("tandem-scheduler.")]
        assert [
            a
            for a in since
            if a.address == old.address and a.what not in self.says and a not in said
        ] == []
        assert not self.overbooked()


A = TypeVar("A", bound=Arena)


@contextlib.contextmanager
def on_an_audited_plane(kind: type[A], folder: Path) -> Iterator[A]:
    need_control_plane()
    policy = folder / "audit.yaml"
    policy.write_text(yaml.safe_dump(AUDIT_POLICY))
    audit = [f"--audit-policy-file={policy}", f"--audit-log-path={folder / 'audit.log'}"]
    with ControlPlane.start(nodes=[Node("n0", cpu=32)], apiserver_args=audit) as plane:
        arena = kind(plane, folder)
        try:
            yield arena
        finally:
            for pair in arena.pairs:
                pair.wire.close()


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with on_an_audited_plane(Arena, tmp_path_factory.mktemp("takeover")) as arena:
        yield arena


def test_the_second_pair_takes_over_and_the_first_does_nothing_any_more(arena: Arena) -> None:
    """Five in all in `make test`, a hundred in `make chaos`, each way as often as the others."""
    print(f"seed {SEED}")
    ways = [WAYS[index % len(WAYS)] for index in range(times(5, 100))]
    random.Random(SEED).shuffle(ways)
    took: dict[str, list[float]] = defaultdict(list)
    for how in ways:
        took[how].append(arena.take_over(how))
        print(f"{how}: {took[how][-1]:.1f} s until the other pair's Binding")
    assert arena.late_bindings >= 1
    record("4", "late Bindings, all refused", arena.late_bindings)
    record("4", "a successor's Lease released by client-go", arena.successors_released)
    for how, times_s in took.items():
        record("4", f"takeover, {how}", len(times_s), takeover_s=times_s)
