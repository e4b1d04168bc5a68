"""The extender's side of the status page: which nodes and jobs have changed since a version.

The process in front asks for changes a few times a second, and only while a page is open. The
event loop encodes only what has changed, in short pieces, however many pages there are. Nothing
here takes longer in a larger cluster: not even a list of all jobs is copied in one go.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any
from uuid import uuid4

import numpy as np
from pydantic_core import to_json

from scheduler_extender.cluster.ledger import Claim, Hold
from scheduler_extender.cluster.records import GpuJobRecord, GpuNodeRecord, Key, PodRecord, Record
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.quotas.config import Quota
from scheduler_extender.serving.status.objects import RUNS_KEPT_S, most_runs
from tandem.contracts.base import Message

#: A piece ends once it has taken this time; with the last part it holds the event loop for 0.5 ms.
PIECE_S = 0.0003
#: The clock and bindings under way change the GPU table without an event; it is looked at so often.
_LOOK_S = 0.5
#: Objects that are gone are remembered up to this many times the objects that are there.
_GONE_PER_LIVE = 2
_LEAST_REMEMBERED = 1000
#: One of so many is forgotten at once, the oldest: the first entry of a dict is slow to find.
_FORGOTTEN_OF = 10
#: All objects are in so many groups; the names of a group are copied in one go.
_GROUPS = 256
#: Pods of a job, or of its plan, that are encoded in one go.
_PODS_AT_ONCE = 64

NODE, JOB = "node", "job"
Name = tuple[str, Key]  # NODE or JOB, and the key
_HOLD_WORDS = {hold: hold.name.lower() for hold in Hold}


#: Each named namespace's quota, the GPUs that it holds, and its GPU-seconds in the window.
QuotaFigures = Callable[[], Sequence[tuple[Quota, int, float]]]
#: What does not answer: predictor, scheduler or replica, each with the names of its silent pods.
Silent = dict[str, list[str]]


class Changes:
    """Notes which objects of the state have changed, and encodes them on request.

    A version is `EPOCH.SEQUENCE.GENERATION`: the process, the last noted event and the generation
    of the GPU table. After a version of another process, or one that is too old, all objects count
    as changed.
    """

    def __init__(
        self,
        state: ClusterState,
        quotas: QuotaFigures = lambda: (),
        deleted: Callable[[], dict[str, int]] = dict,
        silent: Callable[[], Silent] = dict,
        agent_answers: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._state, self._quotas, self._deleted = state, quotas, deleted
        self._silent, self._agent_answers = silent, agent_answers
        self._epoch = uuid4().hex[:8]
        self._sequence = 0
        self._oldest = 0  # changes up to here have been forgotten
        # In both, the latest is the last.
        self._changed: dict[Name, int] = {}
        self._runs: dict[str, tuple[int, float, bytes]] = {}
        self._live: dict[str, list[dict[Name, Name]]] = {
            kind: [{} for _ in range(_GROUPS)] for kind in (NODE, JOB)
        }
        for key in state.gpu_nodes():
            self._enter((NODE, key))
        for key in state.gpu_jobs():
            self._enter((JOB, key))
        self._changes = asyncio.Event()
        state.followers.append(self._note)

    @property
    def version(self) -> str:
        """The version of now."""
        return f"{self._epoch}.{self._sequence}.{self._state.table.generation}"

    async def wait(self, since: str, within_s: float) -> None:
        """Return once something has changed since a version, at the latest after so many seconds.

        For the event loop that changes the state.
        """
        until = time.monotonic() + within_s
        while self.version == since and (rest_s := until - time.monotonic()) > 0:
            self._changes.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(rest_s, _LOOK_S)):
                    await self._changes.wait()

    def knows(self, since: str) -> bool:
        """Say whether what has changed since a version is known; otherwise all of it has."""
        epoch, _, rest = since.partition(".")
        number, _, generation = rest.partition(".")
        known = epoch == self._epoch and number.isdecimal() and generation.isdecimal()
        return known and int(number) >= self._oldest

    def pieces(self, since: str = "") -> Iterator[bytes]:
        """Yield lines of JSON about all that has changed since a version; each piece is short.

        The last line has the version up to which the answer holds. An object that changes while
        the answer is being made is in the next answer again.
        """
        version = self.version
        piece = bytearray()
        began = time.perf_counter()
        for part in self._parts(since):
            piece += part
            if time.perf_counter() - began >= PIECE_S:
                yield bytes(piece)
                piece.clear()
                began = time.perf_counter()
        piece += _json({"kind": "end", "version": version}) + b"\n"
        yield bytes(piece)

    def node_changed(self, node: str) -> None:
        """Note that something else than the state says another thing of a node."""
        self._mark((NODE, ("", node)))

    # --- what has changed ---------------------------------------------------------------------

    def _note(self, record: Record, gone: bool) -> None:
        """Note an event of the state; called by it, so this takes a microsecond."""
        match record:
            case GpuNodeRecord():
                self._follow(NODE, record.key, gone)
            case GpuJobRecord():
                self._follow(JOB, record.key, gone)
            case PodRecord() if record.ours:
                self._mark((JOB, record.gpujob))
                if record.pod.node_name:
                    self._mark((NODE, ("", record.pod.node_name)))
                    if gone or record.pod.finished:
                        self._ended(record)

    def _follow(self, kind: str, key: Key, gone: bool) -> None:
        name = (kind, key)
        if gone:
            self._group(name).pop(name, None)
        else:
            self._enter(name)
        self._mark(name)

    def _enter(self, name: Name) -> None:
        self._group(name).setdefault(name, name)

    def _group(self, name: Name) -> dict[Name, Name]:
        return self._live[name[0]][hash(name) % _GROUPS]

    def _mark(self, name: Name) -> None:
        self._sequence += 1
        name = self._group(name).get(name, name)  # one object for each name
        self._changed.pop(name, None)
        self._changed[name] = self._sequence
        self._changes.set()
        live = len(self._state.gpu_nodes()) + len(self._state.gpu_jobs())
        most = max(_LEAST_REMEMBERED, _GONE_PER_LIVE * live)
        if len(self._changed) > most:
            for oldest in list(islice(self._changed, most // _FORGOTTEN_OF + 1)):
                self._oldest = self._changed.pop(oldest)

    def _ended(self, record: PodRecord) -> None:
        """Keep where and when a pod ran that has ended."""
        pod = record.pod
        if record.uid in self._runs or not pod.devices or not pod.started_at:
            return
        run = {
            "kind": "run",
            "uid": record.uid,
            "namespace": record.namespace,
            "job": record.gpujob[1],
            "pod": record.name,
            "node": pod.node_name,
            "gpus": list(dict.fromkeys(pod.devices)),
            "startedAt": pod.started_at,
            "endedAt": pod.finished_at or _time(self._state.now_s),
        }
        now_s = self._state.now_s
        self._runs[record.uid] = (self._sequence, now_s, _json(run))
        most = most_runs(len(self._state.table.row_of))
        while len(self._runs) > most or self._oldest_run_s() < now_s - RUNS_KEPT_S:
            del self._runs[next(iter(self._runs))]

    def _oldest_run_s(self) -> float:
        return next(iter(self._runs.values()))[1]

    def _all(self) -> Iterator[Name]:
        """Yield all that is there, jobs first; a group is looked at when its turn comes."""
        groups = chain(self._live[JOB], self._live[NODE])
        return chain.from_iterable(list(group) for group in groups)

    def _changed_since(self, sequence: int, generation: int) -> list[Name]:
        """Return what has changed since a version, jobs first.

        A job says whether its GPUs count as slowed down, so its nodes come after it.
        """
        nodes: dict[Name, None] = {}
        jobs: list[Name] = []
        for name, changed in reversed(self._changed.items()):
            if changed <= sequence:
                break
            if name[0] == NODE:
                nodes[name] = None
            else:
                jobs.append(name)
        for node in self._state.table.nodes_changed_since(generation):
            nodes[NODE, ("", node)] = None
        return [*jobs, *nodes]

    # --- lines --------------------------------------------------------------------------------

    def _parts(self, since: str) -> Iterator[bytes]:
        """Yield lines in parts, each of which is short whatever it is about."""
        names: Iterable[Name]
        if self.knows(since):
            sequence, generation = map(int, since.split(".")[1:])
            names = self._changed_since(sequence, generation)
        else:
            sequence = -1
            names = self._all()
            yield _json({"kind": "whole"}) + b"\n"
        nodes, jobs = self._state.gpu_nodes(), self._state.gpu_jobs()
        for kind, key in names:
            if kind == NODE:
                report = nodes.get(key)
                parts = _gone(NODE, key) if report is None else self._node(report)
            else:
                job = jobs.get(key)
                parts = _gone(JOB, key) if job is None else self._job(job)
            yield from parts
            yield b"\n"
        runs = []
        for number_of_run, _, run in reversed(self._runs.values()):
            if number_of_run <= sequence:
                break
            runs.append(run)
        for run in reversed(runs):
            yield run + b"\n"
        quotas = [_quota(*each) for each in self._quotas()]
        holding = self._deleted()  # pods long after their deletion, by namespace
        summary = {"quotas": quotas, "deleted": holding, "silent": self._silent()}
        yield _json({"kind": "quotas", **summary}) + b"\n"

    def _node(self, report: GpuNodeRecord) -> Iterator[bytes]:
        state, name = self._state, report.name
        status = report.kept.json
        yield b'{"kind":"node","status":%s,"facts":{"name":%s,"rows":{' % (status, _json(name))
        row_of = state.table.row_of
        gpus = [gpu.uuid for gpu in report.gpus if (name, gpu.uuid) in row_of]
        yield _json(self._rows(name, gpus))[1:-1] + b'},"held":{'
        comma = b""
        for uuid in gpus:
            holders = state.ledger.holders(name, uuid)
            if holders:
                held = [self._holder(uid, holders) for uid in sorted(holders)]
                yield comma + _json({uuid: held})[1:-1]
                comma = b","
        yield b"}}}"

    def _rows(self, node: str, gpus: Sequence[str]) -> dict[str, list[Any]]:
        """Return shares, health, freshness and capacity of GPUs of a node.

        An agent that does not answer its kubelet shows at once; placement waits for its report to
        be too old.
        """
        table, live = self._state.table, self._state.gpus
        rows = np.array([table.row_of[node, uuid] for uuid in gpus], dtype=np.int64)
        fresh = live.fresh[rows] & self._agent_answers(node)
        columns = (live.shares[rows], live.healthy[rows], fresh, live.memory_capacity_gib[rows])
        values = zip(*(column.tolist() for column in columns), strict=True)
        return {
            uuid: [*each, round(gib, 3)] for uuid, (*each, gib) in zip(gpus, values, strict=True)
        }

    def _holder(self, uid: str, holders: Mapping[str, Claim]) -> list[Any]:
        state, job = self._state, holders[uid].job
        record = state.pod(uid)
        held = state.ledger.held(uid)
        return [
            uid,
            "" if record is None else record.name,
            job.id,
            "" if held is None else _HOLD_WORDS[held[0]],
            round(job.memory_base_gib, 3),
            round(job.memory_peak_gib - job.memory_base_gib, 3),
            round(job.peak_probability, 3),
            round(job.gpu_utilisation, 1),
            job.exclusive,
            _predicted_slowdown(uid, holders) if len(holders) > 1 else None,
            "" if record is None else record.pod.started_at,
        ]

    def _job(self, job: GpuJobRecord) -> Iterator[bytes]:
        status, plan = job.status, job.status.plan
        if plan is not None and len(plan.pods) > _PODS_AT_ONCE:
            short = {"plan": plan.model_copy(update={"pods": []}), "pod_service": []}
            yield b'{"kind":"job","planned":'
            yield from _array(map(Message.json_bytes, plan.pods))
            yield b',"served":'
            yield from _array(map(Message.json_bytes, status.pod_service))
            yield b',"status":' + status.model_copy(update=short).json_bytes()
        else:
            yield b'{"kind":"job","status":' + status.json_bytes()
        facts = _json({"namespace": job.namespace, "name": job.name, "uid": job.uid})
        yield b',"spec":%s,"facts":%s,"pods":' % (job.spec.json_bytes(), facts[:-1])
        uids = list(self._state.gangs.pods_of(job.key))
        pods = (pod for uid in uids if (pod := self._state.pod(uid)) is not None)
        limit_of = self._state.memory_limit_gib
        yield from _array(_json([*_pod(each), limit_of(each.pod)]) for each in pods)
        yield b"}}"


def _array(items: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a JSON array in parts of a few items."""
    items, before = iter(items), b"["
    while some := list(islice(items, _PODS_AT_ONCE)):
        yield before + b",".join(some)
        before = b","
    yield b"]" if before == b"," else b"[]"


def _pod(member: PodRecord) -> list[Any]:
    pod = member.pod
    return [
        member.name,
        member.uid,
        pod.phase,
        pod.node_name,
        list(pod.devices),
        pod.started_at,
        pod.finished_at,
    ]


def _predicted_slowdown(uid: str, holders: Mapping[str, Claim]) -> float | None:
    """Return how much slower a pod is predicted to run next to the others; None if unknown."""
    own = holders[uid].job.own_slowdown
    if own is None:
        return None
    slowdown = 0.0
    for other, claim in holders.items():
        if other != uid:
            number = claim.job.interference_class
            if number >= len(own):
                return None
            slowdown += own.item(number)
    return round(slowdown, 3) if math.isfinite(slowdown) else None


def _quota(quota: Quota, held: int, used_gpu_s: float) -> dict[str, Any]:
    return {
        "namespace": quota.namespace,
        "gpus": quota.gpus,
        "maxGpus": quota.max_gpus,
        "gpuSeconds": quota.gpu_seconds,
        "gpusHeld": held,
        "gpuSecondsUsed": round(used_gpu_s, 1),
    }


def _gone(kind: str, key: Key) -> Iterator[bytes]:
    yield _json({"kind": "gone", "of": kind, "namespace": key[0], "name": key[1]})


def _json(value: Any) -> bytes:  # noqa: ANN401 - JSON values
    return to_json(value)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
