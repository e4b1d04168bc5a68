"""Takeover: no Binding that the earlier leader has under way may take effect.

Phases and plans are written with resourceVersions, so that a late writer loses by itself. A Binding
carries the pod's resourceVersion too: a stamp on every pod that could still be bound makes each
Binding that is under way fail with a conflict. Both follow a list as consistent as etcd.

No single object may keep every replica from leading: a tenant can make a pod that takes no further
annotation, and an administrator a webhook that refuses the updates of one namespace. Such a pod is
changed in another way, or is evicted, and nobody else waits for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from scheduler_extender.cluster.pods import gpus_wanted
from scheduler_extender.cluster.records import PARSERS, Record, parse_pod
from tandem.contracts import names
from tandem.kube.client import KubeClient
from tandem.kube.errors import Conflict, KubeError, NotFound, TooManyRequests, Unavailable
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_JOBS, PODS

log = logging.getLogger(__name__)

_PARALLEL = 16
_BATCH = 50  # records taken in before the event loop has another turn
#: Attempts to take over that wait for an API server which is busy or failing; from then on a pod
#: for which it fails counts as one that it refuses to change.
_PATIENCE = 3

Raw = Mapping[str, Any]
Take = Callable[[str, Record], None]
Tell = Callable[[dict[str, Any], str, str, str], None]  # regarding, reason, note, type


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of a pod: changed (`record`), gone (neither), or as it was (`why`)."""

    record: Record | None = None
    why: str = ""


class Fence:
    """Makes a new leader's picture current and the old leader's Bindings void.

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
