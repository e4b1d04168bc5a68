"""The memory guard: who has to go before a neighbour dies of a full GPU. Pure rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from node_agent.config import GuardSettings


@dataclass(frozen=True, slots=True)
class Tenant:
    """A pod of ours on a GPU: what it holds and what it was predicted to need, in bytes."""

    uid: str
    memory: int | None
    predicted: int | None


@dataclass(frozen=True, slots=True)
class Offender:
    """The pod that outgrew its prediction most, and by how much (bytes)."""

    uid: str
    memory: int
    predicted: int

    @property
    def reason(self) -> str:
        """A sentence for the pod's owner."""
        gib = 1 << 30
        return (
            f"holds {self.memory / gib:.1f} GiB where {self.predicted / gib:.1f} GiB were"
            " predicted, and the GPU is nearly full"
        )


def offender(tenants: Sequence[Tenant], settings: GuardSettings) -> Offender | None:
    """Return the tenant that exceeds its prediction by most bytes; None if none does.

    A tenant without a prediction or a reading is never blamed. Ties go by UID, so that repeated
    calls name the same one.
    """
    grown = [
        Offender(tenant.uid, tenant.memory, tenant.predicted)
        for tenant in tenants
        if tenant.memory is not None
        and tenant.predicted is not None
        and tenant.memory > tenant.predicted * (1 + settings.tolerance)
    ]
    return min(grown, key=lambda o: (o.predicted - o.memory, o.uid), default=None)
