"""The garbage collector and the cycle."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the garbage collector from running meanwhile.

    A cycle makes tens of thousands of objects, which live until its plan is carried out. The
    collector would visit them again and again, and each visit holds the event loop for up to 30 ms.
    They are in no reference cycle: they are freed when the last reference to them goes.
    """
    runs = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if runs:
            gc.enable()
