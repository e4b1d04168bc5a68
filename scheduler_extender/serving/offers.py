"""Whether agents offer as many shares of a GPU as the profile puts jobs on one.

The agents have a configuration of their own: with fewer shares, a profile runs as another system
under its name, and nothing else would say so.
"""

from __future__ import annotations

import logging

from scheduler_extender.cluster.records import GpuNodeRecord, Record
from scheduler_extender.cluster.state import ClusterState

log = logging.getLogger(__name__)


class Offers:
    """Follows the state; says once where GPUs offer fewer than `wanted` shares, and what to set."""

    def __init__(self, state: ClusterState, profile: str, wanted: int) -> None:
        self._profile, self._wanted = profile, wanted
        self._said = False
        state.followers.append(self.follow)

    def follow(self, record: Record, gone: bool) -> None:
        """Take in the report of a node."""
        if self._said or gone or not isinstance(record, GpuNodeRecord):
            return
        # A GPU that says why it offers less than its agent is set to says nothing of the setting.
        offered = [gpu.shares for gpu in record.status.gpus if gpu.shares and not gpu.shares_reason]
        if offered and max(offered) < self._wanted:
            self._said = True
            log.warning(
                "agents offer fewer shares of a GPU than the profile puts jobs on one:"
                " set agent.config.shares profile=%s jobs=%d node=%s shares=%d",
                self._profile, self._wanted, record.name, max(offered),
            )  # fmt: skip
