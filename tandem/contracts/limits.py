"""The memory limit of a job that may share its GPU: a fraction of the GPU's memory.

The scheduler writes it on the pod together with its GPUs. Frameworks keep to it: JAX by
`XLA_PYTHON_CLIENT_MEM_FRACTION`, PyTorch by `PYTORCH_ALLOC_CONF` and `tandem.progress`, TensorFlow
by `tandem.progress`. A job that outgrows its prediction then runs out of memory itself, and its
neighbours do not.
"""

from __future__ import annotations

import math

from tandem.contracts import names

#: What a job may take beyond the upper estimate (p95) of its memory.
MARGIN = 0.1
#: A job that ran out of memory at its limit gets so many times as much in its next run.
GROWTH = 1.5
_DIGITS = 4


def memory_fraction(peak_gib: float, total_gib: float) -> str:
    """Return the limit of a worker whose peak is `peak_gib` on a GPU of `total_gib`.

    Rounded up to four digits, and 1 at most; "" where one of the two is not known (0).

    Worked: 10 GiB of 80 GiB give 0.1375.
    """
    if not (peak_gib > 0 and total_gib > 0):
        return ""
    scale = 10**_DIGITS
    share = math.ceil(peak_gib * (1 + MARGIN) / total_gib * scale - 1e-6) / scale
    return f"{min(share, 1.0):g}"


def limit_annotations(peak_gib: float, total_gib: float) -> dict[str, str]:
    """Return the limit as the annotations of its pod; none where there is no limit."""
    fraction = memory_fraction(peak_gib, total_gib)
    if not fraction:
        return {}
    return {
        names.MEMORY_FRACTION: fraction,
        names.PYTORCH_ALLOC_CONF: f"per_process_memory_fraction:{fraction}",
    }


def parse_memory_fraction(text: str) -> float | None:
    """Return the fraction in (0, 1] that a text says; None where it says none."""
    try:
        fraction = float(text)
    except ValueError:
        return None
    return fraction if 0 < fraction <= 1 else None
