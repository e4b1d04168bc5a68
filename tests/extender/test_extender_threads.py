"""The service has all its threads from the start, and no blocked write keeps planning waiting."""

from __future__ import annotations

import asyncio
import threading

from scheduler_extender.cluster.writes import PARALLEL_WRITES
from scheduler_extender.config import ExtenderConfig
from scheduler_extender.serving.process import thread_pool
from scheduler_extender.serving.service import running


def test_pool_has_all_its_threads_before_its_first_task() -> None:
    before = threading.active_count()
    pool = thread_pool(8, "eight")
    try:
        assert threading.active_count() == before + 8
        pool.submit(int).result()
        assert threading.active_count() == before + 8
    finally:
        pool.shutdown()


def test_planning_has_a_thread_while_every_write_waits_for_the_api_server() -> None:
    async def act() -> None:
        async with running(ExtenderConfig(api="memory")):
            answered, threads = threading.Event(), threading.active_count()
            writes = [
                asyncio.create_task(asyncio.to_thread(answered.wait))
                for _ in range(PARALLEL_WRITES)
            ]
            try:
                planned = asyncio.to_thread(lambda: "planned")
                assert await asyncio.wait_for(planned, 5) == "planned"
                assert threading.active_count() == threads
            finally:
                answered.set()
            await asyncio.gather(*writes)

    asyncio.run(act())
