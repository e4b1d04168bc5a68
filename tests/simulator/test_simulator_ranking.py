"""The ranking that is kept from round to round is that of the keys, worked out anew."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.policy.catalog import load_profile
from tandem.policy.ordering.ranking import Ranking
from tandem.simulator.cluster import gpu_arrays, parse_cluster
from tandem.simulator.engine import Engine
from tandem.simulator.jobs import TraceJob
from tandem.simulator.world import plain_world


class Compared(Engine):
    """Before each round it ranks all jobs in the system by their keys."""

    rounds = 0

    def _round(self) -> None:
        now_s, history = self._board.now_s, self._board.history
        assert isinstance(self._state, Ranking)
        kept = self._state.rank(self._arrays, now_s, history)
        anew = self._order.rank(self._arrays, np.sort(kept), now_s, history)
        assert kept.tolist() == anew.tolist()
        arrived = np.array([job.submit_s for job in self.trace]) <= now_s
        assert set(kept.tolist()) == set(np.flatnonzero(arrived & self._open()).tolist())
        self.rounds += 1
        super()._round()

    def _open(self) -> np.ndarray:
        return np.isnan(self.outcome.end_s)


@pytest.mark.parametrize("name", ["tiresias-l", "tiresias-l-promote"])
@pytest.mark.parametrize("seed", range(3))
def test_the_ranking_that_is_kept_is_the_one_worked_out_anew(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    submit = np.sort(rng.integers(0, 20_000, size=120))
    jobs = [
        TraceJob(str(i), float(s), int(rng.choice([1, 2, 4])), float(rng.integers(30, 9000)))
        for i, s in enumerate(submit)
    ]
    profile = load_profile(name)
    gpus = gpu_arrays((parse_cluster("2x4"),), shares=profile.max_jobs_per_gpu)
    world = plain_world(jobs, gpus)
    engine = Compared(jobs, world.believed, gpus, profile, world.truth, seed=seed)
    outcome = engine.run()
    assert engine.rounds > 200
    assert outcome.preemptions.sum() > 0
