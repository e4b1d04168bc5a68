"""The record in the API server: a ConfigMap for each day, read and written as a whole."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping

from scheduler_extender.shadow.recorder import Recorder
from tandem.contracts.shadow import (
    SLOTS,
    ShadowDay,
    ShadowJob,
    ShadowNode,
    config_map_name,
    data_of,
    day_in,
    packed,
)
from tandem.kube.api import ClusterApi
from tandem.kube.errors import AlreadyExists, Conflict, NotFound
from tandem.kube.resource import CONFIG_MAPS
from tandem.policy.votes import beyond_bound

log = logging.getLogger(__name__)

#: Jobs of a day; the namespace that has most loses its oldest, so that no tenant displaces others.
MOST_JOBS = 10_000
_MOST_BYTES = 900 * 1024
#: The longest pause between two writes that is no gap in the record.
_GAP_S = 900.0


class Store:
    """Days of a record; one process writes them. Blocks; not for an event loop.

    Raises, everywhere: KubeError, where the API server does not answer.
    """

    def __init__(self, api: ClusterApi, namespace: str, clock: Callable[[], float]) -> None:
        self._api = api
        self._namespace = namespace
        self._clock = clock
        self._since_s = clock()
        self._missed_s = 0.0

    def resume(self, recorder: Recorder) -> float:
        """Let the recorder go on from what is stored; return until when that was known."""
        now = self._clock()
        days = [day for number in range(SLOTS) if (day := self._read(number)[0]) is not None]
        days = [day for day in days if day.number > now // 86_400 - SLOTS]
        if not days:
            return now
        for day in sorted(days, key=lambda day: day.number):
            recorder.resume(day)
        newest = max(days, key=lambda day: day.saved_s)
        self._since_s, self._missed_s = newest.since_s, newest.missed_s
        if now - newest.saved_s > _GAP_S:
            self._missed_s += now - newest.saved_s
        return newest.saved_s

    def save(
        self,
        changed: Mapping[str, ShadowJob],
        removed: Mapping[str, int],
        nodes: Mapping[str, ShadowNode],
    ) -> None:
        """Write these jobs into the days on which they came, and today with its nodes."""
        now = self._clock()
        today = int(now // 86_400)
        of_day: defaultdict[int, list[ShadowJob]] = defaultdict(list)
        for job in changed.values():
            of_day[job.day].append(job)
        for number in sorted({*of_day, *removed.values(), today}):
            if number > today - SLOTS:
                gone = [job for job, day in removed.items() if day == number]
                self._update(number, of_day[number], gone, nodes if number == today else None)

    def _update(
        self,
        number: int,
        jobs: list[ShadowJob],
        gone: list[str],
        nodes: Mapping[str, ShadowNode] | None,
    ) -> None:
        for _ in range(3):
            stored, version = self._read(number)
            if stored is None or stored.number != number:
                stored = ShadowDay(number=number, since_s=self._since_s, saved_s=0.0)
            for job in jobs:
                _put(stored, job)
            for job_id in gone:
                stored.jobs.pop(job_id, None)
            stored.saved_s, stored.missed_s = self._clock(), self._missed_s
            if nodes is not None:
                stored.nodes = [nodes[name] for name in sorted(nodes)]
            _bound(stored)
            if self._write(stored, version):
                return
        raise Conflict(409, f"{config_map_name(number)} is written by another process as well")

    def _read(self, number: int) -> tuple[ShadowDay | None, str]:
        """Return the day in a slot and the version of its ConfigMap, '' where there is none."""
        try:
            found = self._api.get(CONFIG_MAPS, config_map_name(number), self._namespace)
        except NotFound:
            return None, ""
        version = str(found["metadata"]["resourceVersion"])
        try:
            return day_in(found), version
        except ValueError as error:
            log.warning("day of the record unreadable name=%s error=%s",
                        config_map_name(number), error)  # fmt: skip
            return None, version

    def _write(self, day: ShadowDay, version: str) -> bool:
        metadata = {"name": config_map_name(day.number), "namespace": self._namespace}
        body = {"metadata": metadata, "binaryData": data_of(day)}
        try:
            if version:
                metadata["resourceVersion"] = version
                self._api.replace(CONFIG_MAPS, body, self._namespace)
            else:
                self._api.create(CONFIG_MAPS, body, self._namespace)
        except (Conflict, AlreadyExists, NotFound):
            return False
        return True


def _put(day: ShadowDay, job: ShadowJob) -> None:
    """Put a job into its day; of two that have ended, the one that is known to have run longer."""
    known = day.jobs.get(job.id)
    if known is not None and known.ended_s is not None and job.ended_s is not None:
        longer = known.held_gpu_s(known.ended_s) > job.held_gpu_s(job.ended_s)
        job = known if longer else job
    day.jobs[job.id] = job


def _bound(day: ShadowDay) -> None:
    """Drop what is too much for one object."""
    _shed(day, MOST_JOBS)
    while day.jobs and len(packed(day)) * 3 // 4 > _MOST_BYTES:
        _shed(day, len(day.jobs) // 2)


def _shed(day: ShadowDay, most: int) -> None:
    if len(day.jobs) <= most:
        return
    oldest_first = sorted(day.jobs.values(), key=lambda job: (job.ended_s is None, job.arrived_s))
    for job_id in beyond_bound(((job.id, job.namespace) for job in oldest_first), most):
        del day.jobs[job_id]
        day.dropped += 1
