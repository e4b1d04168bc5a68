"""[Xonar] which job computes while the other waits."""

from __future__ import annotations

import numpy as np

from tandem.policy.units import Floats


# Paper: [Xonar] III-B, Eq. (1) | fitness of a partner | test:
#   tests/papers/test_papers_scenarios.py test_the_rule_decides | live: yes | deviation: busy
#   fractions stand for the ratio of active to idle time where that was never measured; a job
#   whose predicted utilisation is 100 % has no idle time by that, and pairs with no other job
#   until its time was measured
def active_idle_misfit(busy: Floats, other_busy: float) -> Floats:
    """Return |r_a r_n - 1| with r = active / idle time; 0 is the perfect partner.

    Symbols: `busy` = u, the fraction of time that a GPU is busy, so that r = u / (1 - u). The best
    partner is the one whose busy fractions add to 1. A job that is never idle has no partner:
    infinite. Shapes: (gpus,) and one number -> (gpus,).

    Worked: u = 0.25 next to 0.75 gives 0; 0.5 next to 0.75 gives 2.

    Source: [Xonar] Eq. (1).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.asarray(busy / (1 - busy), dtype=np.float64)
        other = other_busy / (1 - other_busy) if other_busy < 1 else np.inf
        misfit = np.abs(ratio * other - 1)
    never: Floats = np.where(np.isfinite(misfit), misfit, np.inf)
    return never
