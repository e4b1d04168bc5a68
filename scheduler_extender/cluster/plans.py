"""The plans in force: which pod gets which GPUs, and the deadline of each plan."""

from __future__ import annotations

from collections.abc import Iterator

from scheduler_extender.cluster.jobs import in_steps
from scheduler_extender.cluster.ledger import Claim
from scheduler_extender.cluster.records import GpuJobRecord, Key
from tandem.policy.job import Job


class Plans:
    """Claims by pod, of the plans that GPUJobs carry. Methods return the uids that they concern."""

    def __init__(self) -> None:
        self._claims: dict[str, dict[Key, Claim]] = {}  # by uid
        self._ends_s: dict[Key, float] = {}  # by GPUJob
        self._pods: dict[Key, set[str]] = {}  # uids by GPUJob

    def of(self, uid: str, gpujob: Key | None) -> Claim | None:
        """Return what the plan of its GPUJob holds for a pod.

        A pod that has left its gang has no part in the plan of that gang any more. With None, the
        pod is not known yet: of two plans that name it, always the same counts.
        """
        found = self._claims.get(uid)
        if not found:
            return None
        return found[min(found)] if gpujob is None else found.get(gpujob)

    def jobs(self) -> Iterator[Job]:
        """Yield the load that each plan holds GPUs for."""
        return (claim.job for claims in self._claims.values() for claim in claims.values())

    def put(self, record: GpuJobRecord, worker: Job) -> set[str]:
        """Hold what a GPUJob's plan says; return the pods for which that is something else now.

        `worker` is the load of one of its pods.
        """
        before = {uid: self._claims[uid][record.key] for uid in self._pods.get(record.key, ())}
        self.drop(record.key)
        if record.status.plan is not None:
            worker = in_steps(worker, record.status.plan.accumulation_steps)
        self._ends_s[record.key] = record.plan_deadline_s
        after = {
            pod.uid: Claim(pod.node, tuple(dict.fromkeys(pod.gpus)), worker) for pod in record.plan
        }
        for uid, claim in after.items():
            self._claims.setdefault(uid, {})[record.key] = claim
        self._pods[record.key] = set(after)
        return {uid for uid in before.keys() | after if before.get(uid) != after.get(uid)}

    def drop(self, key: Key) -> set[str]:
        """Give up the plan of a GPUJob."""
        if self._ends_s.pop(key, None) is None:
            return set()
        concerned = self._pods.pop(key)
        for uid in concerned:
            del self._claims[uid][key]
            if not self._claims[uid]:
                del self._claims[uid]
        return concerned

    def end(self, now_s: float) -> set[str]:
        """Give up the plans whose time is over."""
        over = [key for key, end_s in self._ends_s.items() if end_s <= now_s]
        return set().union(*(self.drop(key) for key in over))
