"""Decides whether a GPU takes new work: pure rules on readings."""

from __future__ import annotations

from dataclasses import dataclass, field

from node_agent.config import HealthSettings
from node_agent.nvml import Sensors

_NOT_OFFERED_MODES = {"ExclusiveProcess", "ExclusiveThread", "Prohibited"}


@dataclass(slots=True)
class Quarantine:
    """Why a GPU takes no new work; running pods stay.

    Each trouble is kept with the time at which it was last seen, until it has not been for
    `well_for_s`.
    """

    settings: HealthSettings
    _troubles: dict[str, float] = field(default_factory=dict)

    def trouble(self, now_s: float, reason: str) -> None:
        """Note that `reason` holds now."""
        self._troubles[reason] = now_s

    def xid(self, now_s: float, code: int) -> bool:
        """Note an Xid; return whether it says something about the GPU and not about a program."""
        if code in self.settings.application_xids:
            return False
        self.trouble(now_s, f"Xid {code}")
        return True

    def sensors(self, now_s: float, sensors: Sensors) -> None:
        """Note what the memory's repair says."""
        if sensors.repair_failed:
            self.trouble(now_s, "remapping a faulty row of memory failed")
        elif sensors.repair_pending:
            self.trouble(now_s, "a faulty page or row of memory waits for a reset")

    def reason(self, now_s: float) -> str:
        """Return all that holds against the GPU, or "" where it is well."""
        well_since = now_s - self.settings.well_for_s
        self._troubles = {why: at for why, at in self._troubles.items() if at > well_since}
        return "; ".join(self._troubles)


def offered_shares(
    shares: int,
    quarantine: str,
    sensors: Sensors | None,
    foreign_owners: int,
    *,
    unlisted_bytes: int = 0,
    whole: str = "",
    is_slice: bool = False,
    divided: bool = False,
) -> tuple[int, str]:
    """Return how many shares of a GPU are offered, and why it is fewer than `shares`.

    `foreign_owners` counts pods that are not ours, and the rest of the node's processes as one;
    `unlisted_bytes` is memory of others that no listed process holds. `whole` says why the GPU
    takes one job at a time. `is_slice`: it is a slice of MIG, `divided`: one that is not isolated.
    """
    if quarantine:
        return 0, f"quarantined: {quarantine}"
    if sensors is not None and sensors.mig and not is_slice:
        return 0, "MIG is enabled, and the GPU has no slices"
    if divided:
        return 0, "other slices use the memory of its GPU instance too, so it is not isolated"
    if sensors is not None and sensors.compute_mode in _NOT_OFFERED_MODES:
        return 0, f"compute mode {sensors.compute_mode}: one process at a time"
    reasons = []
    if is_slice:
        shares = min(shares, 1)
        reasons.append("a slice of MIG takes one job")
    if whole:
        shares = min(shares, 1)
        reasons.append(whole)
    if foreign_owners:
        plural = "s" if foreign_owners > 1 else ""
        reasons.append(f"{foreign_owners} share{plural} taken by processes that are not ours")
    if unlisted_bytes:
        reasons.append(
            f"{unlisted_bytes / 2**30:.1f} GiB of memory are in use by no process that is listed:"
            " a process that the driver hides, or memory that one has left behind"
        )
    return max(0, shares - foreign_owners), "; ".join(reasons)
