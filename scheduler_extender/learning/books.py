"""What is learned and outlives the jobs: bad pairs, and what runs of one kind have used."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler_extender.cluster.learned import Pairs
from scheduler_extender.config import LearningConfig
from scheduler_extender.learning.history import Kept
from scheduler_extender.learning.remembering import Memory
from tandem.policy.catalog import Profile
from tandem.policy.constraints.interference import Apart


@dataclass(frozen=True, slots=True)
class Books:
    """Both books; kept by their keys in the ConfigMap of the history."""

    pairs: Pairs = field(default_factory=Pairs)
    memory: Memory = field(default_factory=Memory)

    def kept(self) -> dict[str, Kept]:
        """Return what is kept, by its key there."""
        return {"pairs": self.pairs, "runs": self.memory}


def believing(profile: Profile, settings: LearningConfig) -> Profile:
    """Return the profile with the constraint that keeps apart what was learned not to get along."""
    if settings.mode != "act":
        return profile
    return profile.model_copy(update={"constraints": (*profile.constraints, Apart())})
