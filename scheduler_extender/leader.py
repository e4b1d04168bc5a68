"""Leadership and takeover: this replica acts while its kube-scheduler holds its Lease.

The extender and its kube-scheduler run in one pod, so the extender is active exactly while that
scheduler holds the Lease. A lost API server ends activity when the last seen renewal has expired.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from scheduler_extender.cluster.jobs import seconds
from scheduler_extender.cluster.parsing import PARSERS, parse_pod
from scheduler_extender.cluster.pods import gpus_wanted
from scheduler_extender.cluster.records import Record
from tandem.contracts import names
from tandem.kube.api import ClusterApi
from tandem.kube.client import KubeClient
from tandem.kube.errors import Conflict, KubeError, NotFound, TooManyRequests, Unavailable
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_JOBS, LEASES, PODS

log = logging.getLogger(__name__)

POLL_S = 1.0
#: A Lease that no look has found yet: kube-scheduler makes it once its image is there.
_FOUND_WITHIN_S = 60.0
_EAGER_S = 0.1  # between two looks that `hurry` asks for
_PARALLEL = 16  # writes of a takeover
_BATCH = 50  # records taken in before the event loop has another turn
#: Attempts to take over that wait for an API server which is busy or failing; from then on a pod
#: for which it fails counts as one that it refuses to change.
_PATIENCE = 3

Raw = Mapping[str, Any]
Take = Callable[[str, Record], None]
Tell = Callable[[dict[str, Any], str, str, str], None]  # regarding, reason, note, type


def _held_until_s(spec: Raw) -> float:
    """Return the end of the Lease (Unix time), 0 where it has no holder."""
    if not spec.get("renewTime") or not spec.get("holderIdentity"):
        return 0.0
    lasts_s = float(spec.get("leaseDurationSeconds", 0) or 0)
    return seconds(spec["renewTime"]) + lasts_s


class LeaseWatch:
    """Reads the Lease every second in a thread; `active()` is cheap and never blocks.

    kube-scheduler's holder identity is `HOSTNAME_UUID`; `hostname` is that of our pod. `changed` is
    called, in that thread, when a term begins or ends.
    """

    def __init__(
        self,
        api: ClusterApi,
        namespace: str,
        name: str,
        hostname: str,
        clock: Callable[[], float],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._hostname = hostname
        self._clock = clock
        self._active_until_s = 0.0
        self._term = ""
        self._changed = changed
        self._stopped = False
        self._look = threading.Event()
        self._looked_s = 0.0  # when the latest look began (monotonic)
        self._exists = True
        self._held_until_s = math.inf  # by any replica; not known before the first look
        self._absent_s = -math.inf  # when the latest look that found the Lease of another began
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; activity ends."""
        self._stopped = True
        self._look.set()
        self._active_until_s = 0.0

    def hurry(self) -> None:
        """Look at once: kube-scheduler has called, so it may lead since a moment ago."""
        if not self.active() and time.monotonic() - self._looked_s >= _EAGER_S:
            self._look.set()

    def stands_by(self, since_s: float) -> bool:
        """Return True where a look since then (monotonic) has found that we do not lead.

        Where there is no Lease at all, there is no election, and the latest look says so.
        """
        return not self.active() and (self._absent_s >= since_s or not self._exists)

    def active(self) -> bool:
        """Return True while the scheduler of our pod holds the Lease."""
        return self._clock() < self._active_until_s

    def without_leader(self) -> bool:
        """Return True where no scheduler has renewed the Lease in time: nothing is placed then."""
        return self._clock() >= self._held_until_s

    def term(self) -> str:
        """Return the name of the term that we are in, '' while another leads."""
        return self._term if self.active() else ""

    def look(self) -> None:
        """Read the Lease once."""
        began_s = time.monotonic()
        try:
            spec = self._api.get(LEASES, self._name, self._namespace).get("spec") or {}
        except KubeError as error:
            self._exists = not isinstance(error, NotFound)
            self._held_until_s = min(self._held_until_s, self._clock() + _FOUND_WITHIN_S)
            log.warning("lease not read error=%s", error)
            return
        self._exists = True
        host = str(spec.get("holderIdentity") or "").rpartition("_")[0]
        before = self.term()
        self._held_until_s = _held_until_s(spec)
        self._active_until_s = (
            seconds(spec["renewTime"]) + float(spec.get("leaseDurationSeconds") or 0)
            if host == self._hostname and spec.get("renewTime")
            else 0.0
        )
        holder, transitions = spec.get("holderIdentity"), spec.get("leaseTransitions")
        self._term = f"{holder}.{transitions}"
        if not self.active():
            self._absent_s = began_s
        if self.term() != before and not self._stopped:
            log.info("active=%s holder=%s", self.active(), holder)
            self._changed()

    def _run(self) -> None:
        while True:
            self._look.wait(POLL_S)
            if self._stopped:
                return
            self._look.clear()
            self._looked_s = time.monotonic()
            try:
                self.look()
            except Exception:
                # A strange Lease must not end the thread: the next one may be in order.
                log.exception("lease not read")


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A pod after a write: changed (`record`), gone (neither), or as before (`why`)."""

    record: Record | None = None
    why: str = ""


class Fence:
    """Makes a new leader's picture current and the old leader's Bindings void.

    Phases and plans are written with resourceVersions, so that a late writer loses by itself. A
    Binding carries the pod's resourceVersion too: a stamp on every pod that could still be bound
    makes each Binding that is under way fail with a conflict. Both follow a list as consistent as
    etcd. No single object may keep every replica from leading: a tenant can make a pod that takes
    no further annotation, and an administrator a webhook that refuses the updates of one namespace.
    Such a pod is changed in another way, or is evicted, and no other pod waits for it.

    `take` is given each object as it is read, `tell` writes an event.
    """

    def __init__(
        self,
        api: KubeClient | MemoryCluster,
        scheduler: str,
        take: Take,
        tell: Tell = lambda _regarding, _reason, _note, _type: None,
    ) -> None:
        self._api = api
        self._selector = f"spec.schedulerName={scheduler}"
        self._take = take
        self._tell = tell
        self._failures = 0  # in a row
        #: Pods, by uid, to which a Binding of an earlier leader may still come, and why.
        self.open: dict[str, str] = {}

    async def raise_for(self, epoch: str) -> None:
        """Return when nothing decided before can take effect any more.

        What cannot be made sure of for one pod alone is in `open`: that pod is not to be bound.

        Raises:
            KubeError: the API server is away or busy; nothing may be done yet.
        """
        try:
            records = await asyncio.to_thread(lambda: list(self._read()))
            for index, (kind, record) in enumerate(records):
                self._take(kind, record)
                if index % _BATCH == 0:
                    await asyncio.sleep(0)
            outcomes = await asyncio.to_thread(self._stamp_all, epoch)
        except KubeError:
            self._failures += 1
            raise
        self._failures = 0
        for outcome in outcomes.values():
            if outcome.record is not None:
                self._take("pods", outcome.record)
        self.open = {uid: outcome.why for uid, outcome in outcomes.items() if outcome.why}
        log.info("took over epoch=%s listed=%d stamped=%d open=%d",
                 epoch, len(records), len(outcomes), len(self.open))  # fmt: skip

    def _read(self) -> Iterator[tuple[str, Record]]:
        for kind, resource, selector in (("pods", PODS, self._selector), ("gpujobs", GPU_JOBS, "")):
            for page in self._api.pages(resource, field_selector=selector):
                for raw in page.items:
                    try:
                        yield kind, PARSERS[kind](raw)
                    except Exception:
                        # The reflectors leave it out as well.
                        log.exception("object not read kind=%s key=%s", kind, _key(raw))

    def _stamp_all(self, epoch: str) -> dict[str, _Outcome]:
        """Stamp the pods that a Binding of Tandem could still reach; return what became of each.

        Those are the pods that request GPUs, are ungated, unbound and not being deleted.
        """
        reachable = [
            raw
            for page in self._api.pages(PODS, field_selector=f"{self._selector},spec.nodeName=")
            for raw in page.items
            if not raw["spec"].get("schedulingGates")
            and "deletionTimestamp" not in raw["metadata"]
            and gpus_wanted(raw["spec"])
        ]
        with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="fence") as threads:
            outcomes = threads.map(partial(self._stamp, epoch), reachable)
            return {
                raw["metadata"]["uid"]: outcome
                for raw, outcome in zip(reachable, outcomes, strict=True)
            }

    def _stamp(self, epoch: str, pod: Raw) -> _Outcome:
        """Change a pod, so that its resourceVersion is another than that of any Binding.

        A label takes no room among the annotations. What cannot be changed at all is evicted: a
        deletion is not validated, it comes to a pod that has not started, and its owner makes
        another one.
        """
        metadata = pod["metadata"]
        label = hashlib.sha256(epoch.encode()).hexdigest()[:16]
        why = ""
        for change in ({"annotations": {names.EPOCH: epoch}}, {"labels": {names.EPOCH: label}}):
            body = {"metadata": {"uid": metadata["uid"], **change}}
            try:
                changed = self._api.patch(PODS, metadata["name"], body, metadata["namespace"])
                return _Outcome(parse_pod(changed))
            except (NotFound, Conflict):
                return _Outcome()  # it is gone, and another may bear its name
            except KubeError as error:
                self._wait_for(error)
                why = str(error)
        log.warning("pod not stamped pod=%s/%s error=%s", *_key(pod), why)
        return self._evict(pod, why)

    def _evict(self, pod: Raw, why: str) -> _Outcome:
        metadata = pod["metadata"]
        note = (
            "Evicted before it started: the scheduler changes every waiting pod when another"
            f" replica takes over, and the API server refuses each change of this one: {why}"
        )
        try:
            self._api.evict(metadata["namespace"], metadata["name"], uid=metadata["uid"])
        except (NotFound, Conflict):
            return _Outcome()
        except KubeError as error:
            self._wait_for(error)
            log.error("pod neither stamped nor evicted pod=%s/%s error=%s", *_key(pod), error)
            note = (
                "Not bound: neither a change nor an eviction of this pod is accepted, so that a"
                f" Binding of an earlier leader may still come: {why}; {error}"
            )
            self._say(pod, "NotFenced", note)
            return _Outcome(why=note)
        self._say(pod, "NotFenced", note)
        return _Outcome()

    def _wait_for(self, error: KubeError) -> None:
        """Raise what is the API server's trouble, not the pod's, unless it has lasted."""
        if isinstance(error, Unavailable) and error.status == 0:
            raise error
        if isinstance(error, Unavailable | TooManyRequests) and self._failures < _PATIENCE:
            raise error

    def _say(self, pod: Raw, reason: str, note: str) -> None:
        regarding = {"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"]}
        self._tell(regarding, reason, note, "Warning")


def _key(raw: Raw) -> tuple[str, str]:
    metadata = raw["metadata"]
    return str(metadata.get("namespace", "")), str(metadata.get("name", ""))
