"""In a cluster of several types of GPU, a job is predicted and priced for the type it may get."""

from __future__ import annotations

from typing import Any

from queue_builders import GIB, load, raw_pod
from test_queue_controller import Cluster, run

from tandem.contracts.prediction import InterferenceAnswer, PairSlowdown, Prediction
from tandem.contracts.resources import Demand, Load, Source
from tandem.kube.resource import GPU_NODES, NODES, PODS
from tandem.policy.catalog import load_profile

SLOW, FAST = "Tesla P100-PCIE-16GB", "Tesla V100-SXM2-16GB"


class Mixed(Cluster):
    """Three nodes of a slow GPU and one of a fast one; a pair gets along on the fast one alone."""

    def __init__(self) -> None:
        super().__init__(profile=load_profile("ojpp"), shares=16)
        self.asked: list[tuple[str, str]] = []
        for name, model in (("s0", SLOW), ("s1", SLOW), ("s2", SLOW), ("f0", FAST)):
            labels = {"type": model[:10].replace(" ", "-")}
            self.api.create(
                NODES,
                {
                    "metadata": {"name": name, "labels": labels},
                    "status": {"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"}},
                },
            )
            gpu = {
                "uuid": f"GPU-{name}", "index": 0, "model": model, "memoryBytes": 32 * GIB,
                "shares": 16,
            }  # fmt: skip
            status = {"observedAt": "2027-01-15T08:00:00Z", "gpus": [gpu]}
            self.api.create(GPU_NODES, {"metadata": {"name": name}, "status": status})

    async def predict(self, namespace: str, demand: Demand, gpu: Any, steps: int = 1) -> Prediction:
        self.asked.append((demand.model or "", gpu.model))
        rates = {
            "feature_hash": demand.model, "iteration_s": 1.0, "compute_share": 0.3,
            "bandwidth_share": 0.3,
        }  # fmt: skip
        return Prediction(load=load(5, 1, 0.01).model_copy(update=rates), explanation="as said")

    async def interference(self, job: Load, candidates: list[Load], gpu: Any) -> InterferenceAnswer:
        slowdown = 0.05 if gpu.model == FAST else 3.0
        pair = PairSlowdown(job_slowdown=slowdown, partner_slowdown=slowdown)
        return InterferenceAnswer(pairs=[pair for _ in candidates], source=Source.MODEL)

    async def start(self, name: str, model: str | None) -> None:
        asks = {"tandem.gpu/model": name.rstrip("0123456789"), "tandem.gpu/batch-size": "8"}
        only = {"nodeSelector": {"type": model[:10].replace(" ", "-")}} if model else {}
        self.api.create(PODS, raw_pod(name, annotations=asks, **only))
        await self.cycle()
        await self.cycle()


def test_a_job_that_may_run_on_one_type_alone_is_predicted_for_it() -> None:
    cluster = Mixed()

    async def scenario() -> None:
        await cluster.start("picky", FAST)
        await cluster.start("easy", None)
        assert cluster.asked == [("picky", FAST), ("easy", SLOW)]
        assert cluster.gpujob("pod-picky")["status"]["load"]["gpuModel"] == FAST

    run(scenario)


def test_a_pair_is_priced_on_the_type_on_which_it_would_meet() -> None:
    """Both pairs are of one model; on the slow type they would slow each other down fourfold."""
    cluster = Mixed()

    async def scenario() -> None:
        for name in ("m1", "m2"):
            await cluster.start(name, FAST)
        assert not cluster.gated("m2")
        for name in ("m3", "m4", "m5", "m6"):
            await cluster.start(name, SLOW)
        # Three slow GPUs, each with one of them.
        assert [cluster.gated(name) for name in ("m3", "m4", "m5", "m6")] == [
            False, False, False, True,
        ]  # fmt: skip

    run(scenario)
