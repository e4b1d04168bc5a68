"""[SJF-BSBF] the ways to run a batch by gradient accumulation, from the model of an iteration."""

from __future__ import annotations

import numpy as np

from tandem.policy.equations.pair import communication_s
from tandem.policy.equations.sharing import iteration_time_s
from tandem.policy.job import Iteration, SubBatch
from tandem.policy.units import Floats


# Paper: [SJF-BSBF] Alg. 2 | batch halved down to 1; the best by Theorem 1 | test:
#   tests/policy/test_policy_best_sharing.py
#   test_of_the_sub_batches_that_fit_the_one_that_disturbs_least_is_run | live: yes |
#   deviation: micro-batches are equal, so an odd batch is not halved further
def halved(iteration: Iteration) -> tuple[SubBatch, ...]:
    """Return the batch halved once, twice and so on, down to one item, most items first.

    Symbols: b = B / s items in each of s micro-batches; the stretch is t_iter in s micro-batches
    over t_iter in one, at least 1. Micro-batches are equal, so an odd batch is not halved further.
    Shapes: one job -> (halvings,).

    Worked: a = 0.1 s, b = 0.01 s, B = 20, a' = 0.1 s, b' = 1e-9 s, M = 2e8 bytes, no overlap: 0.6 s
    in one; 2 micro-batches take 0.7 s, so 1.167; 4 take 0.9 s, so 1.5; 5 items are not halved.

    Source: [SJF-BSBF] Alg. 2, with Eq. (3), (4), (7).
    """
    found: list[SubBatch] = []
    stretch, steps = 1.0, 2
    while iteration.batch % steps == 0:
        stretch = max(stretch, stretch_in(iteration, steps))
        memory = iteration.memory_fixed_gib + iteration.memory_per_item_gib * (
            iteration.batch // steps
        )
        found.append(SubBatch(steps, memory, iteration.memory_peak_extra_gib, stretch))
        steps *= 2
    return tuple(found)


def stretch_in(iteration: Iteration, steps: int) -> float:
    """Return the time of an iteration in so many micro-batches, as a multiple of that in one.

    Shapes: `iteration` and `steps` are of one job; the result is a scalar, at least 0.

    Worked: as in `halved`: 2 micro-batches 1.167.

    Source: [SJF-BSBF] Eq. (3), (4), (7).
    """
    message = communication_s(
        np.array(iteration.message_bytes),
        iteration.communication_fixed_s,
        iteration.communication_per_byte_s,
    )

    def seconds(parts: int) -> float:
        return float(
            iteration_time_s(
                np.array(float(iteration.batch)),
                parts,
                compute_fixed_s=iteration.compute_fixed_s,
                compute_per_item_s=iteration.compute_per_item_s,
                communication_s=float(message),
                overlap=iteration.overlap,
            )
        )

    return seconds(steps) / seconds(1)


def fitted_compute(items: Floats, seconds: Floats) -> tuple[float, float]:
    """Return a and b of t_comp = a + b B, both at least 0, that fit measured or predicted times.

    Shapes: (samples,) each, of at least one sample; two scalars.

    Symbols: B = `items` a GPU, t_comp = `seconds`.

    Worked: 0.2 s of 10 items and 0.3 s of 20: a = 0.1 s, b = 0.01 s.

    Source: [SJF-BSBF] Eq. (3), by least squares.
    """
    spread = items - items.mean()
    squares = float((spread**2).sum())
    slope = float((spread * seconds).sum()) / squares if squares > 0 else 0.0
    slope = min(max(slope, 0.0), float(seconds.mean() / items.mean()))
    return float(seconds.mean() - slope * items.mean()), slope


def ring_bytes(message_bytes: float, workers: int) -> float:
    """Return what one of the workers of a ring sends when they sum up a message: 2 (n - 1) / n M.

    Shapes: scalars; bytes.

    Worked: 1e8 bytes among 4 workers: 1.5e8; one worker sends nothing.

    Source: [SJF-BSBF] Eq. (4) takes the message as given; the factor is that of a ring all-reduce.
    """
    return 2 * (workers - 1) / workers * message_bytes
