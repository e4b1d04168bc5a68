"""A job that starved runs again within the wait that the rule states, whatever waits next to it."""

import pytest
from test_queue_controller import run
from test_queue_preemption import EAGER, SAVES, Training, tiresias

from tandem.kube.resource import JOBS

LIMIT_S = 12.0
SHORT_S = 2.0
CYCLE_S = 0.5


class Stream(Training):
    """A long job of two GPUs and a stream of short ones; `backlog` of these wait at any time."""

    def __init__(self, backlog: int, within: str) -> None:
        order = {"promote_knob": 1.0, "starve_limit_s": LIMIT_S, "within": within}
        super().__init__(EAGER, tiresias(6.0, **order))
        self.backlog = backlog
        self.made = 0
        self.waiting: list[str] = []
        self.ends: dict[str, float] = {}

    async def step(self) -> None:
        """Let half a second pass: short jobs end and come, the pods of the long one go and come."""
        self.now += CYCLE_S
        self.state.tick(self.now)
        for name in [name for name, end_s in self.ends.items() if end_s <= self.now]:
            del self.ends[name]
            self.api.delete(JOBS, name, "default")
            self.job_controller_deletes(name)
        while len(self.waiting) < self.backlog:
            self.made += 1
            self.waiting.append(f"s{self.made}")
            self.submit(self.waiting[-1], gpus=2, annotations={})
        if self.suspended("long"):
            self.job_controller_deletes("long")
        elif not self.pods_of("long"):
            self.new_pod("long", 2, SAVES)
        await self.pass_s(0)
        for name in list(self.waiting):
            if self.status(name)["phase"] == "Running":
                self.waiting.remove(name)
                self.ends[name] = self.now + SHORT_S


@pytest.mark.long
@pytest.mark.parametrize("backlog", [2, 20])
@pytest.mark.parametrize("within", ["list", "first_start"])
def test_a_starved_job_is_promoted_in_time_and_starts_next(backlog: int, within: str) -> None:
    cluster = Stream(backlog, within)
    seen: dict[str, float] = {}

    async def scenario() -> None:
        began = cluster.now
        cluster.submit("long", gpus=2)
        await cluster.pass_s(0)
        while cluster.now < began + 120 and "again" not in seen:
            await cluster.step()
            status = cluster.status("long")
            if status["phase"] == "Suspended":
                seen.setdefault("suspended", cluster.now)
            if status.get("promotedGpuSeconds"):
                seen.setdefault("promoted", cluster.now)
            if "promoted" in seen and status["phase"] == "Running":
                seen["again"] = cluster.now

    run(scenario)
    assert LIMIT_S <= seen["promoted"] - seen["suspended"] <= LIMIT_S + CYCLE_S
    # Only the job that has the GPUs at that moment ends before it starts.
    assert seen["again"] - seen["promoted"] <= SHORT_S + CYCLE_S
