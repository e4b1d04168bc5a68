"""Limits how often the API server is asked, so that retries do not add to its load."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """Pauses of a reflector; seconds.

    The API server sends a bookmark about each minute, so that nothing for `read_timeout_s` means
    a dead watch; but the beginning of an answer comes within `answer_timeout_s` or not at all. A
    watch is renewed after a random time so that replicas do not do it together. The longest wait
    leaves time for a list within 30 s of the API server's return.
    """

    answer_timeout_s: float = 10.0
    read_timeout_s: float = 70.0
    watch_min_s: float = 300.0
    watch_max_s: float = 600.0
    backoff_min_s: float = 0.8
    backoff_max_s: float = 20.0
    request_interval_s: float = 4.0


class Rations:
    """At most one list per interval, and no more than one request per interval in the long run.

    One request more than that may come at once (a list and the watch that follows it).
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next_list = float("-inf")
        self._paid_until = float("-inf")

    def wait_s(self, now: float, *, is_list: bool) -> float:
        """Return how long a request has to wait."""
        at = self._paid_until - self._interval_s
        return max(0.0, at - now, self._next_list - now if is_list else 0.0)

    def spend(self, now: float, *, is_list: bool) -> None:
        """Count a request that is made now."""
        self._paid_until = max(self._paid_until, now) + self._interval_s
        if is_list:
            self._next_list = now + self._interval_s
