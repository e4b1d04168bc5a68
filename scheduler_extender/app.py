"""The HTTP side: kube-scheduler's port on loopback, and the port for everybody else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from scheduler_extender.api import health_router, read_router
from scheduler_extender.certificates import ensure_certificate, expires_s, install_authority
from scheduler_extender.config import ExtenderConfig, Listen, Public
from scheduler_extender.memory_api import memory_router
from scheduler_extender.process import collector_spared, give_way_soon, keep_freed_memory
from scheduler_extender.routes import verbs_router
from scheduler_extender.service import Service, running
from scheduler_extender.webhook import admission_router
from tandem.kube.memory import MemoryCluster

log = logging.getLogger(__name__)

#: Go keeps an idle connection for 90 s; closing it before would fail a verb now and then.
KEEP_ALIVE_S = 120
_SHUTDOWN_S = 5


def verbs_app(service: Service) -> FastAPI:
    """Return what kube-scheduler calls; to be served on loopback alone."""
    app = FastAPI(title="Tandem scheduler extender", docs_url=None, redoc_url=None)
    app.include_router(verbs_router(service.verbs, service.binder, service.feed, service.metrics))
    app.include_router(health_router(service.feed, service.metrics))
    return app


def public_app(service: Service) -> FastAPI:
    """Return what the API server, Prometheus, kubelet and users call."""
    app = FastAPI(title="Tandem", docs_url=None, redoc_url=None)
    app.include_router(health_router(service.feed, service.metrics))
    app.include_router(read_router(service.state, service.config.profile.pipeline()))
    app.include_router(admission_router(service.config.admission, lambda: service.runtime_class[0]))
    if isinstance(service.api, MemoryCluster):
        app.include_router(memory_router(service.api))
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
        _certificate(service) as public,
        collector_spared(service.feed),
    ):
        if public.tls_cert:
            service.metrics.certificate_expires(expires_s(public.tls_cert))
        servers = [
            _server(verbs_app(service), config.verbs),
            _server(public_app(service), public),
        ]

        def stop() -> None:
            for server in servers:
                server.should_exit = True

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        await asyncio.gather(*(server.serve() for server in servers))


@contextlib.asynccontextmanager
async def _certificate(service: Service) -> AsyncIterator[Public]:
    """Give the public port its certificate, and let the API server trust it once we can answer."""
    public, api = service.config.public, service.api
    if public.tls_cert or isinstance(api, MemoryCluster):
        yield public
        return
    serving = await asyncio.to_thread(
        ensure_certificate, api, public.namespace, public.service_names, datetime.now(UTC)
    )

    async def install() -> None:
        await service.feed.wait_ready()
        await asyncio.to_thread(install_authority, api, serving.ca)

    with tempfile.TemporaryDirectory(prefix="tandem-tls-") as folder:
        certificate, key = serving.write(Path(folder))
        task = asyncio.create_task(install())
        task.add_done_callback(_complain)
        try:
            yield public.model_copy(update={"tls_cert": certificate, "tls_key": key})
        finally:
            task.cancel()


def _complain(task: asyncio.Task[None]) -> None:
    """Log why the webhook could not be installed: pods are not admitted until it is."""
    if not task.cancelled() and task.exception() is not None:
        log.error("webhook not installed error=%s", task.exception())


def _server(app: FastAPI, listen: Listen) -> _Server:
    tls = listen if isinstance(listen, Public) else Public()
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
            ssl_certfile=tls.tls_cert,
            ssl_keyfile=tls.tls_key,
        )
    )
