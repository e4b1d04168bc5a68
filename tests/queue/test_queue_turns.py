"""Reports of what runs let the writes that jobs wait for go first, and are not left out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from queue_builders import raw_pod
from test_queue_controller import SHARED, Cluster, run
from test_queue_first_status import KEY, Counted, look, statuses, submit

from scheduler_extender.cluster.turns import REPORTS_EVERY, Turns
from scheduler_extender.queue.gangs.reconcile import KEPT_S, LONGEST_KEPT_S
from scheduler_extender.queue.steps.effects import WriteStatus
from tandem.contracts.resources import Phase
from tandem.kube.resource import PODS


def in_loop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


async def queued(turns: Turns, names: list[str], order: list[str]) -> list[asyncio.Task[None]]:
    """Let each wait for a turn, reports by a name with `r`; note who has one, and end it."""

    async def take(name: str) -> None:
        await turns.acquire(report=name.startswith("r"))
        order.append(name)
        turns.release()

    tasks = [asyncio.create_task(take(name)) for name in names]
    await asyncio.sleep(0)
    return tasks


def test_reports_have_every_fourth_turn_while_others_wait_and_then_the_rest() -> None:
    async def scenario() -> None:
        turns, order = Turns(1), list[str]()
        await turns.acquire()
        assert not turns.crowded
        names = ["r0", "r1", "r2", *(f"w{index}" for index in range(5))]
        tasks = await queued(turns, names, order)
        assert turns.crowded
        turns.release()
        await asyncio.gather(*tasks)
        assert order == ["w0", "w1", "w2", "r0", "w3", "w4", "r1", "r2"]
        assert order.index("r0") == REPORTS_EVERY - 1
        assert not turns.crowded

    in_loop(scenario)


def test_no_more_have_a_turn_than_there_are() -> None:
    async def scenario() -> None:
        turns, order = Turns(2), list[str]()
        await turns.acquire()
        await turns.acquire(report=True)
        tasks = await queued(turns, ["w0"], order)
        assert order == []
        turns.release()
        await asyncio.gather(*tasks)
        turns.release()
        await asyncio.gather(turns.acquire(), turns.acquire())

    in_loop(scenario)


def test_a_turn_is_not_lost_with_a_task_that_is_cancelled() -> None:
    async def scenario() -> None:
        turns, order = Turns(1), list[str]()
        await turns.acquire()
        waiting, granted, last = await queued(turns, ["w0", "w1", "w2"], order)
        waiting.cancel()
        await asyncio.sleep(0)
        turns.release()  # `granted` has its turn, and does not know yet
        granted.cancel()
        await asyncio.gather(waiting, granted, last, return_exceptions=True)
        assert order == ["w2"]
        await turns.acquire()

    in_loop(scenario)


def test_that_a_job_runs_is_a_report_and_its_plan_is_none() -> None:
    cluster = Cluster(Counted())
    carried: list[WriteStatus] = []
    executor = cluster.controller.preempter._executor
    carry_out = executor._write_status

    async def noted(gang: Any, effect: WriteStatus) -> None:
        carried.append(replace(effect, status=effect.status.model_copy()))
        await carry_out(gang, effect)

    executor._write_status = noted  # type: ignore[method-assign]

    async def scenario() -> None:
        cluster.add_node("n0")
        submit(cluster, annotations=SHARED)
        await cluster.cycle()
        cluster.bind_as_planned("p")
        await cluster.cycle()
        assert cluster.gpujob("pod-p")["status"]["phase"] == "Running"
        found = [(each.status.phase, each.report) for each in carried]
        assert found == [(Phase.ADMITTED, False), (Phase.RUNNING, True)]

    run(scenario)


def test_a_kept_status_waits_a_little_longer_while_others_wait_for_their_turn() -> None:
    cluster = Cluster(Counted())

    async def scenario() -> None:
        await cluster.cycle()
        cluster.api.create(PODS, raw_pod("p"))
        await look(cluster)
        assert cluster.state.gangs.by_key[KEY].job.unwritten_since_s is not None
        turns = cluster.controller._writer.turns
        for _ in range(turns._free):
            await turns.acquire()
        waiting = asyncio.create_task(turns.acquire())
        await asyncio.sleep(0)
        await look(cluster, KEPT_S)
        assert statuses(cluster) == 0
        turns.release()
        await waiting
        turns.release()
        await look(cluster, KEPT_S)
        assert statuses(cluster) == 1
        assert KEPT_S < LONGEST_KEPT_S

    run(scenario)
