"""[Horus] PAB: newcomers that turn out too slow go back to the queue."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tandem.policy.board import Board
from tandem.policy.pipeline import Pipeline
from tandem.policy.ports import Policy
from tandem.policy.units import SAME_MOMENT_S


# Paper: [Horus] 5.2 | PAB: a newcomer at half speed after a minute goes back | test:
#   tests/policy/test_policy_horus.py
#   test_pab_sends_the_newcomer_back_after_a_minute_at_half_speed | live: yes | deviation: it
#   then waits for a whole GPU
class Requeue(Policy):
    """[Horus] PAB: after a warm-up, a newcomer that runs too slowly goes back to the queue.

    Differs: it then waits for a whole GPU, or it would be sent to the same place again.
    """

    kind: Literal["requeue"] = "requeue"
    every_s: Annotated[float, Field(gt=0)] = 60.0
    max_fall: Annotated[float, Field(gt=0, lt=1)] = 0.5  # of steps per second

    @property
    def repeats(self) -> bool:
        """False: it looks once after each start."""
        return False

    def __call__(self, board: Board, pipeline: Pipeline) -> bool:
        """Preempt who came last to its GPUs, within the last two warm-ups, and runs too slowly."""
        arrays = board.arrays
        started = arrays.first_started_s
        for job in sorted(board.rows_of):
            age_s = board.now_s - started[job]
            young = self.every_s - SAME_MOMENT_S <= age_s <= 2 * self.every_s + SAME_MOMENT_S
            before = [(started[other], other) for other in board.partners(job)]
            came_last = bool(before) and max(before) < (started[job], job)
            if young and came_last and arrays.speed[job] < 1 - self.max_fall:
                board.stop(job)
                board.make_exclusive(job)
        return False
