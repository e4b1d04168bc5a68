"""A world of jobs, pods and replicas in memory, for the tests of what is kept of the past."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

from queue_builders import load, pod

from scheduler_extender.accounting.past import Past
from scheduler_extender.cluster.attained_service import with_service
from scheduler_extender.cluster.gang_index import Gangs
from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import rfc3339, seconds
from scheduler_extender.cluster.parsing import parse_gpu_job
from scheduler_extender.cluster.records import GpuJobRecord, PodRecord
from scheduler_extender.cluster.writes import Writer
from scheduler_extender.queue.steps import lifecycle
from tandem.contracts.resources import Demand, GPUJobSpec, GPUJobStatus, Phase, WorkloadRef
from tandem.kube.errors import Unavailable
from tandem.kube.memory import MemoryCluster

NAMESPACE = "tandem-system"
DAY_S = 86_400
START_S = 20_000.0 * DAY_S + 3600.0


class Flaky(MemoryCluster):
    """An API server whose writes may fail: before they are taken, or after."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = ""
        self.writes = 0

    def replace(self, *args: Any, **more: Any) -> Any:
        return self._write(super().replace, *args, **more)

    def create(self, *args: Any, **more: Any) -> Any:
        return self._write(super().create, *args, **more)

    def _write(self, write: Any, *args: Any, **more: Any) -> Any:
        how, self.fails = self.fails, ""
        if how == "before":
            raise Unavailable(503, "away")
        self.writes += 1
        answer = write(*args, **more)
        if how == "after":
            raise Unavailable(503, "away")
        return answer


class Replica:
    """One extender, as far as the past is concerned."""

    def __init__(self, world: World) -> None:
        self.gangs = Gangs(lambda: world.now)
        self.past = Past(NAMESPACE, self.gangs, lambda _: "A100", lambda: world.now)
        for job in world.jobs.values():
            self.see_job(job)
        for each in world.pods.values():
            self.see_pod(each)

    def see_job(self, job: GpuJobRecord) -> None:
        self.gangs.observe(job)
        self.past.take(self.gangs.by_key[job.key])

    def see_pod(self, record: PodRecord) -> None:
        self.gangs.observe(record)
        self.past.pod_changed(record.pod)

    def lose_pod(self, record: PodRecord) -> None:
        self.gangs.forget(record)
        self.past.pod_gone(record.pod)


class World:
    """Jobs and pods as the API server has them; `ran` is what the pods' own times say, by job."""

    def __init__(self) -> None:
        self.now = START_S
        self.api = Flaky()
        self.jobs: dict[str, GpuJobRecord] = {}  # by name
        self.pods: dict[str, PodRecord] = {}  # by uid
        self.ran: dict[str, float] = {}
        self.version = 0
        self.replicas = [Replica(self), Replica(self)]

    @property
    def leader(self) -> Replica:
        return self.replicas[0]

    def kill_the_leader(self) -> None:
        self.replicas = [self.replicas[1], Replica(self)]
        self.leader.past.read_again()

    def kill_all(self) -> None:
        self.replicas = [Replica(self), Replica(self)]

    def no_other_knows(self, *others: Replica) -> bool:
        """Say whether the leader has seen what is neither stored nor known to `others`."""
        ends = {(job.uid, job.status.finished_at and seconds(job.status.finished_at))
                for job in self.jobs.values()}  # fmt: skip
        leader = self.leader
        ends.update(*(each.past._ending for each in others))
        leaving = {uid for each in others for uid in each.past._leaving}
        gone = {uid for each in others for gang in each.gangs.by_key.values() for uid in gang.gone}
        return bool(
            leader.past._ending.keys() - ends
            or leader.past._leaving.keys() - leaving
            or any(gang.gone.keys() - gone for gang in leader.gangs.by_key.values())
        )

    def new_job(self, name: str, gpus: int = 1, namespace: str = "default", **spec: Any) -> None:
        demand = Demand(gpus_per_pod=gpus, **spec.pop("demand", {}))
        workload = WorkloadRef(api_version="batch/v1", kind="Job", name=name, uid=f"w-{name}")
        status = GPUJobStatus(
            load=load(), queued_at=rfc3339(self.now), waiting_since=rfc3339(self.now)
        )
        self.ran[name] = 0.0
        self.jobs[name] = parse_gpu_job(
            {
                "metadata": {
                    "namespace": namespace,
                    "name": name,
                    "uid": f"uid-{name}",
                    "resourceVersion": self._next(),
                },
                "spec": GPUJobSpec(workload=workload, demand=demand, **spec).wire(),
                "status": status.wire(),
            }
        )
        self._see(self.jobs[name])

    def run(self, name: str) -> str:
        """Start a pod of a job; return its uid."""
        job, uid = self.jobs[name], f"p{self._next()}-{name}"
        started = rfc3339(self.now)
        made = replace(
            pod(uid, gpus=job.spec.demand.gpus_per_pod, gated=False),
            namespace=job.namespace,
            node_name="n0",
            phase="Running",
            bound_at=started,
            started_at=started,
        )
        self.put_pod(PodRecord(job.namespace, uid, made.uid, "1", made, job.key))
        if job.status.phase in (Phase.COMPLETED, Phase.FAILED):
            self.write(name, lifecycle.revived(job.status, self.now))
        self.write(name, lifecycle.observed(self._gang(name), self.now))
        return made.uid

    def put_pod(self, record: PodRecord) -> None:
        self.pods[record.uid] = record
        for each in self.replicas:
            each.see_pod(record)

    def end_pod(self, uid: str) -> None:
        record = self.pods[uid]
        if record.pod.finished:
            return
        passed_s = self.now - seconds(record.pod.started_at)
        self.ran[record.gpujob[1]] += record.pod.gpus * passed_s
        ended = replace(record.pod, phase="Succeeded", finished_at=rfc3339(self.now))
        self.put_pod(replace(record, pod=ended))

    def remove_pod(self, uid: str) -> None:
        self.end_pod(uid)
        record = self.pods.pop(uid)
        for each in self.replicas:
            each.lose_pod(record)

    def write(self, name: str, status: GPUJobStatus) -> None:
        """Write a status as the leader does."""
        if status.finished_at is None:
            status = with_service(status, self._gang(name), self.now)
        gang = self._gang(name)
        gang.gone.clear()
        job = self.jobs[name]
        body = {
            "metadata": {
                "namespace": job.namespace,
                "name": name,
                "uid": job.uid,
                "resourceVersion": self._next(),
            },
            "spec": job.spec.wire(),
            "status": status.wire(),
        }
        self.jobs[name] = parse_gpu_job(body)
        self._see(self.jobs[name])

    def close(self, name: str, *, failed: bool = False) -> None:
        for uid in self.pods_of(name):
            self.end_pod(uid)
        self.write(name, lifecycle.ended(self._gang(name), failed, self.now))

    def delete(self, name: str) -> None:
        job = self.jobs.pop(name)
        for each in self.replicas:
            each.gangs.forget(job)

    def pods_of(self, name: str) -> list[str]:
        return [uid for uid, each in self.pods.items() if each.gpujob[1] == name]

    def save(self, how: str = "") -> None:
        """Have the leader look at what has ended and write; `how` the write fails."""
        self.api.fails = how
        past = self.leader.past
        writer = Writer(self.api, None, lambda *_: None, lambda: self.now)  # type: ignore[arg-type] # no picture is touched
        with contextlib.suppress(Unavailable):
            asyncio.run(past.save(writer))
        self.api.fails = ""

    def report(self, by: str = "namespace", days: int = 30, namespace: str | None = None) -> Any:
        return asyncio.run(self.leader.past.report(self.api, days, by, namespace))

    def held(self) -> float:
        """Return what the pods' own times say, those that run until now."""
        open_ = (each.pod for each in self.pods.values() if not each.pod.finished)
        return sum(self.ran.values()) + sum(
            one.gpus * (self.now - seconds(one.started_at)) for one in open_
        )

    def _gang(self, name: str) -> Gang:
        return self.leader.gangs.by_key[self.jobs[name].key]

    def _see(self, job: GpuJobRecord) -> None:
        for each in self.replicas:
            each.see_job(job)

    def _next(self) -> str:
        self.version += 1
        return str(self.version)
