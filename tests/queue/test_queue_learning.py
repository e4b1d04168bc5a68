"""The learning loop on the API server in memory: bad neighbours are parted and stay apart."""

from __future__ import annotations

import asyncio
import contextlib
import re
from types import SimpleNamespace

import pytest
from queue_builders import GIB, on_the_page
from test_queue_controller import run
from test_queue_preemption import Training

from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.parsing import parse_gpu_node
from scheduler_extender.queue import cycles
from scheduler_extender.queue.pods import memory_needs
from scheduler_extender.serving.api import explanation
from tandem.kube.errors import AlreadyExists
from tandem.kube.resource import GPU_NODES, JOBS, PODS
from tandem.policy.catalog import load_profile

MODEL = {"tandem.gpu/model": "resnet50", "tandem.gpu/batch-size": "32"}
SAVES = MODEL | {"tandem.gpu/checkpoint": "true"}


class Sharing(Training):
    """Training with agents that report how much of its GPU's time each pod gets."""

    alone_percent = 90.0

    def __init__(self, profile: str = "tandem") -> None:
        super().__init__(profile=load_profile(profile))
        self.percent: dict[str, float] = {}  # by job, next to others
        self.rates: dict[str, float] = {}
        self.peak: dict[str, int] = {}
        self.held: dict[str, int] = {}
        self.out_of_memory: list[dict] = []
        self.jobs: list[str] = []

    async def predict(self, namespace, demand, gpu):
        found = await super().predict(namespace, demand, gpu)
        load = found.load.model_copy(
            update={"feature_hash": f"{demand.model}", "peak_probability": 0.1}
        )
        return found.model_copy(update={"load": load})

    def submit(self, name: str, gpus: int = 1, annotations: dict | None = None) -> None:
        given = SAVES if annotations is None else annotations
        model = {"tandem.gpu/model": name} if "tandem.gpu/model" in given else {}
        super().submit(name, gpus, given | model)
        self.jobs.append(name)

    def report(self) -> None:
        on: dict[str, list[dict]] = {}
        for pod in self.api.list(PODS):
            meta = pod["metadata"]
            job = meta["ownerReferences"][0]["name"]
            gpu = (meta.get("annotations") or {}).get("tandem.gpu/visible-devices")
            if gpu and "deletionTimestamp" not in meta and pod["status"]["phase"] == "Running":
                on.setdefault(gpu, []).append({"uid": meta["uid"], "job": job})
        gpus = []
        for index in range(2):
            uuid = f"GPU-n0-{index}"
            uses = []
            for pod in on.get(uuid, []):
                alone = len(on[uuid]) == 1
                use = {
                    "uid": pod["uid"],
                    "memoryBytes": self.held.get(pod["job"], GIB),
                    "memoryPeakBytes": self.peak.get(pod["job"], 12 * GIB),
                    "memoryBaseBytes": 10 * GIB,
                    "peakProbability": 0.1,
                    "utilisationPercent": self.alone_percent
                    if alone
                    else self.percent.get(pod["job"], self.alone_percent),
                }
                if pod["job"] in self.rates:
                    use["iterationsPerSecond"] = 2.0 if alone else self.rates[pod["job"]]
                uses.append(use)
            gpus.append({"uuid": uuid, "index": index, "model": "NVIDIA A100", "shares": 2,
                         "memoryBytes": 80 * GIB, "utilisationPercent": 100.0 if uses else 0.0,
                         "utilisationSource": "samples", "pods": uses})  # fmt: skip
        status = {"observedAt": rfc3339(self.now), "gpus": gpus, "outOfMemory": self.out_of_memory}
        self.api.patch(GPU_NODES, "n0", {"status": status}, subresource="status")

    async def live(self, seconds: float) -> None:
        """Let time pass in steps of five seconds, with a report each; Jobs answer to `suspend`."""
        for _ in range(int(seconds / 5)):
            self.report()
            await self.pass_s(5)
            for job in self.jobs:
                if self.suspended(job):
                    self.job_controller_deletes(job)
                elif not self.pods_of(job) and self.status(job)["phase"] == "Suspended":
                    self.new_pod(job, 1, SAVES | {"tandem.gpu/model": job})

    def ends(self, job: str) -> None:
        self.set_phase(self.pods_of(job)[0]["metadata"]["name"], "Succeeded")
        done = {"conditions": [{"type": "Complete", "status": "True"}]}
        self.api.patch(JOBS, job, {"status": done}, "default", subresource="status")

    def runs_out(self, job: str, held_gib: int, blamed: tuple[str, int] | None = None) -> None:
        """Let a container fail for want of GPU memory, as the agent infers it."""

        def named(job: str) -> dict:
            (pod,) = self.pods_of(job)
            meta = pod["metadata"]
            return {"namespace": "default", "pod": meta["name"], "uid": meta["uid"]}

        failed = {"container": "main", "exitCode": 1, "endedAt": rfc3339(self.now)}
        held = {"gpu": self.gpu_of(job), "memoryBytes": held_gib * GIB}
        one = named(job) | failed | held
        if blamed is not None:
            grown = {"memoryBytes": blamed[1] * GIB, "predictedBytes": 12 * GIB}
            one["blamed"] = named(blamed[0]) | grown
        self.out_of_memory.append(one)

    def gpu_of(self, job: str) -> str:
        (pod,) = self.pods_of(job)
        return (pod["metadata"].get("annotations") or {}).get("tandem.gpu/visible-devices", "")


async def paired(cluster: Sharing, **annotations: dict) -> None:
    """`a` alone for two minutes, then `b` next to it; the other GPU is taken by `c` meanwhile."""
    cluster.submit("c", annotations=annotations.get("c", {"tandem.gpu/exclusive": "true"}))
    await cluster.live(10)
    cluster.submit("a", annotations=annotations.get("a"))
    await cluster.live(120)
    cluster.submit("b", annotations=annotations.get("b"))
    await cluster.live(10)
    assert cluster.gpu_of("a") == cluster.gpu_of("b")


def test_a_bad_pair_is_parted_and_never_put_together_again() -> None:
    cluster = Sharing()
    cluster.percent = {"a": 56.25, "b": 80.0}

    async def scenario() -> None:
        await paired(cluster)
        # There is no better place as long as the other GPU is taken: no job moves.
        await cluster.live(60)
        assert cluster.gpu_of("a") == cluster.gpu_of("b")
        seen = cluster.status("a")["observed"]["slowdown"]
        assert seen == {
            "value": 0.6,
            "means": "utilisation",
            "reference": "solo",
            "estimated": True,
        }
        decisions = [d for job in ("a", "b") for d in cluster.status(job).get("decisions", [])]
        assert any(d["what"] == "Kept" and "no better place" in d["why"] for d in decisions)
        cluster.ends("c")
        await cluster.live(60)
        assert sorted([cluster.gpu_of("a"), cluster.gpu_of("b")]) == ["GPU-n0-0", "GPU-n0-1"]
        moved = [d for job in ("a", "b") for d in cluster.status(job)["decisions"]]
        assert any(d["what"] == "Moved" and "60% slower on " in d["why"] for d in moved)
        assert cluster.learned.pairs.believed("a@32", "b@32", "other") == 0.6
        await cluster.live(120)
        assert cluster.controller.learning.outcomes["Moved"] == 1
        for job in ("a", "b"):
            assert cluster.status(job)["phase"] == "Running"

    run(scenario)


def test_who_began_next_to_another_is_measured_when_that_one_has_ended() -> None:
    cluster = Sharing()
    cluster.percent = {"a": 75.0, "b": 75.0}

    async def scenario() -> None:
        await paired(cluster)
        await cluster.live(60)
        assert cluster.status("a")["observed"]["slowdown"]["value"] == 0.2
        assert "slowdown" not in (cluster.status("b").get("observed") or {})
        cluster.ends("a")
        await cluster.live(60)
        observed = cluster.status("b")["observed"]
        assert observed["neighbours"] == [{"kind": "a@32", "slowdown": 0.2, "means": "utilisation"}]

    run(scenario)


@pytest.mark.parametrize("most", [100, 1])
def test_under_guarded_a_job_that_is_too_slow_waits_where_there_is_no_better_place(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where fewer jobs may be stopped in one round than run, and others have had more."""
    monkeypatch.setattr(cycles, "_VICTIMS", most)
    cluster = Sharing("tandem-guarded")
    cluster.alone_percent, cluster.percent = 50.0, {"a": 31.25, "b": 45.0}

    async def scenario() -> None:
        saves = {"tandem.gpu/exclusive": "true", "tandem.gpu/checkpoint": "true"}
        await paired(cluster, c=saves)
        await cluster.live(40)
        assert cluster.status("a")["message"] == (
            "It gave up its GPUs and waits for others. The GPU time that it has had still counts"
            " for its place in the queue. It was too slow next to other jobs. It starts again on"
            " other GPUs."
        )
        await cluster.live(20)
        refused = "a job runs next to which one of the two was too slow before"
        assert refused in cluster.status("a")["message"]
        assert cluster.status("b")["phase"] == "Running"
        cluster.ends("c")
        await cluster.live(60)
        assert sorted([cluster.gpu_of("a"), cluster.gpu_of("b")]) == ["GPU-n0-0", "GPU-n0-1"]

    run(scenario)


def test_a_node_raises_the_need_of_its_own_pods_alone_and_to_the_memory_of_its_gpu() -> None:
    cluster = Sharing()
    tib = 1 << 40

    def needs() -> list[int]:
        return [cluster.status(job)["load"]["memoryP95Bytes"] for job in ("a", "b")]

    def stolen(**status: object) -> None:
        """Write what somebody with the credentials of another node makes up."""
        gpu = {"uuid": "GPU-n9-0", "index": 0, "model": "A GPU of theirs", "memoryBytes": tib}
        body = {"status": {"observedAt": rfc3339(cluster.now), "gpus": [gpu]} | status}
        with contextlib.suppress(AlreadyExists):
            cluster.api.create(GPU_NODES, {"metadata": {"name": "n9"}})
        cluster.api.patch(GPU_NODES, "n9", body, subresource="status")

    async def scenario() -> None:
        await paired(cluster)
        before, there = needs(), cluster.gpu_of("a")
        uids = [cluster.pods_of(job)[0]["metadata"]["uid"] for job in ("a", "b")]
        failed = {"namespace": "default", "pod": "p", "container": "main", "exitCode": 1,
                  "endedAt": rfc3339(cluster.now), "memoryBytes": tib}  # fmt: skip
        made_up = [failed | {"uid": uid, "gpu": gpu} for uid in uids for gpu in ("GPU-n9-0", there)]
        grown = {"namespace": "default", "pod": "p", "memoryBytes": tib, "predictedBytes": 1}
        made_up += [one | {"uid": "x", "blamed": grown | {"uid": one["uid"]}} for one in made_up]
        uses = [{"uid": uid, "memoryBytes": tib, "memoryPeakBytes": tib} for uid in uids]
        gpu = {"uuid": "GPU-n9-0", "index": 0, "model": "m", "memoryBytes": tib, "pods": uses}
        stolen(outOfMemory=made_up, gpus=[gpu, gpu | {"uuid": there}])
        await cluster.live(30)
        assert needs() == before
        assert cluster.status("a")["observed"]["memoryPeakBytes"] == 12 * GIB
        assert not [said for said in cluster.said if said[1] == "OutOfMemory"]
        # Of its own pods and GPUs a node is believed, up to what the GPU has.
        cluster.runs_out("a", 1024)
        await cluster.live(5)
        assert needs() == [80 * GIB, before[1]]

    run(scenario)


def test_what_a_pod_reports_moves_itself_and_needs_no_other_report() -> None:
    cluster = Sharing()
    cluster.percent = {"a": 90.0, "b": 90.0}
    cluster.rates = {"a": 0.2}

    async def scenario() -> None:
        await paired(cluster)
        await cluster.live(60)
        assert cluster.learned.pairs.believed("a@32", "b@32", "default") > 0.35
        assert cluster.learned.pairs.believed("a@32", "b@32", "other") is None

    run(scenario)


def test_who_saves_no_checkpoint_stays_and_no_job_joins() -> None:
    cluster = Sharing()
    cluster.percent = {"a": 56.25, "b": 80.0}

    async def scenario() -> None:
        await paired(cluster, a=MODEL, b=MODEL)
        await cluster.live(60)
        assert cluster.gpu_of("a") == cluster.gpu_of("b")
        row = cluster.state.table.row_of["n0", cluster.gpu_of("a")]
        assert cluster.state.gpus.shares[row] == 1
        assert "saves no checkpoint" in cluster.status("a")["decisions"][-1]["why"]
        # The pair is known all the same, and gets over it: others may join again.
        assert cluster.learned.pairs.believed("a@32", "b@32", "other") > 0.35
        cluster.percent = {}
        await cluster.live(60)
        assert cluster.state.gpus.shares[row] == 2

    run(scenario)


@pytest.mark.parametrize("first", ["a", "c"])
def test_the_pair_that_was_observed_last_is_kept_whichever_job_is_closed_last(first: str) -> None:
    """A GPUJob is closed when its Job is read as complete, which is seconds after its pods' end."""
    cluster = Sharing()
    cluster.rates = {"a": 0.2, "c": 0.2}
    cluster.learned.pairs._per_namespace = 1
    last = {"a": "c", "c": "a"}[first]

    async def scenario() -> None:
        for name in ("a", "c"):
            cluster.submit(name, annotations=MODEL)
            await cluster.live(10)
        assert cluster.gpu_of("a") != cluster.gpu_of("c")
        await cluster.live(120)
        for name in ("b", "d"):
            cluster.submit(name, annotations=MODEL)
        await cluster.live(60)
        at = {cluster.gpu_of(name): name for name in ("b", "d")}
        pairs = {name: (f"{name}@32", f"{at[cluster.gpu_of(name)]}@32") for name in ("a", "c")}
        # The pod that ends first belongs to the Job that is seen to be complete last.
        cluster.set_phase(cluster.pods_of(first)[0]["metadata"]["name"], "Succeeded")
        await cluster.live(30)
        assert cluster.status(first)["phase"] == "Running"
        cluster.ends(last)
        await cluster.live(10)
        cluster.ends(first)
        await cluster.live(90)
        for name in ("a", "c"):
            assert cluster.status(name)["observed"]["remembered"], name
        kept = {(row[0], row[1]) for row in cluster.learned.pairs.stored()}
        assert kept == {pairs[last]}

    run(scenario)


def test_memory_that_is_measured_counts_while_it_runs_and_its_end_is_reported_once() -> None:
    cluster = Sharing()
    cluster.peak = {"a": 60 * GIB}

    async def scenario() -> None:
        cluster.submit("a")
        await cluster.live(90)
        worker = cluster.state.gpu_jobs()["default", "job-a"].worker
        assert worker.memory_peak_gib == 60
        row = cluster.state.table.row_of["n0", cluster.gpu_of("a")]
        assert cluster.state.gpus.memory_base_gib[row] == 10
        assert cluster.state.gpus.memory_peak_extra_gib[row] == 50
        cluster.ends("a")
        await cluster.live(20)
        (shown,) = cluster.feedback
        assert (shown.model, shown.batch_size, shown.memory_peak_bytes) == ("a", 32, 60 * GIB)
        assert shown.utilisation_percent == 90.0
        assert cluster.status("a")["observed"]["remembered"]

    run(scenario)


def test_who_outgrew_its_prediction_answers_for_a_failure_for_want_of_memory() -> None:
    cluster = Sharing()

    async def scenario() -> None:
        await paired(cluster)
        before = {job: cluster.status(job)["load"] for job in ("a", "b")}
        cluster.runs_out("a", 12, blamed=("b", 60))
        await cluster.live(20)
        assert cluster.status("a")["load"] == before["a"]
        after = cluster.status("b")["load"]
        assert after["memoryP95Bytes"] == 66 * GIB  # what it held, and a tenth
        assert after["memorySource"] == "observed"
        (shown,) = [d for d in cluster.status("b")["decisions"] if d["what"] == "OutOfMemory"]
        assert on_the_page(re.sub(r" n\d/\d ", " n0/0 ", shown["why"]))
        assert shown["why"].startswith("ran out of GPU memory on ")
        assert shown["why"].endswith(
            "(inferred by the node agent): it held 60.0 GiB; its next run is placed with 66.0 GiB"
        )
        assert all(d["what"] != "OutOfMemory" for d in cluster.status("a")["decisions"])

    run(scenario)


def test_where_no_job_outgrew_the_one_that_failed_asks_for_more_once() -> None:
    cluster = Sharing()

    async def scenario() -> None:
        await paired(cluster)
        cluster.runs_out("a", 79)
        await cluster.live(60)  # the agent tells of it again and again
        load = cluster.status("a")["load"]
        assert load["memoryP95Bytes"] == 80 * GIB  # no more than the GPU has
        shown = [d for d in cluster.status("a")["decisions"] if d["what"] == "OutOfMemory"]
        assert len(shown) == 1

    run(scenario)


@pytest.mark.parametrize(
    ("message", "limit", "held_gib", "asks_gib"),
    [
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB", "", 8, 74.8),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate", "", 8, 74.8),
        ("MemoryError: the host has no more", "", 8, None),
        # It kept to a limit of 20 GiB: the next one is 30, and the headroom of a tenth.
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate", "0.25", 20, 33),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate", "0.25", 40, 74.8),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate", "none", 20, 74.8),
    ],
)
def test_a_container_that_says_that_gpu_memory_ran_out_asks_for_what_was_there(
    message: str, limit: str, held_gib: int, asks_gib: float | None
) -> None:
    """[Horus] 4.4: the GPU need not have been full, since the allocation that failed is not seen.

    It has 80 GiB, of which the other job holds 12.
    """
    cluster = Sharing()

    cluster.held["b"] = 12 * GIB
    cluster.held["a"] = cluster.peak["a"] = held_gib * GIB

    async def scenario() -> None:
        await paired(cluster)
        before = cluster.status("a")["load"]["memoryP95Bytes"]
        (pod,) = cluster.pods_of("a")
        ended = {"exitCode": 1, "finishedAt": rfc3339(cluster.now), "message": message}
        states = [{"name": "main", "lastState": {"terminated": ended}}]
        name, limits = pod["metadata"]["name"], {"tandem.gpu/memory-fraction": limit}
        cluster.api.patch(PODS, name, {"metadata": {"annotations": limits}}, "default")
        cluster.api.patch(
            PODS, name, {"status": {"containerStatuses": states}}, "default", subresource="status"
        )
        await cluster.live(45)
        load = cluster.status("a")["load"]
        shown = [d for d in cluster.status("a")["decisions"] if d["what"] == "OutOfMemory"]
        if asks_gib is None:
            assert load["memoryP95Bytes"] == before
            assert not shown
            return
        assert load["memoryP95Bytes"] / GIB == pytest.approx(asks_gib)
        assert len(shown) == 1
        assert "reported by its container" in shown[0]["why"]

    run(scenario)


def test_a_job_says_why_it_is_where_it_is_and_what_was_measured_since() -> None:
    cluster = Sharing()
    cluster.percent = {"a": 56.25, "b": 80.0}

    async def scenario() -> None:
        await paired(cluster, a=MODEL, b=MODEL)
        await cluster.live(60)
        (pod,) = cluster.pods_of("a")
        record = cluster.state.pod_named("default", pod["metadata"]["name"])
        assert record is not None
        shown = explanation(cluster.state, load_profile("tandem").pipeline(), record)
        (here,) = shown["here"]
        assert here["gpu"] == cluster.gpu_of("a")
        says = {each["constraint"]: (each["allows"], each["says"]) for each in here["constraints"]}
        assert says["memory_capacity"][0]
        assert "GiB" in says["memory_capacity"][1]
        assert says["memory_collision"][0]
        assert "5% allowed" in says["memory_collision"][1]
        assert set(here["scores"]) == {"horus_cost", "in_use_first"}
        assert shown["prediction"]["memorySource"] == "formula"
        assert shown["observed"]["slowdown"]["value"] == 0.6
        assert shown["observed"]["slowdown"]["reference"] == "solo"
        kept, placed = shown["decisions"][0], shown["decisions"][-1]
        assert (kept["what"], placed["what"]) == ("Kept", "Placed")
        assert "saves no checkpoint" in kept["why"]
        assert re.search(r"n0/\d: places 0 of 2; memory \d+\.\d GiB needed", placed["why"])
        assert "predicted:" in placed["why"]

    run(scenario)


def test_a_tenant_whose_containers_often_run_out_makes_no_other_one_count_twice() -> None:
    """An agent reports an end again and again; only so many ends are remembered."""
    taken: list[str] = []

    class Placed:
        """Every pod is where its node says; none has a GPUJob that could be written."""

        def runs_on(self, uid: str, node: str, gpu: str) -> bool:
            return True

        def gang_of(self, uid: str) -> SimpleNamespace:
            return SimpleNamespace(key=("mallory" if uid[0] == "m" else "honest", uid), record=None)

    counted = memory_needs.OutOfMemories(None, Placed(), lambda: 1e9)  # type: ignore[arg-type] # nothing is written

    def reported(uids: list[str]) -> None:
        ends = [
            {"gpu": "g0", "namespace": "honest", "pod": uid, "uid": uid, "container": "main",
             "exitCode": 1, "endedAt": rfc3339(1e9), "memoryBytes": GIB}
            for uid in uids
        ]  # fmt: skip
        status = {"observedAt": rfc3339(1e9), "gpus": [], "outOfMemory": ends}
        metadata = {"name": "n0", "uid": "n0", "resourceVersion": "1"}
        counted.take(parse_gpu_node({"metadata": metadata, "status": status}))
        taken.extend(one.uid for one, *_ in counted._new)
        asyncio.run(counted.step())

    reported(["victim"])
    for first in range(0, 6000, 16):
        reported([f"m{number}" for number in range(first, first + 16)])
    reported(["victim"])
    assert taken.count("victim") == 1
    assert len(taken) == 6001
