"""The last 30 days, kept in ConfigMaps: written by the leader, read by every replica."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from scheduler_extender.accounting.account import DELETED, Account, account_of
from scheduler_extender.accounting.days import Day, day_of, packed, unpacked
from scheduler_extender.accounting.report import report_of, with_now
from scheduler_extender.cluster.gang_index import Gangs
from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import seconds
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.writes import Writer
from tandem.contracts import names
from tandem.contracts.resources import Phase
from tandem.kube.api import ClusterApi
from tandem.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from tandem.kube.resource import CONFIG_MAPS

log = logging.getLogger(__name__)

#: ConfigMaps: for each of 30 days and for today. A day takes the place of the one 31 days before.
SLOTS = 31
_KEY = "day"
_MOST_BYTES = 900 * 1024
#: Between two writes. Jobs whose GPUJobs are gone are written soon: nothing else has their figures.
EVERY_S, SOON_S = 60.0, 10.0
#: The age of what answers a reader, at most.
_FRESH_S = 30.0
#: How long to wait for the pods of a deleted job to end.
_PODS_END_S = 600.0
#: Ends that wait to be written; beyond it, the oldest are lost.
_MOST_ENDING = 20_000
_SLICE = 100
_CLOSED = (Phase.COMPLETED, Phase.FAILED)


@dataclass(slots=True)
class _Leaving:
    """A job whose GPUJob is gone and whose pods have not ended: GPUs and start of each, by uid."""

    account: Account
    since_s: float
    pods: dict[str, PodInfo]


class Past:
    """The record of GPU use. All methods run on the event loop.

    `gpu_type` returns the type of a gang's GPUs, '' where it is not known. Without a `namespace`
    nothing is kept.
    """

    def __init__(
        self,
        namespace: str | None,
        gangs: Gangs,
        gpu_type: Callable[[Gang], str],
        clock: Callable[[], float],
    ) -> None:
        self._namespace = namespace
        self._gangs = gangs
        self._gpu_type = gpu_type
        self._clock = clock
        self._days: dict[int, Day] = {}  # as stored; never changed in place
        self._versions: dict[int, str] = {}  # of the ConfigMaps, by slot
        # By uid and end, since a job may end again; not known to be stored.
        self._ending: dict[tuple[str, float], Account] = {}
        self._leaving: dict[str, _Leaving] = {}  # by uid of the GPUJob
        self._loaded = False
        self._read_s = self._saved_s = -1e18
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.failures = 0
        self.stored_bytes = 0  # of the day that was written last
        gangs.on_gone = self._gone

    # --- events -----------------------------------------------------------------------------------

    def take(self, gang: Gang) -> None:
        """Take in a gang, if its workload has ended. A standby does so, too: it may lead soon."""
        record = gang.record
        if self._namespace is None or record is None or record.status.phase not in _CLOSED:
            return
        if record.status.finished_at is None:
            return
        if (end_s := _seconds(record.status.finished_at)) is None:
            return
        newest = self._newest()
        if (record.uid, end_s) in self._ending:
            return
        if newest is not None and (
            end_s <= newest.certain_until_s or newest.ended.get(record.uid, -1e18) >= end_s - 1e-3
        ):
            return
        self._enter(self._account_of(gang, end_s))

    def pod_changed(self, pod: PodInfo) -> None:
        """Take in a pod; one of a deleted job may have ended."""
        if self._leaving and pod.finished:
            self._pod_ended(pod)

    def pod_gone(self, pod: PodInfo) -> None:
        """Take in that a pod no longer exists."""
        if self._leaving:
            self._pod_ended(pod)

    def _gone(self, gang: Gang) -> None:
        """Take in that a GPUJob is gone; its pods may hold GPUs for a moment."""
        if self._namespace is None:
            return
        now = self._clock()
        account = self._account_of(gang, now, gone=True)
        if account is None:
            return
        runs = {p.uid: p for p in gang.holders() if p.started_at and p.phase == "Running"}
        if account.phase == DELETED and runs:
            self._leaving[account.uid] = _Leaving(account, now, runs)
        else:
            self._enter(account)

    def _pod_ended(self, pod: PodInfo) -> None:
        for uid, left in list(self._leaving.items()):
            if left.pods.pop(pod.uid, None) is None:
                continue
            end_s = seconds(pod.finished_at) if pod.finished_at else self._clock()
            account = left.account
            left.account = replace(
                account,
                held_gpu_s=max(0.0, account.held_gpu_s + pod.gpus * (end_s - left.since_s)),
                until_s=max(account.until_s, end_s),
            )
            if not left.pods:
                self._enter(self._leaving.pop(uid).account)

    def _enter(self, account: Account | None) -> None:
        if account is None:
            return
        self._ending[account.uid, account.until_s] = account
        while len(self._ending) > _MOST_ENDING:
            del self._ending[next(iter(self._ending))]
            self.failures += 1

    def _account_of(self, gang: Gang, now_s: float, *, gone: bool = False) -> Account | None:
        """Return the account of a gang, None where a time in its GPUJob is none."""
        try:
            return account_of(
                gang,
                now_s,
                self._gpu_type(gang),
                gone=gone,
                carried_on_s=_carried_on_s(gang, self._gangs),
            )
        except (ValueError, OverflowError) as error:
            log.warning("job left out of the report gpujob=%s/%s error=%s", *gang.key, error)
            return None

    # --- what is kept -----------------------------------------------------------------------------

    def read_again(self) -> None:
        """Read what is stored anew before the next write: another one may have led in between."""
        self._loaded = False

    def look(self, writer: Writer) -> None:
        """Begin to save where it is time to; no cycle waits for it."""
        if self._task is None and self._is_due():
            self._task = asyncio.create_task(self._save_apart(writer))

    def stop(self) -> list[asyncio.Task[None]]:
        """Cancel what is under way and return it."""
        tasks = [] if self._task is None else [self._task]
        for task in tasks:
            task.cancel()
        return tasks

    async def _save_apart(self, writer: Writer) -> None:
        try:
            await self.save(writer)
        except KubeError as error:
            log.warning("past not saved error=%s", error)
        except Exception:
            self.failures += 1
            log.exception("past not saved")
        finally:
            self._task = None

    def _is_due(self) -> bool:
        """Say whether something is to be written, and long enough after the last time."""
        if self._namespace is None:
            return False
        now, newest = self._clock(), self._newest()
        for uid, left in list(self._leaving.items()):
            if now - left.since_s > _PODS_END_S:
                self._enter(self._leaving.pop(uid).account)
        turns = newest is None or newest.closed or newest.number < day_of(now)
        if self._loaded and not self._ending and not turns:
            return False
        soon = turns or any(each.phase == DELETED for each in self._ending.values())
        return now - self._saved_s >= (SOON_S if soon else EVERY_S)

    async def save(self, writer: Writer) -> None:
        """Write what has ended, and close a day that is over; once a minute at most.

        Raises:
            KubeError: it was not written; it is tried again.
        """
        if not self._is_due():
            return
        now = self._saved_s = self._clock()
        async with self._turn:
            if not self._loaded:
                await writer.call(self._load, writer.api, range(SLOTS))
                self._loaded = True
            await self._write(writer, now)

    async def _write(self, writer: Writer, now: float) -> None:
        newest, today = self._newest(), day_of(now)
        if newest is None:
            day = Day(today)
        elif newest.closed:
            day = newest.next(max(today, newest.number + 1))
        else:
            day = await asyncio.to_thread(newest.copy)
        ended = dict(self._ending)
        for account in ended.values():
            day.take(account)
        if day.number < today:
            day.close(await self._open())
        day.settle(now)
        try:
            stored = await writer.call(self._store, writer.api, day)
        except Exception:
            self.failures += 1
            self._loaded = False  # it may have been written
            raise
        if not stored:
            self._loaded = False
            return
        self._days[day.number] = day
        self._drop_old(today)
        for end in ended:
            self._ending.pop(end, None)

    def _store(self, api: ClusterApi, day: Day) -> bool:
        """Write a day; False where another one has written. Blocks."""
        assert self._namespace is not None
        content = packed(day)
        while len(content) > _MOST_BYTES and day.shed():
            content = packed(day)
        self.stored_bytes = len(content)
        slot = day.number % SLOTS
        metadata = {"name": _name(slot), "namespace": self._namespace}
        if slot in self._versions:
            metadata["resourceVersion"] = self._versions[slot]
        body = {"metadata": metadata, "binaryData": {_KEY: base64.b64encode(content).decode()}}
        write = api.replace if slot in self._versions else api.create
        try:
            written = write(CONFIG_MAPS, body, self._namespace)
        except (Conflict, AlreadyExists, NotFound):
            return False
        self._versions[slot] = written["metadata"]["resourceVersion"]
        return True

    def _load(self, api: ClusterApi, slots: Iterable[int]) -> None:
        """Read ConfigMaps. Blocks."""
        assert self._namespace is not None
        today = day_of(self._clock())
        days = {n: day for n, day in self._days.items() if n > today - SLOTS}
        for slot in slots:
            days = {number: day for number, day in days.items() if number % SLOTS != slot}
            try:
                found = api.get(CONFIG_MAPS, _name(slot), self._namespace)
            except NotFound:
                self._versions.pop(slot, None)
                continue
            self._versions[slot] = found["metadata"]["resourceVersion"]
            day = _day(found)
            if day is not None and day.number % SLOTS == slot and day.number > today - SLOTS:
                days[day.number] = day
        self._days = days
        self._read_s = self._clock()

    def _drop_old(self, today: int) -> None:
        self._days = {n: day for n, day in self._days.items() if n > today - SLOTS}
        self._read_s = self._clock()

    def _newest(self) -> Day | None:
        return self._days[max(self._days)] if self._days else None

    async def _open(self) -> list[Account]:
        """Return the accounts of the jobs that have not ended; take in those that have."""
        found = [left.account for left in self._leaving.values()]
        for count, gang in enumerate(list(self._gangs.by_key.values()), 1):
            if count % _SLICE == 0:
                await asyncio.sleep(0)
            if gang.record is None:
                continue
            if gang.record.status.phase in _CLOSED:
                self.take(gang)
                continue
            account = self._account_of(gang, self._clock())
            if account is not None:
                found.append(account)
        return found

    # --- reports ----------------------------------------------------------------------------------

    async def report(
        self, api: ClusterApi, days: int, by: str, namespace: str | None
    ) -> dict[str, Any]:
        """Return what jobs had in the last `days`, by one of `report.BY`.

        Raises:
            KubeError: the API server does not say what is stored.
        """
        async with self._turn:
            now = self._clock()
            if self._namespace is not None and now - self._read_s > _FRESH_S:
                newest = max(self._days, default=0)
                since = max(newest, day_of(now) - SLOTS + 1)
                slots = {number % SLOTS for number in range(since, day_of(now) + 1)}
                await asyncio.to_thread(self._load, api, sorted(slots) or range(SLOTS))
            running, newest_day = await self._open(), self._newest()
            if newest_day is not None:  # a standby does not see what was written
                for end in [end for end, a in self._ending.items() if newest_day.has(a)]:
                    del self._ending[end]
            ended, stored = list(self._ending.values()), dict(self._days)
        now = self._clock()

        def made() -> dict[str, Any]:
            return report_of(with_now(stored, ended, running, now), now, days, by, namespace)

        return await asyncio.to_thread(made)


def _seconds(time: str) -> float | None:
    """Return the Unix time of a time in an object, None where it is none (a 31st of June)."""
    try:
        return seconds(time)
    except ValueError:
        return None


def _carried_on_s(gang: Gang, gangs: Gangs) -> float | None:
    """Return since when another GPUJob counts what a gang has, None where none carries it on."""
    own_s = _counted_s(gang)
    others = map(_counted_s, gangs.of_maker(gang.job.spec.suspends, gang.key))
    return min((each for each in others if each > own_s), default=None)


def _counted_s(gang: Gang) -> float:
    counted = gang.record.status.counted_until if gang.record is not None else None
    return seconds(counted) if counted else -1e18


def _name(slot: int) -> str:
    return f"{names.PAST_CONFIG_MAP}-{slot}"


def _day(stored: dict[str, Any]) -> Day | None:
    """Return the day in a ConfigMap; None where there is none that can be read."""
    try:
        return unpacked(base64.b64decode((stored.get("binaryData") or {})[_KEY]))
    except (KeyError, ValueError) as error:
        log.warning("day of the past unreadable name=%s error=%s",
                    stored["metadata"]["name"], str(error)[:512])  # fmt: skip
        return None
