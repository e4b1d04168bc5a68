"""Elastic jobs of a run: a row of the board for each pod beyond the minimum, and who gets smaller.

As in a cluster, a job that runs is one row with all GPUs that it holds, and each pod that it may
still get is a row that waits behind it in the order. The dispatch of the profile decides on all of
them. Where it would stop a job for another, elastic ones get smaller instead, if that is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tandem.policy.board import Action, Board, Start
from tandem.policy.elastic import LOOKS, SMALLER_FOR_S, behind, smaller_instead
from tandem.policy.job import Job
from tandem.policy.jobs import JobArrays
from tandem.policy.units import Ints
from tandem.simulator.jobs import TraceJob

#: Lets a dispatch act on a board for the jobs of an order.
Dispatch = Callable[[Board, Ints], None]
#: Lets a running job have other GPUs.
Resize = Callable[[int, tuple[int, ...]], None]

_COPIED = (
    "attained_at_since", "service_at_since", "remaining_at_since", "since_s", "waiting_since_s",
    "first_started_s", "queue",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Smaller:
    """An elastic job that gives up `gpus` and goes on with `keeps` (rows of the board)."""

    job: int
    gpus: int
    keeps: tuple[int, ...]


class ElasticJobs:
    """The elastic jobs of a trace.

    `believed` are its jobs as the policies see them at their full size, `jobs` those of the board:
    as many in the same order, elastic ones with their least pods, and then the pods beyond.
    """

    def __init__(self, trace: Sequence[TraceJob], believed: Sequence[Job]) -> None:
        self.jobs = list(believed)
        self.joins: dict[int, int] = {}  # of each pod beyond the minimum, the job
        self.speeds: dict[int, tuple[float, ...]] = {}  # by job, by GPUs
        self._least: dict[int, Job] = {}
        self._wants: dict[int, int] = {}  # GPUs
        self._pods: dict[int, range] = {}  # the rows of the pods beyond the minimum
        self._small_until_s: dict[int, float] = {}
        for index, of in enumerate(trace):
            if not of.is_elastic:
                continue
            size = believed[index].gpus_per_pod
            if of.gpus % size or of.least_gpus % size:
                raise ValueError(
                    f"{of.id}: {size} GPUs a pod divide neither its most nor its least"
                )
            self.speeds[index] = tuple(of.speed_with(gpus) for gpus in range(of.gpus + 1))
            least = replace(believed[index], pods=of.least_gpus // size, gang_gpus=of.gpus)
            self.jobs[index] = self._least[index] = least
            self._wants[index] = of.gpus
            beyond = (of.gpus - of.least_gpus) // size
            self._pods[index] = range(len(self.jobs), len(self.jobs) + beyond)
            self.joins |= dict.fromkeys(self._pods[index], index)
            self.jobs += [replace(least, pods=1)] * beyond
        self._seen = dict(self._least)  # the job from which its further pods were made

    def __bool__(self) -> bool:
        return bool(self.speeds)

    def runs_on(self, board: Board) -> bool:
        """Say whether an elastic job runs: it may grow, or get smaller."""
        return not self.speeds.keys().isdisjoint(board.rows_of)

    def larger(self, board: Board) -> list[int]:
        """Return the jobs that wait and ask for more than their least."""
        return [
            job
            for job, least in self._least.items()
            if job not in board.rows_of and board.jobs[job].pods != least.pods
        ]

    def least(self, job: int, now: Job) -> Job:
        """Return a job, as it is believed now, with its least pods."""
        return replace(now, pods=self._least[job].pods)

    # --- the order ----------------------------------------------------------------------------

    def with_pods(self, ranked: Ints, board: Board, settle: Callable[[int], None]) -> Ints:
        """Return the order with the pods that running jobs may still get, each behind its job.

        The arrays have of each pod what they have of its job.
        """
        if not self.runs_on(board):
            return ranked
        found: list[int] = []
        for job in ranked.tolist():
            found.append(job)
            if job not in self.speeds or not self._may_grow(job, board):
                continue
            size = board.jobs[job].gpus_per_pod
            wants = (self._wants[job] - len(board.rows_of[job])) // size
            pods = list(self._pods[job])[:wants]
            settle(job)
            self._copy(job, pods, board)
            found += pods
        return np.array(found, dtype=np.int64)

    def _may_grow(self, job: int, board: Board) -> bool:
        held = board.rows_of.get(job)
        if held is None or job in board.pinned:
            return False
        small = board.now_s < self._small_until_s.get(job, -np.inf)
        return len(held) < self._wants[job] and not small

    def _copy(self, job: int, pods: Sequence[int], board: Board) -> None:
        arrays: JobArrays = board.arrays
        for name in _COPIED:
            column = getattr(arrays, name)
            column[pods] = column[job]
        if self._seen[job] is not board.jobs[job]:
            self._seen[job] = board.jobs[job]
            pod = replace(board.jobs[job], pods=1)
            for index in self._pods[job]:
                board.change(index, pod)

    # --- a round ------------------------------------------------------------------------------

    def decide(
        self, board: Board, ranked: Ints, dispatch: Dispatch, resize: Resize
    ) -> list[Action]:
        """Return what a round does, once elastic jobs have got smaller where that spares a job.

        Nothing has been done of it yet but `resize`. No job is stopped for another one to grow.
        """
        looked: set[int] = set()
        greedy: set[int] = set()  # for whose pods a job would be stopped
        while True:
            last = self._without_pods_of(greedy, ranked)
            actions = self._try(board.twin(), last, dispatch)
            victims = _victims_by_start(actions, board.rows_of)
            grows = {self.joins[to] for to in victims if to in self.joins}
            if grows:
                greedy |= grows
                continue
            looks = [to for to in victims if to not in looked][: LOOKS - len(looked)]
            smaller: list[Smaller] = []
            for to in looks:
                looked.add(to)
                smaller = self._instead(to, victims[to], board, last, dispatch)
                if smaller:
                    break
            if not smaller:
                break
            for each in smaller:
                self._small_until_s[each.job] = board.now_s + SMALLER_FOR_S
                resize(each.job, each.keeps)
            ranked = self._without_pods_of({each.job for each in smaller}, ranked)
        pods = ranked[[self.joins.get(index) in greedy for index in ranked.tolist()]]
        if len(pods):
            actions += self._onto_idle(board, actions, pods, dispatch)
        return actions

    def _onto_idle(
        self, board: Board, actions: Sequence[Action], pods: Ints, dispatch: Dispatch
    ) -> list[Action]:
        """Return which pods start where no job has to be stopped for them, after `actions`."""
        then = board.twin()
        act(then, actions)
        then.take_actions()
        then.pinned.update(then.rows_of)
        there = [self.joins[index] in then.rows_of for index in pods.tolist()]
        return self._try(then, pods[there], dispatch)

    def _instead(
        self, to: int, victims: Sequence[int], board: Board, ranked: Ints, dispatch: Dispatch
    ) -> list[Smaller]:
        """Return which jobs get how much smaller so that no job is stopped for a start."""
        gpus = board.gpus
        running = [job for job in self.speeds if job in board.rows_of and job not in board.pinned]
        steps = {job: found for job in running if (found := self._steps(job, board))}

        def fits(smaller: list[Smaller]) -> bool:
            then = board.twin()
            for each in smaller:
                then.resize(each.job, np.array(each.keeps, dtype=np.int64))
            then.pinned.update(then.rows_of)
            rest = self._without_pods_of({each.job for each in smaller}, ranked)
            return any(
                isinstance(action, Start) and action.job == to
                for action in self._try(then, rest, dispatch)
            )

        return smaller_instead(
            victims,
            behind(to, ranked.tolist(), steps),
            steps,
            wants=board.jobs[to].gpus,
            idle=int(np.count_nonzero((gpus.jobs == 0) & gpus.healthy)),
            fits=fits,
        )

    def _steps(self, job: int, board: Board) -> list[Smaller]:
        """Return how small a job may become: the pods that it got last go first."""
        pods = in_pods(board.rows_of[job], board.gpus.node, board.jobs[job].gpus_per_pod)
        found = []
        for kept in range(len(pods) - 1, self._least[job].pods - 1, -1):
            keeps = tuple(row for pod in pods[:kept] for row in pod)
            found.append(Smaller(job, len(board.rows_of[job]) - len(keeps), keeps))
        return found

    def _try(self, board: Board, ranked: Ints, dispatch: Dispatch) -> list[Action]:
        """Return what a dispatch does, without pods on a GPU that their own job has already."""
        dispatch(board, ranked)
        actions = board.take_actions()
        pods = {a.job: a.rows for a in actions if isinstance(a, Start) and a.job in self.joins}
        taken = {job: set(board.rows_of[job].tolist()) for job in map(self.joins.__getitem__, pods)
                 if job in board.rows_of}  # fmt: skip
        dropped = set()
        for pod, rows in pods.items():
            its = taken.setdefault(self.joins[pod], set())
            if its.isdisjoint(rows):
                its.update(rows)
            else:
                dropped.add(pod)
        return [action for action in actions if action.job not in dropped]

    def _without_pods_of(self, jobs: Collection[int], ranked: Ints) -> Ints:
        return ranked[[self.joins.get(index) not in jobs for index in ranked.tolist()]]


def in_pods(rows: Ints, node: Ints, gpus_per_pod: int) -> list[tuple[int, ...]]:
    """Return the rows of a job pod by pod, in their order; the GPUs of a pod are on one node."""
    open_pods: dict[int, list[int]] = {}
    found: list[list[int]] = []
    for row in rows.tolist():
        pod = open_pods.get(int(node[row]))
        if pod is None or len(pod) == gpus_per_pod:
            pod = open_pods[int(node[row])] = []
            found.append(pod)
        pod.append(row)
    return [tuple(pod) for pod in found]


def act(board: Board, actions: Sequence[Action]) -> None:
    """Do on a board what has been decided on a copy of it."""
    for action in actions:
        if isinstance(action, Start):
            board.start(action.job, np.array(action.rows, dtype=np.int64))
        else:
            board.stop(action.job, too_slow=action.too_slow)


def _victims_by_start(
    actions: Sequence[Action], rows_of: Mapping[int, Ints]
) -> dict[int, list[int]]:
    """Return for each start the jobs that are stopped and had one of its GPUs, if there are any.

    A job that starts elsewhere has been moved, and not stopped.
    """
    starts: dict[int, frozenset[int]] = {}
    stopped: dict[int, None] = {}
    for action in actions:
        if isinstance(action, Start):
            starts[action.job] = frozenset(action.rows)
            stopped.pop(action.job, None)
        else:
            starts.pop(action.job, None)
            stopped[action.job] = None
    victims = [job for job in stopped if job in rows_of]
    found = {
        to: [job for job in victims if not rows.isdisjoint(rows_of[job].tolist())]
        for to, rows in starts.items()
    }
    return {to: of for to, of in found.items() if of}
