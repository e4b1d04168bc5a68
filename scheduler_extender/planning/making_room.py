"""[Tiresias]' preemption on a real cluster: what a count of GPUs alone leaves out.

The dispatch counts GPUs, and assumes that a job whose number fits has a place. With pods of several
GPUs, GPUs that differ and jobs that must stay, it may have none. No job should leave for such a
job: jobs behind it may use what is free, and a few more may have to leave for those before it.
"""

from __future__ import annotations

import numpy as np

from scheduler_extender.planning.cluster_pipeline import ClusterPipeline
from scheduler_extender.planning.cycle_input import CycleInput
from scheduler_extender.planning.questions import Question
from tandem.policy.units import Ints

#: Running gangs that are looked at to make room for one that waits.
_CANDIDATES = 64
#: Waiting gangs for which such a look is taken in one round.
_PREEMPTORS = 16


def preemption_gain_gpu_s(question: Question, inputs: CycleInput, victim: int, index: int) -> float:
    """Return what the order counts for a start rather than a running gang, in GPU-seconds.

    The service that the running gang has had more or, in an order by the work that is left, the
    work that it has left more. Rows of the board name both.
    """
    arrays = inputs.board.arrays
    if question.by_work_left:
        left = arrays.remaining_at_since * arrays.gpus
        return float(left[victim] - left[index])
    had = question.victims[inputs.keys[victim]].service_gpu_s
    return had - float(arrays.service_at_since[index])


class MakingRoom:
    """Goes on from what the dispatch did on the board; `starts` and `stops` are added to."""

    def __init__(
        self,
        question: Question,
        inputs: CycleInput,
        pipeline: ClusterPipeline,
        starts: dict[int, tuple[int, ...]],
        stops: set[int],
    ) -> None:
        self._q = question
        self._inputs = inputs
        self._board = inputs.board
        self._pipeline = pipeline
        self._starts = starts
        self._stops = stops
        self._rank = {index: place for place, index in enumerate(inputs.ranked.tolist())}

    def seek(self, waiting: list[int]) -> None:
        """Look for places for those that wait, in order."""
        self._take_back()
        lesser = [
            index
            for index in reversed(self._inputs.ranked.tolist())
            if index in self._inputs.held and index in self._board.rows_of
            and index not in self._board.pinned
        ]  # fmt: skip
        hopeless: set[tuple[object, ...]] = set()
        looks = _PREEMPTORS
        for index in waiting:
            demand = self._board.jobs[index].demand
            if demand in hopeless:
                continue
            rows = self._pipeline.choose(self._board.jobs[index], self._board.gpus)
            if rows is None and looks > 0 and lesser:
                looks -= 1
                rows, gone = self._make_room(index, lesser)
                lesser = [other for other in lesser if other not in gone]
                self._stops |= set(gone)
            if rows is None:
                hopeless.add(demand)
                continue
            self._board.place(index, rows)
            self._starts[index] = tuple(rows.tolist())

    def _take_back(self) -> None:
        """Leave those where they are whose GPUs no job takes."""
        taken = {row for rows in self._starts.values() for row in rows}
        for index in sorted(self._stops):
            if taken.isdisjoint(self._inputs.held[index]):
                self._board.place(index, np.array(self._inputs.held[index], dtype=np.int64))
                self._stops.discard(index)

    def _make_room(self, index: int, lesser: list[int]) -> tuple[Ints | None, list[int]]:
        """Return a place after as few as need be of those behind have gone, and who they are."""
        board, job = self._board, self._board.jobs[index]
        gone: list[int] = []
        rows: Ints | None = None
        for other in lesser[:_CANDIDATES]:
            if self._rank[other] < self._rank[index]:
                break
            victim = self._q.victims[self._inputs.keys[other]]
            gain = preemption_gain_gpu_s(self._q, self._inputs, other, index)
            if gain < victim.charge_gpu_s:
                continue
            gone.append(other)
            board.remove(other)
            rows = self._pipeline.choose(job, board.gpus)
            if rows is not None:
                break
        # Those that need not have gone stay, the most deserving first.
        for other in reversed(gone[:-1] if rows is not None else gone[:]):
            board.place(other, np.array(self._inputs.held[other], dtype=np.int64))
            without = None if rows is None else self._pipeline.choose(job, board.gpus)
            if rows is not None and without is None:
                board.remove(other)
            else:
                rows = without
                gone.remove(other)
        return rows, gone
