"""The explicit list of all policies, and the profiles that combine them.

To add a policy: a file, a line here, an equation if it has one, one scenario in the tests.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib.resources import files
from typing import Annotated, Self

import yaml
from pydantic import ConfigDict, Field, model_validator

from tandem.policy.adjust.learn import Learn
from tandem.policy.adjust.migrate import Migrate
from tandem.policy.adjust.online import Requeue
from tandem.policy.constraints.balance import Balance
from tandem.policy.constraints.health import Fresh, Healthy
from tandem.policy.constraints.interference import Apart, Interference, Utilisation
from tandem.policy.constraints.memory import MemoryCapacity, MemoryCollision, PeakFits
from tandem.policy.constraints.shares import Exclusive, Shares
from tandem.policy.constraints.slices import Slices
from tandem.policy.dispatch.admit import Admit
from tandem.policy.dispatch.best_sharing import BestSharing
from tandem.policy.dispatch.greedy import Greedy
from tandem.policy.dispatch.pairs import Pairs
from tandem.policy.dispatch.preempt import Preempt
from tandem.policy.dispatch.share import Share
from tandem.policy.gather import BestScored, FewestNodes, InUse
from tandem.policy.ordering.attained import Gittins2D, Las2D, RoundRobin
from tandem.policy.ordering.demand import Decreasing, Gregarious
from tandem.policy.ordering.fair import WeightedFair
from tandem.policy.ordering.fifo import Fifo
from tandem.policy.ordering.queues import Queues
from tandem.policy.ordering.shortest import Shortest
from tandem.policy.pipeline import Pipeline
from tandem.policy.scorers.horus_cost import HorusCost
from tandem.policy.scorers.load import BestFit, LeastLoaded, LeastRoom
from tandem.policy.scorers.partner import ActiveIdleFit, LeastSlowdown
from tandem.policy.scorers.sharing import InUseFirst
from tandem.policy.scorers.shuffled import Shuffled
from tandem.settings import NoFlagForNumber

AnyOrder = Annotated[
    Fifo
    | Shortest
    | Las2D
    | Gittins2D
    | RoundRobin
    | Queues
    | WeightedFair
    | Decreasing
    | Gregarious,
    Field(discriminator="kind"),
]
AnyConstraint = Annotated[
    Slices
    | Healthy
    | Fresh
    | Shares
    | Exclusive
    | MemoryCapacity
    | MemoryCollision
    | PeakFits
    | Interference
    | Apart
    | Utilisation
    | Balance,
    Field(discriminator="kind"),
]
AnyScorer = Annotated[
    HorusCost
    | InUseFirst
    | Shuffled
    | BestFit
    | LeastLoaded
    | LeastRoom
    | ActiveIdleFit
    | LeastSlowdown,
    Field(discriminator="kind"),
]
AnyGather = Annotated[BestScored | InUse | FewestNodes, Field(discriminator="kind")]
AnyDispatch = Annotated[
    Admit | Preempt | Pairs | BestSharing | Greedy | Share, Field(discriminator="kind")
]
AnyAdjuster = Annotated[Requeue | Migrate | Learn, Field(discriminator="kind")]


class Profile(NoFlagForNumber):
    """One scheduling system: an order, what a round does with it, constraints and scorers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    description: str = ""
    order: AnyOrder = Fifo()
    constraints: tuple[AnyConstraint, ...]
    scorers: tuple[AnyScorer, ...] = ()
    dispatch: AnyDispatch = Admit()
    gather: AnyGather = BestScored()
    adjust: AnyAdjuster | None = None
    max_jobs_per_gpu: Annotated[int, Field(ge=1)] = 2  # shares that a simulated GPU offers

    @model_validator(mode="after")
    def _worth_is_known(self) -> Self:
        worth = self.order.kind == "queues" and self.order.within == "worth"
        if worth and not self.dispatch.weighs_pairs:
            raise ValueError(
                f"order.within: worth is what a dispatch of kind share says, not"
                f" {self.dispatch.kind}; choose list, first_start or gittins"
            )
        return self

    @property
    def rules(self) -> tuple[AnyConstraint, ...]:
        """Its constraints, and the one that holds under every profile."""
        named = any(constraint.kind == "slices" for constraint in self.constraints)
        return self.constraints if named else (Slices(), *self.constraints)

    def pipeline(self) -> Pipeline:
        """Return the pipeline of this profile."""
        return Pipeline(self.rules, self.scorers, self.gather)


class UnknownProfileError(ValueError):
    """No profile of that name; the message lists the nearest."""


def profile_names() -> list[str]:
    """Return the names of all shipped profiles."""
    folder = files("tandem.policy") / "profiles"
    return sorted(
        f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")
    )


def load_profile(name: str) -> Profile:
    """Return the shipped profile `name`; raises UnknownProfileError, naming the nearest."""
    names = profile_names()
    if name not in names:
        near = get_close_matches(name, names, n=3)
        said = f"nearest: {', '.join(near)}" if near else f"there are {', '.join(names)}"
        raise UnknownProfileError(f"no profile {name!r}; {said}")
    text = (files("tandem.policy") / "profiles" / f"{name}.yaml").read_text()
    return Profile.model_validate(yaml.safe_load(text))
