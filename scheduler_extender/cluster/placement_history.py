"""How fast gangs ran on as few nodes as they need, and spread over more. Pure.

From both follows the skew above which a gang is kept on few nodes ([Tiresias] 3.3.2: PACKLIMIT).
Each namespace has a limit of its own: jobs report their own speed, and what one tenant reports must
not decide where the gangs of another one run.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from tandem.policy.equations.tiresias import learned_pack_limit

#: Above this skew a gang is kept on few nodes until more is known (the figure is ours).
PACK_LIMIT = 0.5
#: A gang that loses more than this share of its speed was hurt by being spread (ours).
_HURT = 0.1
#: Kinds of gangs that are kept for one namespace, and for all.
_OF_NAMESPACE, _IN_ALL = 16, 500
_NEWEST = 0.3  # weight of the newest run

GangKind = tuple[str, str, str, int]  # namespace, kind, type of GPU, GPUs of the gang


@dataclass(slots=True)
class _Speeds:
    """Iterations per second of one kind of gang, alone on its GPUs; None where never seen."""

    skew: float
    on_few_nodes: float | None
    spread: float | None
    at_s: float


class PlacementHistory:
    """Speeds of gangs by where they ran.

    `version` grows with each change, `limits_version` where a limit changes.
    """

    def __init__(self) -> None:
        self.version = self.limits_version = 0
        self._speeds: dict[GangKind, _Speeds] = {}
        self._limits: dict[str, float] = {}

    def limit(self, namespace: str) -> float:
        """Return the skew above which the gangs of a namespace are kept on few nodes."""
        return self._limits.get(namespace, PACK_LIMIT)

    def enter(
        self, of: GangKind, skew: float, iterations_per_s: float, now_s: float, *, spread: bool
    ) -> None:
        """Learn how fast a gang ran alone on its GPUs, spread over more nodes than it needs or not.

        `skew` is that of its model ([Tiresias] 3.3.1).
        """
        known = self._speeds.get(of) or _Speeds(skew, None, None, now_s)
        before = known.spread if spread else known.on_few_nodes
        new = iterations_per_s if before is None else before + _NEWEST * (iterations_per_s - before)
        if spread:
            self._speeds[of] = _Speeds(skew, known.on_few_nodes, new, now_s)
        else:
            self._speeds[of] = _Speeds(skew, new, known.spread, now_s)
        self._trim(of[0])
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        limits = {}
        for namespace in {of[0] for of in self._speeds}:
            both = [
                (each.skew, each.on_few_nodes / each.spread - 1)
                for of, each in self._speeds.items()
                if of[0] == namespace and each.on_few_nodes and each.spread
            ]
            skew, slowdown = np.array(both).reshape(-1, 2).T
            limits[namespace] = learned_pack_limit(skew, slowdown, _HURT, PACK_LIMIT)
        limits = {name: limit for name, limit in limits.items() if limit != PACK_LIMIT}
        if limits != self._limits:
            self._limits = limits
            self.limits_version += 1

    def _trim(self, namespace: str) -> None:
        """Forget the kinds unseen for longest, of a namespace or of all, beyond what is kept."""
        for group, most in ((namespace, _OF_NAMESPACE), (None, _IN_ALL)):
            kinds = [of for of in self._speeds if group in (None, of[0])]
            oldest = sorted(kinds, key=lambda of: (self._speeds[of].at_s, of))
            for of in oldest[: max(0, len(kinds) - most)]:
                del self._speeds[of]

    # --- kept ------------------------------------------------------------------------------------

    def shed(self, rows: int) -> None:
        """Forget so many kinds, those unseen for longest first."""
        for of in sorted(self._speeds, key=lambda of: (self._speeds[of].at_s, of))[:rows]:
            del self._speeds[of]
        self._changed()

    def stored(self) -> list[Any]:
        """Return all speeds as rows of JSON."""
        return [[*of, *astuple(each)] for of, each in self._speeds.items()]

    def merge(self, rows: list[Any]) -> None:
        """Take in stored speeds; of two of one kind the newer count. Bounded as what is entered."""
        before = dict(self._speeds)
        for namespace, kind, gpu_model, gpus, *values in rows:
            of, speeds = (namespace, kind, gpu_model, gpus), _Speeds(*values)
            known = self._speeds.get(of)
            if known is None or known.at_s < speeds.at_s:
                self._speeds[of] = speeds
        for namespace in {of[0] for of in self._speeds}:
            self._trim(namespace)
        if self._speeds != before:
            self._changed()
