"""The pods of a gang end one by one: whose its GPUs are meanwhile."""

from test_queue_controller import run
from test_queue_preemption import SAVES, Training

from tandem.contracts import names
from tandem.kube.resource import PODS

PAIR = SAVES | {names.GANG_SIZE: "2"}


class Ending(Training):
    """Two GPUs: a pair has them, another pair waits, and a single pod behind it."""

    async def fill(self) -> None:
        for name, pods in (("ending", 2), ("pair", 2), ("single", 1)):
            self.submit(name, annotations=PAIR if pods == 2 else SAVES)
            if pods == 2:
                self.new_pod(name, 1, PAIR)
            await self.pass_s(2)
        assert self.phases() == ["Running", "Queued", "Queued"]

    def phases(self) -> list[str]:
        return [self.status(name)["phase"] for name in ("ending", "pair", "single")]

    def end_one(self) -> None:
        running = [p for p in self.pods_of("ending") if p["status"]["phase"] == "Running"]
        body = {"status": {"phase": "Succeeded"}}
        name = running[0]["metadata"]["name"]
        self.api.patch(PODS, name, body, "default", subresource="status")


def test_who_waits_for_all_gpus_of_a_gang_that_ends_does_not_lose_the_first_of_them() -> None:
    cluster = Ending()

    async def scenario() -> None:
        await cluster.fill()
        cluster.end_one()
        await cluster.pass_s(1)
        assert cluster.phases() == ["Running", "Queued", "Queued"]
        cluster.end_one()
        await cluster.pass_s(1)
        assert cluster.phases()[1:] == ["Running", "Queued"]

    run(scenario)


def test_a_straggler_is_not_waited_for() -> None:
    cluster = Ending()

    async def scenario() -> None:
        await cluster.fill()
        cluster.end_one()
        await cluster.pass_s(1)
        assert cluster.phases() == ["Running", "Queued", "Queued"]
        await cluster.pass_s(3)
        assert cluster.phases() == ["Running", "Queued", "Running"]

    run(scenario)
