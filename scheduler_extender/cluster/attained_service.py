"""Attained service, measured: GPUs times the time for which a pod's containers have run.

`GPUJob.status` has the sum and each pod's part of it, and both change in the same write. So each
pod is counted once, whichever process dies when, and whichever counts next.

While a pod runs, its service is counted by our clock. Its end is known in whole seconds, as its
start is, and by the clock of its node: what was counted beyond it is taken back, `TAKEN_BACK_S` of
each GPU at most.

A pod that has ended adds no more service. Its entry is folded into the sum: `folded_until` says
until when pods were bound that are listed only while they have not ended. So the status lists the
pods that hold GPUs and a few that have just ended, however many have ended before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from scheduler_extender.cluster.gangs import TAKEN_BACK_S, Gang, folded_until_s, is_folded
from scheduler_extender.cluster.jobs import rfc3339, seconds
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import GpuJobRecord
from tandem.contracts.resources import GPUJobStatus, PodService

_DIGITS = 3  # milliseconds
#: API servers write the time of a Binding in whole seconds and by their own clocks. Once a Binding
#: was seen, no other that is older by more than this is still to come.
_ORDER_S = 5.0


def with_service(status: GPUJobStatus, gang: Gang, now_s: float) -> GPUJobStatus:
    """Return the status with the service until `now_s` in it; itself where nothing was added.

    Pods that are gone are counted to their end a last time and then forgotten: their uids never
    come back.
    """
    added, ended = 0.0, False
    parts: dict[str, tuple[PodInfo, PodService]] = {}
    for pod, service, more in _services(status, gang, now_s):
        added += more
        if pod.uid in gang.pods:
            part = PodService(uid=pod.uid, started_at=pod.started_at, gpu_seconds=service)
            parts[pod.uid] = pod, part
            ended = ended or pod.finished
    fold_s = _fold_until_s(status, gang) if ended else folded_until_s(status)
    known = {part.uid: part for part in status.pod_service}
    listed = [part for pod, part in parts.values() if not is_folded(pod, fold_s)]
    for pod in gang.holders():
        # It may start and end before the next write: without an entry it would seem counted.
        if pod.uid not in parts and pod.bound_at and seconds(pod.bound_at) <= fold_s:
            nothing = PodService(uid=pod.uid, started_at=pod.bound_at, gpu_seconds=0.0)
            listed.append(known.get(pod.uid, nothing))
    listed.sort(key=lambda part: part.uid)
    if not added and listed == status.pod_service:
        return status
    changes: dict[str, object] = {
        "attained_gpu_seconds": round(status.attained_gpu_seconds + added, _DIGITS),
        "pod_service": listed,
    }
    if fold_s > folded_until_s(status):
        changes["folded_until"] = rfc3339(fold_s)
    return status.model_copy(update=changes)


def _fold_until_s(status: GPUJobStatus, gang: Gang) -> float:
    """Return until when pods were bound of which no older Binding can still become known."""
    bound = [seconds(pod.bound_at) for pod in gang.unfolded() if pod.bound_at]
    return max(folded_until_s(status), max(bound, default=-math.inf) - _ORDER_S)


def kept_run_s(gang: Gang, record: GpuJobRecord, now_s: float) -> float:
    """Return for how long a gang has run, in seconds, without the runs whose work is lost.

    A job that saves no checkpoint begins anew with new pods.
    """
    since = record.status.running_since
    ran_s = gang.attained_gpu_s(now_s) / record.spec.gpus
    if record.spec.demand.checkpoint:
        return ran_s
    return min(ran_s, now_s - seconds(since)) if since else 0.0


def _services(
    status: GPUJobStatus, gang: Gang, now_s: float
) -> Iterator[tuple[PodInfo, float, float]]:
    """Yield each pod that has run: its service so far, and what of it is not in the status."""
    known = {part.uid: part for part in status.pod_service}
    folded_s = folded_until_s(status)
    for pod, until_s in _runs(gang, now_s):
        if pod.uid not in known and is_folded(pod, folded_s):
            continue
        service = round(pod.gpus * max(0.0, until_s - seconds(pod.started_at)), _DIGITS)
        before = known.get(pod.uid)
        if before is None or before.started_at != pod.started_at:
            yield pod, service, service
            continue
        # Clocks of nodes differ: of what was counted once, little is taken back.
        least = before.gpu_seconds - (TAKEN_BACK_S * pod.gpus if pod.finished_at else 0.0)
        service = round(max(service, least, 0.0), _DIGITS)
        yield pod, service, service - before.gpu_seconds


def _runs(gang: Gang, now_s: float) -> Iterator[tuple[PodInfo, float]]:
    """Yield the pods that have run, each with the end of its run so far (Unix time)."""
    for pod in gang.unfolded():
        if pod.started_at and pod.phase == "Running":
            yield pod, now_s
        elif pod.started_at and pod.finished_at:
            yield pod, seconds(pod.finished_at) if pod.finished else now_s
    for pod, gone_at_s in gang.gone.values():
        yield pod, seconds(pod.finished_at) if pod.finished_at else gone_at_s
