"""The input of the quotas: what each open gang holds, requests and has used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from scheduler_extender.cluster.gang_index import Gangs
from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.ledger import Ledger
from scheduler_extender.cluster.records import GpuJobRecord, Key
from scheduler_extender.cluster.workloads import is_endless
from scheduler_extender.cluster.writes import Writer
from scheduler_extender.config import QueueConfig
from scheduler_extender.queue.order.queue_state import QueueEntry, QueueState
from scheduler_extender.queue.steps.lifecycle import leaves_soon
from scheduler_extender.quotas.config import EVERYBODY, Quota
from scheduler_extender.quotas.grants import Stake, Turn
from scheduler_extender.quotas.usage import Usage
from tandem.reasons.words import clause


class Accounts:
    """The account of each cycle, and the GPU-seconds that go on in between."""

    def __init__(
        self,
        settings: QueueConfig,
        gangs: Gangs,
        ledger: Ledger,
        queue_state: QueueState,
        clock: Callable[[], float],
        namespace: str | None,
    ) -> None:
        self._quotas = settings.quotas
        self._counts = any(quota.gpu_seconds is not None for quota in settings.quotas)
        self._gangs = gangs
        self._ledger = ledger
        self._queue_state = queue_state
        self._clock = clock
        self._usage = Usage(namespace, settings.quota_window_s)

    async def step(self, writer: Writer) -> None:
        """Count the time that has passed; nothing is done where no quota speaks of time.

        A GPU counts from the Binding of a pod to its end, whether its containers run or not.
        """
        if not self._counts:
            return
        now = self._clock()
        self._usage.advance(now, self._ledger.bound_gpus())
        await self._usage.save(writer, now)

    def turn(self, promised: Mapping[Key, int] | None = None) -> Turn:
        """Return the account with which a cycle begins; for the thread that plans.

        `promised` has the GPUs of plans that are being written. The queue state does not change
        meanwhile. Gangs do: each is read as it is by then. What the ledger has of gangs outside the
        queue counts as well: the GPUJob of a deleted Job goes at once, its pods hold their GPUs
        until they end.
        """
        if not self._quotas:
            return Turn()
        stakes: dict[Key, Stake] = {}
        for key, entry in self._queue_state.of.items():
            gang = self._gangs.by_key.get(key)
            record = gang.record if gang is not None else None
            if gang is not None and record is not None:
                stakes[key] = _stake(gang, record, entry, (promised or {}).get(key, 0))
        now = self._clock()
        others: dict[Key, Stake] = {}
        for job, gpus in self._ledger.gpus_of_jobs().items():
            namespace, _, name = job.partition("/")
            key = namespace, name
            if key not in stakes:
                others[key] = _outside(self._gangs.by_key.get(key), gpus, now)
        return Turn(self._quotas, stakes, self._usage.used(now), others)

    def exceeding_plans(self) -> dict[tuple[Key, str], str]:
        """Return the plans that exceed a quota, by GPUJob and time of making, with the reason.

        For plans that an earlier leader has made, perhaps by other quotas. The latest plans give
        way first. Reads the gangs alone: the queue_state follow later.
        """
        if not self._quotas:
            return {}
        now = self._clock()
        stakes: dict[Key, Stake] = {}
        others: dict[Key, Stake] = {}
        coming: dict[Key, tuple[str, int]] = {}  # when the plan was made, GPUs not bound yet
        for key, gang in self._gangs.by_key.items():
            if gang.record is None:
                held = sum(pod.gpus for pod in gang.holders())
                if held:
                    others[key] = _outside(gang, held, now)
                continue
            live = {pod.uid: pod for pod in gang.pods.values() if not pod.finished}
            bound = {uid for uid, pod in live.items() if pod.node_name}
            planned = {place.uid for place in gang.record.plan if place.uid in live} - bound
            stakes[key] = Stake(
                held=sum(live[uid].gpus for uid in bound | planned),
                wants=0,
                endless=gang.is_endless,
            )
            if planned and gang.record.status.plan is not None:
                gpus = sum(live[uid].gpus for uid in planned)
                coming[key] = (gang.record.status.plan.made_at, gpus)
        turn, found = Turn(self._quotas, stakes, self._usage.used(now), others), {}
        for key, (made_at, gpus) in sorted(coming.items(), key=lambda each: each[1], reverse=True):
            why = turn.refusal(key, 0)
            if why:
                found[key, made_at] = clause(why)
                turn.take(key, -gpus)
        return found

    def figures(self) -> list[tuple[Quota, int, float]]:
        """Return each named namespace's quota, the GPUs that it holds, and its GPU-seconds."""
        if not self._quotas:
            return []
        held = Counter[str]()
        for job, gpus in self._ledger.gpus_of_jobs().items():
            held[job.partition("/")[0]] += gpus
        used = self._usage.used(self._clock())
        return [
            (quota, held[quota.namespace], used.get(quota.namespace, 0.0))
            for quota in self._quotas
            if quota.namespace != EVERYBODY
        ]


def _stake(gang: Gang, record: GpuJobRecord, entry: QueueEntry, promised: int = 0) -> Stake:
    """Count the pods that hold GPUs or are planned; `promised` GPUs more are about to be."""
    named = {*entry.holders, *(place.uid for place in record.plan)}
    pods = {uid: pod for uid in named if (pod := gang.pods.get(uid)) is not None}
    live = {uid: pod for uid, pod in pods.items() if not pod.finished}
    held = sum(pod.gpus for pod in live.values()) + promised
    if entry.placed and not held:
        held = entry.job.gpus
    return Stake(
        held=held,
        wants=record.spec.gpus
        if record.spec.roles
        else entry.job.pods * max(entry.job.gpus_per_pod, gang.most_gpus),
        endless=gang.is_endless,
        leaving=sum(live[uid].gpus for uid in entry.leaving if uid in live),
    )


def _outside(gang: Gang | None, gpus: int, now_s: float) -> Stake:
    """Return the stake of a gang outside the queue that holds GPUs."""
    pods = gang.holders() if gang is not None else []
    return Stake(
        held=gpus,
        wants=0,
        endless=any(is_endless(pod) for pod in pods),
        leaving=sum(pod.gpus for pod in pods if leaves_soon(pod, now_s)),
    )
