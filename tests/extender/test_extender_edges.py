"""Edges of the leader's watch, of bind and of the fence that their stories do not come to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from extender_builders import gpu_node
from test_extender_binding import Bench, scenario
from test_extender_leader import Pair


def test_the_watch_of_the_lease_keeps_no_process_from_ending() -> None:
    assert Pair().watch._thread.daemon


@scenario
async def test_the_end_waits_for_bindings_under_way_but_not_for_ever() -> None:
    bench = Bench()
    bench.state.upsert("gpunodes", gpu_node("n0", "a"))
    created = bench.create("p")
    sent, let_go = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def waits(done: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(sent.set)
        asyncio.run_coroutine_threadsafe(let_go.wait(), loop).result(30)
        done()

    await bench.binder.drained(0.0)  # none is under way
    bench.cluster.bind_faults = [waits]
    binding = asyncio.create_task(bench.bind(created))
    await sent.wait()
    await bench.binder.drained(0.01)
    assert bench.binder.under_way == 1
    let_go.set()
    await bench.binder.drained(30.0)
    assert await binding == ""
    assert bench.binder.under_way == 0
