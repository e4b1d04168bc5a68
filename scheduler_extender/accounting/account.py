"""The account of a job: what it has had of GPUs until a time, read from its GPUJob and pods.

Nothing is kept for it before the job ends: the GPUJob has the service of its pods, its waits and
what agents measured, and all of it outlives the process that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import load_now, seconds
from scheduler_extender.cluster.records import GpuJobRecord
from scheduler_extender.cluster.waited import waits_until
from tandem.contracts.learning import Accrued
from tandem.contracts.resources import Phase

#: The phase of a job whose GPUJob was deleted before it had ended.
DELETED = "Deleted"
_ENDS = (Phase.COMPLETED, Phase.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts of each GPU-second that a job holds, each from 0 to 1.

    `used` is its utilisation: `used_measured` says whether agents measured it or it is predicted.
    `neighbours` is what other jobs had of the same GPU-second, `lost` what their slowdown cost; the
    `predicted_` ones are of times whose slowdown was not measured.
    """

    used: float = 0.0
    used_measured: bool = False
    neighbours: float = 0.0
    lost: float = 0.0
    predicted_neighbours: float = 0.0
    predicted_lost: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """GPU use of a job until `until_s` (Unix time): its end, or when it was read.

    `held_gpu_s` is the service of its pods since it was new, or since it last had new pods after
    its end. One that carries on another counts since `counted_s`; what it has had before counts
    with that one, which `goes_on`: it ends no job. `phase` is '' while it has not ended. `waits`
    are the seconds of its waits by reason, `neighbours` the models that were next to it with the
    slowdown next to each.
    """

    uid: str
    namespace: str
    name: str
    user: str
    model: str
    gpu_type: str
    gpus: int
    queued_s: float
    started_s: float | None
    until_s: float
    held_gpu_s: float
    parts: Parts
    waits: Mapping[str, float]
    phase: str = ""
    counted_s: float = -1e18
    goes_on: bool = False
    slowdown: float | None = None
    neighbours: tuple[tuple[str, float], ...] = ()


def account_of(
    gang: Gang,
    now_s: float,
    gpu_type: str,
    *,
    gone: bool = False,
    carried_on_s: float | None = None,
) -> Account | None:
    """Return the account of a gang at `now_s`; None before its load is predicted.

    `gpu_type` is that of its GPUs where no agent has reported of it. `gone`: its GPUJob was just
    deleted. From `carried_on_s` on another one counts what it has.
    """
    record = gang.job
    status = record.status
    if status.queued_at is None:
        return None
    ended = status.phase in _ENDS and status.finished_at is not None
    until_s = seconds(status.finished_at) if ended and status.finished_at else now_s
    goes_on = carried_on_s is not None and not ended
    if carried_on_s is not None and goes_on:
        until_s = min(until_s, carried_on_s)
    held = status.attained_gpu_seconds if ended else gang.attained_gpu_s(now_s)
    waits = status.waits if ended else waits_until(status, now_s)
    queued_s = seconds(status.queued_at)
    seen = status.observed
    return Account(
        uid=record.uid,
        namespace=record.namespace,
        name=record.name,
        user=record.spec.user,
        model=record.spec.demand.model or "",
        gpu_type=(seen.gpu_model if seen is not None else "") or gpu_type,
        gpus=record.spec.gpus,
        queued_s=queued_s,
        started_s=max(queued_s, seconds(status.started_at)) if status.started_at else None,
        until_s=until_s,
        held_gpu_s=max(0.0, held - status.ended_gpu_seconds),
        parts=_parts(record),
        waits={each.reason: each.seconds for each in waits},
        phase=status.phase.value if ended else DELETED if gone else "",
        counted_s=seconds(status.counted_until) if status.counted_until else -1e18,
        goes_on=goes_on,
        slowdown=seen.slowdown.value if seen is not None and seen.slowdown is not None else None,
        neighbours=tuple((n.kind, n.slowdown) for n in (seen.neighbours if seen else ())),
    )


def _parts(record: GpuJobRecord) -> Parts:
    """Return what agents measured of a job; of its utilisation, else what is predicted."""
    load = load_now(record.spec.demand, record.status)
    predicted = min(1.0, load.utilisation_percent / 100)
    seen = record.status.observed
    had = (seen.accrued if seen is not None else None) or Accrued()
    whole = had.seen_gpu_seconds
    if not whole:
        return Parts(used=predicted)
    measured = had.measured_gpu_seconds
    return Parts(
        used=min(1.0, had.used_gpu_seconds / measured) if measured else predicted,
        used_measured=bool(measured),
        neighbours=min(1.0, had.beside_gpu_seconds / whole),
        lost=min(1.0, had.lost_gpu_seconds / whole),
        predicted_neighbours=min(1.0, had.predicted_beside_gpu_seconds / whole),
        predicted_lost=min(1.0, had.predicted_lost_gpu_seconds / whole),
    )
