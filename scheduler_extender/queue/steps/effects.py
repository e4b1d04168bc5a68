"""The effects that decisions about a gang ask for, and the one executor that carries them out.

A decision (`decisions.py`) is a pure function of a gang and the time; it returns effects. An effect
that asks the API server something has `then`: the decision on the answer. `faults` has a point at
each effect after which a crash leaves work for the next leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from scheduler_extender import faults
from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import GpuJobRecord
from scheduler_extender.cluster.roles import at
from scheduler_extender.cluster.workloads import gpujob_name, kind_of, resource_of
from scheduler_extender.cluster.writes import Object, Writer
from tandem.contracts import names
from tandem.contracts.placement import PlacedWith
from tandem.contracts.resources import GPUJobStatus, Role, WorkloadRef
from tandem.kube.errors import (
    Forbidden,
    Invalid,
    NotFound,
    Replaced,
    TooManyRequests,
)
from tandem.kube.resource import GPU_JOBS, PODS, Resource

log = logging.getLogger(__name__)


_REFUSED_KEPT = 10_000  # pods of which a refusal is remembered


def names_object(error: NotFound, name: str) -> bool:
    """Say whether an object is not found under a version that is served."""
    return error.details.get("name") == name


class Owners:
    """Reads and suspends workloads. All methods run on the event loop."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def get(self, workload: WorkloadRef, namespace: str) -> Object:
        """Return the object of a workload; see `read`.

        Raises:
            NotFound: also where another workload has the name by now.
        """
        resource = resource_of(workload)
        if resource is None:
            raise NotFound(404, f"nothing is known of the kind {workload.kind}")
        found = await self.read(resource, workload.name, namespace)
        if found["metadata"]["uid"] != workload.uid:
            raise NotFound(404, f"another {workload.kind} has the name {workload.name} by now")
        return found

    async def read(self, resource: Resource, name: str, namespace: str) -> Object:
        """Return an object, at the version of `resource` or at another one that is served.

        Raises:
            NotFound: it does not exist, or no version of it is served.
        """
        return await self._at_served_version(
            resource, name, lambda served: self._writer.api.get(served, name, namespace)
        )

    async def suspend(self, record: GpuJobRecord, suspend: bool) -> str:
        """Suspend or resume the workload of a gang; return why that is not possible, or ''."""
        workload, kind = record.spec.rests, kind_of(record.spec.rests)
        path, needs = kind.suspend, kind.suspend_needs
        body: Any = suspend
        for part in reversed(path):
            body = {part: body}
        body["metadata"] = {"uid": workload.uid}

        def patch(served: Resource) -> Object:
            return self._writer.api.patch(served, workload.name, body, record.namespace)

        resource = resource_of(workload)
        if resource is None:
            return f"nothing is known of the kind {workload.kind}"
        try:
            if suspend and needs:
                found = await self.read(resource, workload.name, record.namespace)
                if at(found, needs) is not True:
                    return f"its {'.'.join(needs)} is not true"
            answer: Any = await self._at_served_version(resource, workload.name, patch)
        except Replaced:
            return f"another {workload.kind} has the name {workload.name} by now"
        except (NotFound, Forbidden, Invalid) as error:
            return str(error)
        for part in path:
            answer = answer.get(part) if isinstance(answer, Mapping) else None
        # The API server drops what the definition of a custom resource does not name.
        has_field = bool(answer) is suspend
        return "" if has_field else f"{workload.api_version} has no field {'.'.join(path)}"

    async def set_pods(self, record: GpuJobRecord, pods: int, version: str) -> str:
        """Write for how many pods an elastic workload asks; return why that is not possible, or ''.

        Raises:
            Conflict: it is not at `version` any more.
        """
        workload = record.spec.workload
        resource, scale = resource_of(workload), kind_of(workload).scale
        assert resource is not None
        assert scale is not None
        body: Any = pods
        for part in reversed(scale.replicas):
            body = {part: body}
        body["metadata"] = {"uid": workload.uid, "resourceVersion": version}

        def patch(served: Resource) -> Object:
            return self._writer.api.patch(served, workload.name, body, record.namespace)

        try:
            await self._at_served_version(resource, workload.name, patch)
        except Replaced:
            return f"another {workload.kind} has the name {workload.name} by now"
        except (NotFound, Forbidden, Invalid) as error:
            return str(error)
        return ""

    async def _at_served_version(
        self, resource: Resource, name: str, request: Callable[[Resource], Object]
    ) -> Object:
        """Make a request at the version of `resource`, else at one that is served.

        An upgrade of an operator may end the version under which a workload was created.
        """
        answer: Object
        try:
            answer = await self._writer.call(request, resource)
            return answer
        except NotFound as error:
            if names_object(error, name):
                raise  # the version is served
            gone = error
        for version in await self._writer.call(self._writer.api.versions, resource):
            if version != resource.version:
                try:
                    answer = await self._writer.call(request, replace(resource, version=version))
                    return answer
                except NotFound as error:
                    gone = error
        raise gone


@dataclass(frozen=True, slots=True)
class CreateGpuJob:
    """Create the GPUJob of a gang; one that exists already is a conflict, and left as it is."""

    body: Object


@dataclass(frozen=True, slots=True)
class DeleteGpuJob:
    """Delete the GPUJob of a gang, if it is still that one."""


@dataclass(frozen=True, slots=True)
class WriteSize:
    """Write how many pods start together; quotas and orders count the GPUs of the whole gang."""

    size: int


@dataclass(frozen=True, slots=True)
class WriteRoles:
    """Write which pods of the gang ask for different things."""

    roles: tuple[Role, ...]


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Write the status of the GPUJob. `before` and `after` are points of `faults`.

    A `report` says what is so already, and lets other writes go first.
    """

    status: GPUJobStatus
    before: str = ""
    after: str = ""
    report: bool = False


@dataclass(frozen=True, slots=True)
class KeepStatus:
    """Decide the next steps by this status, and write it with what they say, or a little later.

    A replica that takes over before it is written finds it out anew. `before` and `after` are
    points of `faults`.
    """

    status: GPUJobStatus
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class WriteEvent:
    """Write an event about a pod; `kind` is Warning or Normal."""

    pod: PodInfo
    reason: str
    note: str
    kind: str = "Warning"


@dataclass(frozen=True, slots=True)
class EvictPods:
    """Evict pods at the same time. A pod that a disruption budget protects gets an event."""

    pods: tuple[PodInfo, ...]


@dataclass(frozen=True, slots=True)
class OpenGates:
    """Nominate the planned node of each pod and remove its gate; `made_at` is the plan's time."""

    places: tuple[tuple[PodInfo, str], ...]  # pods, and the node of each
    made_at: str


@dataclass(frozen=True, slots=True)
class ClearNominations:
    """Take back the nominations of pods that have no live plan any more."""

    pods: tuple[PodInfo, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A bound pod, and its expected use of its GPUs."""

    pod: str
    uid: str
    placed: PlacedWith


@dataclass(frozen=True, slots=True)
class MarkPods:
    """Write on bound pods which GPUJob is theirs and what they are placed with."""

    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class JoinGpuJob:
    """Write on waiting pods that they belong to the GPUJob `name`, which their workload has."""

    pods: tuple[PodInfo, ...]
    name: str


@dataclass(frozen=True, slots=True)
class Suspend:
    """Suspend or resume the workload. `then` gets the reason why that is not possible, or ''."""

    suspend: bool
    then: Callable[[str, float], Effects]


@dataclass(frozen=True, slots=True)
class SetPods:
    """Write for how many pods an elastic workload asks, if it is still at `version`.

    `then` gets the reason why that is not possible, or ''.
    """

    pods: int
    version: str
    then: Callable[[str, float], Effects]


@dataclass(frozen=True, slots=True)
class ReadWorkload:
    """Read the workload, or what has made it. `then` gets the object, None where it is gone."""

    then: Callable[[Object | None, float], Effects]
    maker: bool = False


@dataclass(frozen=True, slots=True)
class Reach:
    """Reach a point of `faults` that lies between two effects."""

    point: str


Effect = (
    CreateGpuJob
    | DeleteGpuJob
    | WriteSize
    | WriteRoles
    | WriteStatus
    | KeepStatus
    | WriteEvent
    | EvictPods
    | OpenGates
    | ClearNominations
    | MarkPods
    | JoinGpuJob
    | Suspend
    | SetPods
    | ReadWorkload
    | Reach
)
Effects = Sequence[Effect]


class Executor:
    """Carries out effects in their order. All methods run on the event loop."""

    def __init__(self, writer: Writer, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._owners = Owners(writer)
        self._clock = clock
        # Pods, by uid, of which the API server would not take the gate or the nomination away: as
        # they were then, and under which plan.
        self._refused: dict[str, tuple[str, str]] = {}

    def may_open(self, pod: PodInfo, made_at: str) -> bool:
        """Say whether a gate can be tried: once for each version of a pod under the same plan."""
        return self._refused.get(pod.uid) != (pod.resource_version, made_at)

    def may_clear(self, pod: PodInfo) -> bool:
        """Say whether a nomination can be cleared: once for each version of a pod."""
        return self.may_open(pod, "")

    async def carry_out(self, gang: Gang, effects: Effects) -> None:
        """Carry out the effects of a decision about a gang, and those of what it decides next.

        Raises:
            KubeError: the API server refuses an effect; those after it are not carried out.
        """
        for effect in effects:
            match effect:
                case CreateGpuJob(body):
                    await self._create(gang, body)
                case DeleteGpuJob():
                    await self._delete(gang)
                case WriteSize(size):
                    await self._write_spec(gang, {"demand": {"gangSize": size}})
                case WriteRoles(roles):
                    await self._write_spec(gang, {"roles": [role.wire() for role in roles]})
                case WriteStatus():
                    await self._write_status(gang, effect)
                case KeepStatus(status, before, after):
                    faults.reach(before)
                    self._writer.keep_status(gang, status)
                    faults.reach(after)
                case WriteEvent(pod, reason, note, kind):
                    await self._writer.say(pod, reason, note, kind)
                case EvictPods() | OpenGates() | ClearNominations() | MarkPods() | JoinGpuJob():
                    await asyncio.gather(*self._of_pods(gang, effect))
                case Suspend(suspend, then):
                    why = await self._owners.suspend(gang.job, suspend)
                    await self._go_on(gang, partial(then, why))
                case SetPods(pods, version, after):
                    why = await self._owners.set_pods(gang.job, pods, version)
                    await self._go_on(gang, partial(after, why))
                case ReadWorkload(then, maker):
                    spec = gang.job.spec
                    workload = await self._workload(gang, spec.rests if maker else spec.workload)
                    await self._go_on(gang, partial(then, workload))
                case Reach(point):
                    faults.reach(point)

    def _of_pods(
        self,
        gang: Gang,
        effect: EvictPods | OpenGates | ClearNominations | MarkPods | JoinGpuJob,
    ) -> Iterator[Awaitable[None]]:
        """Yield what is to be done about each pod."""
        match effect:
            case EvictPods(pods):
                yield from map(self._evict, pods)
            case OpenGates(places, made_at):
                yield from (self._open_gate(pod, node, made_at) for pod, node in places)
            case ClearNominations(pods):
                yield from map(self._clear_nomination, pods)
            case MarkPods(marks):
                yield from (self._mark(gang, mark) for mark in marks)
            case JoinGpuJob(pods, name):
                yield from (self._join(pod, name) for pod in pods)

    async def _go_on(self, gang: Gang, then: Callable[[float], Effects]) -> None:
        """Carry out what is decided on an answer, unless the GPUJob was deleted meanwhile."""
        if gang.record is not None:
            await self.carry_out(gang, then(self._clock()))

    async def _create(self, gang: Gang, body: Object) -> None:
        faults.reach("gpujob-create-before")
        created = await self._writer.call(self._writer.api.create, GPU_JOBS, body, gang.key[0])
        faults.reach("gpujob-create-after")
        self._writer.take(created)

    async def _delete(self, gang: Gang) -> None:
        record = gang.job
        await self._writer.call(
            self._writer.api.delete, GPU_JOBS, record.name, record.namespace, uid=record.uid
        )

    async def _write_spec(self, gang: Gang, spec: Object) -> None:
        if gang.job.unwritten_since_s is not None:  # the answer has what is written alone
            await self._writer.write_status(gang, gang.job.status)
        record = gang.job
        body = {
            "metadata": {"uid": record.uid, "resourceVersion": record.resource_version},
            "spec": spec,
        }
        answer = await self._writer.call(
            self._writer.api.patch, GPU_JOBS, record.name, body, record.namespace
        )
        self._writer.take(answer)

    async def _write_status(self, gang: Gang, effect: WriteStatus) -> None:
        if effect.before:
            faults.reach(effect.before)
        await self._writer.write_status(gang, effect.status, report=effect.report)
        if effect.after:
            faults.reach(effect.after)

    async def _workload(self, gang: Gang, workload: WorkloadRef) -> Object | None:
        try:
            return await self._owners.get(workload, gang.job.namespace)
        except NotFound:
            return None

    async def _evict(self, pod: PodInfo) -> None:
        try:
            await self._writer.call(self._writer.api.evict, pod.namespace, pod.name, uid=pod.uid)
        except NotFound:
            return
        except TooManyRequests as error:
            await self._writer.say(pod, "NotPreempted", str(error), "Warning")

    async def _open_gate(self, pod: PodInfo, node: str, made_at: str) -> None:
        """Nominate the node, remove our gate, and touch the pod.

        kube-scheduler looks again at a pod that it had put away once it is touched. The name of its
        GPUJob is fixed with it, for pods that came past the webhook. The API server takes spec and
        status in two writes; the nomination comes first, so that the first attempt follows it.
        """
        annotations = {names.WAKE: made_at, names.GPU_JOB: gpujob_name(pod)}
        faults.reach("gate-before")
        nominated = None
        if not pod.gated or pod.nominated_node != node:
            # A write of the status carries annotations as well: an open pod needs no other.
            with_it = {} if pod.gated else annotations
            nominated = await self._nominate(pod, node, with_it)
            if nominated is not None and not pod.gated:
                self._refused.pop(pod.uid, None)
                faults.reach("gate-after")
                self._writer.take_pod(nominated)
                return
            faults.reach("gate-nominated")
        # The resourceVersion guards the list of gates, which is replaced as a whole.
        version = nominated["metadata"]["resourceVersion"] if nominated else pod.resource_version
        body: Object = {
            "metadata": {
                "uid": pod.uid,
                "resourceVersion": version,
                "annotations": annotations,
            }
        }
        if pod.gated:
            body["spec"] = {"schedulingGates": None}  # ours is the last: see PodInfo.blocked
        try:
            answer = await self._writer.call(
                self._writer.api.patch, PODS, pod.name, body, pod.namespace
            )
        except (Invalid, Forbidden) as error:
            self._note_refused(pod.uid, version, made_at)
            await self._writer.say(pod, "GateNotRemoved", str(error), "Warning")
            return
        self._refused.pop(pod.uid, None)
        faults.reach("gate-after")
        self._writer.take_pod(answer)

    def _note_refused(self, uid: str, version: str, made_at: str) -> None:
        self._refused.pop(uid, None)
        self._refused[uid] = (version, made_at)
        while len(self._refused) > _REFUSED_KEPT:
            del self._refused[next(iter(self._refused))]

    async def _nominate(
        self, pod: PodInfo, node: str, annotations: Mapping[str, str]
    ) -> Object | None:
        """Write which node kube-scheduler tries first and alone, '' for none; return the pod.

        None where the API server refuses it: a pod goes to its planned node without that, too.
        """
        metadata: Object = {"uid": pod.uid, "resourceVersion": pod.resource_version}
        if annotations:
            metadata["annotations"] = dict(annotations)
        body: Object = {"metadata": metadata, "status": {"nominatedNodeName": node or None}}
        try:
            answer: Object = await self._writer.call(
                self._writer.api.patch, PODS, pod.name, body, pod.namespace, subresource="status"
            )
        except (Invalid, Forbidden) as error:
            log.warning("node not nominated pod=%s/%s error=%s", *pod.key, error)
            return None
        return answer

    async def _clear_nomination(self, pod: PodInfo) -> None:
        answer = await self._nominate(pod, "", {})
        if answer is None:
            self._note_refused(pod.uid, pod.resource_version, "")
        else:
            self._writer.take_pod(answer)

    async def _mark(self, gang: Gang, mark: Mark) -> None:
        annotations = {names.GPU_JOB: mark.placed.gpu_job, names.PLACED_WITH: mark.placed.text()}
        await self._annotate(gang.key[0], mark.pod, mark.uid, annotations)

    async def _join(self, pod: PodInfo, gpujob: str) -> None:
        await self._annotate(pod.namespace, pod.name, pod.uid, {names.GPU_JOB: gpujob})

    async def _annotate(
        self, namespace: str, pod: str, uid: str, annotations: Mapping[str, str]
    ) -> None:
        body: Object = {"metadata": {"uid": uid, "annotations": annotations}}
        try:
            answer = await self._writer.call(self._writer.api.patch, PODS, pod, body, namespace)
        except (Invalid, Forbidden, NotFound, Replaced) as error:
            log.warning("pod not marked pod=%s/%s error=%s", namespace, pod, error)
            return
        self._writer.take_pod(answer)
