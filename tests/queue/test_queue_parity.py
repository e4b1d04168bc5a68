"""The live controller decides as the simulator does: the same objects, the same boards."""

from dataclasses import replace

import numpy as np
import pytest
from queue_builders import load, pod
from test_queue_controller import run
from test_queue_preemption import SAVES, Training

from scheduler_extender.cluster.jobs import policy_job
from scheduler_extender.cluster.ledger import Claim
from scheduler_extender.cluster.slowdowns import Slowdowns
from scheduler_extender.planning.planning import Planner
from scheduler_extender.planning.questions import Question, Start, Victim
from tandem.contracts.resources import Demand
from tandem.kube.resource import JOBS
from tandem.policy.board import Board
from tandem.policy.board import Start as Started
from tandem.policy.catalog import Profile, load_profile
from tandem.policy.cluster import Snapshot
from tandem.policy.job import Job
from tandem.policy.jobs import History, JobArrays
from tandem.policy.ordering.attained import Las2D
from tandem.simulator.cluster import Nodes, gpu_arrays
from tandem.simulator.engine import Engine
from tandem.simulator.jobs import TraceJob
from tandem.simulator.world import plain_world

PROFILES = ("fifo", "tiresias-l", "tandem", "tandem-guarded", "sjf-bsbf", "horus", "ojpp", "xonar")
NOW = 1_000_000.0


class Exchange:
    """A cluster at one moment, drawn at random: who runs where, who waits, what was learned."""

    def __init__(self, seed: int, *, shared: bool, most: int = 2) -> None:
        self.rng = np.random.default_rng(seed)
        self.slowdowns = Slowdowns()
        nodes, per_node = int(self.rng.integers(1, 5)), 4
        self.snapshot = Snapshot.from_rows(
            [(f"n{n}", f"GPU-{n}-{g}", 80.0) for n in range(nodes) for g in range(per_node)],
            shares=most,
            slots=most,
        )
        count = int(self.rng.integers(6, 16))
        jobs = [self._job(i, nodes * per_node) for i in range(count)]
        arrays = JobArrays.of(jobs)
        service = np.round(self.rng.exponential(3000.0, count), 3)
        service[self.rng.random(count) < 0.3] = 0.0
        self.arrays = replace(
            arrays,
            since_s=np.full(count, NOW),
            attained_at_since=service,
            service_at_since=service.copy(),
            remaining_at_since=np.round(self.rng.exponential(2000.0, count) + 1, 3),
        )
        self.jobs = [
            replace(job, remaining_s=float(self.arrays.remaining_at_since[i]))
            for i, job in enumerate(jobs)
        ]
        self.history = History(np.sort(self.rng.exponential(2000.0, int(self.rng.integers(0, 60)))))
        self.rows: dict[int, np.ndarray] = {}
        self._run_some(most if shared else 1)
        self.arrays.running[list(self.rows)] = True
        self.arrays.speed[list(self.rows)] = 1.0

    def _job(self, index: int, gpus: int) -> Job:
        base, extra = self.rng.choice([8, 20, 36], 2)
        about = load(float(base), float(extra) / 8).model_copy(
            update={"utilisation_percent": float(self.rng.choice([20, 40, 60, 90]))}
        )
        size = int(self.rng.choice([1, 1, 1, 2, 4], 1)[0])
        demand = Demand(gpus_per_pod=1, gang_size=min(size, gpus), checkpoint=True)
        job = policy_job(f"default/j{index}", demand, about, queued_at_s=NOW - 5000 + index)
        return self.slowdowns.of(job, about)

    def _run_some(self, most: int) -> None:
        used = np.zeros(len(self.snapshot.gpus), dtype=np.int64)
        for index in self.rng.permutation(len(self.jobs)).tolist():
            free = np.flatnonzero(used < most)
            size = self.jobs[index].gpus
            if len(free) >= size and self.rng.random() < 0.7:
                rows = np.sort(self.rng.permutation(free)[:size])
                used[rows] += 1
                self.rows[index] = rows

    def ranked(self, profile: Profile) -> np.ndarray:
        rows = np.arange(len(self.jobs))
        return profile.order.rank(self.arrays, rows, NOW, self.history)

    def simulated(self, profile: Profile) -> tuple[dict[str, list[int]], set[str]]:
        """Decide as tandem/simulator/engine.py does: who starts where, who stops."""
        board = Board.of(list(self.jobs), self.arrays, self.snapshot.gpus)
        board.history, board.now_s = self.history, NOW
        for index in self._by_uid():
            board.place(index, self.rows[index])
        ranked = self.ranked(profile)
        if not profile.dispatch.preempts:
            ranked = ranked[~self.arrays.running[ranked]]
        profile.dispatch(board, ranked, profile.pipeline(), profile.order.blocks)
        starts, stops = {}, set()
        for action in board.take_actions():
            if isinstance(action, Started):
                starts[self.jobs[action.job].id] = sorted(action.rows)
            else:
                stops.add(self.jobs[action.job].id)
        return starts, stops

    def live(self, profile: Profile) -> tuple[dict[str, list[int]], set[str], set[str]]:
        """Decide as the controller does: who starts now, who is asked to go, who waits for it."""
        keys = [("default", f"j{index}") for index in range(len(self.jobs))]
        snapshot, claims = self.snapshot, {}
        for index in self._by_uid():
            worker = replace(self.jobs[index], pods=1)
            snapshot = snapshot.with_job(worker, self.rows[index].tolist(), 100 + index)
            for row in self.rows[index].tolist():
                node = snapshot.node_names[snapshot.gpus.node[row]]
                claims[f"{index:03}-{row:03}"] = Claim(node, (snapshot.gpu_ids[row],), worker)
        starts = {
            keys[index]: (
                Start(keys[index], job, tuple(pod(f"p{index}-{i}") for i in range(job.pods))),
            )
            for index, job in enumerate(self.jobs)
            if index not in self.rows
        }
        service = self.arrays.service_at_since
        answer = Planner(profile).plan(
            Question(
                rank=lambda: [keys[i] for i in self.ranked(profile).tolist()],
                starts=starts,
                snapshot=snapshot,
                eligible={0: np.ones(len(snapshot.node_names), dtype=np.bool_)},
                arrays=self.arrays,
                row_of={key: index for index, key in enumerate(keys)},
                claims=claims,
                victims={keys[i]: Victim(float(service[i]), -np.inf) for i in self.rows},
                history=self.history,
                now_s=NOW,
                needs_remaining=profile.dispatch.kind == "best_sharing",
            )
        )
        now = {v.start.job.id: sorted(v.decision.rows) for v in answer.placed}
        later = {w.start.job.id for w in answer.waiting if w.coming}
        return now, later, {"/".join(gives.victim) for gives in answer.gives_way}

    def rows_of(self, job: str) -> list[int]:
        return self.rows[int(job.removeprefix("default/j"))].tolist()

    def _by_uid(self) -> list[int]:
        return sorted(self.rows)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "most"), [*((name, 2) for name in PROFILES), ("tandem", 3), ("tandem-guarded", 3)]
)
def test_a_round_of_the_controller_is_a_round_of_the_simulator(name: str, most: int) -> None:
    profile = load_profile(name)
    seen = set()
    for seed in range(60):
        exchange = Exchange(
            seed, shared=profile.dispatch.kind not in ("preempt",) and name != "fifo", most=most
        )
        starts, stops = exchange.simulated(profile)
        now, later, gone = exchange.live(profile)
        moved = stops & starts.keys()
        assert now.keys() | later == starts.keys() - moved, (seed, starts, stops, now, later)
        assert {job: starts[job] for job in now} == now, seed
        # An exchange may leave out a job that was only in its neighbour's way. A cluster stops no
        # job on whose GPUs none starts.
        taken = {row for job in starts.keys() - moved for row in starts[job]}
        idle = {job for job in stops - gone if taken.isdisjoint(exchange.rows_of(job))}
        assert gone == stops - idle, (seed, gone, stops)
        seen |= {kind for kind, some in (("start", now), ("stop", gone), ("move", moved)) if some}
    expected = {"start"} | ({"stop"} if profile.dispatch.preempts else set())
    assert expected <= seen


UNIT_S = 20.0
PAPER = (("one", 2, 2), ("two", 1, 8), ("three", 2, 6))  # [Tiresias] Fig. 7: GPUs, units


@pytest.mark.long
def test_the_papers_three_jobs_under_plain_2d_las_end_as_in_the_simulator() -> None:
    """Slices of a unit, time by the second: a preemption costs two seconds, in both worlds."""
    profile = load_profile("tiresias-l")
    profile = profile.model_copy(update={"order": Las2D(slice_s=UNIT_S)})
    trace = [
        TraceJob(name, index / 10, gpus, units * UNIT_S)
        for index, (name, gpus, units) in enumerate(PAPER)
    ]
    world = plain_world(trace, gpus := gpu_arrays([Nodes(1, 2)], shares=2))
    truth = replace(world.truth, preemption_cost_s=2.0)
    outcome = Engine(trace, world.believed, gpus, profile, truth).run()
    expected = dict(zip([job.id for job in trace], outcome.end_s - outcome.submit_s, strict=True))

    cluster = Training(profile=profile)
    left = {name: units * UNIT_S for name, _, units in PAPER}
    ended: dict[str, float] = {}

    async def scenario() -> None:
        start = cluster.now
        for index, (name, gpus_, _) in enumerate(PAPER):
            cluster.now = start + index / 10
            cluster.submit(name, gpus=gpus_)
        while left and cluster.now < start + 30 * UNIT_S:
            await cluster.pass_s(1)
            for name, gpus_, _ in PAPER:
                if name not in left:
                    continue
                if cluster.suspended(name) and cluster.pods_of(name):
                    cluster.job_controller_deletes(name)
                elif not cluster.suspended(name) and not cluster.pods_of(name):
                    cluster.new_pod(name, gpus_, SAVES)
                elif cluster.status(name).get("phase") == "Running":
                    left[name] -= 1
                    if left[name] <= 0:
                        del left[name]
                        ended[name] = cluster.now - start
                        cluster.api.delete(JOBS, name, "default")
                        cluster.job_controller_deletes(name)

    run(scenario)
    assert sorted(ended, key=ended.__getitem__) == sorted(expected, key=expected.__getitem__)
    mean = sum(ended.values()) / sum(expected.values())
    assert mean == pytest.approx(1.0, abs=0.1)
