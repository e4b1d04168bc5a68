"""[SJF-BSBF] the ways to run a batch by gradient accumulation, from the model of an iteration."""

from __future__ import annotations

import numpy as np

from tandem.policy.equations.pair import communication_s
from tandem.policy.equations.sharing import iteration_time_s
from tandem.policy.job import Iteration, SubBatch


# Paper: [SJF-BSBF] Alg. 2 | batch halved down to 1; the best by Theorem 1 | test:
#   tests/policy/test_policy_best_sharing.py
#   test_of_the_sub_batches_that_fit_the_one_that_disturbs_least_is_run | live: no | reason: the
#   dispatch weighs every sub-batch that a job has; the queue of a cluster asks the predictor
#   for three halvings only
def halved(iteration: Iteration) -> tuple[SubBatch, ...]:
    """Return the batch halved once, twice and so on, down to one item, most items first.

    Symbols: b = B / s items in each of s micro-batches; the stretch is t_iter in s micro-batches
    over t_iter in one, at least 1. Micro-batches are equal, so an odd batch is not halved further.
    Shapes: one job -> (halvings,).

    Worked: a = 0.1 s, b = 0.01 s, B = 20, a' = 0.1 s, b' = 1e-9 s, M = 2e8 bytes, no overlap: 0.6 s
    in one; 2 micro-batches take 0.7 s, so 1.167; 4 take 0.9 s, so 1.5; 5 items are not halved.

    Source: [SJF-BSBF] Alg. 2, with Eq. (3), (4), (7).
    """
    message = float(
        communication_s(
            np.array(iteration.message_bytes),
            iteration.communication_fixed_s,
            iteration.communication_per_byte_s,
        )
    )

    def seconds(steps: int) -> float:
        return float(
            iteration_time_s(
                np.array(float(iteration.batch)),
                steps,
                compute_fixed_s=iteration.compute_fixed_s,
                compute_per_item_s=iteration.compute_per_item_s,
                communication_s=message,
                overlap=iteration.overlap,
            )
        )

    found: list[SubBatch] = []
    whole, stretch, steps = seconds(1), 1.0, 2
    while iteration.batch % steps == 0:
        stretch = max(stretch, seconds(steps) / whole)
        memory = iteration.memory_fixed_gib + iteration.memory_per_item_gib * (
            iteration.batch // steps
        )
        found.append(SubBatch(steps, memory, iteration.memory_peak_extra_gib, stretch))
        steps *= 2
    return tuple(found)
