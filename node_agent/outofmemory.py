"""Did a container run out of GPU memory? CUDA does not say, so it is inferred.

CUDA's error ends a container with a plain exit code. What can be seen is that a container failed
while its GPU was full, or within seconds after. Times are Unix times, as Kubernetes gives them.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from node_agent import guard
from node_agent.pods import ContainerEnd, PodInfo
from tandem.contracts.resources import OutgrownPod, OutOfMemory

log = logging.getLogger(__name__)

#: A GPU is full from this share of its memory on: an allocation may fail without filling the rest.
FULL = 0.97
#: A container that fails within this time of its GPU being full ran out of memory: frameworks try
#: again, write a report and wait for their other processes before they end.
FAILED_WITHIN_S = 10.0
#: Kubernetes tells the end of a container in whole seconds, cut off.
STAMP_STEP_S = 1.0
#: A GPU that is full, empties and fills again within this time was full all the while.
SAME_EPISODE_S = 2.0
#: Episodes of a GPU that are remembered: the end of a container is known within seconds of it.
EPISODES = 8
#: How long a failure is reported, and how many at most.
KEEP_S = 600.0
KEEP = 16
#: Ends that have nothing to do with the GPU: killed from outside, out of the host's memory.
_OTHER_CODES = {0, 128 + 9, 128 + 15}
_OTHER_REASONS = {"OOMKilled", "ContainerCannotRun"}


@dataclass(slots=True)
class Episode:
    """A time in which a GPU was full, and what each pod held at most meanwhile."""

    from_s: float
    to_s: float
    holders: dict[str, guard.Tenant] = field(default_factory=dict)


class FullTimes:
    """The last times in which one GPU was full."""

    def __init__(self) -> None:
        self._episodes: deque[Episode] = deque(maxlen=EPISODES)

    def note(self, at_s: float, holders: Iterable[guard.Tenant]) -> None:
        """Note that the GPU is full now, and who holds what of it."""
        if not self._episodes or at_s - self._episodes[-1].to_s > SAME_EPISODE_S:
            self._episodes.append(Episode(at_s, at_s))
        episode = self._episodes[-1]
        episode.to_s = at_s
        for holder in holders:
            known = episode.holders.get(holder.uid)
            if known is None or (holder.memory or 0) >= (known.memory or 0):
                episode.holders[holder.uid] = holder

    def cause(self, uid: str, end: ContainerEnd) -> Episode | None:
        """Return the time that explains why a container of the pod failed, if one does.

        The pod must have held a part of the memory at that time.
        """
        if end.exit_code in _OTHER_CODES or end.reason in _OTHER_REASONS:
            return None
        for episode in reversed(self._episodes):
            begun = episode.from_s < end.at_s + STAMP_STEP_S
            recent = end.at_s - episode.to_s <= FAILED_WITHIN_S
            if begun and recent and uid in episode.holders:
                return episode
        return None


class OutOfMemoryLog:
    """Recently inferred failures, each once; `counts` by whether a pod was to blame."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._reported: dict[tuple[str, str, str], tuple[float, OutOfMemory]] = {}

    def remember(self, reported: Iterable[OutOfMemory], now_s: float) -> None:
        """Take what an earlier agent of this node reported."""
        for one in reported:
            self._reported[one.uid, one.container, one.ended_at] = (now_s, one)

    def latest(self, now_s: float) -> list[OutOfMemory]:
        """Return what is reported, oldest first; `now_s` is on the same clock as in `look`."""
        fresh = {key: one for key, one in self._reported.items() if now_s - one[0] < KEEP_S}
        self._reported = dict(list(fresh.items())[-KEEP:])
        return [one for _, one in self._reported.values()]

    def look(
        self, now_s: float, gpu: str, full: FullTimes, pods: dict[str, PodInfo | None]
    ) -> None:
        """Infer from the ends of the containers of `pods` (by UID), which are or were on `gpu`."""
        for uid, info in pods.items():
            for end in info.ends if info else ():
                key = (uid, end.container, _stamp(end.at_s))
                cause = full.cause(uid, end)
                if info is not None and cause is not None and key not in self._reported:
                    self._tell(now_s, gpu, info, key, end, cause, pods)

    def _tell(
        self,
        now_s: float,
        gpu: str,
        info: PodInfo,
        key: tuple[str, str, str],
        end: ContainerEnd,
        cause: Episode,
        pods: dict[str, PodInfo | None],
    ) -> None:
        uid, container, ended_at = key
        found = guard.offender(list(cause.holders.values()))
        at_fault = pods.get(found.uid) if found else None
        self.counts["outgrown" if found else "nobody"] += 1
        log.warning(
            "out of memory, inferred gpu=%s pod=%s/%s container=%s exit_code=%d blamed=%s",
            gpu,
            info.namespace,
            info.name,
            container,
            end.exit_code,
            found.uid if found else "",
        )
        blamed = found and OutgrownPod(
            namespace=at_fault.namespace if at_fault else "",
            pod=at_fault.name if at_fault else "",
            uid=found.uid,
            memory_bytes=found.memory,
            predicted_bytes=found.predicted,
        )
        failure = OutOfMemory(
            gpu=gpu,
            namespace=info.namespace,
            pod=info.name,
            uid=uid,
            container=container,
            exit_code=end.exit_code,
            ended_at=ended_at,
            memory_bytes=cause.holders[uid].memory,
            blamed=blamed,
        )
        self._reported[key] = (now_s, failure)


def unix_time(stamp: str) -> float:
    """Return an RFC 3339 time as seconds since 1970."""
    return datetime.fromisoformat(stamp).timestamp()


def _stamp(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
