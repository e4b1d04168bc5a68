"""For how long a gang has waited, and for which reason: counted in its GPUJob as it is written.

The seconds since the last write belong to the cause that the GPUJob gave until then. They are added
in the write that replaces this cause, so that nothing counts twice, whichever process
is killed.
"""

from __future__ import annotations

from scheduler_extender.cluster.jobs import rfc3339, seconds
from tandem.contracts.resources import GPUJobStatus, Phase, Waited
from tandem.reasons.causes import first_of

_DIGITS = 3  # milliseconds
_WAITS = (Phase.QUEUED, Phase.ADMITTED, Phase.SUSPENDED)


def with_waits(before: GPUJobStatus, status: GPUJobStatus, now_s: float) -> GPUJobStatus:
    """Return a status that is about to be written with what `before` has waited until `now_s`."""
    found = waits_until(before, now_s)
    if found is before.waits:
        return status
    return status.model_copy(update={"waits": found, "waits_until": rfc3339(now_s)})


def waits_until(status: GPUJobStatus, now_s: float) -> list[Waited]:
    """Return the seconds by reason until `now_s` (Unix time); the list itself if none came."""
    if status.phase not in _WAITS or status.waiting_since is None:
        return status.waits
    since_s = seconds(status.waiting_since)
    if status.waits_until is not None:
        since_s = max(since_s, seconds(status.waits_until))
    passed_s = round(now_s - since_s, _DIGITS)
    if passed_s <= 0:
        return status.waits
    cause = first_of(status.causes)
    reason = cause.reason.value if cause is not None else status.reason
    known = {each.reason: each.seconds for each in status.waits}
    known[reason] = round(known.get(reason, 0.0) + passed_s, _DIGITS)
    return [Waited(reason=reason, seconds=passed) for reason, passed in known.items()]
