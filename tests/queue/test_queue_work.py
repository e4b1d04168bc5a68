"""The work queue: one thing at a time for each gang, and namespaces take turns."""

import asyncio

from queue_builders import settled

from scheduler_extender.queue.work import WorkQueue

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
