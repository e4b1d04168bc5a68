"""Elastic jobs get fewer pods before others are stopped, and as many as before later.

The number stands in the workload's own field, whose controller deletes pods or makes more. First it
is written in the GPUJob what the workload said and what it is to say, then its field is changed, at
the version that was read. A leader that takes over in between goes on from that. A number that is
neither of the two is a user's, or of an autoscaler: it stays, and the note is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any

import numpy as np

from scheduler_extender.cluster.elastic import beyond, scale_of
from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import rfc3339, seconds
from scheduler_extender.cluster.kinds import Scale
from scheduler_extender.cluster.records import Key
from scheduler_extender.cluster.roles import at
from scheduler_extender.cluster.workloads import size_of
from scheduler_extender.planning.questions import Shrinks
from scheduler_extender.queue.shared import Shared
from scheduler_extender.queue.steps import lifecycle
from scheduler_extender.queue.steps.decisions import SUSPEND_WITHIN_S, has_ended
from scheduler_extender.queue.steps.effects import (
    Effects,
    EvictPods,
    ReadWorkload,
    SetPods,
    WriteEvent,
    WriteStatus,
)
from tandem.contracts.resources import GPUJobStatus, Phase, Shrunk
from tandem.policy.elastic import SMALLER_FOR_S
from tandem.reasons.causes import Cause
from tandem.reasons.words import sentence

log = logging.getLogger(__name__)

FEWER, AGAIN = "FewerPods", "MorePods"
#: A workload that has not followed is written again, or read: somebody else may have changed it.
_AGAIN_S, _LONGEST_S = 5.0, 60.0
_LOOKS_EVERY_S = 10.0
_KEPT_S = 300.0  # how long one stays as it is that could not be made smaller

Workload = Mapping[str, Any] | None


class Resizer:
    """Gives elastic workloads fewer pods, and back what they had. All methods run on the loop."""

    def __init__(self, shared: Shared) -> None:
        self._state = shared.state
        self._executor = shared.executor
        self._preempter = shared.preempter
        self._queue_state = shared.queue_state
        self._clock = shared.clock
        self._later = shared.work.later
        self._set: dict[Key, tuple[float, float]] = {}  # when, and the pause until the next time
        self._kept: dict[Key, float] = {}  # those that could not be made smaller, until when

    def forget(self, key: Key) -> None:
        """Forget a gang that is gone."""
        self._set.pop(key, None)
        self._kept.pop(key, None)

    def may_shrink(self, key: Key) -> bool:
        """Say whether a gang may be made smaller: not soon after that was not possible."""
        return self._clock() >= self._kept.get(key, 0.0)

    async def shrink(self, gang: Gang, shrinks: Shrinks, why: Cause) -> None:
        """Give a gang fewer pods, unless a disruption budget forbids it."""
        if not await self._preempter.may_lose_pods(gang):
            return
        self._set[gang.key] = self._clock(), _AGAIN_S
        # Others are stopped for the job that waits, if it comes to nothing.
        self._kept[gang.key] = self._clock() + _KEPT_S
        await self._executor.carry_out(gang, shrink(gang, shrinks.pods, why))
        shrunk = gang.record.status.shrunk if gang.record is not None else None
        if shrunk is not None and shrunk.pods == shrinks.pods:
            del self._kept[gang.key]
        else:
            self._queue_state.competes = True

    def step(self, gang: Gang) -> Awaitable[None] | None:
        """Return what is to be done about a gang that was given fewer pods, if anything."""
        shrunk = gang.job.status.shrunk
        if shrunk is None:
            self._set.pop(gang.key, None)
            return None
        now = self._clock()
        obeys = shrunk.written and all(pod.deleting for pod in beyond(gang, shrunk.pods))
        if not obeys:
            set_s, pause_s = self._set.get(gang.key, (0.0, 0.0))
            if now < set_s + pause_s:
                self._later(gang.key, set_s + pause_s)
                return None
            self._set[gang.key] = now, min(max(_AGAIN_S, 2 * pause_s), _LONGEST_S)
            return self._executor.carry_out(gang, go_on(gang))
        if gang.job.status.phase is not Phase.RUNNING or beyond(gang, shrunk.pods):
            return None
        due_s = seconds(shrunk.at) + SMALLER_FOR_S
        if now < due_s or not self._has_idle(gang):
            self._later(gang.key, max(due_s, now + _LOOKS_EVERY_S))
            return None
        return self._executor.carry_out(gang, grow(gang))

    def _has_idle(self, gang: Gang) -> bool:
        """Say whether as many GPUs are idle as one more pod of a gang takes."""
        gpus = self._state.snapshot().gpus
        idle = int(np.count_nonzero((gpus.jobs == 0) & gpus.healthy))
        return idle >= gang.job.spec.demand.gpus_per_pod


# --- decisions: pure --------------------------------------------------------------------------


def shrink(gang: Gang, pods: int, why: Cause) -> Effects:
    """Read what the workload says, then give it fewer pods."""
    return (ReadWorkload(partial(_shrink, gang, pods, why)),)


def _shrink(gang: Gang, pods: int, why: Cause, workload: Workload, now_s: float) -> Effects:
    scale, known = scale_of(gang), gang.job.status.shrunk
    asked = _asked(workload, scale)
    if workload is None or asked is None:
        return ()
    if known is not None and asked != known.pods:
        return (WriteStatus(_without(gang)),)
    typed = {**workload, "kind": gang.job.spec.workload.kind}
    least = max(gang.job.spec.demand.gang_size, size_of(typed, ()))
    gone = {pod.uid for pod in beyond(gang, pods)}
    kept = [pod for pod in gang.holders() if not pod.deleting and pod.uid not in gone]
    if pods >= asked or pods < least or len(kept) < least:
        return ()  # what the plan saw is not so any more: the next cycle looks again
    shrunk = Shrunk(asked=known.asked if known is not None else asked, pods=pods, at=rfc3339(now_s))
    said = sentence(why)
    status = lifecycle.decided(gang.job.status, FEWER, said, now_s)
    log.info("fewer pods gpujob=%s/%s pods=%d asked=%d", *gang.key, pods, asked)
    written = WriteStatus(status.model_copy(update={"shrunk": shrunk}))
    return (written, *_set_pods(gang, workload, shrunk), WriteEvent(kept[0], FEWER, said, "Normal"))


def go_on(gang: Gang) -> Effects:
    """Read what the workload says, and give it the number that was decided, if it is due."""
    return (ReadWorkload(partial(_go_on, gang)),)


def _go_on(gang: Gang, workload: Workload, now_s: float) -> Effects:
    shrunk = gang.job.status.shrunk
    if workload is None or shrunk is None or has_ended(workload):
        return ()  # its GPUJob goes, or is closed
    said = _asked(workload, scale_of(gang))
    if said == shrunk.pods and not shrunk.written:
        return (WriteStatus(_with(gang, written=True)),)
    if said == shrunk.pods:
        # Its controller may be down. It makes none in place of these.
        late = now_s - seconds(shrunk.at) >= SUSPEND_WITHIN_S
        staying = [pod for pod in beyond(gang, shrunk.pods) if not (pod.deleting or pod.gated)]
        return (EvictPods(tuple(staying)),) if late else ()
    if said == shrunk.asked and not shrunk.written:
        return _set_pods(gang, workload, shrunk)
    return (WriteStatus(_without(gang)),)


def grow(gang: Gang) -> Effects:
    """Read what the workload says, and give it back the number that it had."""
    return (ReadWorkload(partial(_grow, gang)),)


def _grow(gang: Gang, workload: Workload, now_s: float) -> Effects:
    shrunk = gang.job.status.shrunk
    if workload is None or shrunk is None or has_ended(workload):
        return ()
    forgotten = WriteStatus(_without(gang))
    if _asked(workload, scale_of(gang)) != shrunk.pods:
        return (forgotten,)
    said = f"GPUs are idle: its workload asks for {shrunk.asked} pods again"
    decided = lifecycle.decided(_without(gang), AGAIN, said, now_s)
    log.info("more pods gpujob=%s/%s pods=%d", *gang.key, shrunk.asked)
    version = str(workload["metadata"]["resourceVersion"])
    # The field comes first: a leader that takes over before the status is written reads the number
    # that the workload had before, and drops the note.
    return (SetPods(shrunk.asked, version, lambda why, _: () if why else (WriteStatus(decided),)),)


def _set_pods(gang: Gang, workload: Mapping[str, Any], shrunk: Shrunk) -> Effects:
    version = str(workload["metadata"]["resourceVersion"])
    return (SetPods(shrunk.pods, version, partial(_was_set, gang)),)


def _was_set(gang: Gang, why: str, _: float) -> Effects:
    if why:
        log.warning("pods not changed gpujob=%s/%s why=%s", *gang.key, why)
        return (WriteStatus(_without(gang)),)
    return (WriteStatus(_with(gang, written=True)),)


def _asked(workload: Workload, scale: Scale | None) -> int | None:
    """Return for how many pods a workload asks, None where it does not say so."""
    found = at(workload, scale.replicas) if workload is not None and scale is not None else None
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _with(gang: Gang, **changes: object) -> GPUJobStatus:
    status = gang.job.status
    assert status.shrunk is not None
    return status.model_copy(update={"shrunk": status.shrunk.model_copy(update=changes)})


def _without(gang: Gang) -> GPUJobStatus:
    return gang.job.status.model_copy(update={"shrunk": None})
