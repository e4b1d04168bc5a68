"""What Tandem would have done with a record: the same trace, simulated, gives the same figures."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from shadow_pods import START_S

from tandem.cli import shadow as cli
from tandem.cli.forms import Form
from tandem.contracts import names
from tandem.contracts.shadow import (
    DAY_S,
    Run,
    ShadowDay,
    ShadowJob,
    ShadowNode,
    config_map_name,
    data_of,
)
from tandem.errors import TandemError
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import CONFIG_MAPS
from tandem.policy.catalog import load_profile
from tandem.policy.job import Job
from tandem.simulator.cluster import Nodes
from tandem.simulator.jobs import TraceJob
from tandem.simulator.run import Setup, run_profile
from tandem.simulator.settings import read_profile
from tandem.simulator.shadow import (
    Record,
    _as_they_are,
    compare,
    decide_now,
    free_gpus,
    record_of,
    replay_of,
)

NODES = (ShadowNode("n0", 2, "Tesla V100-SXM2-16GB", 16.0), ShadowNode("n1", 2, "V100", 16.0))


def job(
    name: str,
    came: float,
    started: float | None = None,
    ended: float | None = None,
    gpus: int = 1,
    node: str = "n0",
    **more: Any,
) -> ShadowJob:
    found = ShadowJob(
        id=f"team-a/job-{name}/x",
        namespace="team-a",
        name=f"job-{name}",
        kind="Job",
        arrived_s=START_S + came,
        gpus=gpus,
        started_s=None if started is None else START_S + started,
        ended_s=None if ended is None else START_S + ended,
        **more,
    )
    if ended is not None and started is not None:
        found.past_gpu_s = gpus * (ended - started)
    elif started is not None:
        found.runs = {f"uid-{name}": Run(gpus, START_S + started, None, node)}
    return found


def record(
    jobs: Sequence[ShadowJob], until: float = 1e5, nodes: tuple[ShadowNode, ...] = NODES
) -> Record:
    return Record(START_S, START_S + until, 0.0, 0, nodes, tuple(jobs))


def trace(seed: int, count: int = 40) -> list[TraceJob]:
    rng = random.Random(seed)
    return [
        TraceJob(f"j{i}", rng.uniform(0, 40_000), rng.choice([1, 1, 2, 4]), rng.uniform(60, 6000))
        for i in range(count)
    ]


def as_happened(jobs: Sequence[TraceJob], profile: str) -> Record:
    """Return the record of a cluster whose scheduler does what a profile does in the simulator."""
    chosen = read_profile(profile, ["order.blocks=false"] if profile == "fifo" else [])
    jobs = sorted(jobs, key=lambda each: each.submit_s)
    outcome = run_profile(Setup(tuple(jobs), (Nodes(2, 2),)), chosen).outcome
    found = [
        job(each.id, each.submit_s, end_s - each.duration_s, end_s, each.gpus, checkpoint=True)
        for each, end_s in zip(jobs, outcome.end_s.tolist(), strict=True)
    ]
    return record(found, until=float(outcome.end_s.max()) + 60)


@pytest.mark.slow
def test_a_record_of_what_the_simulator_did_is_replayed_as_it_was(seed: int) -> None:
    found = compare(as_happened(trace(seed), "fifo"))
    happened, simulated = (found["cases"][name] for name in ("happened", "simulated"))
    assert found["compared"] == 40
    for figure in ("waitSeconds", "medianWaitSeconds", "completionSeconds"):
        assert simulated[figure] == pytest.approx(happened[figure], abs=1e-3)
    assert simulated["sooner"] == simulated["later"] == [0, 0]


@pytest.mark.slow
def test_tandem_on_a_record_does_what_tandem_simulate_does_on_the_same_trace(seed: int) -> None:
    jobs = sorted(trace(seed), key=lambda each: each.submit_s)
    found = compare(as_happened(jobs, "fifo"))
    oracle = run_profile(Setup(tuple(jobs), (Nodes(2, 2),)), load_profile("tandem"))
    completion_s = float((oracle.outcome.end_s - oracle.outcome.submit_s).mean())
    assert found["cases"]["alone"]["completionSeconds"][0] == pytest.approx(completion_s, abs=1e-3)
    sharing = found["cases"]["sharing"]
    assert sharing["completionSeconds"][0] <= sharing["completionSeconds"][1]


def test_what_runs_or_waits_still_takes_part_and_is_not_compared() -> None:
    replay = replay_of(record([job("a", 0, 10, 110), job("b", 20, 30), job("c", 40)], until=230))
    assert replay.compared.tolist() == [True, False, False]
    # That which runs is taken to run as long again, that which waits as long as the median job.
    assert [each.duration_s for each in replay.trace] == [100, 400, 100]
    assert replay.real_wait_s.tolist() == [10]
    assert replay.real_completion_s.tolist() == [110]


def test_what_ran_before_the_record_began_holds_its_gpus_and_is_not_compared() -> None:
    replay = replay_of(record([job("a", -500, -400, 100), job("b", 0, 100, 200)], until=300))
    assert [(each.submit_s, each.duration_s) for each in replay.trace] == [(0, 100), (0, 100)]
    assert replay.compared.tolist() == [False, True]


def test_services_and_jobs_without_checkpoints_are_left_where_they_are() -> None:
    jobs = [job("a", 0, endless=True), job("b", 0, checkpoint=True), job("c", 0, exclusive=True)]
    found = _as_they_are([Job(id=each.id, checkpointable=True) for each in jobs], jobs)
    assert [(each.exclusive, each.checkpointable) for each in found] == [
        (True, False), (False, True), (True, False),
    ]  # fmt: skip


def test_a_job_that_no_cluster_of_this_size_could_hold_is_left_out() -> None:
    replay = replay_of(record([job("a", 0, 1, 2), job("b", 0, gpus=5)]))
    assert (len(replay.trace), replay.too_large) == (1, 1)


def test_the_days_asked_for_count_and_what_lives_since_before() -> None:
    def day(offset: int, *jobs: ShadowJob) -> ShadowDay:
        found = ShadowDay(
            number=int(START_S // DAY_S) + offset,
            since_s=START_S - 10 * DAY_S,
            saved_s=START_S + 60,
            nodes=list(NODES),
        )
        found.jobs = {each.id: each for each in jobs}
        return found

    old = day(-3, job("old", -3 * DAY_S, -3 * DAY_S, -3 * DAY_S + 60), job("lives", -3 * DAY_S, 0))
    found = record_of([old, day(0, job("new", 0, 1, 2))], 2, START_S + 60)
    assert found is not None
    assert [each.name for each in found.jobs] == ["job-lives", "job-new"]
    assert found.since_s == (int(START_S // DAY_S) - 1) * DAY_S
    assert record_of([], 2, START_S) is None


# --- what it would do now -------------------------------------------------------------------------


def test_a_waiting_job_is_started_where_gpus_are_free_and_waits_where_none_are() -> None:
    runs = [job("a", 0, 10, gpus=2, node="n0"), job("b", 0, 10, gpus=1, node="n1")]
    waits = [job("c", 50, gpus=1), job("d", 60, gpus=2)]
    now = record([*runs, *waits], until=100)
    decided = {name.split("/")[1]: said for name, said in decide_now(now).items()}
    assert decided["job-a"] == decided["job-b"] == ("keep",)
    assert decided["job-c"] == ("start", "n1")
    assert decided["job-d"] == ("wait",)
    assert free_gpus(now) == 1


def test_a_pod_that_wants_more_than_a_node_has_free_waits_though_the_cluster_has_as_many() -> None:
    runs = [job(name, 0, 10, node=name) for name in ("n0", "n1")]
    one, several = job("one", 50, gpus=2), job("several", 60, gpus=2)
    one.gpus_per_pod = 2
    decided = decide_now(record([*runs, one, several], until=100))
    assert decided[one.id] == ("wait",)
    assert decided[several.id] == ("start", "n0", "n1")


def test_a_gang_of_which_a_part_runs_holds_no_gpus_of_the_plan() -> None:
    half = job("a", 0, 10, gpus=1, node="n0")
    half.gpus = 4
    assert free_gpus(record([half], until=100)) == 4


# --- what is printed ------------------------------------------------------------------------------


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A reader of an API server with a record of one day."""
    api = MemoryCluster()
    day = ShadowDay(
        number=int(START_S // DAY_S), since_s=START_S, saved_s=START_S + 500, nodes=list(NODES)
    )
    for each in (
        job("train", 0, 10, 110),
        job("other", 0, 20, gpus=4),
        job("late", 30, gpus=1),
        job("late-2", 40, gpus=1, memory_bytes=1 << 30),
    ):
        day.jobs[each.id] = each
    day.jobs["team-a/job-other/x"].runs = {
        f"uid-{name}": Run(2, START_S + 20, None, name) for name in ("n0", "n1")
    }
    body = {
        "metadata": {"name": config_map_name(day.number), "namespace": names.NAMESPACE},
        "binaryData": data_of(day),
    }
    api.create(CONFIG_MAPS, body, names.NAMESPACE)
    monkeypatch.setattr(cli, "datetime", Frozen)
    return SimpleNamespace(client=api, system=names.NAMESPACE)


class Frozen(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return cls.fromtimestamp(START_S + 510, tz)


def test_the_report_says_what_happened_what_would_have_and_how_sure_it_is(
    read: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.print_shadow_report(read, 7, Form.TABLE)
    said = " ".join(capsys.readouterr().out.split())
    assert "4 jobs wanted GPUs; the cluster has 4" in said
    assert "1 came and ended in this time, and are compared; 1 run still, 2 wait still" in said
    assert "These are few jobs" in said
    assert "What happened: a job waited 10s on average" in said
    assert "draws of a default mix, and not yours, except the memory that 1 job declared" in said
    assert "team-a" in said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("job-train", "has ended: it waited 10s and ran 2m"),
        ("other", "Tandem would let it run where it runs"),
        ("late-abcde", "Tandem would let it wait as well: 0 GPUs of 4 without a job"),
        ("late-2", "waits for 8m"),
    ],
)
def test_why_says_what_tandem_would_do_by_the_name_of_a_job_or_a_pod(
    read: Any, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    cli.print_shadow_why(read, "team-a", name, Form.TABLE)
    said = " ".join(capsys.readouterr().out.split())
    assert words in said
    assert ("Nothing is known of its load" in said) == (name in ("other", "late-abcde"))


def test_why_says_that_a_job_is_not_in_the_record(read: Any) -> None:
    with pytest.raises(TandemError, match="the record has no job team-b/late"):
        cli.print_shadow_why(read, "team-b", "late", Form.TABLE)


def test_without_a_record_it_says_how_to_get_one(read: Any) -> None:
    read.system = "elsewhere"
    with pytest.raises(TandemError, match="no record of shadow mode in elsewhere") as error:
        cli.print_shadow_report(read, 7, Form.TABLE)
    assert "mode=shadow" in error.value.hint


def test_figures_of_the_draws_are_said_as_an_interval() -> None:
    assert cli._times([60.0, 240.0]) == "60s to 4m"
    assert cli._percent([0.114, 0.121]) == "11 to 12 %"
    assert cli._percent([-0.01, 0.0]) == "0 %"
