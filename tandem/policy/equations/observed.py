"""Infers slowdowns from measurements of a running job and of its neighbours."""

from __future__ import annotations

import numpy as np

from tandem.policy.units import Floats


def observed_slowdown(rate_alone: float, rate_now: float) -> float:
    """Return how much slower a job runs than alone, at least 0.

    Symbols: `rate_alone`, `rate_now` in iterations per second (or any measure of work in
    proportion to them); the answer is t_now / t_alone - 1. Shapes: single numbers.

    Worked: 2.0 alone and 1.25 now: 0.6.

    Source: [Horus] Eq. (1), clipped at 0.
    """
    return max(rate_alone / rate_now - 1, 0.0)


def blamed_slowdown(predicted: Floats, measured: float) -> Floats:
    """Return what is known of each worker of a gang that is as slow as its slowest worker.

    Symbols: `predicted`, of each worker next to its neighbours; `measured` = of the gang as a
    whole. Shapes: `predicted` and the answer (workers,); `measured` a number. No worker is slowed
    down by more than was measured, and one by as much: the one that is predicted to be slowed down
    most (ties: all).

    Worked: 0.1, 0.8, 0.3 predicted and 0.5 measured: 0.1, 0.5, 0.3; 0.9 measured: 0.1, 0.9, 0.3.

    Source: ours; a gang runs at its slowest worker's speed ([SJF-BSBF] Alg. 1).
    """
    worst = predicted >= predicted.max()
    blamed: Floats = np.where(worst, measured, np.minimum(predicted, measured))
    return blamed


def shared_out_slowdown(predicted: Floats, measured: float) -> Floats:
    """Return what each of the neighbours on one GPU contributes to the slowdown of a job there.

    Symbols: `predicted`, of the job next to each neighbour alone; `measured` = next to all of them.
    Shapes: `predicted` and the answer (neighbours,); `measured` a number. Slowdowns add up, so each
    neighbour keeps its share of the sum. Where a slowdown is not predicted (infinite), those
    neighbours share equally what the others leave.

    Worked: 0.1 and 0.3 predicted, 0.8 measured: 0.2, 0.6; 0.1 and infinite: 0.1, 0.7; 0 and 0:
    0.4, 0.4.

    Source: ours; [OJPP] has pairs only.
    """
    unknown = np.isinf(predicted)
    if unknown.any():
        known = np.where(unknown, 0.0, predicted)
        left = max(measured - float(known.sum()), 0.0)
        return np.where(unknown, left / np.count_nonzero(unknown), known)
    total = float(predicted.sum())
    if total <= 0:
        return np.full(len(predicted), measured / len(predicted))
    shares: Floats = predicted * (measured / total)
    return shares
