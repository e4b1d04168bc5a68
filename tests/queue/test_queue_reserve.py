"""GPUs are reserved for a job that has waited too long, whatever other jobs wait in vain."""

from queue_builders import raw_pod
from test_queue_controller import run
from test_queue_preemption import EAGER, Training

from tandem.kube.resource import JOBS, PODS
from tandem.policy.catalog import load_profile

SMALL = {"tandem.gpu/memory": "8Gi", "tandem.gpu/utilization": "20"}
WHOLE = {"tandem.gpu/exclusive": "true"}
RESERVES = EAGER.model_copy(
    update={"reserve_after_s": 600.0, "max_preemptions_per_hour": 0, "min_run_s": 1e6}
)


class Stream(Training):
    """Four small jobs share the two GPUs at any time; one of them ends every 25 s."""

    def __init__(self) -> None:
        super().__init__(RESERVES, load_profile("tandem"))
        self.small = 0
        self.running: dict[str, float] = {}

    async def flow(self, seconds: float, until: str = "") -> float | None:
        """Let time pass; return when the job `until` began to run, in seconds from now."""
        began = self.now
        while self.now < began + seconds:
            for name in [n for n, end_s in self.running.items() if end_s <= self.now]:
                del self.running[name]
                self.api.delete(JOBS, name, "default")
                self.job_controller_deletes(name)
            self.submit(f"s{self.small}", annotations=SMALL)
            self.small += 1
            await self.pass_s(0)
            for name in (f"s{i}" for i in range(self.small)):
                exists = name not in self.running and self.pods_of(name)
                if exists and self.status(name)["phase"] == "Running":
                    self.running[name] = self.now + 100
            if until and self.status(until)["phase"] == "Running":
                return self.now - began
            await self.pass_s(25)
        return None


def test_jobs_that_no_node_can_hold_do_not_keep_one_behind_them_from_its_turn() -> None:
    cluster = Stream()

    async def scenario() -> None:
        for index in range(40):
            cluster.submit(f"never-{index:02}", gpus=3 + index)
        await cluster.flow(125)
        cluster.submit("large", gpus=2, annotations=WHOLE)
        began_s = await cluster.flow(1200, "large")
        # 600 s of waiting, and 100 s until the jobs that were there have ended.
        assert began_s is not None
        assert 600 <= began_s <= 600 + 200

    run(scenario)


def test_a_job_that_asks_for_more_cpu_than_any_node_has_does_not_keep_others_back() -> None:
    cluster = Stream()

    async def scenario() -> None:
        cluster.api.create(JOBS, {"metadata": {"name": "never"}, "spec": {}}, "default")
        raw = raw_pod("never", gpus=1, owner=("Job", "never"))
        uid = cluster.api.get(JOBS, "never", "default")["metadata"]["uid"]
        raw["metadata"]["ownerReferences"][0]["uid"] = uid
        raw["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "64"}
        cluster.api.create(PODS, raw)
        await cluster.flow(125)
        cluster.submit("large", gpus=2, annotations=WHOLE)
        began_s = await cluster.flow(1200, "large")
        assert began_s is not None
        assert 600 <= began_s <= 600 + 200

    run(scenario)


def test_gpus_are_not_reserved_beside_a_service_that_never_ends() -> None:
    """Two whole GPUs are never free again: those behind must not lose the other for nothing."""
    cluster = Training(RESERVES, load_profile("tandem"))

    async def scenario() -> None:
        service = raw_pod("service", owner=("StatefulSet", "service"))
        cluster.api.create(PODS, service)
        await cluster.pass_s(1)
        cluster.submit("large", gpus=2, annotations=WHOLE)
        for _ in range(4):
            await cluster.pass_s(200)
        assert cluster.status("large")["phase"] == "Queued"
        cluster.submit("whole", gpus=1, annotations=WHOLE)
        await cluster.pass_s(1)
        assert cluster.status("large")["phase"] == "Queued"
        assert cluster.status("whole")["phase"] == "Running"

    run(scenario)


def test_an_order_that_blocks_is_not_blocked_by_a_job_that_no_node_can_hold() -> None:
    cluster = Training(EAGER, load_profile("fifo"))

    async def scenario() -> None:
        for index in range(12):
            cluster.submit(f"never-{index:02}", gpus=3 + index)
        await cluster.pass_s(1)
        cluster.submit("two", gpus=2)
        cluster.submit("behind", gpus=1)
        for _ in range(5):
            await cluster.pass_s(1)
        assert cluster.status("two")["phase"] == "Running"
        assert cluster.status("behind")["phase"] == "Queued"
        assert "behind default/job-two" not in cluster.status("behind")["message"]

    run(scenario)
