"""GPUs are reserved for a job that has waited too long, whatever other jobs wait."""

from dataclasses import replace

import numpy as np
import pytest
from queue_builders import pod, raw_pod
from test_queue_controller import run
from test_queue_preemption import EAGER, Training

from scheduler_extender.cluster.ledger import Claim
from scheduler_extender.planning.planning import Planner
from scheduler_extender.planning.questions import Question, Start
from tandem.kube.resource import JOBS, PODS
from tandem.policy.catalog import load_profile
from tandem.policy.cluster import Snapshot
from tandem.policy.job import Job
from tandem.policy.jobs import JobArrays

SMALL = {"tandem.gpu/memory": "8Gi", "tandem.gpu/utilization": "20"}
WHOLE = {"tandem.gpu/exclusive": "true"}
RESERVES = EAGER.model_copy(
    update={"reserve_after_s": 600.0, "max_preemptions_per_hour": 0, "min_run_s": 1e6}
)


class Stream(Training):
    """Four small jobs share the two GPUs at any time; one of them ends every 25 s."""

    def __init__(self) -> None:
        super().__init__(RESERVES, load_profile("tandem"))
        self.small = 0
        self.running: dict[str, float] = {}

    async def flow(self, seconds: float, until: str = "") -> float | None:
        """Let time pass; return when the job `until` began to run, in seconds from now."""
        began = self.now
        while self.now < began + seconds:
            for name in [n for n, end_s in self.running.items() if end_s <= self.now]:
                del self.running[name]
                self.api.delete(JOBS, name, "default")
                self.job_controller_deletes(name)
            self.submit(f"s{self.small}", annotations=SMALL)
            self.small += 1
            await self.pass_s(0)
            for name in (f"s{i}" for i in range(self.small)):
                exists = name not in self.running and self.pods_of(name)
                if exists and self.status(name)["phase"] == "Running":
                    self.running[name] = self.now + 100
            if until and self.status(until)["phase"] == "Running":
                return self.now - began
            await self.pass_s(25)
        return None


@pytest.mark.slow
def test_jobs_that_no_node_can_hold_do_not_keep_one_behind_them_from_its_turn() -> None:
    cluster = Stream()

    async def scenario() -> None:
        for index in range(40):
            cluster.submit(f"never-{index:02}", gpus=3 + index)
        await cluster.flow(125)
        cluster.submit("large", gpus=2, annotations=WHOLE)
        began_s = await cluster.flow(1200, "large")
        # 600 s of waiting, and 100 s until the jobs that were there have ended.
        assert began_s is not None
        assert 600 <= began_s <= 600 + 200

    run(scenario)


def test_a_job_that_asks_for_more_cpu_than_any_node_has_does_not_keep_others_back() -> None:
    cluster = Stream()

    async def scenario() -> None:
        cluster.api.create(JOBS, {"metadata": {"name": "never"}, "spec": {}}, "default")
        raw = raw_pod("never", gpus=1, owner=("Job", "never"))
        uid = cluster.api.get(JOBS, "never", "default")["metadata"]["uid"]
        raw["metadata"]["ownerReferences"][0]["uid"] = uid
        raw["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "64"}
        cluster.api.create(PODS, raw)
        await cluster.flow(125)
        cluster.submit("large", gpus=2, annotations=WHOLE)
        began_s = await cluster.flow(1200, "large")
        assert began_s is not None
        assert 600 <= began_s <= 600 + 200

    run(scenario)


def test_gpus_are_not_reserved_next_to_a_service_that_never_ends() -> None:
    """Two whole GPUs are never free again: those behind must not lose the other for nothing."""
    cluster = Training(RESERVES, load_profile("tandem"))

    async def scenario() -> None:
        service = raw_pod("service", owner=("StatefulSet", "service"))
        cluster.api.create(PODS, service)
        await cluster.pass_s(1)
        cluster.submit("large", gpus=2, annotations=WHOLE)
        for _ in range(4):
            await cluster.pass_s(200)
        assert cluster.status("large")["phase"] == "Queued"
        cluster.submit("whole", gpus=1, annotations=WHOLE)
        await cluster.pass_s(1)
        assert cluster.status("large")["phase"] == "Queued"
        assert cluster.status("whole")["phase"] == "Running"

    run(scenario)


def test_an_order_that_blocks_is_not_blocked_by_a_job_that_no_node_can_hold() -> None:
    cluster = Training(EAGER, load_profile("fifo"))

    async def scenario() -> None:
        for index in range(12):
            cluster.submit(f"never-{index:02}", gpus=3 + index)
        await cluster.pass_s(1)
        cluster.submit("two", gpus=2)
        cluster.now += 1  # jobs of the same second come in the order in which they were predicted
        cluster.submit("behind", gpus=1)
        for _ in range(5):
            await cluster.pass_s(1)
        assert cluster.status("two")["phase"] == "Running"
        assert cluster.status("behind")["phase"] == "Queued"
        assert "behind default/job-two" not in cluster.status("behind")["message"]

    run(scenario)


def test_of_those_that_have_waited_too_long_alike_the_first_in_order_starts() -> None:
    now, whole = 10_000.0, Job(id="", exclusive=True)
    keys = [("default", f"{who}-{i}") for who in ("new", "old") for i in range(10)]
    starts = [Start(key, replace(whole, id="/".join(key)), (pod(key[1]),)) for key in keys]
    arrays = JobArrays.of([start.job for start in starts])
    # The order prefers the new ones; the old ones have waited for longer, all since one moment.
    since = np.array([now - 700 if key[1].startswith("new") else now - 900 for key in keys])
    question = Question(
        rank=lambda: keys,
        starts={start.gpujob: (start,) for start in starts},
        snapshot=Snapshot.from_rows([("n", "a", 80.0)]),
        eligible={0: np.ones(1, dtype=np.bool_)},
        arrays=replace(arrays, waiting_since_s=since),
        row_of={key: row for row, key in enumerate(keys)},
        now_s=now,
    )
    answer = Planner(load_profile("tandem"), reserve_after_s=600.0).plan(question)
    assert [verdict.start.gpujob[1] for verdict in answer.placed] == ["old-0"]


def test_who_has_gpus_reserved_keeps_those_though_others_fall_free_sooner_by_now() -> None:
    """Or the jobs on the GPUs that were kept free would have gone without a successor for
    nothing."""
    now, small = 10_000.0, Job(id="", memory_base_gib=4.0, gpu_utilisation=10.0)
    whole = Job(id="ml/large", exclusive=True)
    residents = [replace(small, id=f"ml/on-{gpu}") for gpu in "ab"]
    keys = [("ml", "on-a"), ("ml", "on-b"), ("ml", "large"), ("ml", "new")]
    newcomer = replace(small, id="ml/new")
    empty = Snapshot.from_rows([("n", "a", 80.0), ("n", "b", 80.0)])
    arrays = JobArrays.of([*residents, whole, newcomer])

    def gpus_of_the_newcomer(planner: Planner, left_on_a_s: float, left_on_b_s: float) -> list[int]:
        """Return the rows that it gets in a cycle in which the residents have that time to run."""
        unknown = np.nan
        columns = replace(
            arrays,
            running=np.array([True, True, False, False]),
            waiting_since_s=np.array([now, now, now - 900, now]),
            remaining_at_since=np.array([left_on_a_s, left_on_b_s, unknown, unknown]),
            since_s=np.full(4, now),
        )
        question = Question(
            rank=lambda: keys,
            starts={
                ("ml", name): (Start(("ml", name), job, (pod(name),)),)
                for name, job in (("large", whole), ("new", newcomer))
            },
            snapshot=empty.with_job(residents[0], [0], 0).with_job(residents[1], [1], 1),
            eligible={0: np.ones(1, dtype=np.bool_)},
            arrays=columns,
            row_of={key: row for row, key in enumerate(keys)},
            claims={
                f"uid-{g}": Claim("n", (g,), job) for g, job in zip("ab", residents, strict=True)
            },
            now_s=now,
        )
        placed = {v.start.gpujob[1]: v.decision for v in planner.plan(question).placed}
        assert list(placed) == ["new"]
        return list(placed["new"].rows)

    remembers, forgets = (Planner(load_profile("best-fit"), reserve_after_s=600.0) for _ in "12")
    assert gpus_of_the_newcomer(remembers, 50.0, 100.0) == [1], "a falls free first and is kept"
    assert gpus_of_the_newcomer(remembers, 50.0, 10.0) == [1]
    assert gpus_of_the_newcomer(forgets, 50.0, 10.0) == [0], "it would keep b"
