"""[OJPP] Eq. (3)-(5): memory oversubscription with a bounded chance of collision."""

from __future__ import annotations

import numpy as np

from tandem.policy.units import Floats


# Paper: [OJPP] Eq. (3), (12) | room for every base and one peak | test:
#   tests/queue/test_queue_measured.py
#   test_two_jobs_share_by_one_peak_where_both_were_measured_and_the_agent_guards | live: yes |
#   ablation: one peak | deviation: in `tandem` only where agents have measured the peaks of all
#   and guard the memory (`guard.mode: evict`), and all save checkpoints; elsewhere all peaks count
def memory_needed_gib(
    base_gib: Floats,
    peak_extra_gib: Floats,
    job_base_gib: Floats | float,
    job_peak_extra_gib: Floats | float,
) -> Floats:
    """Return the memory needed with one more job: every base, and the largest single peak.

    Symbols: gamma_i = base, delta_i = peak extra (the text says mean for gamma; its example is the
    level outside peaks). Shapes: `base_gib` (sum over residents) and `peak_extra_gib` (largest over
    residents) are (gpus,); the answer too, in GiB.

    Worked: the paper's ResNet, <0.3, 0.62, 0.2> of a device, next to another one: 1.22 devices.

    Source: [OJPP] Eq. (3): sum(gamma) + max(delta) <= 1, here in GiB instead of shares of a device.
    """
    return base_gib + job_base_gib + np.maximum(peak_extra_gib, job_peak_extra_gib)


# Paper: [OJPP] Eq. (4) | chance that peaks collide | test:
#   tests/policy/test_policy_equations.py test_ojpp_worked_numbers | live: yes |
#   ablation: collision
def collision_probability(none_in_peak: Floats, one_in_peak: Floats, p: Floats | float) -> Floats:
    """Return the chance that two or more of the residents and one more job are in their peak.

    Symbols: `none_in_peak` = prod(1 - p_i), `one_in_peak` = sum_i p_i prod_{s != i}(1 - p_s) over
    the residents, both (gpus,); `p` the newcomer's chance of being in its peak.
    Peaks are independent. Shapes: (gpus,); a probability.

    Worked: two jobs with p = 0.2 give 0.04, three 0.104, one gives 0.

    Source: [OJPP] Eq. (4), extended by one job in constant time.
    """
    none = none_in_peak * (1 - p)
    one = one_in_peak * (1 - p) + none_in_peak * p
    return np.minimum(np.maximum(1 - none - one, 0.0), 1.0)
