"""The parts put together: what feeds the state, what answers from it, what acts on it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

from scheduler_extender.accounting.past import Past
from scheduler_extender.admission.webhook import has_nvidia_runtime_class
from scheduler_extender.cluster.feed import Feed
from scheduler_extender.cluster.gpu_claims import ClaimRecord, GpuClaims, parse_claim
from scheduler_extender.cluster.pair_slowdowns import PairSlowdowns
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.cluster.writes import CYCLE_WRITES, PARALLEL_WRITES
from scheduler_extender.config import ExtenderConfig
from scheduler_extender.heartbeat import Heartbeat
from scheduler_extender.leader import Fence, LeaseWatch
from scheduler_extender.learning.learned_state import LearnedState, believing
from scheduler_extender.predictions import HttpPredictor, PredictorMetrics
from scheduler_extender.predictor_token import predictor_token
from scheduler_extender.queue.controller import Connection, Controller, Settings
from scheduler_extender.queue.figures import QueueFigures
from scheduler_extender.queue.forecasts.what_if import WhatIf
from scheduler_extender.queue.metrics import QueueMetrics
from scheduler_extender.quotas import adopted
from scheduler_extender.serving.levels import Levels
from scheduler_extender.serving.memory_api import admission
from scheduler_extender.serving.metrics import Metrics
from scheduler_extender.serving.nodepods import NodePods
from scheduler_extender.serving.offers import Offers
from scheduler_extender.serving.own_pods import OwnPods
from scheduler_extender.serving.process import thread_pool
from scheduler_extender.serving.status.changes import Changes, Silent
from scheduler_extender.serving.traffic import Traffic
from scheduler_extender.verbs.answers import Verbs
from scheduler_extender.verbs.binding import Binder, Leadership
from tandem.contracts import names
from tandem.kube.client import KubeClient, Object
from tandem.kube.errors import KubeError
from tandem.kube.events import EventRecorder
from tandem.kube.memory import MemoryCluster
from tandem.kube.reflector import EventType, Reflector
from tandem.kube.resource import GPU_JOBS, GPU_NODES, NODES, PODS, RESOURCE_CLAIMS

log = logging.getLogger(__name__)

COMPONENT = "tandem-scheduler"
WATCHED = (NODES, GPU_NODES, GPU_JOBS, PODS)

_BIND_THREADS = 32
#: The writes of the queue, and everything else that blocks: planning, forecasts, repairs, fencing,
#: quotas and the runtime class, each of which runs once at a time. None waits for another's thread.
_OTHER_THREADS = PARALLEL_WRITES + CYCLE_WRITES + 8
_TICK_S = 1.0
_SWITCH_S = 0.0005
_RUNTIME_CLASS_EVERY_S = 60.0


@dataclass(slots=True)
class Service:
    """Everything that the HTTP routes need."""

    config: ExtenderConfig
    api: KubeClient | MemoryCluster
    state: ClusterState
    feed: Feed
    verbs: Verbs
    binder: Binder
    metrics: Metrics
    changes: Changes
    predictor: HttpPredictor
    node_pods: NodePods
    own_pods: OwnPods
    past: Past
    what_if: WhatIf
    levels: Levels
    runtime_class: list[bool] = field(default_factory=lambda: [False])
    traffic: Traffic = field(default_factory=Traffic)

    async def report(self, days: int, by: str, namespace: str | None) -> dict[str, Any]:
        """Return what jobs have had of GPUs; raises as `Past.report` does."""
        return await self.past.report(self.api, days, by, namespace)


@contextlib.asynccontextmanager
async def running(
    config: ExtenderConfig,
    api: KubeClient | MemoryCluster | None = None,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[Service]:
    """Run everything but the HTTP servers, on the running loop.

    `api` is made from the configuration where it is not given. At the end, Bindings under way get a
    moment to come to their end.
    """
    if api is None:
        api = (
            MemoryCluster(admission(config.admission))
            if config.api == "memory"
            else KubeClient.load(config.kubeconfig)
        )
    profile = believing(config.profile, config.learning)
    learning = config.learning
    learned = LearnedState(PairSlowdowns(learning.pairs_per_namespace, learning.max_interference))
    pipeline = profile.pipeline()
    state = ClusterState(
        now_s=clock(),
        max_jobs_per_gpu=config.shares,
        stale_after_s=config.stale_after_s,
        pairs=learned.pairs,
        placements=learned.placements,
        clock=clock,
        topology_levels=config.admission.topology_levels,
    )
    node_pods = NodePods(state)
    Offers(state, profile.name, config.shares)
    metrics = Metrics()
    feed = Feed(state, on_slice=metrics.slices.observe)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(thread_pool(_OTHER_THREADS, "work"))
    threads = thread_pool(_BIND_THREADS, "bind")
    binder = Binder(
        state,
        pipeline,
        api,
        threads,
        stamp=lambda: uuid4().hex,
        leadership=Leadership(
            may_bind=lambda: state.listener is not None and controller.leads,
            stands_by=lambda since_s: lease.stands_by(since_s),
            hurry=lambda: lease.hurry(),
        ),
        refusal=lambda pod: fence.open.get(pod.uid) or controller.gates.refusal(pod),
        memory_limits=config.admission.memory_limits,
    )
    verbs = Verbs(state, pipeline, lambda pod: controller.gates.refusal(pod))
    gpu_claims = GpuClaims() if config.admission.gpu_claims else None
    predictor = HttpPredictor(
        config.predictor_url,
        token=predictor_token(config.predictor_url, config.predictor_token_file, api),
        metrics=PredictorMetrics(metrics.registry),
    )
    changes = Changes(
        state,
        lambda: controller.accounts.figures(),
        lambda: controller.terminations.overdue(),
        lambda: silent(),
        lambda node: own_pods.agent_answers(node),
    )
    own_pods = OwnPods(clock, changes.node_changed)
    own_pods.count(metrics.registry)
    hostname = config.leader.hostname or socket.gethostname()

    def term_changed() -> None:
        # At once, not at the next round: kube-scheduler calls from the moment that it leads.
        loop.call_soon_threadsafe(controller.look_again)

    lease = LeaseWatch(
        api,
        config.namespace,
        names.LEASE_NAME,
        hostname,
        clock,
        changed=term_changed,
    )
    heartbeat = Heartbeat("predictor", predictor.answers, metrics.registry)

    def without_leader() -> bool:
        return not config.leader.always and lease.without_leader()

    metrics.leads.set_function(lambda: 0 if without_leader() else 1)

    def silent() -> Silent:
        return _silent(heartbeat, own_pods, without_leader=without_leader())

    recorder = EventRecorder(api, COMPONENT, hostname)

    def tell(regarding: Object, reason: str, note: str, kind: str) -> None:
        recorder.record(regarding, reason, note, type_="Warning" if kind == "Warning" else "Normal")

    fence = Fence(api, config.admission.scheduler_name, feed.put, tell)
    process = uuid4().hex[:8]

    async def take_over(term: str) -> None:
        await fence.raise_for(f"{term}.{process}")

    queue_metrics = QueueMetrics(metrics.registry)
    state.listener = controller = Controller(
        state=state,
        profile=profile,
        predictor=predictor,
        connection=Connection(
            api=api,
            tell=tell,
            clock=clock,
            term=(lambda: "always") if config.leader.always else lease.term,
            take_over=None if config.leader.always else take_over,
            namespace=config.namespace,
            gpu_claims=gpu_claims,
        ),
        settings=Settings(
            queue=config.queue,
            learning=config.learning,
            stale_after_s=config.stale_after_s,
            max_grace_s=config.admission.max_termination_grace_s,
            forecasts=True,
        ),
        learned=learned,
        feedback=predictor.tell,
        metrics=queue_metrics,
    )
    queue_metrics.watch(QueueFigures(controller))
    binder.mismatch = controller.claims.mismatch
    node_pods.holds = controller.ways.holds

    def use_levels(found: tuple[str, ...]) -> None:
        state.use_levels(found)
        controller.look_again()

    levels = Levels(config.admission, use_levels)
    await levels.look(api)
    service = Service(
        config, api, state, feed, verbs, binder, metrics, changes, predictor, node_pods, own_pods,
        controller.past, controller.what_if, levels,
    )  # fmt: skip
    reflectors = _start_feed(feed, api)
    reflectors += own_pods.follow(api, (config.namespace, config.agent_namespace))
    claims_read = asyncio.Event()
    if gpu_claims is None:
        claims_read.set()
    else:
        reflectors += _follow_claims(gpu_claims, api, claims_read)
    metrics.watch(state, feed, binder, reflectors, config.shares)
    if not config.leader.always:
        lease.start()
    tasks = [
        asyncio.create_task(_tick(state, metrics, clock)),
        asyncio.create_task(_act_when_ready(feed, claims_read, controller)),
        asyncio.create_task(_watch_runtime_class(service, api)),
        asyncio.create_task(levels.follow(api)),
    ]
    if predictor.is_configured:
        tasks.append(asyncio.create_task(heartbeat.run()))
    if isinstance(api, KubeClient):
        tasks.append(asyncio.create_task(adopted.keep(api, lambda: controller.leads)))
    try:
        yield service
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        lease.stop()
        for reflector in reflectors:
            await asyncio.to_thread(reflector.stop)
        await binder.drained()
        threads.shutdown(wait=False, cancel_futures=True)
        await predictor.aclose()
        api.close()


def _silent(heartbeat: Heartbeat, own_pods: OwnPods, *, without_leader: bool) -> Silent:
    """Return which services do not answer, for the status page."""
    found: Silent = {}
    if heartbeat.silent:
        found["predictor"] = []
    if without_leader:
        found["scheduler"] = []
    if pods := own_pods.silent("predictor", "scheduler"):
        found["replica"] = list(map(str, pods))
    return found


def _start_feed(feed: Feed, api: KubeClient | MemoryCluster) -> list[Reflector]:
    """Let the API server's objects flow; a memory cluster tells by itself."""
    if isinstance(api, MemoryCluster):
        for resource in WATCHED:
            api.watch(resource, partial(_tell, feed, resource.plural))
            feed.synced(resource.plural)
        return []
    reflectors = [
        Reflector(
            api,
            resource,
            partial(feed.take, resource.plural),
            trim=feed.trim(resource.plural),
            on_synced=partial(feed.synced, resource.plural),
        )
        for resource in WATCHED
    ]
    for reflector in reflectors:
        reflector.start()
    return reflectors


def _tell(feed: Feed, kind: str, event: EventType, obj: Object) -> None:
    feed.take(kind, event, feed.trim(kind)(obj, None))


async def _tick(state: ClusterState, metrics: Metrics, clock: Callable[[], float]) -> None:
    """Let the state's clock advance, and measure how late the loop comes to it."""
    while True:
        due = time.perf_counter() + _TICK_S
        await asyncio.sleep(_TICK_S)
        metrics.lag.observe(max(0.0, time.perf_counter() - due))
        state.tick(clock())


def _follow_claims(
    claims: GpuClaims, api: KubeClient | MemoryCluster, read: asyncio.Event
) -> list[Reflector]:
    """Let the ResourceClaims of the cluster flow; `read` is set when all have come."""
    loop = asyncio.get_running_loop()

    def take(event: EventType, claim: ClaimRecord) -> None:
        loop.call_soon_threadsafe(claims.take, event, claim)

    if isinstance(api, MemoryCluster):
        api.watch(RESOURCE_CLAIMS, lambda event, raw: take(event, parse_claim(raw)))
        read.set()
        return []

    def synced() -> None:
        loop.call_soon_threadsafe(read.set)

    reflector = Reflector(
        api, RESOURCE_CLAIMS, take, trim=lambda raw, _: parse_claim(raw), on_synced=synced
    )
    reflector.start()
    return [reflector]


async def _act_when_ready(feed: Feed, claims_read: asyncio.Event, controller: Controller) -> None:
    await feed.wait_ready()
    await claims_read.wait()
    log.info("cluster read, the queue controller begins")
    # The planner's thread gives the loop its turn soon: a verb does not wait for it.
    sys.setswitchinterval(_SWITCH_S)
    task = asyncio.create_task(controller.run())
    try:
        await controller.caught_up.wait()
        gc.freeze()  # what the queue is made of is no garbage; see app.py
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _watch_runtime_class(service: Service, api: KubeClient | MemoryCluster) -> None:
    """Keep an eye on whether the cluster has the runtime class that the webhook may set."""
    while True:
        try:
            service.runtime_class[0] = await asyncio.to_thread(has_nvidia_runtime_class, api)
        except KubeError as error:
            log.warning("runtime class not read error=%s", error)
        await asyncio.sleep(_RUNTIME_CLASS_EVERY_S)
