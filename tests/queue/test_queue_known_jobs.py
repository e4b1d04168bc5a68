"""What a cycle keeps from the one before is what it would find anew, whatever happens between."""

import asyncio
import gc
from collections.abc import Mapping
from dataclasses import fields

import numpy as np
import pytest
from queue_builders import GIB
from test_queue_preemption import EAGER, Training

from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.planning import planning
from scheduler_extender.planning.cycle_input import CycleInput, KnownJobs, cycle_input_of
from scheduler_extender.planning.questions import Question
from scheduler_extender.queue.order.queue_state import QueueState
from scheduler_extender.quotas.config import Quota
from tandem.kube.resource import GPU_JOBS, GPU_NODES, JOBS, NODES, PODS, Resource
from tandem.policy.catalog import load_profile
from tandem.policy.cluster import GpuArrays
from tandem.policy.columns import _READ
from tandem.policy.job import Job
from tandem.policy.jobs import JobArrays


def same_job(one: Job, other: Job) -> bool:
    return (
        one == other
        and one.own_slowdown is other.own_slowdown
        and one.caused_slowdown is other.caused_slowdown
    )


def assert_same(kept: CycleInput, fresh: CycleInput) -> None:
    """Compare all that a dispatch reads."""
    for name in ("keys", "starts", "held", "going"):
        assert getattr(kept, name) == getattr(fresh, name), name
    assert all(map(same_job, kept.board.jobs, fresh.board.jobs))
    assert len(kept.board.jobs) == len(fresh.board.jobs)
    for name in ("residents_of", "pinned", "stale", "empty"):
        assert getattr(kept.board, name) == getattr(fresh.board, name), name
    pairs: list[tuple[object, object, tuple[str, ...]]] = [
        (kept, fresh, ("ranked",)),
        (kept.board, fresh.board, ("on_gpus", "spread_speed")),
        (kept.board.loads, fresh.board.loads, (*_READ, "known", "demand", "table", "own")),
        (kept.board.arrays, fresh.board.arrays, tuple(f.name for f in fields(JobArrays))),
        (kept.board.gpus, fresh.board.gpus, tuple(f.name for f in fields(GpuArrays))),
    ]
    for one, other, columns in pairs:
        for name in columns:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)


def assert_order(state: QueueState, question: Question) -> None:
    """Compare what the columns of the queue say with what its entries say."""
    assert question.row_of == {key: entry.row for key, entry in state.of.items()}
    ranked = [state._rows[row] for row in state._state.rank(question.arrays, 0, question.history)]
    front = [key for key, entry in state.of.items() if entry.prioritized_s < np.inf]
    assert state.front() == front
    first = sorted(front, key=lambda key: state.of[key].prioritized_s)
    assert question.rank() == [*first, *(key for key in ranked if key not in front)]
    assert state.starving(question.now_s) == [
        key
        for key, entry in state.of.items()
        if not entry.placed
        and entry.attained > entry.promoted
        and question.now_s - entry.waiting_since_s
        >= state.order.promote_after_s(entry.service(question.now_s) / entry.job.gpus)
    ]


class Busy(Training):
    """A cluster in which something happens between any two cycles."""

    def __init__(self, profile: str, seed: int) -> None:
        order = load_profile(profile)
        changes = {"thresholds_gpu_s": (60.0, 200.0), "promote_knob": 1.0}
        order = order.model_copy(update={"order": order.order.model_copy(update=changes)})
        super().__init__(settings=EAGER, profile=order)
        self.rng = np.random.default_rng(seed)
        self.seen: set[str] = set()
        self.nodes = 1
        self.add_node("n1", gpus=2)
        self.nodes = 2

    def happen(self) -> None:
        """Let one thing happen."""
        acts = (
            self.come, self.come, self.come, self.end, self.vanish, self.lose_node, self.gain_node,
            self.load_changes, self.to_the_front, self.learn, self.cap,
        )  # fmt: skip
        act = acts[int(self.rng.integers(0, len(acts)))]
        if act():
            self.seen.add(act.__name__)

    def one_of(self, resource: Resource) -> str:
        names = [each["metadata"]["name"] for each in self.api.list(resource)]
        return names[int(self.rng.integers(0, len(names)))] if names else ""

    def come(self) -> bool:
        memory = int(self.rng.choice([10, 20, 30])) * GIB
        annotations = {"tandem.gpu/checkpoint": "true", "tandem.gpu/memory": f"{memory}"}
        self.submit(f"j{self.pods}", int(self.rng.choice([1, 1, 2])), annotations)
        return True

    def end(self) -> bool:
        if name := self.one_of(PODS):
            self.set_phase(name, "Succeeded")
        return bool(name)

    def vanish(self) -> bool:
        if name := self.one_of(JOBS):
            self.job_controller_deletes(name)
            self.api.delete(JOBS, name, "default")
            if f"job-{name}" in {each["metadata"]["name"] for each in self.api.list(GPU_JOBS)}:
                self.api.delete(GPU_JOBS, f"job-{name}", "default")
        return bool(name)

    def lose_node(self) -> bool:
        if len(self.api.list(NODES)) < 2:
            return False
        name = self.one_of(NODES)
        self.api.delete(NODES, name)
        self.api.delete(GPU_NODES, name)
        return True

    def gain_node(self) -> bool:
        self.nodes += 1
        self.add_node(f"n{self.nodes}", gpus=int(self.rng.integers(1, 4)))
        return True

    def load_changes(self) -> bool:
        name = self.one_of(GPU_JOBS)
        if not name or not self.gpujob(name).get("status", {}).get("load"):
            return False
        more = {"memoryP95Bytes": int(self.rng.integers(20, 40)) * GIB}
        self.api.patch(GPU_JOBS, name, {"status": {"load": more}}, "default", subresource="status")
        return True

    def to_the_front(self) -> bool:
        if name := self.one_of(GPU_JOBS):
            at = {"spec": {"prioritizedAt": rfc3339(self.now)}}
            self.api.patch(GPU_JOBS, name, at, "default")
        return bool(name)

    def learn(self) -> bool:
        kinds = [entry.job.model for entry in self.controller.queue_state.of.values()]
        for kind in kinds[:2]:
            slowdown = float(self.rng.random())
            self.learned.pairs.enter(kind, kinds[0], "default", slowdown, self.now, measured=True)
        return bool(kinds)

    def cap(self) -> bool:
        most = int(self.rng.integers(2, 12))
        quotas = (Quota(namespace="default", max_gpus=most),)
        self.controller.accounts._quotas = quotas if self.rng.random() < 0.5 else ()
        return True


@pytest.mark.long
@pytest.mark.parametrize("profile", ["tandem", "tandem-guarded"])
def test_a_board_of_kept_jobs_is_the_board_drawn_anew(
    profile: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Busy(profile, seed)
    drawn: list[int] = []

    def both(
        question: Question, rows: Mapping[tuple[str, str], int], known: KnownJobs
    ) -> CycleInput:
        kept = cycle_input_of(question, rows, known)
        assert_same(kept, cycle_input_of(question, rows))
        if not cluster.controller.accounts._quotas:
            assert_order(cluster.controller.queue_state, question)
        drawn.append(len(kept.keys))
        return kept

    monkeypatch.setattr(planning, "cycle_input_of", both)

    async def scenario() -> None:
        # A cycle asks where jobs wait: of some random inputs few rounds do.
        for done in range(300):
            if done >= 60 and len(drawn) > 30:
                break
            for _ in range(int(cluster.rng.integers(1, 4))):
                cluster.happen()
            await cluster.pass_s(float(cluster.rng.integers(1, 60)))

    asyncio.run(scenario())
    assert cluster.controller.work.failures == 0
    assert len(drawn) > 30
    assert max(drawn) > 4
    assert len(cluster.seen) > 5


def test_a_gang_of_which_more_pods_hold_gpus_is_another_job_though_its_worker_is_the_same() -> None:
    known, worker = KnownJobs(), Job(id="default/j")
    (first,) = known.on_gpus([worker], [2], [1])
    assert (first.pods, first.where) == (2, 1)
    assert known.on_gpus([worker], [2], [1])[0] is first
    (second,) = known.on_gpus([worker], [3], [1])
    assert (second.pods, second.where) == (3, 1)
    (third,) = known.on_gpus([worker], [3], [2])
    assert (third.pods, third.where) == (3, 2)
    assert known.on_gpus([worker], [worker.pods], [worker.where])[0] == worker


def test_a_cycle_leaves_no_board_for_the_garbage_collector() -> None:
    cluster = Training()

    async def scenario() -> None:
        for index in range(5):
            cluster.submit(f"j{index}")
        gc.collect()
        gc.disable()
        try:
            await cluster.cycle()
            kinds = (CycleInput, Question)
            assert [each for each in gc.get_objects() if isinstance(each, kinds)] == []
        finally:
            gc.enable()

    asyncio.run(scenario())
