"""The HTTP side: kube-scheduler's port on loopback, and the way to the process in front."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from scheduler_extender.admission.webhook import admission_router
from scheduler_extender.config import ExtenderConfig, Listen
from scheduler_extender.serving import pairing
from scheduler_extender.serving.api import health_router, read_router
from scheduler_extender.serving.front import FrontConfig
from scheduler_extender.serving.frontman import FrontProcess
from scheduler_extender.serving.gate import KEEP_ALIVE_S
from scheduler_extender.serving.limits import Limited
from scheduler_extender.serving.memory_api import memory_router
from scheduler_extender.serving.nodepods import node_pods_router
from scheduler_extender.serving.process import collector_spared, give_way_soon, keep_freed_memory
from scheduler_extender.serving.readers import everybody
from scheduler_extender.serving.routes import VerbsFirst, verbs_router
from scheduler_extender.serving.service import Service, running
from scheduler_extender.serving.status.publisher import Publisher
from scheduler_extender.serving.status.routes import status_router
from scheduler_extender.serving.status.sources import (
    events_in_memory,
    inner_router,
    local_changes,
    local_profiles,
    local_reports,
    local_what_if,
)
from scheduler_extender.serving.tls import Tls, tls_of_files
from tandem.kube.memory import MemoryCluster

log = logging.getLogger(__name__)

_SHUTDOWN_S = 5


def verbs_app(service: Service, served: Callable[[], bool] = lambda: True) -> FastAPI:
    """Return what kube-scheduler calls; `served` says whether the public port is served."""
    app = FastAPI(title="Tandem scheduler extender", docs_url=None, redoc_url=None)
    verbs = verbs_router(service.verbs, service.binder, service.feed, service.metrics)
    app.include_router(verbs)
    app.add_middleware(VerbsFirst, verbs=verbs, traffic=service.traffic)
    app.include_router(health_router(service.feed, service.metrics, served))
    return app


def public_app(service: Service) -> FastAPI:
    """Return what users call where the API server is in memory: it knows no users."""
    app = FastAPI(title="Tandem", docs_url=None, redoc_url=None)
    app.include_router(health_router(service.feed, service.metrics))
    app.include_router(read_router(service.state, service.config.profile.pipeline()))
    app.include_router(
        admission_router(
            service.config.admission,
            lambda: service.runtime_class[0],
            lambda outcome: service.metrics.admissions.labels(outcome).inc(),
            levels=lambda: service.levels.current,
        )
    )
    if isinstance(service.api, MemoryCluster):
        app.include_router(memory_router(service.api))
        app.include_router(
            status_router(
                Publisher(local_changes(service.changes, service.traffic)),
                everybody,
                events_in_memory(service.api),
                local_profiles(service.predictor),
                report=local_reports(service.report),
                what_if=local_what_if(service.what_if),
            )
        )
    app.add_middleware(Limited)
    return app


class _Server(uvicorn.Server):
    """A server among others: the process that runs them all handles the signals.

    It logs where it listens by itself.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


async def serve(config: ExtenderConfig) -> None:
    """Run the extender until SIGTERM or SIGINT.

    In a cluster, the public port and the probes are served by a process of their own (`front.py`).
    The in-memory API has neither untrusted clients nor kubelets: one process serves it all.
    """
    keep_freed_memory()
    give_way_soon()
    async with (
        running(config) as service,
        _tls_of_verbs(config) as verbs,
        collector_spared(service.feed),
        contextlib.AsyncExitStack() as stack,
    ):
        servers: list[_Server] = []
        tasks: list[asyncio.Task[None]] = []
        served: Callable[[], bool] = lambda: True  # noqa: E731 - one process serves it all
        if isinstance(service.api, MemoryCluster):
            on_certificate = service.metrics.certificate.set
            public = await stack.enter_async_context(
                tls_of_files(config.public, config.certificate.look_s, on_certificate)
            )
            servers.append(_server(public_app(service), config.public, public))
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-")))
            path = str(folder / "extender.sock")
            servers.append(_server(inner_app(service), path=path))
            front = _front(service, path)
            served = lambda: front.serves  # noqa: E731 - as above
            keeping = asyncio.create_task(front.run())
            stack.push_async_callback(_cancelled, keeping)
            tasks.append(keeping)
        servers.append(_server(verbs_app(service, served), config.verbs, verbs))

        def stop() -> None:
            for server in servers:
                server.should_exit = True

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        serving = asyncio.create_task(_all(servers))
        await asyncio.wait({serving, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        stop()
        await serving
        for task in tasks:
            if task.done():
                await task


async def _all(servers: Iterable[_Server]) -> None:
    await asyncio.gather(*(server.serve() for server in servers))


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def inner_app(service: Service) -> FastAPI:
    """Return what the process in front asks, over a socket that only our user may open."""
    app = FastAPI(title="Tandem, within", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(health_router(service.feed, service.metrics))
    app.include_router(
        read_router(
            service.state, service.config.profile.pipeline(), service.own_pods.agent_answers
        )
    )
    app.include_router(node_pods_router(service.node_pods))
    app.include_router(
        inner_router(
            service.changes, service.predictor, service.traffic, service.report, service.what_if
        )
    )
    return app


def _front(service: Service, path: str) -> FrontProcess:
    config = service.config
    settings = FrontConfig(
        kubeconfig=config.kubeconfig,
        namespace=config.namespace,
        public=config.public,
        probes=config.probes,
        tunnel=config.tunnel,
        predictor_url=config.predictor_url,
        predictor_token_file=config.predictor_token_file,
        certificate=config.certificate,
        admission=config.admission,
        kinds=config.kinds,
        log_level=config.log_level,
        socket=path,
    )
    return FrontProcess(
        settings,
        service.metrics,
        lambda: {
            "ready": service.feed.ready,
            "runtime_class": service.runtime_class[0],
            "levels": service.levels.current,
        },
    )


@contextlib.asynccontextmanager
async def _tls_of_verbs(config: ExtenderConfig) -> AsyncIterator[Tls | None]:
    """Give the verbs' port its certificate, from files or made for the scheduler next to us."""
    listen = config.verbs
    if listen.shared_with_scheduler is None:
        async with tls_of_files(listen, config.certificate.look_s) as tls:
            yield tls
        return
    tls = Tls(await asyncio.to_thread(pairing.authority, listen.shared_with_scheduler))
    tls.use(pairing.serving(listen.shared_with_scheduler))
    yield tls


def _server(
    app: FastAPI, listen: Listen | None = None, tls: Tls | None = None, path: str | None = None
) -> _Server:
    """Return a server at a port, or at a path of the file system."""
    return _Server(
        uvicorn.Config(
            app,
            host=listen.host if listen else "",
            port=listen.port if listen else 0,
            uds=path,
            http="httptools",
            access_log=False,
            log_config=None,
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=_SHUTDOWN_S,
            ssl_context_factory=None if tls is None else lambda _config, _default: tls.context,
        )
    )
