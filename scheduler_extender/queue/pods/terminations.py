"""Pods that are being deleted and still hold GPUs: their grace period is bounded and reported.

Admission refuses long grace periods, but a deletion may state one of its own, and pods of earlier
versions have what they were created with. The API server lets another deletion shorten a grace
period, never extend it. The pod's containers are ended by the kubelet: nothing here says that a GPU
is free before its containers have ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import PodRecord
from scheduler_extender.cluster.writes import Writer
from scheduler_extender.queue.steps.lifecycle import LEAVES_WITHIN_S, deletion_asked_s
from tandem.kube.errors import KubeError
from tandem.reasons.counting import counted

log = logging.getLogger(__name__)

OVERDUE = "DeletionOverdue"
_AGAIN_S, _LONGEST_AGAIN_S = 5.0, 300.0  # a request that failed is made again; doubled each time
_AT_ONCE = 16  # requests of one step
#: The shortest grace period that is asked for. With 0 the object goes while its containers run.
_LEAST_S = 1


@dataclass(slots=True)
class _Going:
    pod: PodInfo
    reported: bool = False
    next_s: float = 0.0
    wait_s: float = _AGAIN_S


@dataclass(eq=False)
class Terminations:
    """The pods that are being deleted and hold GPUs, by uid. Runs on the event loop.

    `_max_grace_s` is the most that such a pod may take to end, in seconds.
    """

    _writer: Writer
    _clock: Callable[[], float]
    _max_grace_s: int
    _going: dict[str, _Going] = field(default_factory=dict)

    def pod_changed(self, record: PodRecord) -> None:
        """Take in a pod as it is now."""
        if not (record.ours and record.bound and record.pod.deleting):
            self._going.pop(record.uid, None)
            return
        known = self._going.setdefault(record.uid, _Going(record.pod))
        known.pod = record.pod

    def pod_gone(self, record: PodRecord) -> None:
        """Forget a pod that has ended."""
        self._going.pop(record.uid, None)

    def overdue(self) -> dict[str, int]:
        """Count by namespace the pods that hold GPUs long after their deletion."""
        now = self._clock()
        overdue = (each.pod for each in self._going.values() if _is_overdue(each.pod, now))
        return dict(Counter(pod.namespace for pod in overdue))

    async def step(self) -> None:
        """Shorten the grace periods that are too long, and report the pods that are overdue."""
        now = self._clock()
        due = [each for each in self._going.values() if now >= each.next_s]
        long = [each for each in due if each.pod.grace_s > self._max_grace_s]
        overdue = [each for each in due if not each.reported and _is_overdue(each.pod, now)]
        await asyncio.gather(
            *(self._shorten(each, now) for each in long[:_AT_ONCE]),
            *(self._report(each, now) for each in overdue[:_AT_ONCE]),
        )

    async def _shorten(self, going: _Going, now: float) -> None:
        """Ask for the longest grace period that is allowed; a pod that has had it ends now."""
        pod = going.pod
        had_it = now - deletion_asked_s(pod) >= self._max_grace_s
        grace_s = _LEAST_S if had_it else self._max_grace_s
        going.next_s, going.wait_s = now + going.wait_s, min(2 * going.wait_s, _LONGEST_AGAIN_S)
        try:
            if not await self._writer.shorten_grace(pod, grace_s):
                return
        except KubeError as error:
            log.warning("grace period not shortened pod=%s/%s error=%s", *pod.key, error)
            return
        log.info("grace period shortened pod=%s/%s to_s=%d", *pod.key, grace_s)
        note = (
            f"its grace period of {pod.grace_s} s is cut to {grace_s} s: a pod with GPUs keeps them"
            f" until it has ended, and may take {self._max_grace_s} s at most"
        )
        await self._writer.say(pod, "GracePeriodShortened", note, "Warning")

    async def _report(self, going: _Going, now: float) -> None:
        pod = going.pod
        going.reported = True
        passed_s = now - deletion_asked_s(pod)
        note = (
            f"was deleted {passed_s:.0f} s ago and still holds {counted(pod.gpus, 'GPU')} of"
            f" {pod.node_name}: its containers have not ended. Its grace period of {pod.grace_s} s"
            f" ends at {pod.ends_by}; after that, look at the kubelet of the node"
        )
        log.warning("deletion overdue pod=%s/%s passed_s=%.0f", *pod.key, passed_s)
        await self._writer.say(pod, OVERDUE, note, "Warning")


def _is_overdue(pod: PodInfo, now_s: float) -> bool:
    return now_s - deletion_asked_s(pod) >= LEAVES_WITHIN_S
