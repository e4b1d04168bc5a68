"""The ledger: which pod has which GPU, and why. It is the only count of shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from scheduler_extender.cluster.jobs import in_steps
from scheduler_extender.cluster.records import GpuJobRecord, Key
from scheduler_extender.cluster.table import Columns, GpuTable, gpu_arrays
from tandem.policy.cluster import GpuArrays, add_worker, reset_rows
from tandem.policy.job import Job
from tandem.policy.units import Ints


class Hold(IntEnum):
    """Why a pod holds GPUs; the strongest reason counts, the others wait behind it."""

    PLANNED = 1
    RESERVED = 2  # a Binding is under way
    BOUND = 3


_STRONGEST_FIRST = sorted(Hold, reverse=True)


@dataclass(frozen=True, slots=True)
class Claim:
    """GPUs of one node, and the load that one worker puts on each."""

    node: str
    gpus: tuple[str, ...]
    job: Job


class Ledger:
    """Claims by pod uid; the sums of the GPUs concerned follow each change.

    A pod counts once, by its strongest claim. A claim on a GPU that no agent has reported yet is
    remembered and counts from when the GPU appears. The residents of a row are summed in the order
    of their uids, so that the sums depend on what is held alone and not on how it came about.
    """

    def __init__(self, table: GpuTable) -> None:
        self._table = table
        # By uid, the strongest first.
        self._claims: dict[Hold, dict[str, Claim]] = {hold: {} for hold in _STRONGEST_FIRST}
        self._counting: dict[str, Claim] = {}  # the strongest of each pod
        self._on_gpu: dict[tuple[str, str], dict[str, Claim]] = {}
        self._handles: dict[str, int] = {}
        self._workers: Counter[str] = Counter()
        self._next_handle = 0
        self._gpus: Counter[str] = Counter()  # by job, as its pods count
        self._bound: Counter[str] = Counter()  # by namespace, bound alone

    # --- reading ------------------------------------------------------------------------------

    def claim(self, uid: str, hold: Hold) -> Claim | None:
        """Return what a pod claims for this reason."""
        return self._claims[hold].get(uid)

    def held(self, uid: str) -> tuple[Hold, Claim] | None:
        """Return the claim by which a pod counts."""
        for hold, claims in self._claims.items():
            claim = claims.get(uid)
            if claim is not None:
                return hold, claim
        return None

    def counting(self) -> dict[str, Claim]:
        """Return the claim by which each pod counts, by uid; a copy."""
        return self._counting.copy()

    def gpus_of_jobs(self) -> dict[str, int]:
        """Return how many GPUs the pods of each job (`namespace/name`) count on; a copy.

        A GPU counts once for each pod on it. With or without a GPUJob: what is bound is here.
        """
        return dict(self._gpus)

    def bound_gpus(self) -> dict[str, int]:
        """Return the same by namespace, of bound pods alone; a copy."""
        return dict(self._bound)

    def jobs(self) -> Iterator[Job]:
        """Yield the job of each claim, those that do not count included."""
        return (claim.job for claims in self._claims.values() for claim in claims.values())

    def holders(self, node: str, gpu: str) -> dict[str, Claim]:
        """Return the claims on a GPU by pod uid; do not change it."""
        return self._on_gpu.get((node, gpu), {})

    def counts(self) -> dict[Hold, int]:
        """Return how many pods hold GPUs for which reason."""
        found, stronger = {}, list[dict[str, Claim]]()
        for hold, claims in self._claims.items():
            found[hold] = len(claims)
            if stronger:  # few claims are not the strongest reason that there is
                found[hold] = sum(not any(uid in each for each in stronger) for uid in claims)
            stronger.append(claims)
        return {hold: found[hold] for hold in Hold}

    def without(self, rows: Ints, uids: frozenset[str]) -> GpuArrays:
        """Return copies of `rows` as they would be if the pods `uids` held nothing."""
        columns: Columns = {name: column[rows] for name, column in self._table.writable.items()}
        reset_rows(columns, np.arange(len(rows)))
        for index, row in enumerate(rows.tolist()):
            self._fill(columns, index, row, uids)
        return gpu_arrays(columns)

    # --- changes ------------------------------------------------------------------------------

    def put(self, uid: str, hold: Hold, claim: Claim | None) -> None:
        """Set, or with None take back, what a pod claims for this reason."""
        claims = self._claims[hold]
        if claims.get(uid) == claim:
            return
        old = self._counting.get(uid)
        if hold is Hold.BOUND:
            _add_gpus(self._bound, claims.get(uid), -1, _namespace)
            _add_gpus(self._bound, claim, 1, _namespace)
        if claim is None:
            del claims[uid]
        else:
            claims[uid] = claim
        after = self.held(uid)
        new = after and after[1]
        if new is None:
            self._counting.pop(uid, None)
        else:
            self._counting[uid] = new
        if old != new:
            self._move(uid, old, new)

    def drop(self, uid: str) -> None:
        """Take back all that a pod claims."""
        for hold in self._claims:
            self.put(uid, hold, None)

    def sum_rows(self, rows: Ints) -> None:
        """Sum `rows` anew from their holders."""
        columns = self._table.writable
        reset_rows(columns, rows)
        for row in rows.tolist():
            self._fill(columns, row, row, frozenset())
        if len(rows):
            self._table.touch(rows)

    def _move(self, uid: str, old: Claim | None, new: Claim | None) -> None:
        _add_gpus(self._gpus, old, -1, _job)
        _add_gpus(self._gpus, new, 1, _job)
        # The newcomer first: a job that only moves keeps its handle.
        if new is not None:
            self._enter(new.job.id)
        touched: set[tuple[str, str]] = set()
        if old is not None:
            for gpu in old.gpus:
                key = old.node, gpu
                holders = self._on_gpu[key]
                del holders[uid]
                if not holders:
                    del self._on_gpu[key]
                touched.add(key)
        if new is not None:
            for gpu in new.gpus:
                self._on_gpu.setdefault((new.node, gpu), {})[uid] = new
                touched.add((new.node, gpu))
        row_of = self._table.row_of
        self.sum_rows(np.array(sorted(row_of[k] for k in touched if k in row_of), dtype=np.int64))
        if old is not None:
            self._leave(old.job.id)

    def _fill(
        self,
        columns: Columns,
        index: int,
        row: int,
        leaving_out: frozenset[str],
    ) -> None:
        """Add the holders of the table's `row` to row `index` of `columns`, which is empty."""
        slot = int(self._table.writable["node"][row])
        holders = self._on_gpu.get((self._table.node_names[slot], self._table.gpu_ids[row]))
        if not holders:
            return
        at = np.array([index])
        for uid in sorted(holders):
            if uid not in leaving_out:
                job = holders[uid].job
                add_worker(columns, job, at, self._handles[job.id])

    def _enter(self, job_id: str) -> None:
        self._workers[job_id] += 1
        if job_id not in self._handles:
            self._handles[job_id] = self._next_handle
            self._next_handle += 1

    def _leave(self, job_id: str) -> None:
        self._workers[job_id] -= 1
        if self._workers[job_id] == 0:
            del self._workers[job_id]
            del self._handles[job_id]

    # --- what must hold -----------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError unless claims, holders and sums agree. For tests."""
        expected: dict[tuple[str, str], dict[str, Claim]] = {}
        workers: Counter[str] = Counter()
        strongest = {
            uid: claim
            for hold in reversed(_STRONGEST_FIRST)
            for uid, claim in self._claims[hold].items()
        }
        for uid, claim in strongest.items():
            workers[claim.job.id] += 1
            for gpu in claim.gpus:
                expected.setdefault((claim.node, gpu), {})[uid] = claim
        assert self._on_gpu == expected
        gpus, bound = Counter[str](), Counter[str]()
        for claim in strongest.values():
            gpus[_job(claim)] += len(claim.gpus)
        for claim in self._claims[Hold.BOUND].values():
            bound[_namespace(claim)] += len(claim.gpus)
        assert (self._gpus, self._bound) == (gpus, bound)
        assert self._counting == strongest
        assert self._workers == workers
        assert set(self._handles) == set(workers)
        rows = np.array(sorted(self._table.row_of.values()), dtype=np.int64)
        summed = self.without(rows, frozenset())
        live = self._table.gpus.take(rows)
        for name in self._table.writable:
            np.testing.assert_array_equal(getattr(live, name), getattr(summed, name), name)


def _job(claim: Claim) -> str:
    return claim.job.id


def _namespace(claim: Claim) -> str:
    return claim.job.id.partition("/")[0]


def _add_gpus(
    counts: Counter[str], claim: Claim | None, by: int, of: Callable[[Claim], str]
) -> None:
    if claim is None:
        return
    name = of(claim)
    counts[name] += by * len(claim.gpus)
    if not counts[name]:
        del counts[name]


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
