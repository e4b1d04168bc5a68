"""The services of finished jobs, kept in a ConfigMap, because GPUJobs end with their owners."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import zlib
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from scheduler_extender.cluster.pair_slowdowns import PairSlowdowns, PlacementHistory
from scheduler_extender.cluster.records import GpuJobRecord
from scheduler_extender.cluster.writes import Writer, write_config_map
from scheduler_extender.learning.run_history import RunHistory
from tandem.contracts import names
from tandem.contracts.resources import Count, Phase
from tandem.kube.api import ClusterApi
from tandem.kube.errors import Invalid, KubeError, NotFound
from tandem.kube.resource import CONFIG_MAPS
from tandem.policy.jobs import History
from tandem.policy.votes import beyond_bound

log = logging.getLogger(__name__)

_KEY = "serviceGpuSeconds"
#: GPUs of the jobs that had more than one, by uid. A reader that does not know the key leaves it.
_GPUS_KEY = "gangGpus"
#: The namespace of each job, by uid. Earlier versions stored none: what they learned counts as that
#: of one namespace, '', until newer jobs take its place.
_NAMESPACES_KEY = "namespaces"
_SAVE_EVERY_S = 10.0
#: A ConfigMap holds 1 MiB of values; others keep something in this one, too.
_MOST_BYTES = 900 * 1024
_LEAST_BYTES = 64 * 1024
#: Up to here it is kept as plain JSON.
_PLAIN_BYTES = 512 * 1024
_OWN_KEYS = (_KEY, _GPUS_KEY, _NAMESPACES_KEY)
_SHAPES: dict[str, TypeAdapter[dict[str, Any]]] = {
    _KEY: TypeAdapter(dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]),
    _GPUS_KEY: TypeAdapter(dict[str, Count]),
    _NAMESPACES_KEY: TypeAdapter(dict[str, str]),
}
_LOGGED = 512  # characters of what is wrong


#: What else was learned and is kept in the same place.
Stored = PairSlowdowns | PlacementHistory | RunHistory


class HistoryStore:
    """Lifetime services of the latest finished jobs, and their GPUs, by the uid of their GPUJob.

    A job is learned once, however often and by whichever replica its end is seen: the uids are
    kept with the services, in a ConfigMap in `namespace` (None: in memory alone). `extras` are kept
    with them, by their keys there. What is stored is bounded by its size: what is worth least is
    forgotten. Beyond `jobs`, the namespace with most of them loses its oldest, so that no tenant
    replaces what the jobs of the others have taught.
    """

    def __init__(
        self, namespace: str | None, jobs: int, extras: Mapping[str, Stored] | None = None
    ) -> None:
        self._namespace = namespace
        self._extras = extras or {}
        self._saved = self._versions()
        self._jobs = jobs
        self._services: dict[str, float] = {}
        self._gpus: dict[str, int] = {}
        self._namespaces: dict[str, str] = {}
        self._unsaved = False
        self._loaded = namespace is None
        self._saved_at_s = 0.0
        self._history = History()
        self._learned_from = 0
        self._most_bytes = _MOST_BYTES
        self.failures = 0  # writes that the API server refused or did not answer
        self.stored_bytes = 0  # of what was written last

    def take(self, record: GpuJobRecord) -> None:
        """Learn from a GPUJob that has ended, by completion or by failure.

        Its service is over either way, and that is what the distribution is of ([Tiresias] 3.2.2).
        A job that has never run says nothing.
        """
        if record.status.phase in (Phase.COMPLETED, Phase.FAILED):
            self._enter(record)

    def take_killed(self, record: GpuJobRecord) -> None:
        """Learn from a GPUJob that was deleted with its workload before it had ended."""
        if record.status.phase not in (Phase.COMPLETED, Phase.FAILED):
            self._enter(record)

    def _enter(self, record: GpuJobRecord) -> None:
        status = record.status
        if record.uid in self._services or not status.attained_gpu_seconds:
            if record.uid in self._services and record.uid not in self._namespaces:
                self._namespaces[record.uid] = record.namespace
                self._unsaved = True
                self._learned_from += 1
            return
        self._services[record.uid] = status.attained_gpu_seconds
        self._namespaces[record.uid] = record.namespace
        if (gpus := record.spec.gpus) > 1:
            self._gpus[record.uid] = gpus
        self._trim()
        self._unsaved = True
        self._learned_from += 1

    def history(self) -> History:
        """Return what has been learned; made anew when something was added."""
        if self._learned_from:
            self._learned_from = 0
            self._history = History(
                np.array(list(self._services.values())),
                np.array([self._gpus.get(uid, 1) for uid in self._services], dtype=np.int64),
                tuple(self._namespaces.get(uid, "") for uid in self._services),
            )
        return self._history

    async def save(self, writer: Writer, now_s: float) -> None:
        """Read what others have learned before us, and write what is new, every ten seconds.

        Raises:
            KubeError: it was not saved; it is tried again, with less where it was too large.
        """
        if self._namespace is None or now_s - self._saved_at_s < _SAVE_EVERY_S:
            return
        if self._loaded and not self._unsaved and not self._news():
            return
        self._saved_at_s = now_s
        stored, known = await writer.call(self._read, writer.api)
        self._merge(known)
        self._loaded, written = True, False
        try:
            written = await self._exchange(writer, stored, known)
        finally:
            self._unsaved = self._unsaved or not written

    async def _exchange(
        self, writer: Writer, stored: dict[str, Any], known: dict[str, Any]
    ) -> bool:
        """Write what is not stored yet; what comes in meanwhile is for the next time."""
        while True:
            self._unsaved, versions, rows = False, self._versions(), self._rows()
            if rows == known:
                self._saved = versions
                return True
            body = await writer.call(self._encoded, stored, rows)
            if body is not None:
                break
            if not self._shed(rows):
                return False
        if not await self._write(writer, body):
            return False
        self._saved = versions
        return True

    async def _write(self, writer: Writer, body: dict[str, Any]) -> bool:
        try:
            written: bool = await writer.call(write_config_map, writer.api, body)
        except KubeError as error:
            self.failures += 1
            if isinstance(error, Invalid):
                self._most_bytes = max(_LEAST_BYTES, self._most_bytes // 2)
            raise
        return written

    def read_again(self) -> None:
        """Take in anew what is stored: another one may have led in between."""
        self._loaded = self._namespace is None

    def _versions(self) -> dict[str, int]:
        return {name: kept.version for name, kept in self._extras.items()}

    def _news(self) -> bool:
        return self._saved != self._versions()

    def _read(self, api: ClusterApi) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the ConfigMap, and what it holds of ours by key. Blocks."""
        assert self._namespace is not None
        try:
            stored = api.get(CONFIG_MAPS, names.HISTORY_CONFIG_MAP, self._namespace)
        except NotFound:
            stored = {}
        known = {name: _decoded(stored, name) or [] for name in self._extras}
        return stored, known | {key: _own(stored, key) for key in _OWN_KEYS}

    def _merge(self, known: dict[str, Any]) -> None:
        """Bring ours and what is stored together."""
        for name, kept in self._extras.items():
            try:
                kept.merge(known[name])
            except ValueError as error:
                _unreadable(name, error)
        before = len(self._services)
        self._services = {**known[_KEY], **self._services}
        self._gpus = {**known[_GPUS_KEY], **self._gpus}
        self._namespaces = {**known[_NAMESPACES_KEY], **self._namespaces}
        self._trim()
        self._learned_from += len(self._services) - before

    def _rows(self) -> dict[str, Any]:
        """Return all that is to be kept, by its key."""
        own = dict(self._services), dict(self._gpus), dict(self._namespaces)
        return dict(zip(_OWN_KEYS, own, strict=True)) | {
            n: k.stored() for n, k in self._extras.items()
        }

    def _encoded(self, stored: dict[str, Any], rows: dict[str, Any]) -> dict[str, Any] | None:
        """Return the ConfigMap to write; None where it would be too large. Blocks.

        Plain JSON while it is small, so that people can read it; else compressed.
        """
        texts = {name: json.dumps(value).encode() for name, value in rows.items()}
        others = {k: v for k, v in (stored.get("data") or {}).items() if k not in texts}
        room = self._most_bytes - sum(len(k) + len(v.encode()) for k, v in others.items())
        self.stored_bytes = sum(len(text) for text in texts.values())
        body: dict[str, Any] = {"data": others}
        if self.stored_bytes <= min(_PLAIN_BYTES, room):
            body["data"] = others | {name: text.decode() for name, text in texts.items()}
        else:
            packed = {name: gzip.compress(text, mtime=0) for name, text in texts.items()}
            self.stored_bytes = sum(len(each) for each in packed.values())
            if self.stored_bytes > room:
                return None
            body["binaryData"] = {k: base64.b64encode(v).decode() for k, v in packed.items()}
        version = stored.get("metadata", {}).get("resourceVersion")
        body["metadata"] = {"name": names.HISTORY_CONFIG_MAP, "namespace": self._namespace}
        if version:
            body["metadata"]["resourceVersion"] = version
        return body

    def _shed(self, rows: dict[str, Any]) -> bool:
        """Forget the least valuable tenth of what takes most; False where nothing is left."""
        largest = max(rows, key=lambda name: (len(rows[name]), name))
        count = -(-len(rows[largest]) // 10)
        if largest in _OWN_KEYS:
            self._forget(count)
        else:
            self._extras[largest].shed(count)
        log.warning("history too large, forgot rows=%d of=%s", count, largest)
        return count > 0

    def _trim(self) -> None:
        """Forget the oldest beyond the number that is kept."""
        self._forget(len(self._services) - self._jobs)

    def _forget(self, count: int) -> None:
        """Forget so many jobs: of the namespace that has most, the oldest."""
        rows = ((uid, self._namespaces.get(uid, "")) for uid in self._services)
        for uid in beyond_bound(rows, len(self._services) - count) if count > 0 else ():
            del self._services[uid]
            self._gpus.pop(uid, None)
            self._namespaces.pop(uid, None)


def _decoded(stored: dict[str, Any], name: str) -> Any:  # noqa: ANN401 - JSON
    """Return what a ConfigMap has under a key, plain or compressed; None where that is nothing."""
    packed = (stored.get("binaryData") or {}).get(name)
    text = (stored.get("data") or {}).get(name)
    try:
        if packed is not None:
            return json.loads(gzip.decompress(base64.b64decode(packed)))
        return None if text is None else json.loads(text)
    except (ValueError, OSError, EOFError, RecursionError, zlib.error) as error:
        _unreadable(name, error)
        return None


def _own(stored: dict[str, Any], key: str) -> dict[str, Any]:
    """Return what a ConfigMap has under a key of `_OWN_KEYS`; nothing where that is none of it."""
    try:
        found: dict[str, Any] = _SHAPES[key].validate_python(_decoded(stored, key) or {})
    except ValidationError as error:
        _unreadable(key, error)
        return {}
    return found


def _unreadable(key: str, error: Exception) -> None:
    log.warning("history unreadable key=%s error=%s", key, str(error)[:_LOGGED])
