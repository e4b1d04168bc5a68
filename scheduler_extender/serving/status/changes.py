"""The extender's side of the status page: which nodes and jobs have changed since a version.

The process in front asks for changes at most once a second, and only while a page is open. The
event loop encodes only what has changed, in short pieces, however many pages there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import uuid4

from pydantic_core import to_json

from scheduler_extender.cluster.ledger import Claim
from scheduler_extender.cluster.records import GpuJobRecord, GpuNodeRecord, Key, PodRecord, Record
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.quotas.config import Quota
from scheduler_extender.serving.status.runs import RUNS_KEPT_S, most_runs

#: How long one piece may hold the event loop.
PIECE_S = 0.0005
#: The clock and bindings under way change the GPU table without an event; it is looked at so often.
_LOOK_S = 0.5
#: Objects that are gone are remembered up to this many times the objects that are there.
_GONE_PER_LIVE = 2
_LEAST_REMEMBERED = 1000

NODE, JOB = "node", "job"


#: Each named namespace's quota, the GPUs that it holds, and its GPU-seconds in the window.
QuotaFigures = Callable[[], Sequence[tuple[Quota, int, float]]]


class Changes:
    """Notes which objects of the state have changed, and encodes them on request.

    A version is `EPOCH.SEQUENCE.GENERATION`: the process, the last noted event and the generation
    of the GPU table. After a version of another process, or one that is too old, all objects count
    as changed.
    """

    def __init__(self, state: ClusterState, quotas: QuotaFigures = lambda: ()) -> None:
        self._state, self._quotas = state, quotas
        self._epoch = uuid4().hex[:8]
        self._sequence = 0
        self._oldest = 0  # changes up to here have been forgotten
        self._changed: OrderedDict[tuple[str, Key], int] = OrderedDict()
        self._runs: OrderedDict[str, tuple[int, float, bytes]] = OrderedDict()
        self._changes = asyncio.Event()
        state.followers.append(self._note)

    @property
    def version(self) -> str:
        """The version of now."""
        return f"{self._epoch}.{self._sequence}.{self._state.generation}"

    async def wait(self, since: str, within_s: float) -> None:
        """Return once something has changed since a version, at the latest after so many seconds.

        For the event loop that changes the state.
        """
        until = time.monotonic() + within_s
        while self.version == since and (rest_s := until - time.monotonic()) > 0:
            self._changes.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changes.wait(), min(rest_s, _LOOK_S))

    def pieces(self, since: str = "") -> Iterator[bytes]:
        """Yield lines of JSON about all that has changed since a version; each piece is short.

        The last line has the version up to which the answer holds. An object that changes while
        the answer is being made is in the next answer again.
        """
        version = self.version
        nodes, jobs, sequence = self._since(since)
        lines = self._lines(nodes, jobs, sequence, whole=sequence < 0)
        piece = bytearray()
        began = time.perf_counter()
        for line in lines:
            piece += line
            piece += b"\n"
            if time.perf_counter() - began >= PIECE_S:
                yield bytes(piece)
                piece.clear()
                began = time.perf_counter()
        piece += _json({"kind": "end", "version": version}) + b"\n"
        yield bytes(piece)

    # --- what has changed ---------------------------------------------------------------------

    def _note(self, record: Record, gone: bool) -> None:
        """Note an event of the state; called by it, so this takes a microsecond."""
        match record:
            case GpuNodeRecord():
                self._mark(NODE, record.key)
            case GpuJobRecord():
                self._mark(JOB, record.key)
            case PodRecord() if record.ours:
                self._mark(JOB, record.gpujob)
                if record.pod.node_name:
                    self._mark(NODE, ("", record.pod.node_name))
                    if gone or record.pod.finished:
                        self._ended(record)

    def _mark(self, kind: str, key: Key) -> None:
        self._sequence += 1
        self._changed[kind, key] = self._sequence
        self._changed.move_to_end((kind, key))
        self._changes.set()
        live = len(self._state.gpu_nodes()) + len(self._state.gpu_jobs())
        while len(self._changed) > max(_LEAST_REMEMBERED, _GONE_PER_LIVE * live):
            self._oldest = self._changed.popitem(last=False)[1]

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
            self._runs.popitem(last=False)

    def _oldest_run_s(self) -> float:
        return next(iter(self._runs.values()))[1]

    def _since(self, since: str) -> tuple[list[str], list[Key], int]:
        """Return the nodes and jobs that have changed, and the sequence; -1 where it is unknown."""
        state = self._state
        epoch, _, rest = since.partition(".")
        number, _, generation = rest.partition(".")
        known = epoch == self._epoch and number.isdecimal() and generation.isdecimal()
        if not known or int(number) < self._oldest:
            return [name for _, name in state.gpu_nodes()], list(state.gpu_jobs()), -1
        sequence = int(number)
        nodes: dict[str, None] = {}
        jobs: list[Key] = []
        for (kind, key), changed in reversed(self._changed.items()):
            if changed <= sequence:
                break
            if kind == NODE:
                nodes[key[1]] = None
            else:
                jobs.append(key)
        for name in state.table.nodes_changed_since(int(generation)):
            nodes[name] = None
        return list(nodes), jobs, sequence

    # --- lines --------------------------------------------------------------------------------

    def _lines(
        self, nodes: list[str], jobs: list[Key], sequence: int, *, whole: bool
    ) -> Iterator[bytes]:
        if whole:
            yield _json({"kind": "whole"})
        for name in nodes:
            report = self._state.gpu_nodes().get(("", name))
            yield _gone(NODE, ("", name)) if report is None else self._node(report)
        for key in jobs:
            job = self._state.gpu_jobs().get(key)
            yield _gone(JOB, key) if job is None else self._job(job)
        runs = []
        for number, _, run in reversed(self._runs.values()):
            if number <= sequence:
                break
            runs.append(run)
        yield from reversed(runs)
        yield _json({"kind": "quotas", "quotas": [_quota(*each) for each in self._quotas()]})

    def _node(self, report: GpuNodeRecord) -> bytes:
        state, live = self._state, self._state.gpus
        rows, held = {}, {}
        for gpu in report.gpus:
            row = state.table.row_of.get((report.name, gpu.uuid))
            if row is None:
                continue
            rows[gpu.uuid] = [
                int(live.shares[row]),
                bool(live.healthy[row]),
                bool(live.fresh[row]),
                round(float(live.memory_capacity_gib[row]), 3),
            ]
            holders = state.ledger.holders(report.name, gpu.uuid)
            if holders:
                held[gpu.uuid] = [self._holder(uid, holders) for uid in sorted(holders)]
        facts = _json({"name": report.name, "rows": rows, "held": held})
        return b'{"kind":"node","facts":%s,"status":%s}' % (facts, _dump(report.status))

    def _holder(self, uid: str, holders: dict[str, Claim]) -> list[Any]:
        state, job = self._state, holders[uid].job
        record = state.pod(uid)
        held = state.ledger.held(uid)
        return [
            uid,
            record.name if record is not None else "",
            job.id,
            held[0].name.lower() if held is not None else "",
            round(job.memory_base_gib, 3),
            round(job.memory_peak_gib - job.memory_base_gib, 3),
            round(job.peak_probability, 3),
            round(job.gpu_utilisation, 1),
            job.exclusive,
            _predicted_slowdown(uid, holders),
            record.pod.started_at if record is not None else "",
        ]

    def _job(self, job: GpuJobRecord) -> bytes:
        pods = [
            [
                member.name,
                member.uid,
                member.pod.phase,
                member.pod.node_name,
                list(member.pod.devices),
                member.pod.started_at,
                member.pod.finished_at,
            ]
            for member in self._state.members(job.key)
        ]
        facts = _json({"namespace": job.namespace, "name": job.name, "uid": job.uid, "pods": pods})
        return b'{"kind":"job","facts":%s,"spec":%s,"status":%s}' % (
            facts,
            _dump(job.spec),
            _dump(job.status),
        )


def _predicted_slowdown(uid: str, holders: dict[str, Claim]) -> float | None:
    """Return how much slower a pod is predicted to run next to the others; None if unknown."""
    if len(holders) < 2:
        return None
    own = holders[uid].job.own_slowdown
    if own is None:
        return None
    others = [claim.job.interference_class for other, claim in holders.items() if other != uid]
    if any(number >= len(own) for number in others):
        return None
    slowdown = sum(float(own[number]) for number in others)
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


def _gone(kind: str, key: Key) -> bytes:
    return _json({"kind": "gone", "of": kind, "namespace": key[0], "name": key[1]})


def _json(value: Any) -> bytes:  # noqa: ANN401 - JSON values
    return to_json(value)


def _dump(message: Any) -> bytes:  # noqa: ANN401 - a pydantic model
    text: str = message.model_dump_json(by_alias=True, exclude_none=True)
    return text.encode()


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
