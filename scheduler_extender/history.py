"""What finished jobs teach a Gittins order, kept apart from GPUJobs, which go with their owners."""

from __future__ import annotations

import json
import logging

import numpy as np

from scheduler_extender.records import GpuJobRecord
from scheduler_extender.writes import Writer
from tandem.contracts.resources import Phase
from tandem.kube.api import ClusterApi
from tandem.kube.errors import AlreadyExists, Conflict, NotFound
from tandem.kube.resource import CONFIG_MAPS
from tandem.policy.jobs import History

log = logging.getLogger(__name__)

NAME = "tandem-history"
_KEY = "serviceGpuSeconds"
_SAVE_EVERY_S = 10.0


class Learned:
    """The lifetime services of the latest finished jobs, by the uid of their GPUJob.

    A job is learned once however often its end is seen, and whoever sees it: the uids are kept
    with the services, in a ConfigMap in `namespace` (None: in memory alone).
    """

    def __init__(self, namespace: str | None, jobs: int) -> None:
        self._namespace = namespace
        self._jobs = jobs
        self._services: dict[str, float] = {}
        self._unsaved = False
        self._loaded = namespace is None
        self._saved_at_s = 0.0
        self._history = History()
        self._learned_from = 0

    @property
    def namespace(self) -> str | None:
        """Where it is kept; None: in memory alone."""
        return self._namespace

    def take(self, record: GpuJobRecord) -> None:
        """Learn from a GPUJob that has ended; those that failed say nothing of their size."""
        status = record.status
        if status.phase is not Phase.COMPLETED or record.uid in self._services:
            return
        self._services[record.uid] = status.attained_gpu_seconds
        self._trim()
        self._unsaved = True
        self._learned_from += 1

    def history(self) -> History:
        """Return what has been learned; made anew when something was added."""
        if self._learned_from:
            self._learned_from = 0
            self._history = History(np.array(list(self._services.values())))
        return self._history

    async def save(self, writer: Writer, now_s: float) -> None:
        """Read what others have learned before us, and write what is new, every ten seconds."""
        if self._namespace is None or now_s - self._saved_at_s < _SAVE_EVERY_S:
            return
        if self._loaded and not self._unsaved:
            return
        self._saved_at_s = now_s
        await writer.call(self._merge, writer.api)

    def _merge(self, api: ClusterApi) -> None:
        """Bring ours and the stored together; a conflict is left to the next time."""
        assert self._namespace is not None
        try:
            stored = api.get(CONFIG_MAPS, NAME, self._namespace)
        except NotFound:
            stored = {}
        known = json.loads((stored.get("data") or {}).get(_KEY, "{}"))
        before = len(self._services)
        self._services = {**known, **self._services}
        self._trim()
        self._learned_from += len(self._services) - before
        self._loaded = True
        if not self._unsaved or self._services == known:
            self._unsaved = False
            return
        body = {
            "metadata": {"name": NAME, "namespace": self._namespace},
            "data": {**(stored.get("data") or {}), _KEY: json.dumps(self._services)},
        }
        try:
            if stored:
                body["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
                api.replace(CONFIG_MAPS, body, self._namespace)
            else:
                api.create(CONFIG_MAPS, body, self._namespace)
        except (Conflict, AlreadyExists):
            return
        self._unsaved = False

    def _trim(self) -> None:
        """Forget the oldest beyond the number that is kept."""
        for uid in list(self._services)[: max(0, len(self._services) - self._jobs)]:
            del self._services[uid]
