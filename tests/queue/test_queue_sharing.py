"""What the live dispatch does in a cluster: micro-batches, moves, a place for the large."""

import itertools
import json
from typing import Any

import pytest
from queue_builders import GIB, load, raw_pod
from test_queue_controller import Cluster, run
from test_queue_preemption import EAGER, SAVES, Training

from scheduler_extender.cluster.slowdowns import KINDS_PER_NAMESPACE
from scheduler_extender.learning.config import LearningConfig
from scheduler_extender.learning.learned_state import believing
from scheduler_extender.verbs.answers import Verbs
from tandem.contracts.prediction import InterferenceAnswer, PairSlowdown, Prediction
from tandem.contracts.resources import Source
from tandem.kube.resource import JOBS, PODS
from tandem.policy.catalog import load_profile
from tandem.policy.job import Job
from tandem.reasons.causes import Cause, Reason


class Models(Cluster):
    """A batch of 64 takes 10 + 50 GiB; each halving halves the peak and stretches an iteration."""

    async def predict(self, namespace: str, demand: Any, gpu: Any, steps: int = 1) -> Prediction:
        part = demand.batch_size // steps
        about = load(10, 50 * part / 64).model_copy(
            update={
                "iteration_s": 0.2 + 0.8 * part / 64,
                "utilisation_percent": 30.0,
            }
        )
        return Prediction(load=about, explanation="by the formula")


def batch(size: int, **more: str) -> dict[str, str]:
    annotations = {"tandem.gpu/model": "m", "tandem.gpu/iterations": "10000"}
    return annotations | {"tandem.gpu/batch-size": f"{size}"} | more


def test_who_may_accumulate_shares_in_micro_batches_where_the_batch_would_not_fit() -> None:
    profile = load_profile("sjf-bsbf")
    cluster = Models(profile=profile)
    cluster.add_node("n0")

    async def scenario() -> None:
        cluster.api.create(PODS, raw_pod("first", annotations=batch(16)))
        await cluster.cycle()
        cluster.bind_as_planned("first")
        cluster.api.create(PODS, raw_pod("fixed", annotations=batch(64)))
        await cluster.cycle()
        assert "82.5 GiB needed" in cluster.gpujob("pod-fixed")["status"]["message"]
        splits = raw_pod("splits", annotations=batch(64) | {"tandem.gpu/accumulation": "true"})
        cluster.api.create(PODS, splits)
        await cluster.cycle()
        status = cluster.gpujob("pod-splits")["status"]
        offered = {each["steps"]: each["stretch"] for each in status["subBatches"]}
        # Down to one item: [SJF-BSBF] Alg. 2.
        assert offered == pytest.approx({2**k: 0.8 + 0.2 * 2**k for k in range(1, 7)})
        assert status["plan"]["accumulationSteps"] == 2
        # The verbs look at the job as it will run: the same node passes, and what it takes counts.
        cluster.state.check()
        pod = cluster.pod("splits")
        verbs = Verbs(cluster.state, profile.pipeline())
        asked = json.loads(verbs.filter({"Pod": pod, "NodeNames": ["n0"]}))
        assert asked["NodeNames"] == ["n0"]
        gpus = cluster.state.gpus
        assert (gpus.memory_base_gib + gpus.memory_peak_sum_gib)[:1].tolist() == [22.5 + 35]
        assert cluster.gated("fixed")

    run(scenario)


class Talking(Models):
    """The pods of a gang exchange `message_bytes` once an iteration."""

    message_bytes = 0

    async def predict(self, namespace: str, demand: Any, gpu: Any, steps: int = 1) -> Prediction:
        found = await super().predict(namespace, demand, gpu, steps)
        message = {"message_bytes": self.message_bytes}
        return found.model_copy(update={"load": found.load.model_copy(update=message)})


@pytest.mark.parametrize(
    ("message_bytes", "stretch", "shares"), [(0, 1.2, False), (1_250_000_000, 1.1, True)]
)
def test_a_gang_that_exchanges_much_pays_less_for_micro_batches(
    message_bytes: int, stretch: float, shares: bool
) -> None:
    """[SJF-BSBF] Eq. (3), (4), (7): 0.2 s more of a whole second, or of two with the exchange."""
    cluster = Talking(profile=load_profile("sjf-bsbf"))
    cluster.message_bytes = message_bytes
    cluster.add_node("n0", gpus=2)

    async def scenario() -> None:
        for name in ("first", "second"):
            cluster.api.create(PODS, raw_pod(name, annotations=batch(16)))
            await cluster.cycle()
            cluster.bind_as_planned(name)
        asks = batch(64) | {"tandem.gpu/iterations": "20000", "tandem.gpu/accumulation": "true"}
        for rank in range(2):
            gang = {"tandem.gpu/gang": "g", "tandem.gpu/gang-size": "2"}
            cluster.api.create(PODS, raw_pod(f"g-{rank}", annotations=asks | gang))
        await cluster.cycle()
        status = cluster.gpujob("gang-g")["status"]
        assert status["subBatches"][0]["stretch"] == pytest.approx(stretch)
        assert cluster.gated("g-0") is not shares

    run(scenario)


class Heavy(Models):
    """A batch of 64 takes most of a GPU's rates, and disturbs; half of it takes few."""

    async def predict(self, namespace: str, demand: Any, gpu: Any, steps: int = 1) -> Prediction:
        part = demand.batch_size // steps
        whole = part == 64
        found = await super().predict(namespace, demand, gpu, steps)
        rates = {
            "iteration_s": 0.2 + 0.8 * part / 64,
            "compute_share": 0.9 if whole else 0.3,
            "bandwidth_share": 0.1,
            "utilisation_percent": 90.0 if whole else 30.0,
            "memory_peak_extra_bytes": GIB,
            "memory_p95_bytes": 11 * GIB,
        }
        return Prediction(load=found.load.model_copy(update=rates), explanation="as said")

    async def interference(self, job, candidates, gpu) -> InterferenceAnswer:
        pairs = []
        for other in candidates:
            slowdown = 9.0 if job.compute_share + other.compute_share > 1 else 0.05
            pairs.append(PairSlowdown(job_slowdown=slowdown, partner_slowdown=slowdown))
        return InterferenceAnswer(pairs=pairs, source=Source.MODEL)


@pytest.mark.parametrize("accumulation", [False, True])
def test_a_sub_batch_is_priced_by_what_it_takes_itself(accumulation: bool) -> None:
    """[SJF-BSBF] Alg. 2: each sub-batch has an interference of its own; memory would do here."""
    cluster = Heavy(profile=load_profile("sjf-bsbf"))
    cluster.add_node("n0")

    async def scenario() -> None:
        cluster.api.create(PODS, raw_pod("first", annotations=batch(16)))
        await cluster.cycle()
        cluster.bind_as_planned("first")
        asks = batch(64) | {"tandem.gpu/accumulation": str(accumulation).lower()}
        cluster.api.create(PODS, raw_pod("splits", annotations=asks))
        await cluster.cycle()
        await cluster.cycle()
        assert cluster.gated("splits") is not accumulation
        plan = cluster.gpujob("pod-splits")["status"].get("plan") or {}
        assert plan.get("accumulationSteps", 1) == (2 if accumulation else 1)
        cluster.state.check()

    run(scenario)


def test_a_declared_need_raises_the_micro_batches_as_well() -> None:
    """60 GiB are predicted for the whole batch and 90 declared: half as much again in any steps."""

    class Declared(Models):
        async def predict(
            self, namespace: str, demand: Any, gpu: Any, steps: int = 1
        ) -> Prediction:
            found = await super().predict(namespace, demand, gpu, steps)
            declared = demand.declared_memory_bytes
            if declared is None:
                return found
            more = {"memory_p95_bytes": declared, "memory_source": Source.DECLARED}
            return found.model_copy(update={"load": found.load.model_copy(update=more)})

    cluster = Declared(profile=load_profile("sjf-bsbf"))
    cluster.add_node("n0")

    async def scenario() -> None:
        given = {"tandem.gpu/accumulation": "true", "tandem.gpu/memory": "90Gi"}
        cluster.api.create(PODS, raw_pod("splits", annotations=batch(64) | given))
        await cluster.cycle()
        parts = cluster.gpujob("pod-splits")["status"]["subBatches"]
        peaks = {each["steps"]: each["memoryPeakBytes"] / GIB for each in parts}
        halves = {2**k: 1.5 * (10 + 50 / 2**k) for k in range(1, 7)}
        assert peaks == pytest.approx(halves)

    run(scenario)


@pytest.mark.long
def test_a_stream_of_small_jobs_does_not_starve_one_that_needs_whole_gpus() -> None:
    """The default profile fills every share as it falls free; `reserve_after_s` ends that."""
    settings = EAGER.model_copy(update={"reserve_after_s": 600.0, "max_preemptions_per_hour": 0})
    cluster = Training(settings, load_profile("tandem"))
    small = {"tandem.gpu/memory": "8Gi", "tandem.gpu/utilization": "20"}
    began: list[float] = []

    async def scenario() -> None:
        start = cluster.now
        running: list[tuple[float, str]] = []
        for index in range(40):
            # Four at a time on two GPUs, for 100 s each, one ending every 25 s: never a free GPU.
            for end_s, name in [each for each in running if each[0] <= cluster.now]:
                running.remove((end_s, name))
                cluster.api.delete(JOBS, name, "default")
                cluster.job_controller_deletes(name)
            cluster.submit(f"s{index}", annotations=small)
            if index == 4:
                cluster.submit("large", gpus=2, annotations={"tandem.gpu/exclusive": "true"})
            await cluster.pass_s(0)
            for name in [f"s{i}" for i in range(index + 1)]:
                known = {each for _, each in running}
                exists = any(cluster.pods_of(name))
                if name not in known and exists and cluster.status(name)["phase"] == "Running":
                    running.append((cluster.now + 100, name))
            if not began and index > 4 and cluster.status("large")["phase"] == "Running":
                began.append(cluster.now - start)
            cluster.state.tick(cluster.now)
            await cluster.pass_s(25)

    run(scenario)
    # 100 s after it came the GPUs were full; 600 s of waiting, and 100 s until all there had ended.
    assert began
    assert 700 <= began[0] <= 700 + 150


def test_a_gang_that_is_kept_apart_gets_other_neighbours() -> None:
    cluster = Training(EAGER, load_profile("tandem"))
    cluster.add_node("n1", gpus=1)
    light = SAVES | {"tandem.gpu/memory": "8Gi", "tandem.gpu/utilization": "20"}

    def gpu_of(job: str) -> str:
        (pod,) = cluster.pods_of(job)
        return pod["metadata"]["annotations"]["tandem.gpu/visible-devices"]

    async def scenario() -> None:
        for name in ("a", "b", "c", "d"):
            cluster.submit(name, annotations=light)
            await cluster.pass_s(1)
        neighbour = next(name for name in ("a", "b", "c") if gpu_of(name) == gpu_of("d"))
        controller = cluster.controller
        key, other = ("default", "job-d"), ("default", f"job-{neighbour}")
        controller._anti_affinity.apart(key, other, controller._clock())
        gang = controller.gangs.by_key[key]
        slow = Cause(Reason.SLOWED_DOWN, value=0.6)
        controller.work.do(key, controller.preempter.begin(gang, slow))
        await cluster.pass_s(0)
        assert cluster.suspended("d")
        assert "(60% slower than alone)" in cluster.status("d")["message"]
        cluster.job_controller_deletes("d")
        await cluster.pass_s(1)
        cluster.new_pod("d", 1, light)
        await cluster.pass_s(1)
        assert cluster.status("d")["phase"] == "Running"
        assert gpu_of("d") != gpu_of(neighbour)

    run(scenario)


def test_a_plan_that_was_refused_is_made_elsewhere_and_then_less_and_less_often() -> None:
    cluster = Cluster()
    for name in ("n0", "n1"):
        cluster.add_node(name)
    plans: list[tuple[float, str]] = []

    async def scenario() -> None:
        cluster.api.create(PODS, raw_pod("p", annotations={"tandem.gpu/model": "resnet50"}))
        start = cluster.now
        while cluster.now < start + 300:
            await cluster.cycle()
            plan = cluster.gpujob("pod-p")["status"].get("plan")
            if plan and (not plans or plan["madeAt"] != made[-1]):
                made.append(plan["madeAt"])
                plans.append((cluster.now - start, plan["pods"][0]["node"]))
            cluster.now += 1
            cluster.state.tick(cluster.now)

    made: list[str] = []
    run(scenario)
    assert [node for _, node in plans[:2]] == ["n0", "n1"]
    gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(plans)]
    assert gaps[0] < 34  # the life of a plan, and on to the other node at once
    assert gaps[1] >= 35
    assert gaps[2] >= 40
    assert gaps == sorted(gaps)


def test_a_skewed_model_is_kept_on_one_node_and_an_even_one_fills_the_gaps() -> None:
    """[Tiresias] 3.3.1, from the graph: what the largest tensor holds of the model."""

    class Graphs(Cluster):
        async def predict(self, namespace: str, demand: Any, gpu: Any) -> Prediction:
            skew = {"skewed": 0.8, "even": 0.2}[demand.model]
            about = load().model_copy(update={"tensor_skew": skew})
            return Prediction(load=about, explanation="by its graph")

    def nodes(cluster: Cluster, model: str) -> set[str]:
        gang = {"tandem.gpu/gang": model, "tandem.gpu/gang-size": "2", "tandem.gpu/model": model}
        for index in range(2):
            cluster.api.create(PODS, raw_pod(f"{model}-{index}", annotations=gang))
        run(cluster.cycle)
        plan = cluster.gpujob(f"gang-{model}")["status"]["plan"]
        return {pod["node"] for pod in plan["pods"]}

    for model, expected in (("skewed", {"n2"}), ("even", {"n0", "n1"})):
        cluster = Graphs(profile=load_profile("tiresias-l"))
        for name, gpus in (("n0", 1), ("n1", 1), ("n2", 2)):
            cluster.add_node(name, gpus=gpus)
        assert nodes(cluster, model) == expected


class Steady(Cluster):
    """Jobs without peaks of memory."""

    async def predict(self, namespace: str, demand: Any, gpu: Any) -> Prediction:
        return Prediction(load=load(8, 0, 0.0), explanation="by the formula")


def test_with_three_shares_the_queue_and_the_verbs_count_every_resident() -> None:
    """40 % each: by the formula a pair costs 0.21, which the bar of 0.73 allows, and three 0.42."""
    profile = load_profile("tandem-guarded")
    cluster = Steady(profile=profile, shares=3)
    cluster.add_node("n0")

    async def scenario() -> None:
        for name in "abc":
            cluster.api.create(PODS, raw_pod(name, annotations={"tandem.gpu/model": name}))
            for _ in range(3):
                await cluster.cycle()
            if name != "c":
                cluster.bind_as_planned(name)
        refused = "one of the jobs would run too slowly next to the other (42% slower, 37% allowed)"
        assert refused in cluster.gpujob("pod-c")["status"]["message"]
        # A pod that comes to the verbs without a plan meets the same bar.
        verbs = Verbs(cluster.state, believing(profile, LearningConfig()).pipeline())
        asked = json.loads(verbs.filter({"Pod": cluster.pod("c"), "NodeNames": ["n0"]}))
        assert not asked["NodeNames"]
        assert refused in json.dumps(asked)

    run(scenario)


def test_a_round_releases_the_kinds_that_no_job_uses_and_no_others() -> None:
    class Kinds(Cluster):
        async def predict(self, namespace: str, demand: Any, gpu: Any) -> Prediction:
            about = load(8, 0, 0.0).model_copy(update={"feature_hash": demand.model})
            return Prediction(load=about, explanation="by its graph")

    cluster = Kinds(profile=load_profile("tandem"))
    cluster.add_node("n0")
    slowdowns = cluster.state.slowdowns

    def class_of(name: str) -> int:
        claims = cluster.state.ledger.counting().values()
        return next(c.job.interference_class for c in claims if c.job.id == f"default/pod-{name}")

    async def scenario() -> None:
        for name in "abcd":
            given = {"tandem.gpu/model": name, "tandem.gpu/batch-size": "8"}
            cluster.api.create(PODS, raw_pod(name, annotations=given))
            for _ in range(3):
                await cluster.cycle()
            if name in "ab":
                cluster.bind_as_planned(name)
        before = {name: class_of(name) for name in "ab"}
        for number in range(200):
            job = Job(id="default/x", model=f"gone{number}", gpu_utilisation=40.0)
            slowdowns.of(job)
        assert slowdowns.kinds == KINDS_PER_NAMESPACE
        for _ in range(3):
            await cluster.cycle()
        # a and b run, c and d wait.
        assert slowdowns.kinds < KINDS_PER_NAMESPACE
        assert {f"{name}@8" for name in "abcd"} <= set(slowdowns.models)
        assert {name: class_of(name) for name in "ab"} == before
        cluster.state.check()

    run(scenario)
