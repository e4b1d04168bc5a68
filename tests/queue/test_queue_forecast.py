"""When waiting jobs are expected to start, against what is known of when they do."""

import asyncio
import io
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from queue_builders import pod, raw_pod
from test_queue_controller import Cluster, run

from scheduler_extender.cluster.jobs import seconds
from scheduler_extender.cluster.ledger import Claim
from scheduler_extender.config import QueueConfig
from scheduler_extender.planning import forecast as forecasting
from scheduler_extender.planning.forecast import DRAWS, Picture, forecast, packed, unpacked
from scheduler_extender.planning.forecast_picture import Asked, picture_of
from scheduler_extender.planning.forecast_quotas import Quotas
from scheduler_extender.planning.questions import Question, Start
from scheduler_extender.planning.remaining import draw_remaining_gpu_s, expected_remaining_gpu_s
from scheduler_extender.queue.forecasts import start_forecast
from scheduler_extender.queue.forecasts.simulating import Simulating
from tandem.contracts.quantity import parse_quantity
from tandem.kube.resource import PODS
from tandem.policy.catalog import Profile, load_profile
from tandem.policy.cluster import Snapshot
from tandem.policy.job import Job
from tandem.policy.jobs import History, JobArrays
from tandem.policy.topology import Topology

ROOT = Path(__file__).parents[2]
NOW = 1_000_000.0


def pictured(
    profile: Profile,
    gpus: int,
    running: list[Job],
    waiting: list[Job],
    *,
    left_s: dict[str, float] | None = None,
    endless: tuple[str, ...] = (),
    nodes: dict[int, np.ndarray] | None = None,
    finished: np.ndarray | None = None,
    quotas: Quotas | None = None,
) -> tuple[Picture, list[Job], list[str]]:
    """Return the picture of a node: who runs has the first GPUs, one after the other."""
    left_s = left_s or {}
    jobs = [*running, *waiting]
    keys = {job.id: (job.namespace, job.id.partition("/")[2]) for job in jobs}
    arrays = JobArrays.of(jobs)
    arrays = replace(
        arrays,
        since_s=np.full(len(jobs), NOW),
        remaining_at_since=np.array([left_s.get(job.id, 1.0) for job in jobs]),
    )
    snapshot = Snapshot.from_rows([("n0", f"GPU-{i}", 80.0) for i in range(gpus)])
    claims, at = {}, 0
    for job in running:
        rows = list(range(at, at + job.gpus))
        at += job.gpus
        worker = replace(job, pods=1)
        snapshot = snapshot.with_job(worker, rows)
        claims |= {f"{job.id}-{row}": Claim("n0", (f"GPU-{row}",), worker) for row in rows}
    starts = {
        keys[job.id]: (Start(keys[job.id], job, tuple(pod(f"p-{i}") for i in range(job.pods))),)
        for job in waiting
    }
    question = Question(
        rank=lambda: [keys[job.id] for job in waiting],
        starts=starts,
        snapshot=snapshot,
        eligible={},
        arrays=arrays,
        row_of={keys[job.id]: i for i, job in enumerate(jobs)},
        claims=claims,
        where_of={keys[job.id]: job.where for job in jobs},
        history=History(np.zeros(0) if finished is None else finished),
        now_s=NOW,
    )
    asked = Asked(
        question,
        nodes or {},
        certain=frozenset(keys[name] for name in left_s),
        endless=frozenset(keys[name] for name in endless),
        quotas=quotas,
    )
    picture, pictured_jobs, names = picture_of(asked, profile, preemption_cost_s=0.0)
    return picture, pictured_jobs, ["/".join(name) for name in names]


def expected(*args: object, **more: object) -> dict[str, tuple[float, float]]:
    picture, jobs, names = pictured(*args, **more)  # type: ignore[arg-type]
    return {names[row]: times for row, times in forecast(picture, jobs).items()}


def job(name: str, gpus: int = 1, attained: float = 0.0, **more: object) -> Job:
    """Return a job of a namespace, `team/name`, or of the default one."""
    queued = NOW - 1000.0 + more.pop("at", 0.0)  # type: ignore[operator]
    return Job(
        id=name if "/" in name else f"default/{name}", pods=gpus, exclusive=True,
        queued_at_s=queued, attained_gpu_seconds=attained, **more,
    )  # fmt: skip


def test_three_jobs_on_one_gpu_start_when_those_before_them_end() -> None:
    found = expected(
        load_profile("fifo"), 1,
        [job("a")], [job("b", at=1.0), job("c", at=2.0)],
        left_s={"default/a": 100.0, "default/b": 50.0, "default/c": 50.0},
    )  # fmt: skip
    assert found == {"default/b": (100.0, 100.0), "default/c": (150.0, 150.0)}


def test_who_can_never_run_is_expected_at_no_time() -> None:
    nowhere = {7: np.array([False])}
    found = expected(
        load_profile("fifo").model_copy(
            update={"order": load_profile("fifo").order.model_copy(update={"blocks": False})}
        ), 2,
        [job("a", 2)], [job("huge", 3, at=1.0), job("misfit", where=7, at=2.0), job("b", at=3.0)],
        left_s={"default/a": 100.0, "default/b": 50.0}, nodes=nowhere,
    )  # fmt: skip
    assert found == {"default/b": (100.0, 100.0)}


@pytest.mark.parametrize("profile", ["fifo", "tandem"])
def test_no_job_is_expected_where_there_are_no_gpus(profile: str) -> None:
    assert not expected(load_profile(profile), 0, [], [job("a"), job("b", 2)])


@pytest.mark.parametrize("profile", ["fifo", "tandem"])
@pytest.mark.parametrize(("level", "start_s"), [("", 100.0), ("rack", 200.0)])
def test_a_gang_is_expected_in_the_rack_that_it_requires(
    profile: str, level: str, start_s: float
) -> None:
    picture, jobs, _ = pictured(
        load_profile(profile), 4,
        [job("a"), job("b"), job("c")], [job("gang", 2, at=1.0, required_topology=level)],
        left_s={"default/a": 100.0, "default/b": 1000.0, "default/c": 200.0, "default/gang": 10.0},
    )  # fmt: skip
    two_racks = Topology(("rack",), np.array([[0], [1]]))
    gpus = replace(picture.gpus, node=np.array([0, 0, 1, 1]))
    picture = replace(picture, gpus=gpus, topology=two_racks)
    found = forecast(picture, jobs)
    assert [found[row][0] for row, each in enumerate(jobs) if each.pods == 2] == [start_s]


def test_no_start_is_expected_behind_what_does_not_end() -> None:
    assert not expected(
        load_profile("fifo"), 1, [job("notebook")], [job("b")], endless=("default/notebook",)
    )


@pytest.mark.parametrize(("saves", "start_s"), [(True, 0.0), (False, 500.0)])
def test_who_had_much_gives_way_if_it_may(saves: bool, start_s: float) -> None:
    found = expected(
        load_profile("tiresias-l"), 1,
        [job("old", attained=10_000.0, checkpointable=saves)], [job("new", at=900.0)],
        left_s={"default/old": 500.0, "default/new": 50.0},
    )  # fmt: skip
    assert found == {"default/new": (start_s, start_s)}


def test_a_draw_has_the_mean_that_is_expected() -> None:
    finished = np.sort(np.random.default_rng(1).exponential(1000.0, 200))
    service = np.full(400_000, 300.0)
    drawn = draw_remaining_gpu_s(service, finished, np.random.default_rng(2))
    mean = expected_remaining_gpu_s(service[:1], finished)[0]
    assert drawn.min() >= 0
    assert drawn.mean() == pytest.approx(mean, rel=0.03)  # the tail has no variance


def test_four_times_in_five_the_truth_lies_between() -> None:
    """Worlds drawn as the forecast believes them; in each, a queue behind four GPUs."""
    rng = np.random.default_rng(5)
    hits = below = total = 0
    for _ in range(40):
        finished = np.sort(rng.exponential(2000.0, 300))
        running = [job(f"r{i}", attained=float(rng.uniform(0, 2000))) for i in range(4)]
        waiting = [job(f"w{i}", at=float(i)) for i in range(4)]
        picture, jobs, _ = pictured(load_profile("fifo"), 4, running, waiting, finished=finished)
        truth = forecasting._starts(picture, jobs, rng)
        ranges = forecast(replace(picture, seed=int(rng.integers(1 << 30))), jobs)
        for row, (earliest, latest) in ranges.items():
            at_s = truth.get(row, np.inf)
            hits += earliest <= at_s <= latest
            below += at_s < earliest
            total += 1
    assert total == 160
    assert hits / total == pytest.approx((DRAWS - 1) / (DRAWS + 1), abs=0.08)
    assert below / total == pytest.approx(1 / (DRAWS + 1), abs=0.06)


def test_service_and_child_together_stay_within_the_containers_memory() -> None:
    values = yaml.safe_load((ROOT / "helm" / "tandem" / "values.yaml").read_text())
    limit = values["scheduler"]["extender"]["resources"]["limits"]["memory"]
    assert parse_quantity(limit) >= 600 * 2**20 + forecasting.MEMORY_BYTES


def test_a_child_that_grows_beyond_its_memory_ends_by_itself() -> None:
    code = (
        "import io, sys, types; from scheduler_extender.planning import forecast as f;"
        "f.unpacked = lambda _: bytearray(f.MEMORY_BYTES); f.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "MemoryError" in done.stderr


def test_what_the_child_is_given_is_what_was_packed() -> None:
    profile = load_profile("tandem")
    table = np.array([[0.0, 0.0, 0.0], [0.0, np.inf, np.inf], [0.0, np.inf, 0.3]])
    shares = {
        "exclusive": False, "interference_class": 2, "own_slowdown": np.append(table[2], 9.0),
        "caused_slowdown": np.append(table[:, 2], 9.0),
    }  # fmt: skip
    like = [replace(job(name, at=i), **shares) for i, name in enumerate("abc")]
    picture, jobs, _ = pictured(profile, 1, like[:1], like[1:])
    again, them = unpacked(io.BytesIO(b"".join(packed(picture, jobs))))
    assert them == jobs
    assert np.array_equal(them[0].own_slowdown[:3], table[2])
    assert forecast(again, them) == forecast(picture, jobs)


class Waiting(Cluster):
    """One GPU, with a forecast each minute; its child is the real one."""

    def __init__(self) -> None:
        super().__init__(profile=load_profile("fifo"), settings=QueueConfig(), forecasts=True)
        self.add_node("n0")

    def submit(self, name: str) -> None:
        self.api.create(PODS, raw_pod(name, annotations={"tandem.gpu/exclusive": "true"}))

    def says(self, name: str) -> dict | None:
        return self.gpujob(f"pod-{name}")["status"].get("expectedStart")

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(120):
            while not holds():
                await self.cycle()
                await asyncio.sleep(0.05)

    async def forecast_of_a_second(self) -> None:
        """Let `first` hold the GPU, and wait until a forecast has been made of `second`."""
        self.submit("first")
        await self.cycle()
        self.bind_as_planned("first")
        self.submit("second")
        self.now += 61
        await self.cycle()
        await self.until(lambda: self.says("second"))

    def failures(self) -> float:
        return self.controller.metrics._forecast_failures._value.get()


def test_who_waits_learns_when_it_is_expected_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Waiting()
    monkeypatch.setattr(start_forecast, "LIMIT_S", 250.0)

    async def scenario() -> None:
        cluster.submit("first")
        await cluster.cycle()
        cluster.bind_as_planned("first")
        cluster.submit("second")
        await cluster.cycle()
        assert cluster.says("second") is None
        cluster.now += 61
        await cluster.cycle()
        await cluster.until(lambda: cluster.says("second"))
        said = cluster.says("second")
        assert seconds(said["asOf"]) == cluster.now
        assert cluster.now <= seconds(said["earliest"])
        assert "latest" not in said or seconds(said["latest"]) >= seconds(said["earliest"])
        assert cluster.says("first") is None
        # Who has a place is expected no more.
        cluster.api.delete(PODS, "first", "default")
        await cluster.cycle()
        await cluster.cycle()
        assert cluster.gpujob("pod-second")["status"]["phase"] == "Admitted"
        assert cluster.says("second") is None

    run(scenario)


@pytest.mark.long
def test_a_forecast_that_fails_is_counted_and_the_last_one_withdrawn_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Waiting()

    def fails(*_: object) -> dict:
        raise RuntimeError("its process ended with 1")

    async def scenario() -> None:
        monkeypatch.setattr(Simulating, "says", lambda *_: {"1": [30.0, None]})
        await cluster.forecast_of_a_second()
        said = cluster.says("second")
        assert seconds(said["earliest"]) == cluster.now + 30
        assert "latest" not in said
        monkeypatch.setattr(Simulating, "says", fails)
        for minutes in (1, 6):
            assert cluster.says("second") == said
            before = cluster.failures()
            cluster.now += 60 * minutes
            await cluster.cycle()
            await cluster.until(lambda before=before: cluster.failures() > before)
        await cluster.until(lambda: cluster.says("second") is None)

    run(scenario)


def test_only_what_differs_is_written_again() -> None:
    def said(
        earliest: float, latest: float | None, as_of: float = 0.0
    ) -> start_forecast.ExpectedStart:
        at = start_forecast._time
        return start_forecast.ExpectedStart(
            earliest=at(NOW + earliest),
            latest=None if latest is None else at(NOW + latest),
            as_of=at(NOW + as_of),
        )

    known = said(1000, 5000)
    assert not start_forecast._is_news(known, said(1100, 5500, 60), NOW + 60)
    assert start_forecast._is_news(known, said(1300, 5500, 60), NOW + 60)
    assert start_forecast._is_news(known, said(1000, None, 60), NOW + 60)
    assert start_forecast._is_news(known, said(1000, 5000, 600), NOW + 600)
