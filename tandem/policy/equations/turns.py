"""Decides whether jobs of unknown length share a GPU or take turns on it."""

from __future__ import annotations

import numpy as np

from tandem.policy.units import Bools, Floats


def shares_well(
    rate: Floats | float,
    speed: Floats | float,
    loss: Floats,
    slowed: Floats,
    present: Floats,
    worth: Floats,
    min_gain: float = 0.0,
) -> Bools:
    """Say whether a newcomer should join a GPU, compared with both ways of taking turns.

    Symbols: r = `rate` of completion of the newcomer per GPU-second and m = its `speed` there;
    S = `present`, the speeds of the residents now, together, and V = `worth`, the sum of their
    rates times speeds; D = `slowed`, what they lose of S, and L = `loss`, what they lose of V.
    Speeds are shares of solo speed. With G = m - D, the speed that the GPU gains by sharing:

    - against waiting until a resident has ended: r m - L + (V / S) G > 0;
    - against running the newcomer first, alone:  r m + V - L - r + r (S + G - 1) > 0.

    And G must be at least `min_gain`: G is predicted, and the best of many predictions is on
    average too good, so a gain that is predicted to be small may well be none.

    Shapes: (gpus,), or numbers.

    Worked: rates 2 and 1, both at speed 0.7 together: 1.4 - 0.3 + 0.4 and 2.1 - 2 + 0.8, so they
    share; at 0.5: 1 - 0.5 and 1.5 - 2 + 0, so the newcomer had better be alone.

    Source: ours; Theorem 1 of [SJF-BSBF] for jobs whose remaining times are exponential with
    rates r_w and r_i. Sharing at speeds m and t takes 2/R + (r_i t/R)/r_w + (r_w m/R)/r_i in all,
    R = r_w m + r_i t; the newcomer last, 2/r_i + 1/r_w; first, 2/r_w + 1/r_i. The differences have
    the signs above. Where m + t <= 1 one of the two is not positive, whatever the rates: a pair
    that gains nothing never shares.
    """
    gained = speed - slowed
    price = worth / np.maximum(present, 1e-12)
    over_waiting = rate * speed - loss + price * gained
    over_going_first = rate * speed + worth - loss - rate + rate * (present + gained - 1)
    better: Bools = (over_waiting > 0) & (over_going_first > 0) & (gained >= min_gain)
    return better
