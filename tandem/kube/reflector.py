"""List and watch: a local mirror of a collection that survives whatever the API server does.

The official client's informer never recovers from a watch that goes silent without closing,
repeats after a 500 without waiting, and lists again at each 410. Here: bookmarks and a read
timeout find a silent watch, every failure is followed by a growing wait, and requests are rationed.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple

import urllib3

from tandem.kube.client import KubeClient, Object
from tandem.kube.errors import Gone, KubeError, from_status, unreachable
from tandem.kube.jsontext import decoded
from tandem.kube.pace import Pace, Rations
from tandem.kube.resource import Resource

log = logging.getLogger(__name__)


class EventType(StrEnum):
    """The change of an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


OnEvent = Callable[[EventType, Any], None]
Trim = Callable[[Object, Any], Any]


def drop_managed_fields(item: Object, _known: Object | None = None) -> Object:
    """Drop what is a third of an object and of no use to anyone here."""
    item["metadata"].pop("managedFields", None)
    return item


class Identified:
    """The result of `trim`: an object that names itself and its version.

    It is kept as it is, under its own key, which saves memory for each object of a large cluster.
    """

    __slots__ = ()
    uid: str
    resource_version: str
    key: tuple[str, str]


class _Kept(NamedTuple):
    """Anything else that `trim` made of an object, with who it is and its version."""

    uid: str
    resource_version: str
    item: Any


class Selector(NamedTuple):
    """Selectors of the mirrored objects, as the API server writes them; empty: all."""

    labels: str = ""
    fields: str = ""


class Reflector:
    """Mirrors one collection and tells `on_event` of every change, in a thread of its own.

    `on_event(type, object)` runs in that thread, one call at a time and in order; an event loop
    takes it from there. `object` is what `trim` has made of it, and is kept; it must not be changed
    afterwards. `trim(object, known)` may change and return the object, or return anything else but
    None. `known` is what it made of the version before, None for a new object; where it returns
    that, `on_event` is not called. After a new list, objects that are no longer there are reported
    as DELETED with their last known state, an object of the same name but another uid as DELETED
    and ADDED. `on_synced` runs once, in the thread, when the first list has been reported.

    An exception out of `trim` or `on_event` is a bug: it is logged and counted in `failures`, and
    the object is passed over, so that one strange object does not blind us to all others.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        on_event: OnEvent,
        *,
        namespace: str | None = None,
        selector: Selector | None = None,
        trim: Trim = drop_managed_fields,
        on_synced: Callable[[], None] | None = None,
        pace: Pace | None = None,
    ) -> None:
        #: A bounded label for metrics.
        self.name = resource.plural if namespace is None else f"{namespace}/{resource.plural}"
        self._client = client
        self._resource = resource
        self._on_event = on_event
        self._namespace = namespace
        self._selector = selector or Selector()
        self._trim = trim
        self._on_synced = on_synced
        self._pace = pace or Pace()

        self._objects: dict[tuple[str, str], _Kept | Identified] = {}
        self._resource_version = ""  # empty: list before the next watch
        self._backoff_s = self._pace.backoff_min_s
        self._rations = Rations(self._pace.request_interval_s)
        self._last_activity = time.monotonic()
        self._response: urllib3.BaseHTTPResponse | None = None
        self._stopping = threading.Event()
        self.synced = threading.Event()
        self.failures = 0
        self.lists = 0
        self._thread = threading.Thread(
            target=self._run, name=f"reflector-{resource.plural}", daemon=True
        )

    # --- outside ------------------------------------------------------------------------------

    @property
    def last_activity_age_s(self) -> float:
        """Seconds since the API server last sent anything, a bookmark included."""
        return time.monotonic() - self._last_activity

    def start(self) -> None:
        """Begin; returns at once. `synced` is set when the first list has been reported."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the watch and the thread; `on_event` is not called afterwards."""
        self._stopping.set()
        response = self._response
        if response is not None:
            # Wakes the thread out of its read, unless it has just come out of it by itself.
            with contextlib.suppress(RuntimeError, ValueError, TypeError, OSError):
                response.shutdown()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    # --- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if not self._resource_version and not self._list():
                    return
                self._watch()
            except (KubeError, KeyError, TypeError, ValueError) as error:
                if self._stopping.is_set():
                    return  # `stop` broke the watch: that is no failure
                self._after(error)

    def _after(self, error: Exception) -> None:
        match error:
            case Gone():
                log.info("relisting resource=%s reason=%s", self.name, error)
                self._fail(relist=True)
            case KubeError():
                log.warning("watch broke resource=%s error=%s", self.name, error)
                self._fail(relist=False, at_least_s=error.retry_after_s or 0.0)
            case _:
                log.error("unreadable answer, relisting resource=%s", self.name, exc_info=error)
                self._fail(relist=True)

    def _fail(self, *, relist: bool, at_least_s: float = 0.0) -> None:
        self.failures += 1
        if relist:
            self._resource_version = ""
        # 0.5 to 1 of the wait, so that replicas that failed together do not return together.
        wait_s = self._backoff_s * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        self._stopping.wait(max(wait_s, min(at_least_s, self._pace.backoff_max_s)))
        self._backoff_s = min(2 * self._backoff_s, self._pace.backoff_max_s)

    def _take_turn(self, *, is_list: bool) -> bool:
        wait_s = self._rations.wait_s(time.monotonic(), is_list=is_list)
        if self._stopping.wait(wait_s) if wait_s > 0 else self._stopping.is_set():
            return False
        self._rations.spend(time.monotonic(), is_list=is_list)
        return True

    def _list(self) -> bool:
        """Read everything and tell the differences; False if stopped meanwhile."""
        if not self._take_turn(is_list=True):
            return False
        self.lists += 1
        pages = self._client.pages(
            self._resource,
            self._namespace,
            label_selector=self._selector.labels,
            field_selector=self._selector.fields,
        )
        seen: set[tuple[str, str]] = set()
        resource_version = ""
        for page in pages:
            self._last_activity = time.monotonic()
            resource_version = page.resource_version
            for item in page.items:
                if self._stopping.is_set():
                    return False
                # Items of a list come without the two.
                item.setdefault("apiVersion", self._resource.api_version)
                item.setdefault("kind", self._resource.kind)
                seen.add(self._upsert(item))
        for key in self._objects.keys() - seen:
            self._tell(EventType.DELETED, key, _item(self._objects.pop(key)))
        self._resource_version = resource_version
        if not self.synced.is_set():
            if self._on_synced is not None:
                self._on_synced()
            self.synced.set()
        return True

    def _watch(self) -> None:
        """Tell changes until the API server ends the watch; raises where that was too early."""
        if not self._take_turn(is_list=False):
            return
        pace = self._pace
        query: dict[str, Any] = {
            "watch": "true",
            "resourceVersion": self._resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": max(1, int(random.uniform(pace.watch_min_s, pace.watch_max_s))),  # noqa: S311 - no secret
        }
        if self._selector.labels:
            query["labelSelector"] = self._selector.labels
        if self._selector.fields:
            query["fieldSelector"] = self._selector.fields
        path = self._resource.path(self._namespace)
        response = self._client.open("GET", path, query, read_timeout_s=pace.answer_timeout_s)
        sock = getattr(response.connection, "sock", None)
        if sock is not None:
            sock.settimeout(pace.read_timeout_s)
        self._response = response
        received = False
        try:
            if self._stopping.is_set():
                return  # too late for `stop` to see the response
            for line in _lines(response):
                if self._stopping.is_set():
                    return
                self._last_activity = time.monotonic()
                self._take(decoded(line))
                self._backoff_s = pace.backoff_min_s
                received = True
        except urllib3.exceptions.HTTPError as error:
            raise unreachable(f"watch of {self.name}: {error}", maybe_done=False) from error
        finally:
            self._response = None
            response.close()
        if not received:
            raise unreachable(
                f"watch of {self.name}: closed before it sent an event", maybe_done=False
            )

    def _take(self, event: dict[str, Any]) -> None:
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            raise from_status(item)
        resource_version = item["metadata"]["resourceVersion"]
        if kind == EventType.DELETED:
            key = _key(item)
            known = self._objects.pop(key, None)
            if known is not None:
                before = _item(known)
                trimmed = self._trimmed(item, before)
                self._tell(EventType.DELETED, key, before if trimmed is None else trimmed)
        elif kind != "BOOKMARK":
            self._upsert(item)
        self._resource_version = resource_version

    def _upsert(self, item: Object) -> tuple[str, str]:
        key = _key(item)
        known = self._objects.get(key)
        metadata = item["metadata"]
        uid = metadata.get("uid") or ""
        resource_version = metadata.get("resourceVersion") or ""
        if known is not None:
            if known.resource_version == resource_version:
                return key
            if known.uid != uid:
                self._tell(EventType.DELETED, key, _item(self._objects.pop(key)))
                known = None
        before = _item(known) if known is not None else None
        trimmed = self._trimmed(item, before)
        if trimmed is not None and trimmed is not before:
            if isinstance(trimmed, Identified):
                key = trimmed.key
                self._objects[key] = trimmed
            else:
                self._objects[key] = _Kept(uid, resource_version, trimmed)
            self._tell(EventType.ADDED if known is None else EventType.MODIFIED, key, trimmed)
        return key

    def _trimmed(self, item: Object, known: Any) -> Any:  # noqa: ANN401 - whatever `trim` makes
        try:
            return self._trim(item, known)
        except Exception:
            log.exception("object not trimmed resource=%s key=%s", self.name, _key(item))
            self.failures += 1
            return None

    def _tell(self, kind: EventType, key: tuple[str, str], item: Any) -> None:  # noqa: ANN401 - as above
        try:
            self._on_event(kind, item)
        except Exception:
            log.exception("event not taken resource=%s key=%s", self.name, key)
            self.failures += 1


def _item(kept: _Kept | Identified) -> Any:  # noqa: ANN401 - whatever `trim` makes
    return kept.item if isinstance(kept, _Kept) else kept


def _key(item: Object) -> tuple[str, str]:
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Yield the lines of an answer as they come; an unfinished last line is dropped."""
    rest = b""
    for chunk in response.stream(amt=None, decode_content=False):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())
