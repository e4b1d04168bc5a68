"""The pipeline: masks -> scores -> choice; a gang goes as a whole or waits with its reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tandem.policy.cluster import GpuArrays, Snapshot
from tandem.policy.columns import Demands
from tandem.policy.decision import Decision, Placement, PodPlacement, Waits
from tandem.policy.gather import BestScored
from tandem.policy.job import Job
from tandem.policy.ports import Constraint, Gather, Scorer
from tandem.policy.units import Bools, Floats, Ints
from tandem.reasons.causes import Cause, Reason
from tandem.reasons.counting import counted

_BEST_SCORED = BestScored()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The verdict of the pipeline on one worker of a job, on each GPU."""

    allowed: Bools  # (gpus,)
    refused_by: Ints  # (gpus,) index of the first constraint that refuses, -1 where allowed
    score: Floats  # (gpus,) in [0, 1]; meaningful where allowed


def evaluate(
    job: Job,
    gpus: GpuArrays,
    constraints: Sequence[Constraint],
    scorers: Sequence[Scorer] = (),
) -> Evaluation:
    """Evaluate one worker of `job` on every row of `gpus`.

    The first constraint that says no is the reason. Scores are the weighted mean of the scorers,
    not worked out where no GPU is left to be scored.
    """
    refused_by = np.full(len(gpus), -1, dtype=np.int64)
    allowed = np.ones(len(gpus), dtype=np.bool_)
    for index, constraint in enumerate(constraints):
        mask = constraint(job, gpus)
        if mask.all():  # in a tenth of the time of noting those that are refused
            continue
        refused_by[allowed & ~mask] = index
        allowed &= mask
        if not allowed.any():
            return Evaluation(allowed, refused_by, np.zeros(len(gpus)))
    return Evaluation(allowed, refused_by, scores(job, gpus, scorers))


def scores(job: Job, gpus: GpuArrays, scorers: Sequence[Scorer]) -> Floats:
    """Return the weighted mean of the scorers on every row of `gpus`, (gpus,) in [0, 1]."""
    score = np.zeros(len(gpus))
    total = sum(scorer.weight for scorer in scorers)
    for scorer in scorers:
        score += scorer(job, gpus) * (scorer.weight / total)
    return score


@dataclass(frozen=True, slots=True)
class Refusals:
    """GPUs in groups: each is refused by one constraint, for one reason."""

    group: Ints  # (gpus,), -1 where allowed
    constraints: tuple[int, ...]  # index of the constraint, by group

    def __iter__(self) -> Iterator[tuple[int, Ints]]:
        """Yield the constraint and the rows of each group, in the order of the constraints."""
        for group, constraint in enumerate(self.constraints):
            yield constraint, np.flatnonzero(self.group == group)


def refusals(
    job: Job, gpus: GpuArrays, constraints: Sequence[Constraint], refused_by: Ints
) -> Refusals:
    """Put GPUs in groups by why they are refused; `refused_by` (gpus,) is what `evaluate` says."""
    group = np.full(len(refused_by), -1, dtype=np.int64)
    by = list[int]()
    for index in np.flatnonzero(np.bincount(refused_by + 1)[1:]).tolist():
        refused = refused_by == index
        reasons = constraints[index].reasons(job, gpus)
        if reasons is None:
            group[refused] = len(by)
            by.append(index)
            continue
        for number in np.flatnonzero(np.bincount(reasons[refused])).tolist():
            group[refused & (reasons == number)] = len(by)
            by.append(index)
    return Refusals(group, tuple(by))


def best_rows(evaluation: Evaluation, rows: Ints, wanted: int) -> Ints | None:
    """Return the `wanted` best allowed of `rows` (ties: earlier row), or None if too few."""
    allowed = rows[evaluation.allowed[rows]]
    if len(allowed) < wanted:
        return None
    order = np.argsort(-evaluation.score[allowed], kind="stable")
    return allowed[order[:wanted]]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Constraints and scorers of a profile, and how a gang is placed with them."""

    constraints: tuple[Constraint, ...]
    scorers: tuple[Scorer, ...] = ()
    gather: Gather = _BEST_SCORED

    def evaluate(self, job: Job, gpus: GpuArrays) -> Evaluation:
        """Evaluate one worker of `job` on every row of `gpus`."""
        return evaluate(job, gpus, self.constraints, self.scorers)

    def allowed(self, job: Job, gpus: GpuArrays) -> Bools:
        """Return (gpus,), True where every constraint allows one worker of `job`."""
        return self.narrowed(np.ones(len(gpus), dtype=np.bool_), job, gpus)

    def narrowed(self, among: Bools, job: Job, gpus: GpuArrays) -> Bools:
        """Return those of `among` (gpus,) where every constraint allows one worker of `job`."""
        allowed = among.copy()
        for constraint in self.constraints:
            allowed &= constraint(job, gpus)
            if not np.count_nonzero(allowed):  # a third of what `any` costs
                break
        return allowed

    def narrowed_each(
        self, among: Bools, jobs: Sequence[Job], demands: Demands, gpus: GpuArrays
    ) -> Bools:
        """Return the same for many jobs: `among`, `demands` and the answer by (jobs, gpus)."""
        allowed = among.copy()
        for constraint in self.constraints:
            mask = constraint.each(demands, gpus)
            if mask is None:
                mask = np.stack([constraint(job, gpus) for job in jobs])
            allowed &= mask
        return allowed

    def scores_each(self, jobs: Sequence[Job], gpus: GpuArrays) -> Floats:
        """Return the score of each of `gpus` for each of `jobs`, (jobs, gpus) in [0, 1]."""
        if not self.scorers:
            return np.zeros((len(jobs), len(gpus)))
        return np.stack([self.score(job, gpus) for job in jobs])

    def elsewhere(self) -> tuple[Mapping[int, Bools], Mapping[int, Ints]]:
        """Return what keeps jobs off GPUs besides the constraints, by `Job.where`.

        The first has (nodes,), False where the job cannot run; the second has handles of residents
        that the job must avoid.
        """
        return {}, {}

    def limits(self) -> Mapping[int, Ints]:
        """Return of which nodes a job may have some GPUs alone, by `Job.where`.

        (nodes,): how many of each, which are those whose `GpuArrays.place` is less.
        """
        return {}

    def score(self, job: Job, gpus: GpuArrays) -> Floats:
        """Return (gpus,) in [0, 1]; meaningful where the job is allowed."""
        return scores(job, gpus, self.scorers)

    def choose(self, job: Job, gpus: GpuArrays) -> Ints | None:
        """Return rows for a gang whose pods take one GPU each, or None if it must wait."""
        allowed = self.allowed(job, gpus)
        if not np.count_nonzero(allowed):
            return None
        return self.gather(job, gpus, allowed, self.score(job, gpus))

    def place(
        self,
        job: Job,
        snapshot: Snapshot,
        eligible_nodes: Bools | None = None,
        most: Ints | None = None,
        because: tuple[Cause, ...] = (),
    ) -> Decision:
        """Find a place for every pod of `job`, or say why there is none.

        `eligible_nodes` (nodes,) is False where the pods cannot run for reasons of their own
        (taints, selectors, CPU, memory), and `most` (nodes,) is how many GPUs of each node they may
        have of them (`limits`); `because` says what these are, where that is known. Pods go one
        after another to the node whose chosen GPUs score best (mean; ties: first node), each worker
        of the gang on a GPU of its own.
        """
        gpus = snapshot.gpus
        evaluation = self.evaluate(job, gpus)
        if eligible_nodes is not None:
            evaluation = _restrict(evaluation, eligible_nodes[gpus.node])
        if most is not None:
            evaluation = _restrict(evaluation, gpus.place < most[gpus.node])
        if job.gpus_per_pod == 1:
            gang = self.gather(job, gpus, evaluation.allowed, evaluation.score)
            if gang is None:
                return self._waits(job, snapshot, evaluation, eligible_nodes, because)
            return Placement(
                job.id, tuple(_pod(snapshot, gang[i : i + 1]) for i in range(job.pods))
            )
        allowed = evaluation.allowed.copy()
        pods: list[PodPlacement] = []
        for _ in range(job.pods):
            rows = _best_node_rows(gpus.node, allowed, evaluation.score, job.gpus_per_pod)
            if rows is None:
                return self._waits(job, snapshot, evaluation, eligible_nodes, because)
            allowed[rows] = False
            pods.append(_pod(snapshot, rows))
        return Placement(job.id, tuple(pods))

    def _waits(
        self,
        job: Job,
        snapshot: Snapshot,
        evaluation: Evaluation,
        eligible_nodes: Bools | None,
        because: tuple[Cause, ...],
    ) -> Waits:
        kept_off = 0 if eligible_nodes is None else int((~eligible_nodes).sum())
        if kept_off and not because:
            because = (Cause(Reason.NODE_UNSUITABLE, nodes=kept_off),)
        refusals = self.refusals(job, snapshot.gpus, evaluation)
        return Waits(job.id, (wanted(job, evaluation.allowed), *refusals, *because))

    def refusals(self, job: Job, gpus: GpuArrays, evaluation: Evaluation) -> tuple[Cause, ...]:
        """Return what refuses how many GPUs, most refusing first, with the figures of one of them.

        A tenant reads them, who need not know what nodes and GPUs are called.
        """
        groups = refusals(job, gpus, self.constraints, evaluation.refused_by)
        found = [
            self.constraints[index].cause(job, gpus, int(rows[0])).on(gpus=len(rows))
            for index, rows in groups
        ]
        return tuple(sorted(found, key=lambda cause: -(cause.gpus or 0)))


def wanted(job: Job, allowed: Bools | None = None) -> Cause:
    """Return what a job asks for, and how many of the GPUs (gpus,) can take a worker of it now."""
    pod = counted(job.gpus_per_pod, "GPU") + (" on one node" if job.gpus_per_pod > 1 else "")
    amount = pod if job.pods == 1 else f"{pod} for each of {job.pods:,} pods"
    if allowed is None:
        return Cause(Reason.NEEDS_GPUS, amount=amount)
    return Cause(
        Reason.NEEDS_GPUS, amount=amount, value=int(np.count_nonzero(allowed)), bound=len(allowed)
    )


def _pod(snapshot: Snapshot, rows: Ints) -> PodPlacement:
    return PodPlacement(
        snapshot.node_names[snapshot.gpus.node[rows[0]]],
        tuple(snapshot.gpu_ids[row] for row in rows),
        tuple(int(row) for row in rows),
    )


def _restrict(evaluation: Evaluation, mask: Bools) -> Evaluation:
    refused_by = np.where(mask, evaluation.refused_by, -1)
    return Evaluation(evaluation.allowed & mask, refused_by, evaluation.score)


def _best_node_rows(node: Ints, allowed: Bools, score: Floats, wanted: int) -> Ints | None:
    """Return the `wanted` best allowed rows of the best node, or None. Ties: first node, row."""
    rows = np.flatnonzero(allowed)
    # Best rows of each node first, nodes kept together: the first `wanted` of each are its choice.
    rows = rows[np.lexsort((-score[rows], node[rows]))]
    _, start, count = np.unique(node[rows], return_index=True, return_counts=True)
    enough = count >= wanted
    if not enough.any():
        return None
    running = np.concatenate(([0.0], np.cumsum(score[rows])))
    starts = start[enough]
    means = (running[starts + wanted] - running[starts]) / wanted
    best = starts[int(np.argmax(np.round(means, 12)))]  # rounding: sums differ in the last bits
    return rows[best : best + wanted]
