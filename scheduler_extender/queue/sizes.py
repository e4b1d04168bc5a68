"""How many pods of a gang start together; read again where the pods disagree with it."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any

from scheduler_extender.cluster.gangs import Expected, Gang
from scheduler_extender.cluster.records import Key
from scheduler_extender.cluster.workloads import (
    explicit_size,
    kind_of,
    resource_of,
    role_of,
    roles_now,
)
from scheduler_extender.queue.effects import WriteSize
from scheduler_extender.queue.parts import Parts
from tandem.kube.errors import Forbidden, NotFound

#: A workload whose pods do not make up the gang is read at most this often, and while nothing
#: changes less and less often.
_AGAIN_S = 1.0
_LONGEST_S = 60.0

_Seen = tuple[int, int, int]  # pods on no node, on a node, succeeded


@dataclass(slots=True)
class _Read:
    at_s: float
    seen: _Seen
    next_s: float
    alone: bool = False  # its pods start each alone, whatever their number


class Sizes:
    """Sizes of gangs that wait. All methods run on the event loop."""

    def __init__(self, parts: Parts) -> None:
        self._writer = parts.writer
        self._executor = parts.executor
        self._clock = parts.clock
        self._later = parts.work.later
        self._read: dict[Key, _Read] = {}

    def forget(self, key: Key) -> None:
        """Forget a gang that is gone."""
        self._read.pop(key, None)

    def step(self, gang: Gang) -> Awaitable[None] | None:
        """Return what is to be done about the size of a gang, if anything.

        The pods show that a size is out of date: fewer or more of them wait than start together.
        The workload is read then, so that none of them starts by a size that no longer holds.
        """
        record = gang.record
        gang.size_is_stale = False
        if record is None or not gang.unbound:
            return None
        size = record.spec.demand.gang_size
        stated = explicit_size(gang.first())
        if stated is not None:
            gang.expected = None
            if stated == size:
                return None
            return self._executor.carry_out(gang, (WriteSize(stated),))
        if record.spans_workloads or resource_of(record.spec.workload) is None:
            return None
        read, now = self._read.get(gang.key), self._clock()
        fits = gang.unbound == gang.still_to_come(size) and not gang.bound
        known = read is not None or not gang.succeeded
        if (fits and known) or (read is not None and read.alone):
            return None
        seen = (gang.unbound, gang.bound, gang.succeeded)
        if read is None:
            return self._read_again(gang, seen, now)
        due_s = read.next_s if read.seen == seen else read.at_s + _AGAIN_S
        if now < due_s:
            self._later(gang.key, due_s)
            gang.size_is_stale = read.seen != seen and not fits
            return None
        return self._read_again(gang, seen, now)

    async def _read_again(self, gang: Gang, seen: _Seen, now: float) -> None:
        record = gang.job
        known = self._read.get(gang.key)
        rest_s = _AGAIN_S
        if known is not None and known.seen == seen:
            rest_s = min(2 * (known.next_s - known.at_s), _LONGEST_S)
        read = self._read[gang.key] = _Read(now, seen, now + rest_s)
        workload = record.spec.workload
        resource = resource_of(workload)
        assert resource is not None
        try:
            owner: Mapping[str, Any] = await self._writer.call(
                self._writer.api.get, resource, workload.name, record.namespace
            )
        except (NotFound, Forbidden):
            return
        present = {role_of(pod) for pod in gang.pods.values() if not pod.finished}
        owner = {**owner, "kind": resource.kind}
        read.alone = not kind_of(workload).roles(owner)
        if read.alone:
            return
        roles = roles_now(owner, present)
        lefts = [role.left for role in roles.values() if role.left is not None]
        gang.expected = Expected(
            {name: role.pods for name, role in roles.items()},
            sum(lefts) if lefts else None,
            gang.succeeded,
        )
        size = max(1, sum(role.pods for role in roles.values()))
        if size != record.spec.demand.gang_size:
            await self._executor.carry_out(gang, (WriteSize(size),))
