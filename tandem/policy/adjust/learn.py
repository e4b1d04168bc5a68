"""Ours: what running pairs do to one another corrects what is predicted of their models."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from tandem.policy.board import Board
from tandem.policy.cluster import sum_slowdown
from tandem.policy.equations.observed import blamed_slowdown, shared_out_slowdown
from tandem.policy.pipeline import Pipeline
from tandem.policy.ports import Policy
from tandem.policy.units import Floats

_ROUNDING = 1e-9


class Learn(Policy):
    """Enter the measured slowdown of each job that shares into the predictions for its class.

    No job moves here: a dispatcher that weighs places by their predictions (`share`) parts bad
    neighbours itself, and does not bring their like together again. The tables of predictions are
    shared by the jobs of a class, so all of them profit. A look enters with weight
    `1 - weight_of_past` (Eq. 18 of [OJPP]), so that a short disturbance teaches little.
    """

    kind: Literal["learn"] = "learn"
    every_s: Annotated[float, Field(gt=0)] = 60.0
    weight_of_past: Annotated[float, Field(ge=0, lt=1)] = 0.5  # [OJPP] a
    notable: Annotated[float, Field(ge=0)] = 0.05  # a change of a slowdown that is worth a round
    once: bool = False  # true: one look after each start; enough where a look measures exactly

    @property
    def repeats(self) -> bool:
        """Say whether it looks again as long as GPUs are shared, or once after each start."""
        return not self.once

    def __call__(self, board: Board, pipeline: Pipeline) -> bool:
        """Correct the predictions; say whether any has changed enough to decide anew."""
        sharing, otherwise = _sharing(board)
        most = 0.0
        for job in otherwise:
            table = board.jobs[job].own_slowdown
            if table is None:
                continue
            shown = _shown(board, job, table)
            if not shown:
                continue  # it shares with workers of its own alone
            classes = np.array(sorted(shown), dtype=np.int64)
            said, seen = table[classes], np.array([shown[c] for c in classes.tolist()])
            learned = self.weight_of_past * said + (1 - self.weight_of_past) * seen
            learned = np.where(np.isfinite(said), learned, seen)
            most = max(most, float(np.abs(learned - said).max()))
            table[classes] = learned
        if most > _ROUNDING:
            board.relearned()
            for job in sharing:
                sum_slowdown(board.columns, board.jobs[job], board.rows_of[job], job)
        return most > self.notable


def _sharing(board: Board) -> tuple[list[int], list[int]]:
    """Return the jobs that share a GPU, and those of them that run at another speed than predicted.

    A job that has yet to begin shows nothing.
    """
    gpus = board.gpus
    there = (gpus.jobs > 1)[:, None] & (gpus.residents >= 0)
    job = gpus.residents[there]
    worst = np.zeros(len(board.jobs))
    np.maximum.at(worst, job, gpus.resident_slowdown[there])
    sharing = np.unique(job)
    speed = board.arrays.speed[sharing]
    off = np.abs(board.spread_speed[sharing] / (1 + worst[sharing]) - speed) > _ROUNDING
    return sharing.tolist(), sharing[off & (speed > 0)].tolist()


def _shown(board: Board, job: int, table: Floats) -> dict[int, float]:
    """Return the slowdown next to each class that a job's measured speed shows, by class.

    Where a class is met on several GPUs, the one that is predicted to be slowest counts.
    """
    residents = {tuple(board.residents_of[row]) for row in board.rows_of[job].tolist()}
    company = [[board.jobs[o].interference_class for o in r if o != job] for r in sorted(residents)]
    company = [classes for classes in company if classes]
    if not company:
        return {}
    predicted = np.array([table[classes].sum() for classes in company])
    order = np.argsort(predicted, kind="stable")
    # The cost of being spread over nodes is not caused by neighbours.
    with_neighbours = float(board.spread_speed[job]) / float(board.arrays.speed[job]) - 1
    blamed = blamed_slowdown(predicted, max(with_neighbours, 0.0))
    shown: dict[int, float] = {}
    for index in order.tolist():
        classes = company[index]
        shares = shared_out_slowdown(table[classes], float(blamed[index]))
        shown.update(zip(classes, shares.tolist(), strict=True))
    return shown
