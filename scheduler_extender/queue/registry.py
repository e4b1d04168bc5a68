"""What the queue controller knows: the pods of each gang, and its GPUJob."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import GpuJobRecord, Key, PodRecord

#: Pods that succeed within so long of the first are of the same end; beyond it, it is the next.
_ENDS_AGAIN_S = 60.0


@dataclass(slots=True)
class Gang:
    """One GPUJob, as far as it exists, and its pods by uid.

    `gone` are pods that no longer exist and whose last service may not have been written yet, with
    the time at which we heard of their end. `ends_since_s` is when its pods were last heard to
    begin to succeed (Unix time).
    """

    key: Key
    record: GpuJobRecord | None = None
    pods: dict[str, PodInfo] = field(default_factory=dict)
    gone: dict[str, tuple[PodInfo, float]] = field(default_factory=dict)
    ends_since_s: float = -math.inf

    def live_pods(self) -> list[PodInfo]:
        """Return the pods that have neither ended nor are going, by name."""
        pods = (pod for pod in self.pods.values() if not pod.finished and not pod.deleting)
        return sorted(pods, key=lambda pod: pod.name)

    def still_to_come(self, size: int) -> int:
        """Return how many of `size` pods have not succeeded: of an indexed Job, those come back.

        At least one, for a workload that has pods again after all had ended.
        """
        return max(1, size - sum(pod.phase == "Succeeded" for pod in self.pods.values()))

    def holders(self) -> list[PodInfo]:
        """Return the pods that hold GPUs: bound and not ended, those that are going included."""
        return [pod for pod in self.pods.values() if pod.node_name and not pod.finished]


class Registry:
    """Gangs by key, kept up to date by events; `changed` is told whose picture has changed."""

    def __init__(self, changed: Callable[[Key], None], clock: Callable[[], float]) -> None:
        self.gangs: dict[Key, Gang] = {}
        self._changed = changed
        self._clock = clock
        self._gang_of_pod: dict[str, Key] = {}

    def gang_of(self, uid: str) -> Gang | None:
        """Return the gang of a pod."""
        key = self._gang_of_pod.get(uid)
        return self.gangs.get(key) if key else None

    def pod_changed(self, record: PodRecord) -> None:
        """Take in a pod; those that ask for none of our GPUs are left out."""
        if record.pod.gpus == 0:
            return
        gang = self._gang(record.gpujob)
        known = gang.pods.get(record.uid)
        if known is not None and known == record.pod:
            return
        if known is not None and record.pod.phase == "Succeeded" != known.phase:
            now = self._clock()
            if now > gang.ends_since_s + _ENDS_AGAIN_S:
                gang.ends_since_s = now
        self._gang_of_pod[record.uid] = record.gpujob
        gang.pods[record.uid] = record.pod
        self._changed(record.gpujob)

    def pod_gone(self, uid: str) -> None:
        """Forget a pod that no longer exists; its service is still to be counted to its end."""
        key = self._gang_of_pod.pop(uid, None)
        if key is None:
            return
        gang = self.gangs[key]
        pod = gang.pods.pop(uid)
        if pod.started_at:
            gang.gone[uid] = (pod, self._clock())
        self._touch_or_drop(key)

    def job_changed(self, record: GpuJobRecord) -> None:
        """Take in a GPUJob as the API server has it; an older version than ours is ignored."""
        gang = self._gang(record.key)
        known = gang.record
        # Our own write's answer may come before the watch tells of an earlier one.
        same = known is not None and known.uid == record.uid
        if known is not None and same and record.version <= known.version:
            return
        if known is not None and not same:
            gang.gone.clear()
        gang.record = record
        self._changed(record.key)

    def job_gone(self, key: Key, uid: str) -> None:
        """Forget a GPUJob that no longer exists."""
        gang = self.gangs.get(key)
        if gang is not None and gang.record is not None and gang.record.uid == uid:
            gang.record = None
            gang.gone.clear()
            self._touch_or_drop(key)

    def _gang(self, key: Key) -> Gang:
        return self.gangs.setdefault(key, Gang(key))

    def _touch_or_drop(self, key: Key) -> None:
        gang = self.gangs[key]
        if gang.record is None and not gang.pods:
            del self.gangs[key]
        self._changed(key)
