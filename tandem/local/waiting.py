"""Waiting for something that another process brings about, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tandem.errors import TandemError

T = TypeVar("T")

_POLL_S = 0.05


def wait_until(
    condition: Callable[[], T],
    what: str,
    *,
    timeout_s: float = 120.0,
    poll_s: float = _POLL_S,
) -> T:
    """Call `condition` until its result is true, and return that.

    `what` finishes the sentence "waited N s until ..."; the error also tells the last result.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() >= deadline:
            raise TandemError(
                f"waited {timeout_s:g} s without success until {what}; last seen: {result!r}"
            )
        time.sleep(poll_s)
