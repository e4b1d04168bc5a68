"""A place kept free for who has waited for too long, whatever comes after it.

A stream of small jobs fills every share as it falls free, and a job that needs whole or many GPUs
would wait for ever. Who has waited longest beyond a limit gets GPUs of its own: nobody joins those
that are there, and when they have ended it starts. One job at a time.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from scheduler_extender.cluster.records import Key
from scheduler_extender.cluster.table import gpu_arrays
from scheduler_extender.planning.cluster_pipeline import ClusterPipeline
from scheduler_extender.planning.drawing import Drawn
from scheduler_extender.planning.questions import Question
from tandem.policy.cluster import GpuArrays, reset_rows
from tandem.policy.gather import whole_pods
from tandem.policy.units import Floats, Ints


class Reserve:
    """Who has GPUs kept for it, and which; remembered from round to round."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._for: Key | None = None
        self._gpus: frozenset[tuple[str, str]] = frozenset()

    def hold(self, question: Question, drawn: Drawn, pipeline: ClusterPipeline) -> None:
        """Start who has waited too long, or keep others off the GPUs that it will have."""
        index = self._longest(question, drawn)
        if index is None:
            self._for, self._gpus = None, frozenset()
            return
        board = drawn.board
        rows = pipeline.choose(board.jobs[index], board.gpus)
        if rows is not None:
            board.start(index, rows)
            drawn.began([index])
            return
        names, node = question.snapshot.node_names, question.snapshot.gpus.node
        gpus = [
            (names[n], g) for n, g in zip(node.tolist(), question.snapshot.gpu_ids, strict=True)
        ]
        kept = self._gpus if drawn.keys[index] == self._for else frozenset()
        before = np.fromiter((gpu in kept for gpu in gpus), np.bool_, len(gpus))
        rows = self._choose(drawn, pipeline, index, before)
        if rows is None:
            return  # not even on an empty cluster
        board.columns["shares"][rows] = board.columns["jobs"][rows]
        self._for = drawn.keys[index]
        self._gpus = frozenset(gpus[row] for row in rows.tolist())

    def _longest(self, question: Question, drawn: Drawn) -> int | None:
        arrays = drawn.board.arrays
        waiting = drawn.ranked[~arrays.running[drawn.ranked]]
        since = arrays.waiting_since_s[waiting]
        if len(waiting) == 0 or question.now_s - since.min() < self._after_s:
            return None
        return int(waiting[np.argmin(since)])

    @staticmethod
    def _choose(
        drawn: Drawn, pipeline: ClusterPipeline, index: int, before: np.ndarray
    ) -> Ints | None:
        """Return GPUs that would do if they were empty: those kept already, else soonest free."""
        board, job = drawn.board, drawn.board.jobs[index]
        columns = {f.name: getattr(board.gpus, f.name).copy() for f in fields(GpuArrays)}
        reset_rows(columns, np.arange(len(board.gpus)))
        rows = np.flatnonzero(pipeline.allowed(job, gpu_arrays(columns)))
        free_in_s = _free_in_s(drawn)
        order = np.lexsort((rows, free_in_s[rows], board.gpus.jobs[rows], ~before[rows]))
        return whole_pods(job, board.gpus.node, rows[order])


def _free_in_s(drawn: Drawn) -> Floats:
    """Return (gpus,) how long the residents of each GPU are expected to run on."""
    board = drawn.board
    left = board.arrays.remaining_s(np.arange(len(board.arrays)), board.now_s)
    left = np.where(np.isnan(left), np.inf, left)
    return np.array([max((left[i] for i in there), default=0.0) for there in board.residents_of])
