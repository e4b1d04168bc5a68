"""Reservations: GPUs kept free for the job that has waited longest.

A stream of small jobs fills every share as it falls free, and a job that needs whole or many GPUs
would wait for ever. Who has waited longest beyond a limit gets GPUs of its own: nobody joins those
that are there, and when they have ended it starts. One job at a time.
"""

from __future__ import annotations

import numpy as np

from scheduler_extender.cluster.records import Key
from scheduler_extender.planning.capacity import Capacity, Impossible
from scheduler_extender.planning.cluster_pipeline import ClusterPipeline
from scheduler_extender.planning.cycle_input import CycleInput
from scheduler_extender.planning.questions import Question
from tandem.policy.gather import whole_pods
from tandem.policy.units import Floats, Ints


class Reserve:
    """The job that has GPUs reserved, and which; remembered from cycle to cycle."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._for: Key | None = None
        self._gpus: frozenset[tuple[str, str]] = frozenset()

    def hold(
        self,
        question: Question,
        inputs: CycleInput,
        pipeline: ClusterPipeline,
        impossible: Impossible,
    ) -> None:
        """Start the job that has waited too long, or keep others off the GPUs that it will have.

        A job that the cluster could not hold even if it were empty has no claim: nothing that is
        kept free would help it, and those behind it wait too long themselves.
        """
        waiting = self._waited_too_long(question, inputs)
        if not waiting:
            self._for, self._gpus = None, frozenset()
            return
        capacity = Capacity(question, inputs, pipeline)
        for index in impossible.sift(waiting, question, inputs, capacity):
            if self._start(index, inputs, pipeline):
                return
            if self._keep(index, question, inputs, capacity):
                return
        self._for, self._gpus = None, frozenset()

    def _start(self, index: int, inputs: CycleInput, pipeline: ClusterPipeline) -> bool:
        board = inputs.board
        rows = pipeline.choose(board.jobs[index], board.gpus)
        if rows is None:
            return False
        board.start(index, rows)
        inputs.began([index])
        return True

    def _keep(self, index: int, question: Question, inputs: CycleInput, capacity: Capacity) -> bool:
        board = inputs.board
        names, node = question.snapshot.node_names, question.snapshot.gpus.node
        gpus = [
            (names[n], g) for n, g in zip(node.tolist(), question.snapshot.gpu_ids, strict=True)
        ]
        kept = self._gpus if inputs.keys[index] == self._for else frozenset()
        before = np.fromiter((gpu in kept for gpu in gpus), np.bool_, len(gpus))
        rows = self._choose(question, inputs, index, before, capacity)
        if rows is None:
            return False
        board.columns["shares"][rows] = board.columns["jobs"][rows]
        self._for = inputs.keys[index]
        self._gpus = frozenset(gpus[row] for row in rows.tolist())
        return True

    def _waited_too_long(self, question: Question, inputs: CycleInput) -> list[int]:
        """Return the waiting jobs that have waited for longer than the limit, longest first."""
        arrays = inputs.board.arrays
        waiting = inputs.ranked[~arrays.running[inputs.ranked]]
        since = arrays.waiting_since_s[waiting]
        long = question.now_s - since >= self._after_s
        found: list[int] = waiting[long][np.argsort(since[long], kind="stable")].tolist()
        return found

    @staticmethod
    def _choose(
        question: Question, inputs: CycleInput, index: int, before: np.ndarray, capacity: Capacity
    ) -> Ints | None:
        """Return GPUs that would do if they were empty: those kept already, else soonest free.

        GPUs on which a job has no end of its own are never free again.
        """
        board, job = inputs.board, inputs.board.jobs[index]
        endless = {i for i in inputs.held if inputs.keys[i] in question.endless}
        ends = np.array([endless.isdisjoint(there) for there in board.residents_of], dtype=np.bool_)
        rows = capacity.rows(index)
        rows = rows[ends[rows]]
        free_in_s = _free_in_s(inputs)
        order = np.lexsort((rows, free_in_s[rows], board.gpus.jobs[rows], ~before[rows]))
        return whole_pods(job, board.gpus.node, rows[order])


def _free_in_s(inputs: CycleInput) -> Floats:
    """Return (gpus,) how long the residents of each GPU are expected to run on."""
    board = inputs.board
    left = board.arrays.remaining_s(np.arange(len(board.arrays)), board.now_s)
    left = np.where(np.isnan(left), np.inf, left)
    return np.array([max((left[i] for i in there), default=0.0) for there in board.residents_of])
