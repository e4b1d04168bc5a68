"""Which pods want a place: groups that start together, and the shapes in which pods ask for one."""

from __future__ import annotations

from collections.abc import Callable

from scheduler_extender import lifecycle
from scheduler_extender.jobs import job_of
from scheduler_extender.planning import Ask, Start
from scheduler_extender.pods import PodInfo
from scheduler_extender.records import GpuJobRecord, Key
from scheduler_extender.registry import Gang

_SHAPES = 500  # what pods ask of a node, in so many ways, before those of no use are dropped


class Waiters:
    """The starts of each gang that waits; `changed` is told when there are new ones."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.starts: dict[Key, tuple[Start, ...]] = {}
        self.shapes: dict[Ask, PodInfo] = {}  # what pods ask of a node -> one that asks for it
        self._changed = changed

    def note(self, gang: Gang, record: GpuJobRecord, now_s: float) -> None:
        """Note which pods of a gang want a place now."""
        starts = []
        for pods in lifecycle.pods_to_start(gang, now_s):
            job_id = f"{record.namespace}/{record.name}"
            if len(pods) == 1:
                job_id += f"#{pods[0].name}"
            job = job_of(job_id, record.spec, record.status, pods=len(pods))
            starts.append(Start.of(gang.key, job, pods))
        if not starts:
            return
        if len(self.shapes) > _SHAPES:
            self.shapes = {
                each.shape: each.pods[0] for known in self.starts.values() for each in known
            }
        self.shapes |= {start.shape: start.pods[0] for start in starts}
        self.starts[gang.key] = tuple(starts)
        self._changed()

    def drop(self, key: Key) -> None:
        """Forget what a gang wants: it has it, or is looked at anew."""
        self.starts.pop(key, None)
