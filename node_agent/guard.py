"""The memory guard: who has to go before a neighbour dies of a full GPU. Pure rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: A pod may exceed its prediction by this share: allocators round up, and readings are late.
TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class Tenant:
    """A pod of ours on a GPU: what it holds and what it was predicted to need, in bytes."""

    uid: str
    memory: int | None
    predicted: int | None


@dataclass(frozen=True, slots=True)
class Offender:
    """The pod that has to go, and why: it outgrew its prediction, or peaks have met.

    `memory` is what it held, `predicted` what it was predicted to need, in bytes. `collided`: every
    pod keeps to its prediction, but more was predicted of them together than the GPU has.
    """

    uid: str
    memory: int
    predicted: int
    collided: bool = False

    @property
    def reason(self) -> str:
        """A sentence for the pod's owner."""
        gib = 1 << 30
        if self.collided:
            return (
                f"holds {self.memory / gib:.1f} GiB, the least of the pods whose peaks have met,"
                " and the GPU is nearly full"
            )
        return (
            f"holds {self.memory / gib:.1f} GiB where {self.predicted / gib:.1f} GiB were"
            " predicted, and the GPU is nearly full"
        )


# Paper: [Horus] 4.3 | preemption where a GPU is over-committed, by the memory in use | test:
#   tests/node_agent/test_agent_guard.py
#   test_of_several_the_pod_with_the_most_bytes_over_its_prediction_is_named | live: yes |
#   deviation: who outgrew its prediction goes, and only with `guard.mode: evict`; the paper
#   leaves open who does
def offender(tenants: Sequence[Tenant], tolerance: float = TOLERANCE) -> Offender | None:
    """Return the tenant that exceeds its prediction by most bytes; None if none does.

    A tenant without a prediction or a reading is never blamed. Ties go by UID, so that repeated
    calls name the same one.
    """
    grown = [
        Offender(tenant.uid, tenant.memory, tenant.predicted)
        for tenant in tenants
        if tenant.memory is not None
        and tenant.predicted is not None
        and tenant.memory > tenant.predicted * (1 + tolerance)
    ]
    return min(grown, key=lambda o: (o.predicted - o.memory, o.uid), default=None)


def collided(tenants: Sequence[Tenant], usable_bytes: int) -> Offender | None:
    """Return the tenant that holds least where the predictions of all are more than the GPU has.

    Such a GPU has room for one peak, and two have met ([OJPP] Eq. 4 bounds the chance). The one
    that holds least has least to load again. None where the predictions fit, or one is unknown.
    """
    known = [
        Offender(tenant.uid, tenant.memory, tenant.predicted, collided=True)
        for tenant in tenants
        if tenant.memory is not None and tenant.predicted is not None
    ]
    if len(known) < len(tenants) or sum(each.predicted for each in known) <= usable_bytes:
        return None
    return min(known, key=lambda o: (o.memory, o.uid), default=None)
