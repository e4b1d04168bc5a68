"""Ours: what running pairs do to one another corrects what is predicted of their models."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from tandem.policy.board import Board
from tandem.policy.equations.observed import blamed_slowdown
from tandem.policy.pipeline import Pipeline
from tandem.policy.ports import Policy


class Learn(Policy):
    """Enter the measured slowdown of each job that shares into the predictions for its class.

    Nobody is moved here: a dispatcher that weighs places by their predictions (`share`) parts bad
    neighbours itself, and does not bring their like together again. The tables of predictions are
    shared by the jobs of a class, so all of them profit. A look enters with weight
    `1 - weight_of_past` (Eq. 18 of [OJPP]), so that a short disturbance teaches little.
    """

    kind: Literal["learn"] = "learn"
    every_s: Annotated[float, Field(gt=0)] = 60.0
    weight_of_past: Annotated[float, Field(ge=0, lt=1)] = 0.5  # [OJPP] a
    notable: Annotated[float, Field(ge=0)] = 0.05  # a change of a slowdown that is worth a round

    @property
    def repeats(self) -> bool:
        """True: it looks again as long as GPUs are shared."""
        return True

    def __call__(self, board: Board, pipeline: Pipeline) -> bool:
        """Correct the predictions; say whether any has changed enough to decide anew."""
        gpus = board.gpus
        shared = gpus.residents[(gpus.jobs > 1)[:, None] & (gpus.residents >= 0)]
        most = 0.0
        for job in np.unique(shared).tolist():
            table = board.jobs[job].own_slowdown
            if table is None:
                continue
            partners = {board.jobs[other].interference_class for other in board.partners(job)}
            classes = np.array(sorted(partners), dtype=np.int64)
            measured = 1 / float(board.arrays.speed[job]) - 1
            said = table[classes]
            seen = blamed_slowdown(said, measured)
            told = self.weight_of_past * said + (1 - self.weight_of_past) * seen
            told = np.where(np.isfinite(said), told, seen)
            most = max(most, float(np.abs(told - said).max()))
            table[classes] = told
        if most > 0:
            board.stale.update(board.rows_of)
        return most > self.notable
