"""The HTTP side: kube-scheduler's port on loopback, and the port for everybody else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import uvicorn
from fastapi import FastAPI

from scheduler_extender.admission.rotation import Keeper
from scheduler_extender.admission.webhook import admission_router
from scheduler_extender.config import ExtenderConfig, Listen
from scheduler_extender.serving.api import health_router, read_router
from scheduler_extender.serving.limits import Limited
from scheduler_extender.serving.memory_api import memory_router
from scheduler_extender.serving.process import collector_spared, give_way_soon, keep_freed_memory
from scheduler_extender.serving.readers import Readers, everybody
from scheduler_extender.serving.routes import Straight, verbs_router
from scheduler_extender.serving.service import Service, running
from scheduler_extender.serving.tls import Tls, read_files
from tandem.kube.memory import MemoryCluster

log = logging.getLogger(__name__)

#: Go keeps an idle connection for 90 s; closing it before would fail a verb now and then.
KEEP_ALIVE_S = 120
_SHUTDOWN_S = 5


def verbs_app(service: Service) -> FastAPI:
    """Return what kube-scheduler calls; to be served on loopback alone."""
    app = FastAPI(title="Tandem scheduler extender", docs_url=None, redoc_url=None)
    verbs = verbs_router(service.verbs, service.binder, service.feed, service.metrics)
    app.include_router(verbs)
    app.add_middleware(Straight, verbs=verbs)
    app.include_router(health_router(service.feed, service.metrics))
    return app


def public_app(service: Service) -> FastAPI:
    """Return what the API server, Prometheus, kubelet and users call."""
    app = FastAPI(title="Tandem", docs_url=None, redoc_url=None)
    app.include_router(health_router(service.feed, service.metrics))
    in_memory = isinstance(service.api, MemoryCluster)
    readers = everybody if in_memory else Readers(service.api).check
    app.include_router(read_router(service.state, service.config.profile.pipeline(), readers))
    app.include_router(
        admission_router(
            service.config.admission, lambda: service.runtime_class[0], service.metrics.admitted
        )
    )
    if isinstance(service.api, MemoryCluster):
        app.include_router(memory_router(service.api))
    app.add_middleware(Limited)
    return app


class _Server(uvicorn.Server):
    """A server among others: whoever runs them all handles the signals.

    It logs where it listens by itself.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


async def serve(config: ExtenderConfig) -> None:
    """Run the extender until SIGTERM or SIGINT."""
    keep_freed_memory()
    give_way_soon()
    async with (
        running(config) as service,
        _public_tls(service) as public,
        _tls_of_files(config.verbs, config.certificate.look_s) as verbs,
        collector_spared(service.feed),
    ):
        servers = [
            _server(verbs_app(service), config.verbs, verbs),
            _server(public_app(service), config.public, public),
        ]

        def stop() -> None:
            for server in servers:
                server.should_exit = True

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        await asyncio.gather(*(server.serve() for server in servers))


@contextlib.asynccontextmanager
async def _public_tls(service: Service) -> AsyncIterator[Tls | None]:
    """Give the public port its certificate, and let the API server trust it once we can answer."""
    config, api, told = service.config, service.api, service.metrics.certificate_expires
    if config.public.tls_cert is not None or isinstance(api, MemoryCluster):
        async with _tls_of_files(config.public, config.certificate.look_s, told) as tls:
            yield tls
        return
    public = config.public
    keeper = Keeper(api, public.namespace, public.service_names, config.certificate)
    tls = Tls(on_change=told)
    tls.use(await asyncio.to_thread(keeper.begin))
    following = tls.follow(keeper.look, config.certificate.look_s, service.feed.wait_ready)
    async with following:
        yield tls


@contextlib.asynccontextmanager
async def _tls_of_files(
    listen: Listen, every_s: float, on_change: Callable[[float], None] = lambda _: None
) -> AsyncIterator[Tls | None]:
    if listen.tls_cert is None or listen.tls_key is None:
        yield None
        return
    read = partial(read_files, listen.tls_cert, listen.tls_key)
    tls = Tls(listen.client_ca, on_change)
    tls.use(read())
    async with tls.follow(read, every_s):
        yield tls


def _server(app: FastAPI, listen: Listen, tls: Tls | None) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            host=listen.host,
            port=listen.port,
            http="httptools",
            access_log=False,
            log_config=None,
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=_SHUTDOWN_S,
            ssl_context_factory=None if tls is None else lambda _config, _default: tls.context,
        )
    )
