"""Notes on each GPUNode which GPUs the node has, with its first whole report.

A node whose report later has other GPUs takes no new jobs until an operator agrees
(`tandem.contracts.inventory`). Here the annotation is written; records are read by it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from scheduler_extender.cluster.records import GpuNodeRecord
from scheduler_extender.cluster.writes import Writer
from tandem.contracts.inventory import (
    change_in_words,
    format_inventory,
    how_to_agree,
    inventory_of,
)
from tandem.contracts.names import INVENTORY
from tandem.kube.errors import Conflict, KubeError, NotFound
from tandem.kube.resource import GPU_NODES

log = logging.getLogger(__name__)

#: A node that cannot read all of its GPUs is given this time after its GPUNode was made.
_WHOLE_WITHIN_S = 3600.0
#: Nodes that are noted at once, and how long after them the next ones are: where thousands of nodes
#: are new, jobs are placed meanwhile.
_AT_ONCE, _NEXT_S = 8, 1.0
_PAUSE_S, _LONGEST_PAUSE_S = 30.0, 1800.0


class Inventories:
    """GPUNodes whose inventory is still to be noted. Runs on the event loop."""

    def __init__(self, writer: Writer, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._clock = clock
        self._due: dict[str, GpuNodeRecord] = {}
        self._said: dict[str, str] = {}
        self._next_s, self._pause_s = 0.0, _PAUSE_S

    def node_changed(self, record: GpuNodeRecord) -> None:
        """Take in the report of a node's agent."""
        self._due.pop(record.name, None)
        if not record.inventory and record.status.gpus and self._is_whole(record):
            self._due[record.name] = record
        said = change_in_words(record.changed)
        if said and said != self._said.get(record.name):
            log.warning(
                "inventory changed node=%s what=%r agree=%r",
                record.name,
                said,
                how_to_agree(record.name),
            )
        if said:
            self._said[record.name] = said
        else:
            self._said.pop(record.name, None)

    def node_gone(self, name: str) -> None:
        """Forget a node."""
        self._due.pop(name, None)
        self._said.pop(name, None)

    def _is_whole(self, record: GpuNodeRecord) -> bool:
        readable = all(condition.status == "True" for condition in record.status.conditions)
        return readable or self._clock() - record.created_s >= _WHOLE_WITHIN_S

    async def step(self) -> None:
        """Note the inventory of a few nodes; what fails is tried again, less and less often."""
        now = self._clock()
        if now < self._next_s or not self._due:
            return
        records = [self._due.pop(name) for name in list(self._due)[:_AT_ONCE]]
        noted = await asyncio.gather(*map(self._note, records))
        if all(noted):
            self._next_s, self._pause_s = now + (_NEXT_S if self._due else 0.0), _PAUSE_S
        else:
            self._next_s = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    async def _note(self, record: GpuNodeRecord) -> bool:
        """Note what a node has; False where that failed, and is due again."""
        metadata = {
            "uid": record.uid,
            "resourceVersion": record.resource_version,
            "annotations": {INVENTORY: format_inventory(inventory_of(record.status.gpus))},
        }
        try:
            await self._writer.call(
                self._writer.api.patch, GPU_NODES, record.name, {"metadata": metadata}
            )
        except (Conflict, NotFound):
            pass  # a newer report comes by itself
        except KubeError as error:
            log.warning("inventory not noted node=%s error=%r", record.name, str(error))
            self._due.setdefault(record.name, record)
            return False
        return True
