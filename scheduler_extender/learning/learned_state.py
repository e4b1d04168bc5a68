"""Learned state that outlives jobs: what a run leaves for the next run of its kind."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import kind_of_model, seconds
from scheduler_extender.cluster.pair_slowdowns import PairSlowdowns, PlacementHistory
from scheduler_extender.cluster.records import GpuJobRecord, Key
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.cluster.writes import Writer
from scheduler_extender.learning.config import LearningConfig
from scheduler_extender.learning.history_store import Stored
from scheduler_extender.learning.run_history import LEAST_S, RunHistory, feedback, in_steps_kind
from tandem.contracts.learning import Observed
from tandem.contracts.prediction import Feedback, Prediction
from tandem.contracts.resources import Source
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
    bar of the dispatch, too, and keep apart what was learned not to get along. That is an infinite
    slowdown, which every finite bound refuses: `Apart` is for profiles without a bound.
    """
    bounds = (rule.compiled() or {} for rule in profile.constraints)
    bound = min((each.get("max_interference", math.inf) for each in bounds), default=math.inf)
    added: list[Interference | Apart] = []
    if profile.dispatch.least_speed > 0:
        most = 1 / profile.dispatch.least_speed - 1 + _ROUNDING
        if most < bound:
            added.append(Interference(max_interference=most))
            bound = most
    if settings.mode == "act" and _weighs_pairs(profile) and bound == math.inf:
        added.append(Apart())
    return profile.model_copy(update={"constraints": (*profile.constraints, *added)})


log = logging.getLogger(__name__)


@dataclass(eq=False)
class NextRuns:
    """Reads and fills the learned state. `observed` is what is known of the gangs that run.

    `tell` sends the predictor what was observed of a model; True when it took it.
    """

    _learned: LearnedState
    _state: ClusterState
    _writer: Writer
    _settings: LearningConfig
    _observed: dict[Key, Observed]
    _tell: Callable[[Feedback], Awaitable[bool]] | None

    def earlier(self, gang: Gang, prediction: Prediction) -> Prediction:
        """Return the prediction, or what earlier runs by the same command were seen to use.

        For jobs without a model, by which they would be known; where the command says something
        else each time, nothing is said.
        """
        record = gang.record
        source = prediction.load.memory_source
        if record is None or source not in (Source.WHOLE_GPU, Source.DECLARED):
            return prediction
        demand, kind, gpu = (
            record.spec.demand,
            kind_of_record(record),
            self._state.gpu_kind(next(iter(gang.pods.values()), None)),
        )
        if demand.exclusive or demand.model is not None or gpu is None:
            return prediction
        load = self._learned.memory.load(gang.key[0], kind, gpu.model, demand)
        if load is None:
            return prediction
        runs = self._learned.memory.runs_of(gang.key[0], kind, gpu.model)
        return Prediction(
            load=load, explanation=f"as observed in {runs} runs of the same image and command"
        )

    def end(self, gang: Gang) -> Awaitable[None] | None:
        """Return what is to be done about a gang that has ended: its history goes on, once."""
        record = gang.record
        if record is None or record.status.observed is None:
            return None
        if record.status.observed.remembered:
            self._observed.pop(gang.key, None)
            return None
        return self._remember(gang, record, record.status.observed)

    async def _remember(self, gang: Gang, record: GpuJobRecord, seen: Observed) -> None:
        # Not when the end was noticed: a Job says that it is complete seconds after its pods' end,
        # and of two jobs the one that ended first may say so last.
        at_s = seconds(seen.at)
        self._learned.memory.enter(gang.key[0], seen, at_s)
        self._enter_placement(record, seen, at_s)
        if seen.slowdown is not None:
            for neighbour in seen.neighbours:
                if neighbour.slowdown > self._settings.max_interference / 2:
                    self._learned.pairs.enter(
                        seen.kind,
                        neighbour.kind,
                        gang.key[0],
                        neighbour.slowdown,
                        at_s,
                        measured=neighbour.means == "utilisation",
                    )
        said = feedback(gang.key[0], record.spec.demand, seen)
        if said is not None and self._tell is not None and not await self._tell(said):
            log.info("observation not taken gpujob=%s/%s", *gang.key)
        done = seen.model_copy(update={"remembered": True})
        self._observed[gang.key] = done
        status = record.status.model_copy(update={"observed": done})
        await self._writer.write_status(gang, status)

    def _enter_placement(self, record: GpuJobRecord, seen: Observed, at_s: float) -> None:
        """Note how fast a gang ran where it was, if its model's skew is known."""
        load, rate = record.status.load, seen.solo_iterations_per_second
        if load is None or load.tensor_skew is None or seen.spread is None or not rate:
            return
        if seen.seconds < LEAST_S or not seen.kind:
            return
        kind = in_steps_kind(seen.kind, seen.accumulation_steps)
        of = (record.namespace, kind, seen.gpu_model, record.spec.gpus)
        self._learned.placements.enter(of, load.tensor_skew, rate, at_s, spread=seen.spread)


def kind_of_record(record: GpuJobRecord) -> str:
    """Return by what a GPUJob's runs are known: its model, else its container's fingerprint."""
    return kind_of_model(record.spec, record.status.load)
