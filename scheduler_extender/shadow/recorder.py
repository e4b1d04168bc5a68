"""Which jobs there are and what became of them, from their pods. No I/O; the caller locks."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler_extender.cluster.jobs import seconds
from scheduler_extender.cluster.pods import PodInfo
from scheduler_extender.cluster.workloads import gpujob_name, is_endless, workload_of
from tandem.contracts.annotations import AnnotationError, parse_demand
from tandem.contracts.resources import Demand
from tandem.contracts.shadow import Run, ShadowDay, ShadowJob, ShadowNode

#: How long a job that has ended is kept in memory: its owner may make new pods.
REMEMBERED_S = 3600.0
_UID_SHOWN = 8


@dataclass(slots=True)
class Recorder:
    """The jobs that live, and those that have ended a while ago.

    `changed` are the ids of jobs that are to be written, `removed` those that ended without a
    start, with the day that each came on.
    """

    nodes: dict[str, ShadowNode] = field(default_factory=dict)
    jobs: dict[str, ShadowJob] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    removed: dict[str, int] = field(default_factory=dict)
    _pods: dict[str, tuple[PodInfo, str]] = field(default_factory=dict)  # and its job, by uid
    _of: dict[str, set[str]] = field(default_factory=dict)  # uids of the pods of a job
    _by_name: dict[tuple[str, str], str] = field(default_factory=dict)  # the newest of each GPUJob
    _ends: dict[str, float] = field(default_factory=dict)  # of a job's pods that are gone, the last

    def resume(self, day: ShadowDay) -> None:
        """Take in a stored day: the jobs that had not ended when it was written."""
        for job in day.jobs.values():
            if job.ended_s is None:
                self._enter(job)

    def settle(self, saved_s: float) -> None:
        """End what lived in the record and has no pod any more, once all pods have been listed.

        It is taken to have ended when the record was last written.
        """
        for job in list(self.jobs.values()):
            missing = [uid for uid in job.runs if uid not in self._pods]
            for uid in missing:
                run = job.runs[uid]
                if run.ended_s is None:
                    job.runs[uid] = run._replace(ended_s=max(run.started_s, saved_s))
                self._fold(job, uid)
            if missing or not self._of[job.id]:
                self._look(job)

    def node(self, name: str, node: ShadowNode | None) -> None:
        """Take in a node as it is now; None: it has no GPUs for pods."""
        if node is None:
            self.nodes.pop(name, None)
        else:
            self.nodes[name] = node

    def pod(self, pod: PodInfo) -> None:
        """Take in a pod as it is now."""
        if pod.gpus == 0:
            return
        before, known = self._pods.get(pod.uid, (None, None))
        job = self.jobs[known] if known is not None else self._job_of(pod)
        self._pods[pod.uid] = pod, job.id
        self._of[job.id].add(pod.uid)
        if before is not None and _same(before, pod):
            return
        if pod.started_at:
            ended_s = seconds(pod.finished_at) if pod.finished and pod.finished_at else None
            job.runs[pod.uid] = Run(pod.gpus, seconds(pod.started_at), ended_s, pod.node_name)
        self._look(job)

    def gone(self, uid: str, now_s: float) -> None:
        """Take in that a pod no longer exists."""
        pod, known = self._pods.pop(uid, (None, None))
        if pod is None or known is None:
            return
        job = self.jobs[known]
        self._of[known].discard(uid)
        run = job.runs.get(uid)
        if run is not None:
            if run.ended_s is None:
                job.runs[uid] = run._replace(ended_s=max(run.started_s, now_s))
            self._fold(job, uid)
        self._look(job)

    def forget(self, now_s: float) -> None:
        """Forget jobs that ended long ago and have no pods, once they are written."""
        old = [
            job
            for job in self.jobs.values()
            if job.ended_s is not None
            and job.ended_s < now_s - REMEMBERED_S
            and not self._of[job.id]
            and job.id not in self.changed
        ]
        for job in old:
            self._drop(job)

    # --- one job ----------------------------------------------------------------------------------

    def _job_of(self, pod: PodInfo) -> ShadowJob:
        """Return the job of a pod: that of its owner, or one that lives under the same name."""
        name = gpujob_name(pod)
        owner = workload_of(pod)
        newest = self.jobs.get(self._by_name.get((pod.namespace, name), ""))
        own = f"{pod.namespace}/{name}/{owner.uid[:_UID_SHOWN]}"
        if newest is not None and (newest.ended_s is None or newest.id == own):
            return newest
        if own in self.jobs:
            return self.jobs[own]
        demand = _demand(pod)
        job = ShadowJob(
            id=own,
            namespace=pod.namespace,
            name=name,
            kind=owner.kind,
            arrived_s=seconds(pod.created_at) if pod.created_at else 0.0,
            endless=is_endless(pod),
            exclusive=demand.exclusive,
            checkpoint=demand.checkpoint,
            model=demand.model or "",
            memory_bytes=demand.declared_memory_bytes,
            utilisation_percent=demand.declared_utilisation_percent,
        )
        self._enter(job)
        return job

    def _enter(self, job: ShadowJob) -> None:
        self.jobs[job.id] = job
        self._of.setdefault(job.id, set())
        self._by_name[job.namespace, job.name] = job.id

    def _drop(self, job: ShadowJob) -> None:
        del self.jobs[job.id], self._of[job.id]
        if self._by_name.get((job.namespace, job.name)) == job.id:
            del self._by_name[job.namespace, job.name]
        self.changed.discard(job.id)
        self._ends.pop(job.id, None)

    def _fold(self, job: ShadowJob, uid: str) -> None:
        """Let the run of a pod that is gone count in the sum; the start and the end stay known."""
        run = job.runs[uid]
        assert run.ended_s is not None
        job.started_s = min(job.started_s or run.started_s, run.started_s)
        job.past_gpu_s += run.gpus * max(0.0, run.ended_s - run.started_s)
        self._ends[job.id] = max(self._ends.get(job.id, 0.0), run.ended_s)
        del job.runs[uid]

    def _look(self, job: ShadowJob) -> None:
        """Work out what follows for a job from its pods."""
        pods = [self._pods[uid][0] for uid in self._of[job.id]]
        living = [pod for pod in pods if not pod.finished]
        job.gpus = max(job.gpus, sum(pod.gpus for pod in living), *(p.gpus for p in pods), 0)
        job.gpus_per_pod = max([job.gpus_per_pod, *(pod.gpus for pod in pods)])
        starts = [run.started_s for run in job.runs.values()]
        if starts:
            job.started_s = min([*starts, *([job.started_s] if job.started_s is not None else [])])
        job.ended_s = None
        if not living:
            ends = [run.ended_s for run in job.runs.values() if run.ended_s is not None]
            ends += [self._ends[job.id]] if job.id in self._ends else []
            job.ended_s = max(ends, default=None)
        if living or job.started_s is not None:
            self.changed.add(job.id)
            self.removed.pop(job.id, None)
            return
        # It was given up before it ran: nothing is to be compared.
        self.changed.discard(job.id)
        self.removed[job.id] = job.day
        if not pods:
            self._drop(job)


def _same(before: PodInfo, pod: PodInfo) -> bool:
    parts = ((p.phase, p.node_name, p.started_at, p.finished_at, p.gpus) for p in (before, pod))
    return len(set(parts)) == 1


def _demand(pod: PodInfo) -> Demand:
    """Return what a pod declares; what Tandem could not read, it would have refused."""
    try:
        return parse_demand(pod.annotations, pod.gpus)
    except AnnotationError:
        return Demand(gpus_per_pod=pod.gpus)
