"""Reads how many pods of a gang start together, again where its pods disagree with it."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass

from scheduler_extender.cluster.gangs import Expected, Gang
from scheduler_extender.cluster.records import Key
from scheduler_extender.cluster.roles import Raw
from scheduler_extender.cluster.workloads import (
    explicit_size,
    group_of,
    knows_roles,
    resource_of,
    role_of,
    roles_now,
    size_of,
)
from scheduler_extender.queue.shared import Shared
from scheduler_extender.queue.steps.effects import Owners, WriteSize
from tandem.kube.errors import Forbidden, NotFound
from tandem.kube.resource import Resource

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
    absent: str = ""  # kind and name of the object that says it, where there is none


class Sizes:
    """Sizes of gangs that wait. All methods run on the event loop."""

    def __init__(self, shared: Shared) -> None:
        self._owners = Owners(shared.writer)
        self._executor = shared.executor
        self._clock = shared.clock
        self._later = shared.work.later
        self._read: dict[Key, _Read] = {}

    def forget(self, key: Key) -> None:
        """Forget a gang that is gone."""
        self._read.pop(key, None)

    async def group(self, gang: Gang, resource: Resource, name: str) -> Raw | None:
        """Return the group that the pods of a new gang name, None where it cannot be read."""
        now = self._clock()
        read = _Read(now, _seen(gang), now + _AGAIN_S)
        found = await self._object(gang.key[0], resource, name, read)
        self._read[gang.key] = read
        return found

    def step(self, gang: Gang) -> Awaitable[None] | None:
        """Return what is to be done about the size of a gang, if anything.

        The pods show that a size is out of date: fewer or more of them wait than start together.
        The workload is read then, so that none of them starts by a size that no longer holds.
        """
        record = gang.record
        gang.size_is_stale, gang.absent_group = False, ""
        if record is None or not gang.unbound:
            return None
        size = record.spec.demand.gang_size
        stated = explicit_size(gang.first())
        if stated is not None:
            gang.expected = None
            if stated == size:
                return None
            return self._executor.carry_out(gang, (WriteSize(stated),))
        if self._asked(gang) is None:
            return None
        read, now, seen = self._read.get(gang.key), self._clock(), _seen(gang)
        fits = gang.unbound == gang.still_to_come(size) and not gang.bound
        if read is not None:
            gang.absent_group = read.absent if record.spans_workloads else ""
            if read.alone or (fits and not gang.absent_group):
                return None
        elif fits and not gang.succeeded and not record.spans_workloads:
            return None  # its GPUJob was made of what the workload says; a group may come later
        if read is None:
            return self._read_again(gang, seen, now)
        due_s = read.next_s if read.seen == seen else read.at_s + _AGAIN_S
        if now < due_s:
            self._later(gang.key, due_s)
            gang.size_is_stale = read.seen != seen and not fits
            return None
        return self._read_again(gang, seen, now)

    def _asked(self, gang: Gang) -> tuple[Resource, str] | None:
        """Return the object that says how many pods start together, None where none does."""
        record = gang.job
        if record.spans_workloads:
            return group_of(gang.first())
        resource = resource_of(record.spec.workload)
        return None if resource is None else (resource, record.spec.workload.name)

    async def _read_again(self, gang: Gang, seen: _Seen, now: float) -> None:
        record = gang.job
        known = self._read.get(gang.key)
        rest_s = _AGAIN_S
        if known is not None and known.seen == seen:
            rest_s = min(2 * (known.next_s - known.at_s), _LONGEST_S)
        read = _Read(now, seen, now + rest_s)
        asked = self._asked(gang)
        assert asked is not None
        owner = await self._object(record.namespace, *asked, read)
        self._read[gang.key] = read
        if owner is None:
            return
        present = {role_of(pod) for pod in gang.pods.values() if not pod.finished}
        size = size_of(owner, present)
        roles = roles_now(owner, present)
        read.alone = not (roles or record.spans_workloads) and not knows_roles(owner)
        if read.alone:
            return
        if record.spans_workloads:
            await self._write(gang, size)
            return
        lefts = [role.left for role in roles.values() if role.left is not None]
        gang.expected = Expected(
            {name: role.pods for name, role in roles.items()},
            sum(lefts) if lefts else None,
            gang.succeeded,
            size,
        )
        await self._write(gang, size)

    async def _object(
        self, namespace: str, resource: Resource, name: str, read: _Read
    ) -> Raw | None:
        """Return an object at a version that is served, None where it cannot be read."""
        try:
            found = await self._owners.read(resource, name, namespace)
        except NotFound as error:
            # Of a kind that is not served, no object can come later.
            if error.details.get("name") == name:
                read.absent = f"{resource.kind} {name}"
            return None
        except Forbidden:
            return None
        return {**found, "kind": resource.kind, "apiVersion": resource.api_version}

    async def _write(self, gang: Gang, size: int) -> None:
        if size != gang.job.spec.demand.gang_size:
            await self._executor.carry_out(gang, (WriteSize(size),))


def _seen(gang: Gang) -> _Seen:
    return gang.unbound, gang.bound, gang.succeeded
