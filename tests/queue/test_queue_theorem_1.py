"""[SJF-BSBF] Theorem 1 live: shares, or waits, as a replay with the true times finds best.

On the API server in memory: for each pair an agent's reports, predictions that err or do not, the
queue's own plan. The replay knows what is true and tries both.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from test_queue_controller import GIB, Cluster
from test_queue_preemption import EAGER, Training
from theorem_pairs import Pair, drawn, replayed_mean_s

from scheduler_extender.cluster.jobs import rfc3339
from tandem.contracts.prediction import InterferenceAnswer, PairSlowdown, Prediction
from tandem.contracts.resources import Demand, Load, Source
from tandem.kube.resource import GPU_NODES, PODS
from tandem.policy.catalog import load_profile

PAIRS = 200
ALONE_S = 60.0  # for which the first has run when the second comes


class Live(Training):
    """One GPU; the first job tells an iteration a second while it is alone."""

    def __init__(self, pair: Pair) -> None:
        Cluster.__init__(self, profile=load_profile("sjf-bsbf"), settings=EAGER)
        self.pair = pair
        self.pods = 0
        self.add_node("n0", gpus=1)

    async def predict(self, namespace: str, demand: Demand, gpu: Any, steps: int = 1) -> Prediction:
        which = int(demand.model or "0")
        said = Load(
            utilisation_percent=60, utilisation_p95_percent=60, memory_base_bytes=10 * GIB,
            memory_peak_extra_bytes=0, peak_probability=0, memory_p95_bytes=10 * GIB,
            utilisation_source=Source.FORMULA, memory_source=Source.FORMULA,
            feature_hash=demand.model or "", iteration_s=self.pair.said_iteration_s[which],
            compute_share=0.5, bandwidth_share=0.5,
        )  # fmt: skip
        return Prediction(load=said, explanation="with its error")

    async def interference(self, job, candidates, gpu) -> InterferenceAnswer:
        pairs = []
        for other in candidates:
            one, two = int(job.feature_hash), int(other.feature_hash)
            own, caused = (self.pair.said_ratio[which] - 1 for which in (one, two))
            pairs.append(PairSlowdown(job_slowdown=own, partner_slowdown=caused))
        return InterferenceAnswer(pairs=pairs, source=Source.MODEL)

    def start(self, which: int, iterations: float) -> None:
        asks = {
            "tandem.gpu/model": str(which), "tandem.gpu/batch-size": "32",
            "tandem.gpu/iterations": str(round(iterations)),
        }  # fmt: skip
        self.submit(f"j{which}", annotations=asks)

    def report(self) -> None:
        pods = [pod for pod in self.api.list(PODS) if pod.get("status", {}).get("phase")]
        uses = [
            {"uid": pod["metadata"]["uid"], "memoryBytes": GIB, "iterationsPerSecond": 1.0}
            for pod in pods
        ]
        gpu = {
            "uuid": "GPU-n0-0", "index": 0, "model": "NVIDIA A100", "memoryBytes": 80 * GIB,
            "shares": 2, "utilisationPercent": 60.0, "pods": uses,
        }  # fmt: skip
        status = {"observedAt": rfc3339(self.now), "gpus": [gpu]}
        self.api.patch(GPU_NODES, "n0", {"status": status}, subresource="status")

    async def joins(self) -> bool:
        self.start(0, self.pair.left_s[0] + ALONE_S)
        await self.pass_s(0)
        for _ in range(3):
            self.report()
            await self.pass_s(ALONE_S / 3)
        self.start(1, self.pair.left_s[1])
        await self.pass_s(0)
        assert self.status("j0")["phase"] == "Running"
        return bool(self.status("j1")["phase"] != "Queued")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "least"),
    [
        (0.0, 0.95),  # what is predicted is true, as where runs have corrected it
        (0.07, 0.85),  # mean error of predicted speeds and iterations; the theorem itself: 0.93
    ],
)
def test_the_live_decision_is_that_of_a_replay_with_true_times(
    error: float, least: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    right = shared = 0
    for _ in range(PAIRS):
        pair = drawn(rng, error)
        best = replayed_mean_s(pair, shares=True) < replayed_mean_s(pair, shares=False)
        decided = asyncio.run(Live(pair).joins())
        right += decided == best
        shared += decided
    print(f"{right} of {PAIRS} decisions as the replay; {shared} shared")
    assert 0.2 * PAIRS < shared < 0.8 * PAIRS
    assert right >= least * PAIRS


@pytest.mark.parametrize(
    ("left_s", "ratio", "together_s", "in_turn_s"),
    [((10, 10), 1.4, 14, 15), ((10, 10), 1.6, 16, 15), ((10, 4), 2, 11, 12), ((4, 10), 2, 11, 9)],
)
def test_the_replay_by_worked_numbers(
    left_s: tuple[float, float], ratio: float, together_s: float, in_turn_s: float
) -> None:
    pair = Pair(left_s, (ratio, ratio), (ratio, ratio), (1.0, 1.0))
    assert replayed_mean_s(pair, shares=True) == pytest.approx(together_s)
    assert replayed_mean_s(pair, shares=False) == pytest.approx(in_turn_s)
