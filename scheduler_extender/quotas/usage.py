"""The GPU-seconds of each namespace in the window of its quota.

Counted while we lead, in buckets of a 24th of the window, and kept in a ConfigMap so that the next
leader goes on. Killed, a replica loses what it has counted since it last saved.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from scheduler_extender.cluster.writes import Writer, write_config_map
from tandem.contracts import names
from tandem.kube.api import ClusterApi
from tandem.kube.errors import NotFound
from tandem.kube.resource import CONFIG_MAPS

log = logging.getLogger(__name__)

_KEY = "quotaGpuSeconds"
_BUCKETS = 24
_SAVE_EVERY_S = 30.0
_LOGGED = 512  # characters of what is wrong
_STORED = TypeAdapter(dict[int, dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]])
_GAP_S = 30.0  # after a longer silence we did not lead, or stood still: nothing is made up


class Usage:
    """GPU-seconds by namespace. `namespace` is where the ConfigMap is; None: in memory alone."""

    def __init__(self, namespace: str | None, window_s: float) -> None:
        self._namespace = namespace
        self._window_s = window_s
        self._bucket_s = window_s / _BUCKETS
        self._buckets: dict[int, Counter[str]] = {}
        self._until_s = 0.0  # counted until then
        self._saved_at_s = 0.0
        self._written = "{}"

    def advance(self, now_s: float, gpus: Mapping[str, int]) -> None:
        """Count the time since the last call for the GPUs that run in each namespace."""
        passed = now_s - self._until_s
        self._until_s = now_s
        if not 0 < passed <= _GAP_S:
            return
        bucket = self._buckets.setdefault(int(now_s // self._bucket_s), Counter())
        for namespace, count in gpus.items():
            bucket[namespace] += passed * count  # type: ignore[assignment] # fractions count too

    def used(self, now_s: float) -> dict[str, float]:
        """Return what each namespace has had in the window that ends now."""
        first = int(now_s // self._bucket_s) - _BUCKETS + 1
        total: dict[str, float] = {}
        for start, bucket in list(self._buckets.items()):
            if start < first:
                del self._buckets[start]
                continue
            for namespace, seconds in bucket.items():
                total[namespace] = total.get(namespace, 0.0) + seconds
        return total

    async def save(self, writer: Writer, now_s: float) -> None:
        """Write what has been counted, from time to time; take over what another has written."""
        if self._namespace is None or now_s - self._saved_at_s < _SAVE_EVERY_S:
            return
        self._saved_at_s = now_s
        ours = json.dumps(self._buckets, sort_keys=True)
        theirs = await writer.call(self._exchange, writer.api, ours)
        if theirs is not None:
            # Another has led since, or we begin: what it has counted is what counts.
            self._written = theirs
            self._buckets = _read(theirs)

    def _exchange(self, api: ClusterApi, text: str) -> str | None:
        """Write ours, or return what somebody else has written since we last did."""
        assert self._namespace is not None
        try:
            stored = api.get(CONFIG_MAPS, names.HISTORY_CONFIG_MAP, self._namespace)
        except NotFound:
            stored = {}
        data = dict(stored.get("data") or {})
        known: str = data.get(_KEY, "{}")
        if known != self._written:
            return known
        if text == known:
            return None
        body: dict[str, Any] = {
            "metadata": {"name": names.HISTORY_CONFIG_MAP, "namespace": self._namespace},
            "data": data | {_KEY: text},
        }
        if "binaryData" in stored:  # the history's, where it is large
            body["binaryData"] = stored["binaryData"]
        if stored:
            body["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
        if write_config_map(api, body):
            self._written = text
        return None  # what somebody else was faster to write is seen the next time


def _read(text: str) -> dict[int, Counter[str]]:
    """Return what has been counted, by window; nothing where the text is none of it."""
    try:
        found = _STORED.validate_json(text)
    except ValidationError as error:
        log.warning("usage unreadable error=%s", str(error)[:_LOGGED])
        return {}
    return {start: Counter(seconds) for start, seconds in found.items()}
