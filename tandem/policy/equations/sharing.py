"""[SJF-BSBF] whether two jobs gain by sharing a GPU, and how fast an iteration then is."""

from __future__ import annotations

import numpy as np

from tandem.policy.units import Floats


# Paper: [SJF-BSBF] Theorem 1 | share now, or after the first has ended | test:
#   tests/queue/test_queue_theorem_1.py
#   test_the_live_decision_is_that_of_a_replay_with_true_times | live: yes | deviation: both ends
#   are compared in both cases
def sharing_benefit_s(
    first_s: Floats, second_s: Floats, first_ratio: Floats, second_ratio: Floats
) -> Floats:
    """Return by how much the mean completion time falls when two jobs overlap from now on.

    Positive: share; otherwise run the second when the first has ended. Symbols: L_A = `first_s`,
    L_B = `second_s`, what is left of each in solo seconds; xi_A, xi_B = `first_ratio` and
    `second_ratio` >= 1, by which an iteration is stretched next to the other job. Any equal shapes.

    Worked: L 10 and 10, both ratios 1.4: 15 - 14 = 1; 1.6: -1; 10 and 4 at 2: 1; 4 and 10: -2.

    Source: [SJF-BSBF] Theorem 1; A is the running job, B the one inserted. Differs: both cases
    compare the end points, since the sign of Eq. (25) alone misjudges a quarter of random pairs.
    """
    second_ends_first = first_ratio * first_s >= second_ratio * second_s
    with np.errstate(invalid="ignore"):
        within = (first_s - second_s * (2 * second_ratio - 1 - second_ratio / first_ratio)) / 2
        beyond = first_s * (1 - first_ratio + first_ratio / (2 * second_ratio))
    benefit: Floats = np.where(second_ends_first, within, beyond)
    return np.where(np.isfinite(first_ratio) & np.isfinite(second_ratio), benefit, -np.inf)


# Paper: [SJF-BSBF] Eq. (3), (7) | iteration with gradient accumulation | test:
#   tests/policy/test_policy_best_sharing.py
#   test_communication_decides_whether_a_smaller_batch_pays | live: yes | deviation: a and b
#   are fitted to what the predictor says of the micro-batches; no overlap of the two is assumed
def iteration_time_s(
    batch: Floats,
    steps: int,
    *,
    compute_fixed_s: float,
    compute_per_item_s: float,
    communication_s: float,
    overlap: float,
) -> Floats:
    """Return the time of one iteration in `steps` micro-batches of batch / steps each.

    t_comp(B) = a + b B; t_iter = (s - 1) t_comp(B / s) + (t_comp(B / s)^d + t_comm^d)^(1 / d),
    d = `overlap` >= 1: 1 for none, large for perfect overlap with communication.
    Shapes: as `batch`.

    Worked: a = 0.1 s, b = 0.01 s, B = 20 in 2 steps, 0.3 s of communication, d = 1: 0.7 s.

    Source: [SJF-BSBF] Eq. (3), (4), (7).
    """
    part = compute_fixed_s + compute_per_item_s * np.asarray(batch, dtype=np.float64) / steps
    last = (part**overlap + communication_s**overlap) ** (1 / overlap)
    time: Floats = (steps - 1) * part + last
    return time
