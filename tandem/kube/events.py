"""Events on objects, as `kubectl describe` shows them: the same again is counted, not repeated."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal
from uuid import uuid4

from tandem.kube.api import ClusterApi
from tandem.kube.client import Object
from tandem.kube.errors import KubeError, NotFound
from tandem.kube.resource import EVENTS

log = logging.getLogger(__name__)

EventType = Literal["Normal", "Warning"]
#: The API server refuses longer notes.
MAX_NOTE = 1024
#: How many events are remembered for counting.
REMEMBERED = 4096
#: The same event is written at most this often; `kubectl describe` shows the count.
REPEAT_AFTER_S = 60.0


class EventRecorder:
    """Writes events of one component (`controller`) on one replica (`instance`).

    People read events, and no code does: a failure to write one is logged and stops nothing.
    """

    def __init__(
        self,
        client: ClusterApi,
        controller: str,
        instance: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._controller = controller
        self._instance = instance
        self._now = now
        self._lock = threading.Lock()
        self._seen: OrderedDict[tuple[str, ...], tuple[str, int, datetime]] = OrderedDict()

    def record(
        self,
        regarding: Object,
        reason: str,
        note: str,
        *,
        type_: EventType = "Normal",
        action: str = "Scheduling",
    ) -> None:
        """Say on the object `regarding` that `reason` (CamelCase) holds, with `note` in words.

        `regarding` is the object itself (or its apiVersion, kind and metadata). Blocks for one
        write at most; nothing is written if the same was said in the last minute.
        """
        metadata = regarding["metadata"]
        note = note if len(note) <= MAX_NOTE else note[: MAX_NOTE - 1] + "…"
        namespace = str(metadata.get("namespace") or "default")
        key = (str(metadata.get("uid", "")), type_, reason, note)
        now = self._now()
        with self._lock:
            name, count, last = self._seen.pop(key, ("", 0, now))
            if name and (now - last).total_seconds() < REPEAT_AFTER_S:
                self._seen[key] = (name, count + 1, last)
                return
            name = name or f"{metadata['name'][:200]}.{uuid4().hex[:16]}"
            count += 1
            self._seen[key] = (name, count, now)
            while len(self._seen) > REMEMBERED:
                self._seen.popitem(last=False)
        try:
            if count > 1 and self._count_up(namespace, name, count, now):
                return
            event = {
                "metadata": {"name": name, "namespace": namespace},
                "regarding": {
                    "apiVersion": regarding.get("apiVersion", "v1"),
                    "kind": regarding.get("kind", "Pod"),
                    "name": metadata["name"],
                    "namespace": metadata.get("namespace", ""),
                    "uid": metadata.get("uid", ""),
                },
                "eventTime": _micro_time(now),
                "reportingController": self._controller,
                "reportingInstance": self._instance,
                "action": action,
                "reason": reason,
                "note": note,
                "type": type_,
            }
            self._client.create(EVENTS, event, namespace)
        except KubeError as error:
            log.warning("event not written object=%s/%s error=%s", namespace, name, error)

    def _count_up(self, namespace: str, name: str, count: int, now: datetime) -> bool:
        """Raise the count of an event; False where it has expired (after an hour by default)."""
        series = {"count": count, "lastObservedTime": _micro_time(now)}
        try:
            self._client.patch(EVENTS, name, {"series": series}, namespace)
        except NotFound:
            return False
        return True


def _micro_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
