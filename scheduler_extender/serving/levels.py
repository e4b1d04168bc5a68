"""Levels of topology from Kueue's object, in place of those that the settings list.

A cluster with Kueue names its levels once, in a Topology. It is read at the start and again each
minute. Where it cannot be read, the levels that are in use stay: at first those of the settings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from scheduler_extender.admission.config import AdmissionConfig
from tandem.contracts.levels import LevelsError, levels_of
from tandem.kube.api import ClusterApi
from tandem.kube.errors import KubeError, NotFound
from tandem.kube.resource import KUEUE_TOPOLOGIES

log = logging.getLogger(__name__)

EVERY_S = 60.0


def read_levels(api: ClusterApi, name: str) -> tuple[str, ...]:
    """Return the levels of a Topology, widest first. Blocks.

    Raises:
        LevelsError: it is not there, cannot be read, or has no levels that are labels.
    """
    for resource in KUEUE_TOPOLOGIES:
        try:
            return levels_of(api.get(resource, name))
        except NotFound:
            continue
        except KubeError as error:
            raise LevelsError(str(error)) from error
    raise LevelsError(
        f"Kueue has no Topology {name} here: create it (kubectl get topologies.kueue.x-k8s.io shows"
        " those that there are), or set admission.topology_from to '' and list the levels"
    )


class Levels:
    """The levels that are in use; `use` is called with others when the Topology names them."""

    def __init__(self, config: AdmissionConfig, use: Callable[[tuple[str, ...]], None]) -> None:
        self._name = config.topology_from
        self._use = use
        self._trouble: str | None = None
        self.current = config.topology_levels

    async def look(self, api: ClusterApi) -> None:
        """Read the Topology that the settings name, if they name one."""
        if not self._name:
            return
        try:
            found = await asyncio.to_thread(read_levels, api, self._name)
        except LevelsError as error:
            if self._trouble != str(error):
                self._trouble = str(error)
                log.warning(
                    "levels of topology not read topology=%s in_use=%s reason=%r",
                    self._name,
                    ",".join(self.current),
                    self._trouble,
                )
            return
        if found != self.current or self._trouble:
            log.info("levels of topology read topology=%s levels=%s", self._name, ",".join(found))
        self._trouble = None
        if found != self.current:
            self.current = found
            self._use(found)

    async def follow(self, api: ClusterApi, every_s: float = EVERY_S) -> None:
        """Look at the Topology again and again, until cancelled."""
        while self._name:
            await asyncio.sleep(every_s)
            try:
                await self.look(api)
            except Exception:
                log.exception("levels of topology not read topology=%s", self._name)
