"""Rounds in which nothing has happened decide nothing new: no profile flaps."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.policy.catalog import load_profile, profile_names
from tandem.simulator.cluster import gpu_arrays, parse_cluster
from tandem.simulator.engine import Engine
from tandem.simulator.gavel import PairMatrix
from tandem.simulator.jobs import TraceJob
from tandem.simulator.world import measured_world

MODELS = 6
EXTRA = 6  # rounds in which a round's own consequences may still be drawn: who left made room


class Insistent(Engine):
    """After each round it asks again, until nothing changes; it counts how often."""

    asked = 0

    def _round(self) -> None:
        super()._round()
        dispatch = self.profile.dispatch
        for extra in range(EXTRA + 1):
            ranked = self._state.rank(self._arrays, self._board.now_s, self._board.history)
            if not dispatch.preempts:
                ranked = ranked[~self._arrays.running[ranked]]
            dispatch(self._board, ranked, self._pipeline, self._order.blocks)
            if not self._carry_out():
                break
            self._state.settle(self._arrays.running)
            self.asked = max(self.asked, extra + 1)


def pairs(rng: np.random.Generator) -> PairMatrix:
    """Pairs that all fit, from nearly undisturbed to more than twice as slow."""
    slowdown = rng.uniform(0.02, 1.4, (MODELS, MODELS))
    return PairMatrix(tuple(f"model {i}" for i in range(MODELS)), slowdown)


def jobs(rng: np.random.Generator) -> list[TraceJob]:
    """Gangs and single jobs, more than there is room for."""
    submit = np.sort(rng.uniform(0, 20_000, size=60))
    return [
        TraceJob(
            str(i),
            float(submit[i]),
            int(rng.choice([1, 1, 2, 4, 6])),
            float(np.exp(rng.normal(7.5, 1.2))),
            memory_base_gib=float(rng.uniform(1, 5)),
        )
        for i in range(60)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", profile_names())
def test_asked_again_at_once_a_profile_soon_changes_nothing(name: str) -> None:
    rng = np.random.default_rng(7)
    profile = load_profile(name)
    gpus = gpu_arrays([parse_cluster("2x4")], shares=profile.max_jobs_per_gpu)
    world = measured_world(
        jobs(rng), gpus, pairs(rng), seed=7, belief_error=0.07, preemption_cost_s=0.0
    )
    engine = Insistent(world.trace, world.believed, gpus, profile, world.truth, seed=7)
    engine.run()
    assert engine.asked <= EXTRA
