"""Attained service, measured: GPUs times the time for which a pod's containers have run.

What is counted stands in `GPUJob.status` beside what of it is each pod's, and both change in the
same write. So a pod is counted once, whoever is killed when, and whoever counts next.
"""

from __future__ import annotations

from collections.abc import Iterator

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import seconds
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.records import GpuJobRecord
from tandem.contracts.resources import GPUJobStatus, PodService

_DIGITS = 3  # milliseconds


def with_service(status: GPUJobStatus, gang: Gang, now_s: float) -> GPUJobStatus:
    """Return the status with the service until `now_s` in it; itself where nothing was added.

    Pods that are gone are counted to their end a last time and then forgotten: their uids never
    come back.
    """
    added = 0.0
    parts = []
    for pod, service, more in _services(status, gang, now_s):
        added += more
        if pod.uid in gang.pods:
            parts.append(PodService(uid=pod.uid, started_at=pod.started_at, gpu_seconds=service))
    parts.sort(key=lambda part: part.uid)
    if not added and parts == status.pod_service:
        return status
    return status.model_copy(
        update={
            "attained_gpu_seconds": round(status.attained_gpu_seconds + added, _DIGITS),
            "pod_service": parts,
        }
    )


def kept_run_s(gang: Gang, record: GpuJobRecord, now_s: float) -> float:
    """Return for how long a gang has run, in seconds, without the runs whose work is lost.

    A job that saves no checkpoint begins anew with new pods.
    """
    demand, since = record.spec.demand, record.status.running_since
    ran_s = gang.attained_gpu_s(now_s) / (demand.gpus_per_pod * demand.gang_size)
    if demand.checkpoint:
        return ran_s
    return min(ran_s, now_s - seconds(since)) if since else 0.0


def _services(
    status: GPUJobStatus, gang: Gang, now_s: float
) -> Iterator[tuple[PodInfo, float, float]]:
    """Yield each pod that has run: its service so far, and what of it is not in the status."""
    known = {part.uid: part for part in status.pod_service}
    for pod, until_s in _runs(gang, now_s):
        service = round(pod.gpus * max(0.0, until_s - seconds(pod.started_at)), _DIGITS)
        before = known.get(pod.uid)
        if before is None or before.started_at != pod.started_at:
            yield pod, service, service
            continue
        # Clocks of nodes differ: what was counted once is not taken back.
        service = max(service, before.gpu_seconds)
        yield pod, service, service - before.gpu_seconds


def _runs(gang: Gang, now_s: float) -> Iterator[tuple[PodInfo, float]]:
    """Yield the pods that have run, each with the end of its run so far (Unix time)."""
    for pod in gang.pods.values():
        if pod.started_at and pod.phase == "Running":
            yield pod, now_s
        elif pod.started_at and pod.finished_at:
            yield pod, seconds(pod.finished_at) if pod.finished else now_s
    for pod, gone_at_s in gang.gone.values():
        yield pod, seconds(pod.finished_at) if pod.finished_at else gone_at_s
