"""What is learned and outlives jobs: slowdowns of pairs, placements of gangs, the run history."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler_extender.cluster.pair_slowdowns import PairSlowdowns
from scheduler_extender.cluster.placement_history import PlacementHistory
from scheduler_extender.learning.config import LearningConfig
from scheduler_extender.learning.history_store import Stored
from scheduler_extender.learning.run_history import RunHistory
from tandem.policy.catalog import Profile
from tandem.policy.constraints.interference import Apart, Interference

_ROUNDING = 1e-9  # a pair that the dispatch finds exactly at its bar is not refused by the verbs


@dataclass(frozen=True, slots=True)
class LearnedState:
    """All three; kept by their keys in the ConfigMap of the history."""

    pairs: PairSlowdowns = field(default_factory=PairSlowdowns)
    placements: PlacementHistory = field(default_factory=PlacementHistory)
    memory: RunHistory = field(default_factory=RunHistory)

    def kept(self) -> dict[str, Stored]:
        """Return what is kept, by its key there."""
        return {"pairs": self.pairs, "placements": self.placements, "runs": self.memory}


def observing(profile: Profile, settings: LearningConfig) -> LearningConfig:
    """Return the settings of the loop, which moves jobs under the profiles that weigh pairs alone.

    Every other profile is another system: it parts jobs by its own adjuster, or not at all.
    """
    return settings if _weighs_pairs(profile) else settings.model_copy(update={"mode": "off"})


def _weighs_pairs(profile: Profile) -> bool:
    return profile.adjust is None and profile.dispatch.weighs_pairs


def believing(profile: Profile, settings: LearningConfig) -> Profile:
    """Return the profile with the constraints that hold for a live placement as well.

    kube-scheduler may bind a pod to another node than the planned one. Therefore the verbs keep the
    bar of the dispatch, too, and keep apart what was learned not to get along.
    """
    added: list[Interference | Apart] = []
    if profile.dispatch.least_speed > 0:
        most = 1 / profile.dispatch.least_speed - 1
        added.append(Interference(max_interference=most + _ROUNDING))
    if settings.mode == "act" and _weighs_pairs(profile):
        added.append(Apart())
    return profile.model_copy(update={"constraints": (*profile.constraints, *added)})
