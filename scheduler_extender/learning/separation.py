"""Separates jobs that slow each other down, by measured slowdowns: [OJPP] Alg. 4. Pure.

A job's own report counts for its own moves; others are moved only on what the agents
measured, and only so many an hour for the sake of one namespace. A job that may not be moved stays,
and no further job is placed next to it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduler_extender.cluster.records import Key
from scheduler_extender.learning.config import LearningConfig
from scheduler_extender.learning.observed import GpuKey
from tandem.policy.equations.observed import shared_out_slowdown
from tandem.policy.equations.ojpp import ewma
from tandem.reasons.counting import counted

_HOUR_S = 3600.0
#: A move has helped when the slowdown is at most this share of what it was.
_HELPED = 0.75


@dataclass(frozen=True, slots=True)
class Limits:
    """Fixed limits that keep jobs from being moved too often, besides the settings.

    These are constants of the cluster; the benchmark of [OJPP] sets those of the paper.
    """

    #: Of the moving average: a look in which a GPU is quiet does not hide that the pair is bad.
    weight_of_past: float = 0.7
    #: A GPU takes new jobs again below this share of the bound: it does not flap at the bound.
    clear_share: float = 5 / 7
    #: Memory (GiB) that the moves of one look save and load together: about one GPU's.
    max_migration_cost_gib: float = 80.0
    #: Between two moves of one job, in seconds: a job that is moved must get on in between.
    rest_s: float = 600.0
    #: Jobs of other namespaces that are moved for one namespace: no namespace drives others away.
    max_moves_of_others_per_hour: int = 2


@dataclass(frozen=True, slots=True)
class Resident:
    """A gang's worker on a shared GPU.

    `slowdown` is what counts for it (None: not known), `measured` where agents measured it against
    a time alone; `cost_gib` what a move has to save and load; `stays` why it cannot be moved.
    """

    key: Key
    slowdown: float | None
    measured: bool = False
    cost_gib: float = 0.0
    stays: str = ""
    outgrew: bool = False  # it uses more than was said of it
    busy: bool = False  # being looked after already: the next look decides

    @property
    def namespace(self) -> str:
        """Whose it is."""
        return self.key[0]


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """A GPU in use and who is on it."""

    at: GpuKey
    residents: tuple[Resident, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """A gang leaves a GPU for the sake of somebody there, possibly itself."""

    key: Key
    at: GpuKey
    neighbours: tuple[Key, ...]
    sufferer: Key
    slowdown: float
    measured: bool
    cost_gib: float


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a gang stays where it is; of no gang in particular where `key` is None."""

    why: str
    key: Key | None = None


@dataclass(slots=True)
class Looked:
    """The result of a look: moves, GPUs that take no further job (and why no job leaves)."""

    moves: list[Move] = field(default_factory=list)
    closed: dict[GpuKey, tuple[Obstacle, ...]] = field(default_factory=dict)


def blamed(predicted: Sequence[float], slowdown: float) -> list[float]:
    """Return what each neighbour on a GPU has to answer for of a job's slowdown there; 0: nothing.

    The slowdown is shared out as predicted, and those answer whose part is at least the mean. A
    job's only neighbour answers for all of it.
    """
    parts = shared_out_slowdown(np.array(predicted, dtype=np.float64), slowdown)
    answers: list[float] = np.where(parts >= parts.mean() * (1 - 1e-9), parts, 0.0).tolist()
    return answers


@dataclass(slots=True)
class _Level:
    average: float = 0.0
    over_since_s: float | None = None  # since when every observation was over the bound
    over: bool = False
    who: frozenset[Key] = frozenset()


class Separator:
    """The averages of all shared GPUs, and the moves that were made.

    It acts under the profiles of Tandem. A profile that has an adjuster is left to that:
    `queue/measuring/adjuster.py`.
    """

    def __init__(self, settings: LearningConfig, limits: Limits | None = None) -> None:
        self._settings = settings
        self._limits = limits = limits or Limits()
        #: How long the average remembers: after this time an observation counts a third (1/e).
        self.memory_s = -settings.every_s / math.log(limits.weight_of_past)
        self._clear_interference = limits.clear_share * settings.max_interference
        self._levels: dict[GpuKey, _Level] = {}
        self._moved: dict[Key, tuple[float, float]] = {}  # when, and at which slowdown
        self._closed: dict[GpuKey, tuple[Obstacle, ...]] = {}
        self._settled: set[Key] = set()  # their move did not help: not again
        self._moves: deque[tuple[float, str]] = deque()  # when, and for whose sake
        self._for_s: dict[str, deque[float]] = {}  # moves of others for a namespace's sake
        self._tenants: frozenset[str] = frozenset()  # who shares a GPU

    def level(self, at: GpuKey) -> float:
        """Return the average interference of a GPU."""
        known = self._levels.get(at)
        return known.average if known else 0.0

    def forget(self, key: Key) -> None:
        """Forget a gang that is gone."""
        self._moved.pop(key, None)
        self._settled.discard(key)

    def look(
        self,
        gpus: Sequence[SharedGpu],
        has_place: Callable[[Resident, SharedGpu], bool],
        now_s: float,
    ) -> Looked:
        """Enter what is observed now; return who moves and which GPUs take no further job."""
        looked = Looked()
        self._enter(gpus, now_s)
        levels = self._levels
        worst_first = sorted(gpus, key=lambda gpu: (-levels[gpu.at].average, gpu.at))
        left_gib = self._limits.max_migration_cost_gib
        self._tenants = frozenset(r.namespace for gpu in gpus for r in gpu.residents)
        moving: set[Key] = set()
        for gpu in worst_first[: (len(gpus) + 1) // 2]:
            if not levels[gpu.at].over or moving & {r.key for r in gpu.residents}:
                continue
            if any(resident.busy for resident in gpu.residents):
                if gpu.at in self._closed:
                    looked.closed[gpu.at] = self._closed[gpu.at]
                continue
            move, why = self._choose(gpu, has_place, left_gib, now_s)
            if move is None:
                looked.closed[gpu.at] = why
                continue
            looked.moves.append(move)
            moving.add(move.key)
            left_gib -= move.cost_gib
        self._closed = looked.closed
        return looked

    def made(self, move: Move, now_s: float) -> None:
        """Note that a move is under way."""
        self._moved[move.key] = now_s, move.slowdown
        self._moves.append((now_s, move.sufferer[0]))
        if move.key[0] != move.sufferer[0]:
            self._for_s.setdefault(move.sufferer[0], deque()).append(now_s)
        self._levels.pop(move.at, None)

    # --- the average ----------------------------------------------------------------------------

    def _enter(self, gpus: Sequence[SharedGpu], now_s: float) -> None:
        bound, weight = self._settings.max_interference, self._limits.weight_of_past
        known, self._levels = self._levels, {}
        for gpu in gpus:
            who = frozenset(resident.key for resident in gpu.residents)
            level = known.get(gpu.at)
            if level is None or level.who != who:
                level = _Level(who=who)  # what was measured was with other neighbours
            self._levels[gpu.at] = level
            slowdowns = [r.slowdown for r in gpu.residents if r.slowdown is not None]
            if len(gpu.residents) < 2 or not slowdowns:
                level.over_since_s = None
                continue
            worst = max(slowdowns)
            level.average = float(ewma(np.array(level.average), np.array(worst), weight))
            if worst <= bound:
                level.over_since_s = None
            elif level.over_since_s is None:
                level.over_since_s = now_s
            lasts = level.over_since_s is not None and now_s - level.over_since_s >= self.memory_s
            if level.average > bound and lasts:
                level.over = True
            elif level.average < self._clear_interference:
                level.over = False

    # --- who goes -------------------------------------------------------------------------------

    def _choose(
        self,
        gpu: SharedGpu,
        has_place: Callable[[Resident, SharedGpu], bool],
        left_gib: float,
        now_s: float,
    ) -> tuple[Move | None, tuple[Obstacle, ...]]:
        """Return who leaves a GPU that is over the bound, or what keeps each who is on it."""
        most = self._settings.max_moves_per_hour
        while self._moves and self._moves[0][0] < now_s - _HOUR_S:
            self._moves.popleft()
        if most <= len(self._moves):
            made = f"{counted(most, 'job')} moved within the hour"
            return None, (Obstacle(made),)
        sufferers = sorted(
            (
                r
                for r in gpu.residents
                if r.slowdown is not None and r.slowdown > self._clear_interference
            ),
            key=lambda r: (not r.measured, -(r.slowdown or 0.0), r.key),
        )
        if not sufferers:
            return None, (Obstacle("no job there is known to be slowed down now"),)
        sufferers = [each for each in sufferers if self._has_moves_left(each.namespace)]
        if not sufferers:
            why = "its namespace has used up the moves that it may have in an hour"
            return None, (Obstacle(why),)
        obstacles = []
        for resident in sorted(gpu.residents, key=lambda r: (not r.outgrew, r.cost_gib, r.key)):
            sufferer = next((s for s in sufferers if self._may_ask(s, resident, now_s)), None)
            if sufferer is None:
                obstacle = (
                    "only its neighbours themselves report that they are slow, which moves no other"
                    " job"
                )
            else:
                obstacle = self._stays(resident, now_s)
            if not obstacle and resident.cost_gib > left_gib:
                obstacle = f"its move would cost {resident.cost_gib:.0f} GiB, {left_gib:.0f} left"
            if not obstacle and not has_place(resident, gpu):
                obstacle = "there is no better place for it"
            if obstacle or sufferer is None:
                obstacles.append(Obstacle(obstacle, resident.key))
                continue
            neighbours = tuple(sorted({r.key for r in gpu.residents} - {resident.key}))
            slowdown = sufferer.slowdown or 0.0
            return Move(
                resident.key, gpu.at, neighbours, sufferer.key, slowdown, sufferer.measured,
                resident.cost_gib,
            ), ()  # fmt: skip
        return None, tuple(obstacles)

    def _has_moves_left(self, namespace: str) -> bool:
        """Say whether a namespace may ask for a move.

        While jobs of others share GPUs, it leaves as many of the hour's moves as it has had: jobs
        that move for each other's sake would otherwise use up what parts the others.
        """
        left = self._settings.max_moves_per_hour - len(self._moves)
        had = sum(name == namespace for _, name in self._moves)
        return had < left or self._tenants <= {namespace}

    def _may_ask(self, sufferer: Resident, resident: Resident, now_s: float) -> bool:
        """Say whether `resident` may be moved for the sake of `sufferer`."""
        if sufferer.namespace == resident.namespace:
            return True
        asked = self._within_hour(self._for_s.get(sufferer.namespace, deque()), now_s)
        return sufferer.measured and asked < self._limits.max_moves_of_others_per_hour

    def _stays(self, resident: Resident, now_s: float) -> str:
        if resident.stays:
            return resident.stays
        moved = self._moved.get(resident.key)
        if moved is not None:
            at_s, before = moved
            if resident.slowdown is not None and resident.slowdown > _HELPED * before:
                self._settled.add(resident.key)
            if now_s - at_s < self._limits.rest_s:
                return "it was moved a while ago"
        if resident.key in self._settled:
            return "its last move did not help"
        return ""

    @staticmethod
    def _within_hour(times: deque[float], now_s: float) -> int:
        while times and times[0] < now_s - _HOUR_S:
            times.popleft()
        return len(times)
