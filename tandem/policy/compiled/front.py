"""The front of an order in compiled code: who of it runs on so many GPUs."""

from __future__ import annotations

import ctypes

import numpy as np

from tandem.policy.compiled.library import library
from tandem.policy.jobs import JobArrays
from tandem.policy.units import Ints


def front(
    ranked: Ints, arrays: JobArrays, free_gpus: int, occupied: int
) -> tuple[list[int], list[int]] | None:
    """Return which of `ranked` stop and which start; None where nothing is compiled.

    Jobs are taken in order while they fit on `free_gpus`; those that do not fit are skipped.
    `occupied` of them run.
    """
    lib = library()
    if lib is None or not len(ranked):
        return None
    ranked = np.ascontiguousarray(ranked, dtype=np.int64)
    assert arrays.gpus.dtype == np.int64
    assert arrays.running.dtype == np.bool_
    found = np.empty(len(ranked), dtype=np.int64)
    starts = ctypes.c_int64()
    stops = lib.tandem_front(
        ranked.ctypes.data, len(ranked), arrays.gpus.ctypes.data, arrays.running.ctypes.data,
        free_gpus, occupied, found.ctypes.data, ctypes.byref(starts),
    )  # fmt: skip
    begin = len(ranked) - starts.value
    return found[:stops].tolist(), found[begin:][::-1].tolist()
