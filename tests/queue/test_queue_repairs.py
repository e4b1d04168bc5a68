"""The adjuster of the live profile decides on what is measured, as it does in the simulator."""

from __future__ import annotations

from queue_builders import GIB
from test_queue_controller import run
from test_queue_learning import MODEL, Sharing
from test_queue_preemption import EAGER, Training

from tandem.contracts.prediction import Prediction
from tandem.policy.adjust.migrate import Migrate
from tandem.policy.catalog import Profile, load_profile


def ojpap(**adjust: object) -> Profile:
    profile = load_profile("ojpap")
    return profile.model_copy(update={"adjust": Migrate(every_s=10, **adjust)})  # type: ignore[arg-type]


class Adjusted(Sharing):
    """One node of two GPUs under a profile with an adjuster; `base` is GiB by job."""

    alone_percent = 36.0

    def __init__(self, profile: Profile, **base: float) -> None:
        self.base = base
        Training.__init__(self, EAGER, profile)
        self.percent, self.rates, self.peak, self.held = {}, {}, {}, {}
        self.jobs, self.out_of_memory = [], []

    async def predict(self, namespace, demand, gpu) -> Prediction:
        found = await super().predict(namespace, demand, gpu)
        changes: dict = {"utilisation_percent": 35.0, "iteration_s": 0.5}
        if demand.model in self.base:
            changes["memory_base_bytes"] = int(self.base[demand.model] * GIB)
        return found.model_copy(update={"load": found.load.model_copy(update=changes)})

    def decisions(self, job: str, what: str) -> list[str]:
        return [d["why"] for d in self.status(job).get("decisions", []) if d["what"] == what]


async def a_pair_and_a_third(cluster: Adjusted, **asks: dict) -> None:
    """`a` and `b` share a GPU, `c` is on the other; `a` was measured alone before."""
    cluster.submit("x", annotations={"tandem.gpu/exclusive": "true"})
    await cluster.live(10)
    cluster.submit("a", annotations=asks.get("a"))
    await cluster.live(60)
    cluster.submit("b", annotations=asks.get("b"))
    await cluster.live(10)
    cluster.ends("x")
    await cluster.live(10)


def test_ojpap_moves_the_cheapest_worker_to_the_gpu_in_use_that_has_most_room() -> None:
    """[OJPP] Alg. 4: the moving average passes the bound, the least cost moves."""
    cluster = Adjusted(ojpap(), a=10, b=4)
    cluster.percent = {"a": 22.5}

    async def scenario() -> None:
        await a_pair_and_a_third(cluster)
        assert cluster.gpu_of("a") == cluster.gpu_of("b")
        # An empty GPU is no place for it: the adjuster moves workers to GPUs in use only.
        await cluster.live(60)
        assert cluster.gpu_of("a") == cluster.gpu_of("b")
        place = cluster.gpu_of("a")
        cluster.submit("c")
        await cluster.live(60)
        assert cluster.gpu_of("a") == place
        assert cluster.gpu_of("b") == cluster.gpu_of("c") != place
        (why,) = cluster.decisions("b", "Moved")
        assert why.startswith(("other jobs were too slow next to it", "it was too slow next to"))
        assert not cluster.decisions("a", "Moved")

    run(scenario)


def test_pab_sends_a_slow_newcomer_back_to_wait_for_a_gpu_of_its_own() -> None:
    """[Horus] PAB: after 60 s, a newcomer at less than half of its speed is queued again."""
    cluster = Adjusted(load_profile("pab"))
    cluster.rates = {"b": 0.8}  # iterations per second, of 2 when it is alone

    async def scenario() -> None:
        cluster.submit("c", annotations={"tandem.gpu/exclusive": "true"})
        await cluster.live(10)
        cluster.submit("a", annotations=MODEL)
        await cluster.live(10)
        cluster.submit("b")
        await cluster.live(50)
        assert cluster.gpu_of("a") == cluster.gpu_of("b")
        await cluster.live(40)
        status = cluster.status("b")
        assert status["alone"]
        assert status["reason"] == "Waiting"
        assert "a job runs that does not share its GPU" in status["message"]
        (why,) = cluster.decisions("b", "Moved")
        assert "it was too slow next to other jobs (150% slower than alone)" in why
        cluster.ends("c")
        await cluster.live(20)
        assert cluster.gpu_of("b") not in ("", cluster.gpu_of("a"))
        # No job joins it there, and it is not sent back again.
        cluster.submit("e")
        await cluster.live(80)
        assert cluster.gpu_of("e") == cluster.gpu_of("a")
        assert len(cluster.decisions("b", "Moved")) == 1

    run(scenario)


def test_a_newcomer_that_saves_no_checkpoint_stays() -> None:
    """Ours: a job that would lose its work is not stopped, whatever the profile."""
    cluster = Adjusted(load_profile("pab"))
    cluster.rates = {"b": 0.8}

    async def scenario() -> None:
        cluster.submit("c", annotations={"tandem.gpu/exclusive": "true"})
        await cluster.live(10)
        cluster.submit("a", annotations=MODEL)
        await cluster.live(10)
        cluster.submit("b", annotations=MODEL)
        await cluster.live(150)
        assert cluster.gpu_of("a") == cluster.gpu_of("b")

    run(scenario)
