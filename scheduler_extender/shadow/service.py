"""What runs in shadow mode: reflectors of pods and nodes, and a loop that writes the record."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.shadow.reading import read_node, read_pod
from scheduler_extender.shadow.recorder import Recorder
from scheduler_extender.shadow.store import Store
from tandem.contracts.shadow import ShadowJob, ShadowNode
from tandem.kube.api import ClusterApi
from tandem.kube.client import Object
from tandem.kube.errors import KubeError
from tandem.kube.memory import MemoryCluster
from tandem.kube.reflector import EventType, Reflector
from tandem.kube.resource import NODES, PODS

log = logging.getLogger(__name__)

#: Between two writes while jobs come and go, and at most between two of them.
EVERY_S, AT_LATEST_S = 60.0, 300.0
_LOOK_S = 1.0
#: How often an earlier record is asked for, and the pause between. After the last attempt the
#: process ends, and Kubernetes starts it again.
_TRIES, _AGAIN_S = 10, 5.0
_WITHOUT_GPUS = PodInfo("", "", "", "")


class Shadow:
    """The recorder of one cluster. `record` runs it; `stop` ends that.

    `every_s` is the least time between two writes.
    """

    def __init__(
        self,
        api: ClusterApi,
        namespace: str,
        clock: Callable[[], float] = time.time,
        every_s: float = EVERY_S,
    ) -> None:
        self._api = api
        self._clock = clock
        self._every_s = every_s
        self._recorder = Recorder()
        self._store = Store(api, namespace, clock)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._saved_s = -1e18

    def record(self) -> None:
        """Record until `stop` is called.

        Raises:
            KubeError: an earlier record cannot be read.
        """
        known_s = self._resume()
        reflectors = self._follow()
        try:
            while not all(each.synced.is_set() for each in reflectors):
                if self._stopping.wait(_LOOK_S):
                    return
            with self._lock:
                self._recorder.settle(known_s)
            log.info(
                "records jobs=%d nodes=%d", len(self._recorder.jobs), len(self._recorder.nodes)
            )
            while not self._stopping.wait(min(_LOOK_S, self._every_s)):
                self.look()
        finally:
            for each in reflectors:
                each.stop()
        self.look(at_once=True)

    def stop(self) -> None:
        """Write what is new, and let `record` return."""
        self._stopping.set()

    def look(self, *, at_once: bool = False) -> None:
        """Write what has changed, if it is time to; a failure is logged, and tried again."""
        now = self._clock()
        with self._lock:
            found = self._recorder
            waited_s = now - self._saved_s
            news = bool(found.changed or found.removed)
            if not at_once and waited_s < (self._every_s if news else AT_LATEST_S):
                return
            changed = {name: _copy(found.jobs[name]) for name in found.changed}
            removed, nodes = dict(found.removed), dict(found.nodes)
            found.changed.clear()
            found.removed.clear()
            self._saved_s = now
        try:
            self._store.save(changed, removed, nodes)
        except KubeError as error:
            log.warning("record not written error=%s", error)
            with self._lock:
                found.changed |= changed.keys() & found.jobs.keys()
                found.removed |= removed
            return
        with self._lock:
            found.forget(now)

    # --- what the API server says -----------------------------------------------------------------

    def _resume(self) -> float:
        for _ in range(_TRIES - 1):
            try:
                return self._store.resume(self._recorder)
            except KubeError as error:
                log.warning("earlier record not read error=%s", error)
                self._stopping.wait(_AGAIN_S)
        return self._store.resume(self._recorder)

    def _follow(self) -> list[Reflector]:
        if isinstance(self._api, MemoryCluster):
            self._api.watch(PODS, lambda event, obj: self._pod(event, read_pod(obj)))
            self._api.watch(NODES, lambda event, obj: self._node(event, _named(obj)))
            return []
        reflectors = [
            Reflector(self._api, PODS, self._pod, trim=_trimmed_pod),
            Reflector(self._api, NODES, self._node, trim=_trimmed_node),
        ]
        for each in reflectors:
            each.start()
        return reflectors

    def _pod(self, event: EventType, pod: PodInfo) -> None:
        with self._lock:
            if event is EventType.DELETED:
                self._recorder.gone(pod.uid, self._clock())
            else:
                self._recorder.pod(pod)

    def _node(self, event: EventType, node: tuple[str, ShadowNode | None]) -> None:
        with self._lock:
            self._recorder.node(node[0], None if event is EventType.DELETED else node[1])


def _copy(job: ShadowJob) -> ShadowJob:
    return replace(job, runs=dict(job.runs))


def _trimmed_pod(raw: Object, _known: PodInfo | None) -> PodInfo:
    """Return what is read of a pod: of those without GPUs nothing, of all one and the same."""
    found = read_pod(raw)
    return found if found.gpus else _WITHOUT_GPUS


def _named(raw: Object) -> tuple[str, ShadowNode | None]:
    return raw["metadata"]["name"], read_node(raw)


def _trimmed_node(
    raw: Object, known: tuple[str, ShadowNode | None] | None
) -> tuple[str, ShadowNode | None]:
    found = _named(raw)
    return known if known == found and known is not None else found
