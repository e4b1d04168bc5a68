"""What if a waiting job asked for something else: its start and end, against what is known."""

from __future__ import annotations

import asyncio
import fcntl
import math
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from queue_builders import GIB, raw_pod
from test_queue_controller import Cluster, run
from test_queue_forecast import Waiting, job, pictured
from test_queue_predictor_contract import service

from benchmarks.forecast import a_picture
from scheduler_extender.cluster.records import Key
from scheduler_extender.planning.forecast import DRAWS, draw_left_s, forecast
from scheduler_extender.planning.what_if import (
    AskedJob,
    Change,
    ChangeError,
    OtherLoad,
    asked,
    changed,
    in_a_copy,
    never_fits,
    spans,
    with_nodes,
)
from scheduler_extender.queue.forecasts import what_if
from scheduler_extender.queue.forecasts.simulating import Simulating, SimulationError
from scheduler_extender.queue.forecasts.what_if import NotAskedError
from scheduler_extender.queue.gangs.load_prediction import peak_bytes
from scheduler_extender.queue.gangs.other_batch import OtherBatch
from tandem.contracts.resources import Demand
from tandem.kube.resource import PODS
from tandem.policy.catalog import load_profile, profile_names
from tandem.policy.topology import Topology
from tandem.simulator.events import Events

ROW = 1  # of the job that is asked about: one other job runs


def answer(waiting: Any, change: Change, gpus: int = 2, left_s: float = 50.0) -> list[Any]:
    picture, jobs, names = pictured(
        load_profile("fifo"), gpus, [job("a")], [waiting],
        left_s={"default/a": 100.0, waiting.id: left_s},
    )  # fmt: skip
    assert names[ROW] == waiting.id
    return spans(*changed(picture, jobs, ROW, change), ROW)


def test_a_job_that_asks_for_fewer_gpus_starts_earlier_and_runs_for_longer() -> None:
    """Two GPUs, one of which is taken for 100 s; on both, the job takes 50 s."""
    assert answer(job("b", 2), Change()) == [(100.0, 150.0)] * DRAWS
    assert answer(job("b", 2), Change(gpus=1)) == [(0.0, 100.0)] * DRAWS


def test_a_job_that_never_fits_is_expected_at_no_time() -> None:
    assert answer(job("b", 1), Change(gpus=3)) == [(math.inf, math.inf)] * DRAWS


def test_why_a_job_never_fits() -> None:
    picture, jobs, _ = pictured(
        load_profile("fifo"), 2, [job("a")], [job("b")], nodes={7: np.array([False])}
    )
    wide, large = replace(job("b"), gpus_per_pod=3), replace(job("b"), memory_base_gib=99.0)
    assert never_fits(picture, jobs[ROW]) == never_fits(picture, job("b", 2)) == ""
    assert never_fits(picture, job("b", 3)) == "3 pods of 1: nodes have room for 2"
    assert never_fits(picture, wide) == "a pod asks for 3 GPUs, and no node has more than 2"
    assert never_fits(picture, large) == "it needs 99.0 GiB, and no GPU has more than 80.0 GiB"
    assert never_fits(picture, replace(jobs[ROW], where=7)).endswith("no node has more than 0")
    assert not never_fits(with_nodes(picture, 1, 0), job("b", 3))


def test_a_job_of_one_pod_gets_more_gpus_for_it_and_a_gang_more_pods() -> None:
    picture, jobs, _ = pictured(load_profile("fifo"), 4, [job("a")], [job("b", 2)])
    alone = replace(jobs[ROW], pods=1, gpus_per_pod=1)
    _, new = changed(picture, [jobs[0], alone], ROW, Change(gpus=4))
    assert (new[ROW].pods, new[ROW].gpus_per_pod) == (1, 4)
    wide = replace(jobs[ROW], pods=2, gpus_per_pod=2)
    _, new = changed(picture, [jobs[0], wide], ROW, Change(gpus=2))
    assert (new[ROW].pods, new[ROW].gpus_per_pod) == (1, 2)
    with pytest.raises(ChangeError, match="each of its pods asks for 2"):
        changed(picture, [jobs[0], wide], ROW, Change(gpus=3))


def test_what_is_asked_for_counts() -> None:
    picture, jobs, _ = pictured(load_profile("tandem"), 1, [job("a")], [job("b")])
    _, new = changed(picture, jobs, ROW, Change(memory_gib=20.0, shares=True))
    assert (new[ROW].memory_peak_gib, new[ROW].exclusive) == (20.0, False)
    unknown = replace(jobs[ROW], memory_base_gib=0.0, memory_peak_extra_gib=0.0)
    with pytest.raises(ChangeError, match="how much"):
        changed(picture, [jobs[0], unknown], ROW, Change(shares=True))
    assert changed(picture, jobs, ROW, Change(shares=False))[1][ROW].exclusive
    other = load_profile("fifo")
    assert changed(picture, jobs, ROW, Change(profile=other))[0].profile is other
    # The picture itself is not changed: others are answered by it, too.
    assert picture.arrays.gpus[ROW] == jobs[ROW].gpus == 1


def _at(**more: object) -> OtherLoad:
    """The load of another batch size: 30 GiB, 90 % of a GPU."""
    values = {
        "memory_base_gib": 24.0, "memory_peak_extra_gib": 6.0, "peak_probability": 0.5,
        "peak_measured": False, "gpu_utilisation": 90.0, "active_share": None,
        "iteration_s": (0.2, 0.3), "pace": 0.75,
    }  # fmt: skip
    return OtherLoad(**(values | more))


def test_at_another_batch_size_a_job_has_another_load_and_takes_another_time() -> None:
    """An item takes three quarters of the time, whether the time is known or drawn."""
    batch = Change(load=_at())
    assert answer(job("b", 2), batch) == [(100.0, 137.5)] * DRAWS
    finished = np.sort(np.exp(np.random.default_rng(1).normal(7, 1, 500)))
    picture, jobs, _ = pictured(
        load_profile("fifo"), 1, [job("a")], [job("b")], left_s={"default/a": 100.0},
        finished=finished,
    )  # fmt: skip
    now, (then, new) = spans(picture, jobs, ROW), changed(picture, jobs, ROW, batch)
    for (start_s, end_s), (start_then_s, end_then_s) in zip(
        now, spans(then, new, ROW), strict=True
    ):
        assert start_s == start_then_s
        assert end_then_s - start_then_s == pytest.approx(0.75 * (end_s - start_s))
    assert (new[ROW].memory_peak_gib, new[ROW].gpu_utilisation) == (30.0, 90.0)
    assert then.arrays.memory_gib[ROW] == 30.0
    assert (
        changed(picture, jobs, ROW, replace(batch, memory_gib=20.0))[1][ROW].memory_peak_gib == 20
    )


def test_the_predictor_says_what_a_job_needs_at_another_batch_size() -> None:
    cluster = Cluster()
    cluster.add_node("n0")
    stated = {
        "declared": {"batch-size": "32", "memory": "40Gi"},
        "plain": {"batch-size": "32"},
        "bare": {},
    }
    for name, more in stated.items():
        said = {"model": "resnet50"} | more
        annotations = {f"tandem.gpu/{key}": value for key, value in said.items()}
        cluster.api.create(PODS, raw_pod(name, annotations=annotations))
    cluster.api.create(PODS, raw_pod("unknown", annotations={
        "tandem.gpu/model": "no-such", "tandem.gpu/batch-size": "8",
    }))  # fmt: skip
    predictor = service()
    at_batch_size = OtherBatch(cluster.state, predictor).load

    async def scenario() -> None:
        await cluster.cycle()
        demand = Demand(gpus_per_pod=1, model="resnet50", batch_size=32)
        gpu = cluster.state.gpu_kind()
        now = (await predictor.predict("default", demand, gpu)).load
        twice = demand.model_copy(update={"batch_size": 64})
        then = (await predictor.predict("default", twice, gpu)).load
        found = await at_batch_size(("default", "pod-plain"), 64)
        assert found.iteration_s == (now.iteration_s, then.iteration_s)
        assert found.pace == pytest.approx(then.iteration_s / now.iteration_s / 2)
        assert 0.4 < found.pace <= 1
        # As much more than is predicted as counts for the batch of now.
        for name in ("plain", "declared"):
            counts = cluster.state.gangs.by_key["default", f"pod-{name}"].record.status.load
            at_64 = await at_batch_size(("default", f"pod-{name}"), 64)
            peak = at_64.memory_base_gib + at_64.memory_peak_extra_gib
            more = max(1.0, peak_bytes(counts) / peak_bytes(now))
            assert peak == pytest.approx(more * peak_bytes(then) / GIB, rel=1e-6)
        for name, why in (
            ("bare", "no annotation tandem.gpu/batch-size"),
            ("unknown", "nothing is predicted of model no-such at batch size 8: "),
            ("none", "is gone"),
        ):
            with pytest.raises(ChangeError, match=why):
                await at_batch_size(("default", f"pod-{name}"), 64)

    run(scenario)


@pytest.mark.long
def test_an_answer_has_the_load_of_both_batch_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Waiting()

    async def at_64(key: Key, batch_size: int) -> OtherLoad:
        assert (key, batch_size) == (("default", "pod-second"), 64)
        return _at()

    async def scenario() -> None:
        await cluster.forecast_of_a_second()
        asked_of = cluster.controller.what_if
        monkeypatch.setattr(asked_of, "_at_batch_size", at_64)
        said = await asked_of.answer(("default", "pod-second"), Change(), batch_size=64)
        assert said["now"]["iterationSeconds"] == 0.2
        assert {name: said["then"][name] for name in list(said["then"])[-3:]} == {
            "memoryBytes": 30 * GIB, "utilisationPercent": 90.0, "iterationSeconds": 0.3,
        }  # fmt: skip

    run(scenario)


def test_more_nodes_are_empty_and_like_those_that_are_there() -> None:
    """A node of two GPUs, both taken; the job that waits starts at once on a second one."""
    where = {7: np.array([True])}
    picture, jobs, _ = pictured(
        load_profile("fifo"), 2, [job("a", 2)], [job("b", 2, where=7)],
        left_s={"default/a": 100.0, "default/b": 50.0}, nodes=where,
    )  # fmt: skip
    assert spans(*changed(picture, jobs, ROW, Change()), ROW) == [(100.0, 150.0)] * DRAWS
    more, new = changed(picture, jobs, ROW, Change(nodes=1))
    assert len(more.gpus) == 4
    assert more.nodes[7].tolist() == [True, True]
    assert spans(more, new, ROW) == [(0.0, 50.0)] * DRAWS


def test_more_nodes_are_in_the_rack_of_the_node_that_they_are_like() -> None:
    picture, jobs, _ = pictured(
        load_profile("fifo"), 2, [job("a", 2)], [job("b", 4, required_topology="rack")],
        left_s={"default/a": 100.0, "default/b": 50.0},
    )  # fmt: skip
    picture = replace(picture, topology=Topology(("rack",), np.array([[3]])))
    assert spans(picture, jobs, ROW) == [(math.inf, math.inf)] * DRAWS
    more, new = changed(picture, jobs, ROW, Change(nodes=1))
    assert spans(more, new, ROW) == [(100.0, 150.0)] * DRAWS


def test_both_answers_have_the_same_chances() -> None:
    """A change that changes nothing changes nothing, though running times are unknown."""
    finished = np.sort(np.exp(np.random.default_rng(1).normal(7, 1, 500)))
    picture, jobs, _ = pictured(
        load_profile("fifo"), 1, [job("a", attained=100.0)], [job("b")], finished=finished
    )
    now = spans(picture, jobs, ROW)
    starts = {start for start, _ in now}
    assert len(starts) == DRAWS
    assert forecast(picture, jobs) == {ROW: (min(starts), max(starts))}, "those of the forecast"
    assert spans(*changed(picture, jobs, ROW, Change(gpus=1)), ROW) == now


@pytest.mark.long
@pytest.mark.parametrize("profile", profile_names())
def test_draws_that_go_on_from_one_beginning_are_as_those_that_each_begin(profile: str) -> None:
    """Bit by bit. Jobs that are preempted at time 0 have more to do from then on."""
    stopped = 0
    for seed in range(2):
        picture, jobs = a_picture(profile, 16, 24, seed=seed)
        rng = np.random.default_rng(picture.seed)
        left = [draw_left_s(picture, rng) for _ in range(DRAWS)]
        for row in range(len(picture.rows_of), len(jobs), 12):
            whole = [AskedJob(picture, jobs, row, each) for each in left]
            assert spans(picture, jobs, row) == [each.span() for each in whole]
        begun = AskedJob(picture, jobs, len(jobs) - 1, left[0])
        begun.step()
        stopped += any(verb == "stop" for _, verb, *_ in begun._engine.outcome.decisions)
    assert stopped or profile not in ("tandem", "tiresias-l"), "jobs are preempted at time 0"


@pytest.mark.long
@pytest.mark.parametrize("profile", ["fifo", "tandem", "tandem-guarded", "ojpap"])
def test_the_end_depends_on_no_event_but_those_that_are_kept(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit by bit, also where neighbours have neighbours, which end before."""
    shared, found = 0, []
    for seed in range(3):
        picture, jobs = a_picture(profile, 16, 24, seed=seed)
        left = draw_left_s(picture, np.random.default_rng(seed))
        for row in range(len(picture.rows_of), len(jobs), 3):
            run = AskedJob(picture, jobs, row, left)
            while run.step() and run._start_s == math.inf:
                pass
            shared += len(run._engine._progress.together(row)) > 2
            found.append((picture, jobs, row, left, run.span()))
    assert shared or profile != "tandem"
    monkeypatch.setattr(Events, "keep", lambda *_: None)
    for *asked_of, span in found:
        assert AskedJob(*asked_of).span() == span


def test_nothing_is_decided_after_the_start() -> None:
    """A neighbour ends 6 s after the start; a job in the queue would take its place 4 s later."""
    table = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.5]])
    shares = {
        "interference_class": 2, "own_slowdown": np.append(table[2], 9.0),
        "caused_slowdown": np.append(table[:, 2], 9.0), "memory_base_gib": 10.0,
        "gpu_utilisation": 30.0, "exclusive": False,
    }  # fmt: skip
    a, b, c = (replace(job(name, at=at), **shares) for at, name in enumerate("abc"))
    picture, jobs, _ = pictured(
        load_profile("tandem"), 1, [a], [b, c],
        left_s={"default/a": 4.0, "default/b": 100.0, "default/c": 1000.0},
    )  # fmt: skip
    # For 6 s both take 1.5 times as long; from then on the second one is alone.
    assert spans(picture, jobs, ROW) == [(0.0, pytest.approx(102.0))] * DRAWS


def test_the_process_says_what_the_function_says() -> None:
    picture, jobs, _ = pictured(
        load_profile("fifo"), 2, [job("a")], [job("b", 2)],
        left_s={"default/a": 100.0, "default/b": 50.0},
    )  # fmt: skip
    content = b"".join(asked(picture, jobs, ROW, Change(gpus=1)))
    command = [sys.executable, "-m", "scheduler_extender.planning.what_if"]
    done = subprocess.run(command, input=content, capture_output=True, check=True, timeout=120)
    assert done.stdout.startswith(b'{"now": [[100.0, 150.0]')
    assert b'"then": [[0.0, 100.0]' in done.stdout


def test_a_copy_leaves_the_process_as_it_is_and_one_that_fails_gives_no_answer() -> None:
    found = [1.0]

    def works() -> tuple[float, float]:
        found.append(2.0)
        return found[0], found[1]

    def fails() -> tuple[float, float]:
        raise MemoryError

    assert in_a_copy(works) == (1.0, 2.0)
    assert found == [1.0]
    with pytest.raises(ChildProcessError):
        in_a_copy(fails)


_WITH_A_COPY = """
import fcntl, os, pathlib, signal
lock = open("lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
if os.fork() == 0:
    pathlib.Path("begun").touch()
signal.pause()
"""


def test_what_simulates_ends_with_the_copies_that_it_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "with_a_copy.py").write_text(_WITH_A_COPY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    simulating = Simulating()

    def says() -> None:
        with pytest.raises(SimulationError, match="its process ended with -9"):
            simulating.says("with_a_copy", b"", 300.0)

    asks = threading.Thread(target=says)
    asks.start()
    while not (tmp_path / "begun").exists():
        assert asks.is_alive()
        time.sleep(0.01)
    simulating.stop()
    asks.join()
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # each of them holds it until it has ended


@pytest.mark.long
def test_the_extender_answers_about_a_job_that_waits_and_about_no_other() -> None:
    cluster = Waiting()

    async def scenario() -> None:
        found = cluster.controller.what_if
        with pytest.raises(NotAskedError, match="no forecast yet"):
            await found.answer(("default", "pod-second"), Change(gpus=1))
        await cluster.forecast_of_a_second()
        said = await found.answer(("default", "pod-second"), Change(gpus=1))
        assert said["now"] == said["then"]
        assert said["now"]["gpus"] == 1
        assert said["now"]["start"]["earliest"] == cluster.says("second")["earliest"]
        never = await found.answer(("default", "pod-second"), Change(gpus=2))
        assert never["then"]["start"] == {"earliest": None, "latest": None}
        assert "no node has more than 1" in never["then"]["never"]
        for name in ("pod-first", "pod-none"):
            with pytest.raises(NotAskedError, match="nothing is forecast of it"):
                await found.answer(("default", name), Change(gpus=1))

    run(scenario)


def test_no_answer_is_simulated_next_to_a_forecast_or_to_another_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit of the container's memory holds one process that simulates."""
    cluster, at_once, most = Waiting(), 0, 0
    entered, may_end = threading.Event(), threading.Event()

    def child(*_: object) -> dict[str, list[tuple[float, float]]]:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        entered.set()
        may_end.wait(60)
        at_once -= 1
        return {case: [(0.0, 1.0)] * DRAWS for case in ("now", "then")}

    async def scenario() -> None:
        found, key = cluster.controller.what_if, ("default", "pod-second")
        await cluster.forecast_of_a_second()
        monkeypatch.setattr(Simulating, "says", child)
        gone, *others = [asyncio.create_task(found.answer(key, Change())) for _ in range(3)]
        await asyncio.to_thread(entered.wait, 60)
        gone.cancel()  # its reader goes away; the process is there until it ends
        for _ in range(20):
            await asyncio.sleep(0)
        may_end.set()
        await asyncio.gather(*others)
        assert most == 1
        monkeypatch.setattr(what_if, "LIMIT_S", 0.05)
        async with cluster.controller._simulating.turn:
            with pytest.raises(NotAskedError, match="a forecast is being made"):
                await found.answer(key, Change())

    run(scenario)


def test_times_are_those_of_the_clock() -> None:
    line = what_if._line([(0.0, 100.0), (30.0, math.inf)], 1_000_000.0)
    assert line == {
        "start": {"earliest": "1970-01-12T13:46:40Z", "latest": "1970-01-12T13:47:10Z"},
        "end": {"earliest": "1970-01-12T13:48:20Z", "latest": None},
    }
