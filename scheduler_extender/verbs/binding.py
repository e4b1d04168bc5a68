"""bind: chooses the GPUs, reserves them, and binds the pod in one write.

The order is what makes it safe: constraints are checked and GPUs reserved in one step of the event
loop; the Binding carries the pod's uid and resourceVersion, so that it takes effect once or never;
a reservation is given back only when no Binding of ours can take effect any more, for certain.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from scheduler_extender import faults
from scheduler_extender.cluster.ledger import Claim, Hold
from scheduler_extender.cluster.parsing import parse_pod
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import PodRecord
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.verbs.answers import node_reason
from scheduler_extender.verbs.wire import ExtenderBindingArgs
from tandem.contracts import names
from tandem.contracts.annotations import format_visible_devices
from tandem.contracts.limits import limit_annotations
from tandem.kube.api import ClusterApi
from tandem.kube.errors import Conflict, Invalid, KubeError, NotFound, Unavailable
from tandem.kube.resource import PODS
from tandem.policy.links import connected_rows
from tandem.policy.pipeline import Pipeline, best_rows
from tandem.reasons.counting import counted

log = logging.getLogger(__name__)

_ATTEMPTS = 2
_LEAD_S = 1.5
_LOOKS = 30  # in that time, whether we lead by now
#: Bindings under way from which on filter waits for one to end. kube-scheduler asks for the next
#: Binding as soon as filter has answered, and gives up those that take longer than 2 s.
MOST_UNDER_WAY = 48
_FEWER_WITHIN_S = 1.0
_SETTLE_FIRST_S, _SETTLE_MAX_S = 0.2, 10.0
_Result = TypeVar("_Result")


@dataclass(slots=True)
class _UnderWay:
    node: str
    task: asyncio.Task[str]


@dataclass(frozen=True, slots=True)
class Leadership:
    """Whether this replica may bind, and how it finds out.

    `may_bind` is False while another replica leads, or may still have Bindings under way. `hurry`
    asks to find out at once whether we lead; `stands_by` is True where that has been found out
    since a time (monotonic), and we do not.
    """

    may_bind: Callable[[], bool] = lambda: True
    stands_by: Callable[[float], bool] = lambda _: True
    hurry: Callable[[], None] = lambda: None


class Binder:
    """One Binding at a time per pod; `bind` answers '' for success, else why not.

    `threads` runs the blocking calls. `stamp` names this attempt in the pod's wake annotation.
    `refusal` returns why a pod may not start now, whatever GPUs are free, or ''. `memory_limits`
    says whether containers read their limit: one that none reads is not written.
    All methods run on the event loop.
    """

    def __init__(
        self,
        state: ClusterState,
        pipeline: Pipeline,
        api: ClusterApi,
        threads: Executor,
        stamp: Callable[[], str],
        leadership: Leadership | None = None,
        refusal: Callable[[PodInfo], str] = lambda _: "",
        *,
        memory_limits: bool = True,
    ) -> None:
        #: Why the pod's ResourceClaim does not give it the GPUs that were chosen, or ''.
        self.mismatch: Callable[[PodInfo, Claim], str] = lambda *_: ""
        self._state = state
        self._pipeline = pipeline
        self._api = api
        self._threads = threads
        self._stamp = stamp
        leadership = leadership or Leadership()
        self._may_bind = leadership.may_bind
        self._stands_by = leadership.stands_by
        self._hurry = leadership.hurry
        self._refusal = refusal
        self._memory_limits = memory_limits
        self._under_way: dict[str, _UnderWay] = {}

    @property
    def under_way(self) -> int:
        """Bindings whose outcome is not known yet."""
        return len(self._under_way)

    async def drained(self, timeout_s: float = 3.0) -> None:
        """Return when no Binding is under way any more, or when the time is up."""
        if self._under_way:
            await asyncio.wait([each.task for each in self._under_way.values()], timeout=timeout_s)

    async def bind(self, args: ExtenderBindingArgs) -> str:
        """Bind a pod; asked again for the same pod and node, it answers the same."""
        uid, node = args["PodUID"], args["Node"]
        other = self._under_way.get(uid)
        if other is None:
            task = asyncio.create_task(self._bind(args))
            other = self._under_way[uid] = _UnderWay(node, task)
            task.add_done_callback(lambda _: self._under_way.pop(uid))
        elif other.node != node:
            return f"a Binding of this pod to {other.node} is under way, its outcome not known yet"
        # The scheduler may hang up; the Binding goes on, and a second request joins it.
        return await asyncio.shield(other.task)

    async def _bind(self, args: ExtenderBindingArgs) -> str:
        uid, node = args["PodUID"], args["Node"]
        record = self._state.pod(uid)
        try:
            if record is None:
                record = await self._read(args["PodNamespace"], args["PodName"])
            for _ in range(_ATTEMPTS):
                if record is None or record.uid != uid:
                    return "the pod is gone"
                if record.pod.node_name:
                    return _already_bound(record.pod, node)
                if not record.ours:
                    return await self._bind_without_gpus(record.pod, node)
                await self._lead_soon()
                why = self._refusal(record.pod)
                if why:
                    return why
                claim, why = self.choose(record.pod, node)
                if claim is None:
                    return why
                if why := self.mismatch(record.pod, claim):
                    return why
                if not self._may_bind():
                    return "this replica does not lead (yet): trying again"
                self._state.reserve(uid, claim)
                faults.reach("bind-reserved")
                if await self._sent(record.pod, claim):
                    log.info("bound pod=%s/%s node=%s gpus=%s", *record.key, node, claim.gpus)
                    return ""
                record = await self._settle(record.pod)
        except KubeError as error:
            return f"the API server refused: {error}"
        return "the pod keeps changing or the API server does not answer; trying again later"

    async def _bind_without_gpus(self, pod: PodInfo, node: str) -> str:
        """Bind a pod that names the resource and asks for 0 of it, as kube-scheduler would.

        kube-scheduler leaves the Binding of each pod that names the resource to the extender. Such
        a pod holds no GPU, so nothing is reserved, and who leads does not matter.
        """
        try:
            await self._call(self._api.bind, pod.namespace, pod.name, node, uid=pod.uid)
        except Conflict:
            return "the pod has changed or is bound: trying again"
        return ""

    async def may_follow(self) -> bool:
        """Say whether a Binding may follow on a question that is asked now.

        Only a kube-scheduler that leads asks, so a replica that does not lead yet is about to. It
        waits for the end of the takeover within the timeout of the request. False where that takes
        longer: kube-scheduler asks again, and no Binding is sent that would be refused.

        It also waits while many Bindings are under way: one that ends too late for kube-scheduler
        costs an attempt at all nodes, which delays the others.
        """
        since_s = time.monotonic()
        follows = await self._lead_soon(lambda: self._stands_by(since_s))
        until_s = since_s + _FEWER_WITHIN_S
        while (
            follows
            and len(self._under_way) >= MOST_UNDER_WAY
            and (left_s := until_s - time.monotonic()) > 0
        ):
            tasks = [each.task for each in self._under_way.values()]
            await asyncio.wait(tasks, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        return follows

    async def _lead_soon(self, enough: Callable[[], bool] = lambda: False) -> bool:
        """Wait a moment for the lead: kube-scheduler has its Lease before we fenced off the others.

        Well within the timeout of its request, so that a change of leaders costs no attempt.
        Returns True when we lead, or where that is not needed (`enough`).
        """
        for _ in range(_LOOKS):
            if self._may_bind() or enough():
                return True
            self._hurry()
            await asyncio.sleep(_LEAD_S / _LOOKS)
        return self._may_bind()

    async def _sent(self, pod: PodInfo, claim: Claim) -> bool:
        """Send the Binding; False where it may or may not have taken effect.

        Raises:
            KubeError: it certainly has not; the reservation has been given back.
        """
        placed = self._state.placed_with(pod, claim.job)
        annotations = {
            names.VISIBLE_DEVICES: format_visible_devices(claim.gpus),
            names.GPU_JOB: placed.gpu_job,
            names.PLACED_WITH: placed.text(),
        }
        if pod.annotations.get(names.ACCUMULATION) == "true":
            annotations[names.ACCUMULATION_STEPS] = str(claim.job.accumulation_steps)
        if self._memory_limits and not claim.job.exclusive:
            total_gib = self._state.smallest_gib(claim.node, claim.gpus)
            annotations |= limit_annotations(claim.job.memory_peak_gib, total_gib)
        try:
            await self._call(
                self._api.bind,
                pod.namespace,
                pod.name,
                claim.node,
                uid=pod.uid,
                resource_version=pod.resource_version,
                annotations=annotations,
            )
            faults.reach("bind-sent")
        except KubeError as error:
            # A conflict leaves it open as well: an earlier Binding of ours may have come through.
            if isinstance(error, Conflict) or (isinstance(error, Unavailable) and error.maybe_done):
                log.info("bind outcome open pod=%s/%s error=%s", *pod.key, error)
                return False
            self._state.release(pod.uid)
            raise
        return True

    def choose(self, pod: PodInfo, node: str) -> tuple[Claim | None, str]:
        """Return GPUs of the node for the pod, or why there are none; the planned ones first."""
        state, job = self._state, self._state.worker_to_hold(pod)
        rows = state.table.rows(node)
        ids = [state.table.gpu_ids[row] for row in rows.tolist()]
        gpus = state.ledger.without(rows, frozenset((pod.uid,)))
        evaluation = self._pipeline.evaluate(job, gpus)
        plan = state.ledger.claim(pod.uid, Hold.PLANNED)
        if plan is not None and len(plan.gpus) != pod.gpus:
            # Quotas have been asked for as many as are planned.
            why = f"its plan has {counted(len(plan.gpus), 'GPU')}, and the pod asks for {pod.gpus}"
            return None, why
        if plan is not None and plan.node == node:
            planned = [ids.index(gpu) for gpu in plan.gpus if gpu in ids]
            if len(planned) == pod.gpus and evaluation.allowed[planned].all():
                return Claim(node, plan.gpus, job), ""
        chosen = best_rows(evaluation, np.arange(len(rows)), pod.gpus)
        if chosen is None:
            why = node_reason(job, gpus, self._pipeline.constraints, evaluation.refused_by)
            return (
                None,
                why or f"{node} has {counted(len(ids), 'GPU')}, the pod asks for {pod.gpus}",
            )
        chosen = connected_rows(chosen, gpus, evaluation.allowed, state.table.links_of(rows))
        return Claim(node, tuple(ids[row] for row in sorted(chosen.tolist())), job), ""

    async def _settle(self, pod: PodInfo) -> PodRecord | None:
        """Find out what became of a Binding, however long that takes.

        Returns the pod, or another one that has its name by now; None if neither is there.

        Touching the pod moves its resourceVersion, so that a Binding still on its way conflicts;
        the answer to the touch shows whether it had come through before. Until then the GPUs stay
        reserved; afterwards only where the pod is bound. Who leads no more writes nothing more: the
        new leader has touched the pod, or will before it acts.
        """
        wait_s = _SETTLE_FIRST_S
        while True:
            try:
                if self._may_bind():
                    record = await self._touch(pod)
                else:
                    record = await self._read(pod.namespace, pod.name)
                break
            except KubeError as error:
                log.warning("bind outcome unknown pod=%s/%s error=%s", *pod.key, error)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _SETTLE_MAX_S)
        # The state has what was read: a pod that is bound holds its GPUs by that.
        self._state.release(pod.uid)
        return record

    async def _touch(self, pod: PodInfo) -> PodRecord | None:
        """Write the pod's wake annotation and return the pod as it then is; None if it is gone.

        With the Binding's own resourceVersion: where the pod has moved on, nothing is to be written
        (the Binding has had its effect or has none), and a touch that is itself late has none.
        """
        metadata = {"uid": pod.uid, "resourceVersion": pod.resource_version}
        body = {"metadata": {**metadata, "annotations": {names.WAKE: self._stamp()}}}
        try:
            return self._take(
                await self._call(self._api.patch, PODS, pod.name, body, pod.namespace)
            )
        except NotFound:
            return None
        except (Conflict, Invalid):
            record = await self._read(pod.namespace, pod.name)
            if record is None or record.resource_version != pod.resource_version:
                return record
            raise

    async def _read(self, namespace: str, name: str) -> PodRecord | None:
        try:
            return self._take(await self._call(self._api.get, PODS, name, namespace))
        except NotFound:
            return None

    def _take(self, raw: Mapping[str, Any]) -> PodRecord:
        """Take over the pod as just read; what the watch has sent since is newer still."""
        record = parse_pod(raw)
        self._state.apply("pods", record)
        return record

    async def _call(
        self,
        function: Callable[..., _Result],
        *args: object,
        **kwargs: object,
    ) -> _Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(function, *args, **kwargs))


def _already_bound(pod: PodInfo, node: str) -> str:
    """Judge a pod that has a node: success where it is the one asked for, with its GPUs."""
    if pod.node_name != node:
        return f"the pod is bound to {pod.node_name} already"
    if pod.gpus and not pod.devices:
        return f"the pod was bound to {node} by somebody else, without GPUs"
    return ""
