"""The work queue: one thing at a time for each gang, and namespaces take turns."""

import asyncio
from collections import Counter

from queue_builders import settled

from scheduler_extender.queue.workqueue import AT_ONCE, Turns, WorkQueue

_PARALLEL = 4


def drained(add):
    """Return the keys in the order in which a queue looks at them; each takes an API call."""
    seen = []

    async def look(key):
        await asyncio.sleep(0)

    def step(key):
        seen.append(key)
        return look(key)

    async def run():
        queue = WorkQueue(step, lambda: 0.0, _PARALLEL)
        add(queue)
        queue.go()
        await settled(queue)

    asyncio.run(run())
    return seen


def test_a_namespace_waits_for_no_backlog_of_another():
    def add(queue):
        for index in range(1000):
            queue.add(("flood", f"job-{index}"))
        queue.add(("team", "job"))

    seen = drained(add)
    assert len(seen) == 1001
    assert seen.index(("team", "job")) <= 1


def test_a_namespace_that_comes_later_is_next():
    seen = []

    async def look():
        await asyncio.sleep(0)

    async def run():
        def step(key):
            seen.append(key)
            if len(seen) == 10:
                queue.add(("team", "job"))
            return look()

        queue = WorkQueue(step, lambda: 0.0, _PARALLEL)
        for index in range(100):
            queue.add(("flood", f"job-{index}"))
        queue.go()
        await settled(queue)

    asyncio.run(run())
    assert seen.index(("team", "job")) <= 11


def test_within_a_namespace_the_oldest_comes_first_and_a_repetition_keeps_its_place():
    def add(queue):
        for name in ("c", "a", "b", "c"):
            queue.add(("team", name))

    assert drained(add) == [("team", "c"), ("team", "a"), ("team", "b")]


def test_a_key_that_is_busy_takes_no_turn_for_ever():
    order = []

    async def run():
        going = asyncio.Event()

        async def slow():
            await going.wait()

        def step(key):
            order.append(key)
            return slow() if key == ("team", "slow") and len(order) == 1 else None

        queue = WorkQueue(step, lambda: 0.0, _PARALLEL)
        queue.add(("team", "slow"))
        queue.go()
        await asyncio.sleep(0.01)
        queue.add(("team", "slow"))  # it is being done; it is looked at again afterwards
        queue.add(("team", "other"))
        queue.add(("flood", "other"))
        await asyncio.sleep(0.01)
        assert set(order[1:]) == {("team", "other"), ("flood", "other")}
        going.set()
        await settled(queue)

    asyncio.run(run())
    assert order[-1] == ("team", "slow")


def test_a_few_tasks_begin_in_each_turn_of_the_loop_in_the_order_in_which_they_came():
    begun: list[tuple[int, int]] = []
    turn = 0

    async def task(turns, index):
        await turns.take()
        begun.append((turn, index))

    async def run():
        nonlocal turn
        turns = Turns()
        tasks = [asyncio.ensure_future(task(turns, index)) for index in range(20)]
        tasks[10].cancel()
        while not all(each.done() for each in tasks):
            turn += 1
            await asyncio.sleep(0)
        await task(turns, 20)  # later: no task is before it

    asyncio.run(run())
    assert [index for _, index in begun] == [*range(10), *range(11, 21)]
    most = Counter(at for at, _ in begun).most_common(1)[0][1]
    assert most == AT_ONCE


def test_work_that_is_cancelled_before_its_turn_has_begun_nothing():
    begun = []

    async def work(index):
        begun.append(index)

    async def run():
        queue = WorkQueue(lambda _: None, lambda: 0.0, _PARALLEL)
        for index in range(AT_ONCE + 3):
            queue.do(("team", f"job-{index}"), work(index))
        await asyncio.sleep(0)
        await asyncio.gather(*queue.stop(), return_exceptions=True)

    asyncio.run(run())
    assert begun == list(range(AT_ONCE))
