"""[SJF-BSBF] two jobs on one GPU: stretched iterations, and when both have ended."""

from __future__ import annotations

import numpy as np

from tandem.policy.units import Floats


# Paper: [SJF-BSBF] Eq. (4) | time of communication | test:
#   tests/policy/test_policy_best_sharing.py
#   test_the_stretch_of_a_sub_batch_is_that_of_compute_and_communication | live: yes |
#   deviation: a' and b' are those of the paper's network of 10 Gb/s, since no cluster measures
#   its own; a ring of all workers exchanges the gradients
def communication_s(message_bytes: Floats, fixed_s: float, per_byte_s: float) -> Floats:
    """Return the time to exchange a message: t_comm = a' + b' M.

    Symbols: M = `message_bytes`, a' = `fixed_s`, b' = `per_byte_s`. Shapes: any; seconds.

    Worked: 1e8 bytes at 1e-9 s a byte after 0.01 s: 0.11 s.

    Source: [SJF-BSBF] Eq. (4).
    """
    time: Floats = fixed_s + per_byte_s * np.asarray(message_bytes, dtype=np.float64)
    return time


# Paper: [SJF-BSBF] Eq. (5), (6) | iteration next to another job | test:
#   tests/policy/test_policy_equations.py
#   test_a_stretched_iteration_has_the_slowdown_it_was_stretched_by | live: yes
def stretched_s(iteration_s: Floats, interference_ratio: Floats) -> Floats:
    """Return the time of an iteration next to another job: t xi.

    Symbols: t = `iteration_s`, xi = `interference_ratio` >= 1; a slowdown is xi - 1. Equal shapes;
    seconds.

    Worked: 0.2 s at a ratio of 1.4: 0.28 s.

    Source: [SJF-BSBF] Eq. (5), (6).
    """
    stretched: Floats = np.asarray(iteration_s * interference_ratio)
    return stretched


def mean_completion_s(
    start_s: Floats, first_s: Floats, second_s: Floats, first_ratio: Floats, second_ratio: Floats
) -> Floats:
    """Return the mean completion time of a pair when the second starts at `start_s`.

    Symbols: kappa = `start_s`, in [0, L_A]; L_A = `first_s`, of the running job, L_B = `second_s`,
    of the one inserted: what is left of each in solo seconds; xi_A, xi_B = the ratios, >= 1, by
    which each is stretched while both run. Equal shapes; seconds.

    Worked (L_A, L_B, both xi: from now on / one after the other): 10, 10, 1.4: 14 / 15; 10, 10,
    1.6: 16 / 15; 10, 4, 2: 11 / 12; 4, 10, 2: 11 / 9.

    Source: [SJF-BSBF] Theorem 1, whose claim is that the best start is at one of the two ends.
    Differs: where the second ends first the mean is concave in the start, not linear; the ends
    still win.
    """
    left = first_s - start_s
    first_alone_s = stretched_s(left, first_ratio)
    second_alone_s = stretched_s(second_s, second_ratio)
    together = np.minimum(first_alone_s, second_alone_s)  # until one of the two has ended
    first_end = start_s + together + (left - together / first_ratio)
    second_end = start_s + together + (second_s - together / second_ratio)
    mean: Floats = (first_end + second_end) / 2
    return mean
