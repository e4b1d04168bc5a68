"""Pending jobs: groups of pods that start together, and the shapes of their pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from scheduler_extender.cluster.elastic import grows, works_together
from scheduler_extender.cluster.gangs import Ask, Gang, ask_of, by_role
from scheduler_extender.cluster.jobs import in_steps, job_of
from scheduler_extender.cluster.pods import PodInfo, Shape
from scheduler_extender.cluster.records import GpuJobRecord, Key
from scheduler_extender.cluster.workers import accumulates, declared_of, has_own_figures, worker_of
from scheduler_extender.cluster.workloads import role_of
from scheduler_extender.planning.questions import Part, Start
from scheduler_extender.queue.order.queue_state import Believe
from scheduler_extender.queue.steps import lifecycle
from tandem.policy.job import Job

_SHAPES = 500  # what pods ask of a node, in so many ways, before those of no use are dropped


class PendingJobs:
    """The starts of each gang that waits; `changed` is called when there are new ones.

    What pods ask of a node apart from GPUs is their shape, and has a number: `Job.where`. Pods that
    start together, of which a node may not hold as many as it has GPUs for, have another one.
    """

    def __init__(self, changed: Callable[[], None], believe: Believe = lambda job, _: job) -> None:
        self.starts: dict[Key, tuple[Start, ...]] = {}
        self.where_of: dict[Key, int] = {}  # how a gang's pods asked last
        self.growing: set[Key] = set()  # elastic gangs that run, of those in `starts`
        self.joining: set[Key] = set()  # gangs whose pods start one by one, of those in `starts`
        self._pods: dict[int, tuple[PodInfo, ...]] = {}  # by number, one pod of each of its shapes
        #: By number of those that start together, how many GPUs each of their pods asks for.
        self.together: dict[int, int] = {}
        self._numbers: dict[tuple[frozenset[Shape], int], int] = {}
        self._next = 1
        self._noted: set[int] = set()  # numbers of the gang that is being noted
        self._changed = changed
        self._believe = believe

    def shapes(self) -> Mapping[int, Sequence[PodInfo]]:
        """Return pods of each shape that is waiting, by number."""
        return self._pods

    def note(self, gang: Gang, record: GpuJobRecord, now_s: float) -> None:
        """Note which pods of a gang want a place now."""
        starts = []
        self._noted.clear()
        name = f"{record.namespace}/{record.name}"
        # Pods of one gang that ask the same differ in their names alone.
        alike: dict[tuple[frozenset[Shape], Ask, int], Job] = {}
        for pods in lifecycle.pods_to_start(gang, now_s):
            parts = []
            roles = by_role(pods)
            for role in roles:
                shapes = {pod.shape: pod for pod in role}
                kind = frozenset(shapes), ask_of(role[0]), len(role)
                job = alike.get(kind)
                if job is None:
                    job = alike[kind] = self._job(gang, record, role, shapes)
                if len(roles) > 1:
                    # All pods of a gang run in as many steps, and their roles offer different ones.
                    job = replace(job, sub_batches=())
                parts.append(Part(role_of(role[0]), job, tuple(role)))
            first, *others = parts
            job = first.job if len(pods) > 1 else replace(first.job, id=f"{name}#{pods[0].name}")
            starts.append(Start(gang.key, job, first.pods, first.role, tuple(others)))
        if starts:
            self.starts[gang.key] = tuple(starts)
            planned = lifecycle.planned_uids(record.status, now_s)
            if grows(gang, planned):
                self.growing.add(gang.key)
            if works_together(gang) and (gang.holds or planned or len(starts) > 1):
                self.joining.add(gang.key)
            self.where_of[gang.key] = starts[0].job.where
            self._changed()

    def _job(
        self, gang: Gang, record: GpuJobRecord, role: list[PodInfo], shapes: Mapping[Shape, PodInfo]
    ) -> Job:
        """Return the job of pods that ask for the same and declare the same."""
        status, gpus, declared = record.status, role[0].gpus, declared_of(role[0])
        worker = worker_of(record, declared, several=gang.has_loads)
        where = self._number(shapes, gpus if len(role) > 1 else 0)
        name = f"{record.namespace}/{record.name}"
        job = job_of(name, record.spec, status, pods=len(role))
        if has_own_figures(record, declared, several=gang.has_loads):
            job = replace(
                worker,
                pods=len(role),
                gpus_per_pod=gpus,
                where=where,
                required_topology=job.required_topology,
                preferred_topology=job.preferred_topology,
                queued_at_s=job.queued_at_s,
                attained_gpu_seconds=job.attained_gpu_seconds,
            )
            return self._believe(job, None)
        job = replace(job, where=where, gpus_per_pod=gpus)
        if job.exclusive != worker.exclusive:
            job = replace(job, exclusive=worker.exclusive)
        job = self._believe(job, status.load)
        if not accumulates(declared):
            job = replace(job, sub_batches=())
        if gang.holds and status.plan is not None:
            # A replacement runs as its siblings do.
            job = replace(in_steps(job, status.plan.accumulation_steps), sub_batches=())
        return job

    def drop(self, key: Key) -> None:
        """Forget what a gang wants: it has it, or is looked at anew."""
        self.starts.pop(key, None)
        self.growing.discard(key)
        self.joining.discard(key)

    def forget(self, key: Key) -> None:
        """Forget a gang that is gone."""
        self.drop(key)
        self.where_of.pop(key, None)

    def _number(self, shapes: Mapping[Shape, PodInfo], together: int) -> int:
        asked = frozenset(shapes), together
        number = self._numbers.get(asked)
        if number is None:
            if len(self._pods) > _SHAPES:
                starts = (each for known in self.starts.values() for each in known)
                used = {part.job.where for each in starts for part in each.parts}
                used |= {*self.where_of.values(), *self._noted}
                self._pods = {number: self._pods[number] for number in used}
                self._numbers = {s: n for s, n in self._numbers.items() if n in used}
                self.together = {n: gpus for n, gpus in self.together.items() if n in used}
            number = self._numbers[asked] = self._next
            self._next += 1
        self._noted.add(number)
        self._pods[number] = tuple(shapes.values())
        if together:
            self.together[number] = together
        return number
