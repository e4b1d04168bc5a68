"""Taking over: nothing that the leader before us still has under way may take effect.

Phases and plans are written with resourceVersions, so that a late writer loses by itself. A Binding
carries the pod's resourceVersion too: a stamp on every pod that could still be bound makes each
Binding that is under way fail with a conflict. Both follow a list as consistent as etcd.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from scheduler_extender.cluster.pods import trim_pod
from scheduler_extender.cluster.records import Record, parse_gpu_job, parse_pod
from tandem.contracts import names
from tandem.kube.client import KubeClient
from tandem.kube.errors import Conflict, NotFound
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_JOBS, PODS

log = logging.getLogger(__name__)

_PARALLEL = 16
_BATCH = 50  # records taken in before the event loop has another turn

Take = Callable[[str, Record], None]


class Fence:
    """Makes a new leader's picture current and the old leader's Bindings void."""

    def __init__(self, api: KubeClient | MemoryCluster, scheduler: str, take: Take) -> None:
        self._api = api
        self._selector = f"spec.schedulerName={scheduler}"
        self._take = take

    async def raise_for(self, epoch: str) -> None:
        """Return when nothing decided before can take effect any more.

        Raises:
            KubeError: it could not be made sure of; nothing may be done yet.
        """
        if isinstance(self._api, MemoryCluster):
            return  # one process, no other leader
        records = await asyncio.to_thread(lambda: list(self._read()))
        for index, (kind, record) in enumerate(records):
            self._take(kind, record)
            if index % _BATCH == 0:
                await asyncio.sleep(0)
        stamped = await asyncio.to_thread(self._stamp_all, epoch)
        for record in stamped:
            self._take("pods", record)
        log.info("took over epoch=%s listed=%d stamped=%d", epoch, len(records), len(stamped))

    def _read(self) -> Iterator[tuple[str, Record]]:
        assert isinstance(self._api, KubeClient)
        for page in self._api.pages(PODS, field_selector=self._selector):
            for raw in page.items:
                yield "pods", parse_pod(trim_pod(raw))
        for page in self._api.pages(GPU_JOBS):
            for raw in page.items:
                yield "gpujobs", parse_gpu_job(raw)

    def _stamp_all(self, epoch: str) -> list[Record]:
        """Stamp the pods that a Binding could still reach: ungated, unbound, not going."""
        assert isinstance(self._api, KubeClient)
        open_pods = [
            (raw["metadata"]["namespace"], raw["metadata"]["name"], raw["metadata"]["uid"])
            for page in self._api.pages(PODS, field_selector=f"{self._selector},spec.nodeName=")
            for raw in page.items
            if not raw["spec"].get("schedulingGates")
        ]
        with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="fence") as threads:
            found = threads.map(partial(self._stamp, epoch), open_pods)
            return [record for record in found if record is not None]

    def _stamp(self, epoch: str, pod: tuple[str, str, str]) -> Record | None:
        api = self._api
        namespace, name, uid = pod
        body = {"metadata": {"uid": uid, "annotations": {names.EPOCH: epoch}}}
        try:
            return parse_pod(trim_pod(api.patch(PODS, name, body, namespace)))
        except (NotFound, Conflict):
            return None  # it is gone, and another may bear its name
