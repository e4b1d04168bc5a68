"""What finished jobs teach, kept apart from GPUJobs, which go with their owners."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from scheduler_extender.cluster.records import GpuJobRecord
from scheduler_extender.queue.writes import Writer
from tandem.contracts.resources import Phase
from tandem.kube.api import ClusterApi
from tandem.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from tandem.kube.resource import CONFIG_MAPS
from tandem.policy.jobs import History

log = logging.getLogger(__name__)

NAME = "tandem-history"
_KEY = "serviceGpuSeconds"
_SAVE_EVERY_S = 10.0


class Kept(Protocol):
    """Something else that was learned and is kept in the same place; `version` grows with it."""

    version: int

    def stored(self) -> list[Any]:
        """Return it as JSON."""
        ...

    def merge(self, rows: list[Any]) -> None:
        """Take in what was stored, by us or by others."""
        ...


class Learned:
    """The lifetime services of the latest finished jobs, by the uid of their GPUJob.

    A job is learned once however often its end is seen, and whoever sees it: the uids are kept
    with the services, in a ConfigMap in `namespace` (None: in memory alone). `beside` is kept with
    them, by its key there.
    """

    def __init__(
        self, namespace: str | None, jobs: int, beside: Mapping[str, Kept] | None = None
    ) -> None:
        self._namespace = namespace
        self._beside = beside or {}
        self._saved = self._merged = {name: kept.version for name, kept in self._beside.items()}
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
        if self._loaded and not self._unsaved and not self._news():
            return
        self._saved_at_s = now_s
        stored = await writer.call(self._read, writer.api)
        body = self._merge(stored)
        self._loaded, self._unsaved, merged = True, False, self._merged
        try:
            written = body is None or await writer.call(_write, writer.api, body)
        except KubeError:
            self._unsaved = True
            raise
        if written:
            self._saved = merged
        else:
            self._unsaved = True

    def read_again(self) -> None:
        """Take in anew what is stored: another one may have led in between."""
        self._loaded = self._namespace is None

    def _news(self) -> bool:
        return self._saved != {name: kept.version for name, kept in self._beside.items()}

    def _read(self, api: ClusterApi) -> dict[str, Any]:
        assert self._namespace is not None
        try:
            return api.get(CONFIG_MAPS, NAME, self._namespace)
        except NotFound:
            return {}

    def _merge(self, stored: dict[str, Any]) -> dict[str, Any] | None:
        """Bring ours and the stored together; return what is to be written, if anything."""
        data = stored.get("data") or {}
        known = json.loads(data.get(_KEY, "{}"))
        for name, kept in self._beside.items():
            kept.merge(json.loads(data.get(name, "[]")))
        self._merged = {name: kept.version for name, kept in self._beside.items()}
        texts = {name: json.dumps(kept.stored()) for name, kept in self._beside.items()}
        before = len(self._services)
        self._services = {**known, **self._services}
        self._trim()
        self._learned_from += len(self._services) - before
        same = all(text == data.get(name, "[]") for name, text in texts.items())
        if same and (not self._unsaved or self._services == known):
            return None
        version = stored.get("metadata", {}).get("resourceVersion")
        return {
            "metadata": {"name": NAME, "namespace": self._namespace}
            | ({"resourceVersion": version} if version else {}),
            "data": {**data, _KEY: json.dumps(self._services), **texts},
        }

    def _trim(self) -> None:
        """Forget the oldest beyond the number that is kept."""
        for uid in list(self._services)[: max(0, len(self._services) - self._jobs)]:
            del self._services[uid]


def _write(api: ClusterApi, body: dict[str, Any]) -> bool:
    """Write it; False where somebody else was faster, which is left to the next time."""
    namespace = body["metadata"]["namespace"]
    try:
        if "resourceVersion" in body["metadata"]:
            api.replace(CONFIG_MAPS, body, namespace)
        else:
            api.create(CONFIG_MAPS, body, namespace)
    except (Conflict, AlreadyExists):
        return False
    return True
