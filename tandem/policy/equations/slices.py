"""The speed of a job on a slice of a GPU (MIG)."""

from __future__ import annotations

from tandem.policy.units import Floats


def slice_speed(busy: Floats | float, share: Floats | float) -> Floats | float:
    """Return the speed of a job on a slice, as a share of its speed on the whole GPU.

    Symbols: b = `busy`, the share of its time in which the job keeps the whole GPU busy, in [0, 1];
    s = `share`, the slice's part of the GPU's compute, in (0, 1]. What the GPU computes takes
    1 / s times as long, and the rest of an iteration as long as before: 1 / (1 - b + b / s).

    Shapes: any that broadcast; the result has that of both.

    Worked: b = 0.5 on a seventh of the GPU: 1 / (0.5 + 3.5) = 0.25; b = 1 on three sevenths: 3/7.

    Source: ours. It is a lower bound: kernels that do not fill the whole GPU lose less on a part
    of it.
    """
    return 1 / (1 - busy + busy / share)
