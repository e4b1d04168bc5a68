"""Serves the page on loopback from a state in this process, which the caller may change."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Request

from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.quotas.config import Quota
from scheduler_extender.serving.readers import Check, everybody
from scheduler_extender.serving.status.changes import Changes
from scheduler_extender.serving.status.publisher import Publisher
from scheduler_extender.serving.status.routes import WhatIf, status_router
from scheduler_extender.serving.status.sources import local_changes
from tandem.local.processes import free_port

QUOTAS = [
    (Quota(namespace="speech", gpus=12, max_gpus=24), 24, 0.0),
    (Quota(namespace="vision", gpus=40), 21, 0.0),
]


class PageSite:
    """The page at `url`; `change` runs work on the loop that owns the state."""

    def __init__(self, url: str, state: ClusterState, loop: asyncio.AbstractEventLoop) -> None:
        self.url, self.state, self._loop = url, state, loop

    def change(self, work: Callable[[ClusterState], Any]) -> None:
        """Run `work` and wait until it is done."""
        done = threading.Event()

        def run() -> None:
            work(self.state)
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(60)


@contextmanager
def page_site(
    fill: Callable[[ClusterState], None],
    may: Check = everybody,
    events: list[dict[str, Any]] | None = None,
    profile: dict[str, Any] | None = None,
    within_s: float = 120,
    state: ClusterState | None = None,
    report: dict[str, Any] | None = None,
    what_if: WhatIf | None = None,
) -> Iterator[PageSite]:
    """Serve a cluster that `fill` makes, or adds to `state`."""
    port, started = free_port(), threading.Event()
    found: list[PageSite] = []
    servers: list[uvicorn.Server] = []

    async def of_job(_: Request, *__: object) -> list[dict[str, Any]]:
        return events or []

    async def of_model(*_: str) -> dict[str, Any] | None:
        return profile

    async def of_days(*_: object) -> dict[str, Any]:
        assert report is not None
        return report

    async def serve() -> None:
        served = state or ClusterState(now_s=time.time())
        changes = Changes(served, lambda: QUOTAS)
        fill(served)
        app = FastAPI()
        publisher = Publisher(local_changes(changes))
        app.include_router(
            status_router(publisher, may, of_job, of_model, report=of_days, what_if=what_if)
        )
        server = uvicorn.Server(
            uvicorn.Config(app, port=port, log_level="error", timeout_graceful_shutdown=1)
        )
        servers.append(server)
        found.append(PageSite(f"http://127.0.0.1:{port}", served, asyncio.get_running_loop()))
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.02)
        started.set()
        await task

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(within_s), "the page is not served"
    try:
        yield found[0]
    finally:
        servers[0].should_exit = True
        thread.join(20)
