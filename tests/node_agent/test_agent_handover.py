"""A GPU goes from one way of handing it over to another when no pod has it by the first."""

from datetime import UTC, datetime

import pytest

from node_agent.dra.devices import devices, inventory
from node_agent.dra.label import LabelReader
from node_agent.extenderpods import ExtenderPods
from node_agent.handover import DRA, DRA_QUEUE, ENVIRONMENT, SETTLE_S, UNKNOWN, HandOver, way_of
from node_agent.monitor import WAY_CONDITION
from tandem.contracts.claims import QUEUE_TAINT
from tandem.contracts.names import HAND_OVER_LABEL
from tandem.contracts.nodepods import NodeHolds, NodePodList
from tandem.contracts.resources import GPU, GPUNodeStatus
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import NODES

START_S = 1_700_000_000.0
G, H = "GPU-a", "GPU-b"


class Extender:
    """Says by which way pods have the GPUs; `seen_s` is the time of the report that it has."""

    def __init__(self) -> None:
        self.now_s = START_S
        self.said = None
        self.asked = 0

    def says(self, **more):
        self.said = NodeHolds(**{"leads": True, "report_s": self.now_s, "by_others": [], **more})

    def ask(self):
        self.asked += 1


def stamp(now_s):
    text = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


class World:
    """Two GPUs of one node, and the extender."""

    def __init__(self, way=ENVIRONMENT) -> None:
        self.extender = Extender()
        self.hand_over = self.agent(way)
        self.look()

    def agent(self, way):
        return HandOver(way, lambda: self.extender.said, self.extender.ask)

    def look(self, seconds=1.0):
        self.extender.now_s += seconds
        now_s = self.extender.now_s
        return self.hand_over.look((G, H), now_s, stamp(now_s))

    def moves(self, way):
        self.hand_over.target = way
        return self.look()


PAIRS = [(old, new) for old in (ENVIRONMENT, DRA, DRA_QUEUE)
         for new in (ENVIRONMENT, DRA, DRA_QUEUE) if old != new]  # fmt: skip
HELD = {ENVIRONMENT: "by_environment", DRA_QUEUE: "by_claims", DRA: "by_others"}


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_a_gpu_goes_over_when_its_last_pod_of_the_old_way_has_left(old, new):
    world = World(old)
    found = world.moves(new)
    assert {each.way for each in found.values()} == {old}
    assert all(each.closed.startswith(f"it moves from {old} to {new}") for each in found.values())
    world.extender.says(**{HELD[old]: [G]})
    found = world.look(SETTLE_S)
    assert (found[G].way, found[H].way) == (old, new)
    assert "is to end first" in found[G].closed or "are to end first" in found[G].closed
    assert found[H].closed == ""
    world.extender.says()
    found = world.look()
    assert [(each.way, each.closed) for each in found.values()] == [(new, "")] * 2


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_nothing_goes_over_before_the_leader_has_seen_the_gpus_closed(old, new):
    world = World(old)
    world.extender.says()  # before the label has changed
    world.look(SETTLE_S)
    found = world.moves(new)
    assert {each.way for each in found.values()} == {old}
    found = world.look(2 * SETTLE_S)
    assert {each.way for each in found.values()} == {old}, "what was said before does not count"
    world.extender.says(leads=False)
    assert world.look()[G].way == old
    world.extender.says()
    assert world.look()[G].way == new


@pytest.mark.parametrize("new", [ENVIRONMENT, DRA_QUEUE])
def test_from_dra_late_allocations_of_kube_scheduler_are_awaited(new):
    world = World(DRA)
    world.moves(new)
    world.extender.says()
    assert "may be allocating" in world.look()[G].closed
    world.extender.says(by_others=[G])
    found = world.look(SETTLE_S)
    assert (found[G].way, found[H].way) == (DRA, new)


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_what_needs_claims_does_not_go_over_where_the_extender_does_not_know_them(old, new):
    world = World(old)
    world.moves(new)
    world.extender.says(by_others=None)
    if new != DRA_QUEUE and old != DRA:
        assert world.look(2 * SETTLE_S)[G].closed == ""
        return
    assert "admission.gpu_claims" in world.look(2 * SETTLE_S)[G].closed


@pytest.mark.parametrize("old", [ENVIRONMENT, DRA_QUEUE])
def test_to_dra_nothing_that_is_planned_goes_over(old):
    """Between the queue's ways a plan stays: its claim is written anew before it is bound."""
    world = World(old)
    world.moves(DRA)
    world.extender.says(planned=[G])
    found = world.look()
    assert (found[G].way, found[H].way) == (old, DRA)
    other = World(old)
    other.moves(DRA_QUEUE if old == ENVIRONMENT else ENVIRONMENT)
    other.extender.says(planned=[G])
    assert other.look()[G].closed == ""


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_a_pod_whose_claim_is_not_known_keeps_its_gpu_where_it_is(old, new):
    world = World(old)
    world.moves(new)
    world.extender.says(unknown=[G])
    assert world.look(2 * SETTLE_S)[G].way == old


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_a_label_that_changes_back_opens_what_has_not_gone_over(old, new):
    world = World(old)
    world.moves(new)
    world.extender.says(**{HELD[old]: [G]})
    assert world.look(SETTLE_S)[H].way == new
    found = world.moves(old)
    assert (found[G].way, found[G].closed) == (old, "")
    assert (found[H].way, bool(found[H].closed)) == (new, True)
    world.extender.says(**{HELD[old]: [G]})
    found = world.look(SETTLE_S)
    assert [(each.way, each.closed) for each in found.values()] == [(old, "")] * 2


def test_a_gpu_is_closed_again_where_a_pod_was_bound_by_the_way_of_before():
    """By a leader that took over and did not know the last report yet."""
    for way, held in ((ENVIRONMENT, "by_claims"), (DRA_QUEUE, "by_environment"),
                      (DRA, "by_environment"), (DRA, "by_claims")):  # fmt: skip
        world = World(way)
        world.extender.says(**{held: [G]})
        found = world.look()
        assert (found[G].way, bool(found[G].closed), found[H].closed) == (way, True, "")


def test_the_extender_is_asked_soon_only_while_something_may_follow_from_it():
    world = World()
    world.look()
    assert world.extender.asked == 0
    world.moves(DRA_QUEUE)
    assert world.extender.asked == 1
    world.look(3600)
    assert world.extender.asked == 1, "a long job is not asked about every other second"


def report(**ways):
    given = {ENVIRONMENT: (2, None), DRA_QUEUE: (2, 2), DRA: (0, 2), UNKNOWN: (0, 0)}
    gpus = [
        GPU(uuid=uuid, index=i, model="m", memory_bytes=1,
            shares=given[way][0], dra_shares=given[way][1])
        for i, (uuid, way) in enumerate(ways.items())
    ]  # fmt: skip
    return GPUNodeStatus(observed_at=stamp(START_S), gpus=gpus)


@pytest.mark.parametrize("way", [ENVIRONMENT, DRA_QUEUE, DRA, UNKNOWN])
def test_the_way_of_a_gpu_follows_from_its_report(way):
    assert way_of(report(**{G: way}).gpus[0]) == way


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_an_agent_that_starts_in_the_middle_goes_on(old, new):
    world = World(old)
    world.moves(new)
    world.extender.says(**{HELD[old]: [G]})
    world.look(SETTLE_S)
    # Closed devices are reported in the same way, of the queue and of kube-scheduler.
    before = UNKNOWN if old in (DRA, DRA_QUEUE) else old
    world.hand_over = world.agent(new)
    world.hand_over.remember(GPUNodeStatus.model_validate(
        report(**{G: before, H: new}).model_dump()
    ))  # fmt: skip
    found = world.look()
    assert (found[G].way, found[H].way) == (before, new)
    assert found[G].closed
    assert found[H].closed == ""
    world.extender.says(**{HELD[old]: [G]})
    assert world.look(SETTLE_S)[G].way == before
    world.extender.says()
    assert world.look(SETTLE_S)[G].way == new


def test_a_label_that_changed_while_no_agent_ran_is_followed_in_the_same_way():
    world = World()
    world.hand_over = world.agent(DRA_QUEUE)
    world.hand_over.remember(report(**{G: ENVIRONMENT, H: ENVIRONMENT}))
    world.extender.says()
    assert world.look()[G].closed
    world.extender.says(by_environment=[G])
    found = world.look()
    assert (found[G].way, found[H].way) == (ENVIRONMENT, DRA_QUEUE)


def test_where_the_earlier_report_cannot_be_read_the_extender_decides():
    world = World()
    world.hand_over = world.agent(DRA_QUEUE)
    world.hand_over.remember(None)
    assert world.look()[G].closed
    world.extender.says(by_claims=[G], by_environment=[H])
    found = world.look(SETTLE_S)
    assert (found[G].way, found[G].closed) == (DRA_QUEUE, "")
    assert found[H].closed


def test_without_an_extender_the_way_is_that_of_the_start():
    hand_over = HandOver(DRA)
    hand_over.remember(report(**{G: ENVIRONMENT}))
    assert hand_over.look([G], 0.0, stamp(START_S))[G].way == DRA
    hand_over.target = ENVIRONMENT
    assert hand_over.look([G], 99.0, stamp(START_S))[G].way == DRA


# --- the label ------------------------------------------------------------------------------------


def test_the_label_is_followed_and_what_cannot_be_followed_keeps_the_way():
    api = MemoryCluster()
    hand_over = HandOver(None, lambda: None)
    reader = LabelReader(api, "n0", hand_over)
    reader.look()
    assert (hand_over.target, hand_over.trouble) == (None, "")
    found = hand_over.look([G], 0.0, stamp(START_S))[G]
    assert (found.way, bool(found.closed)) == (ENVIRONMENT, True)
    api.create(NODES, {"metadata": {"name": "n0"}})

    def labelled(value):
        api.patch(NODES, "n0", {"metadata": {"labels": {HAND_OVER_LABEL: value}}})
        reader.look()

    reader.look()
    assert hand_over.target == ENVIRONMENT
    labelled(DRA_QUEUE)
    assert hand_over.target == DRA_QUEUE
    labelled("dra_queue")
    assert hand_over.target == DRA_QUEUE
    assert "hand-over=dra_queue" in hand_over.trouble
    labelled(None)
    assert (hand_over.target, hand_over.trouble) == (ENVIRONMENT, "")
    api.delete(NODES, "n0")
    reader.look()
    assert (hand_over.target, hand_over.trouble) == (ENVIRONMENT, "")


def test_only_a_leader_says_who_has_gpus():
    said = [NodePodList(pods=[], holds=NodeHolds(leads=True, planned=[G]))]
    pods = ExtenderPods(lambda: said[-1].json_bytes())
    assert pods.refresh()
    assert pods.holds.planned == [G]
    said.append(NodePodList(pods=[], holds=NodeHolds()))
    assert pods.refresh()
    said.append(NodePodList(pods=[]))  # of an earlier version
    assert pods.refresh()
    assert pods.holds.planned == [G]


# --- the report -----------------------------------------------------------------------------------


def closing(node, old, new):
    """Return an agent whose GPU-a stays with the old way, and whose GPU-b goes over."""
    agent = node(hand_over=old, shares=4)
    extender = Extender()
    agent.monitor.hand_over = HandOver(old, lambda: extender.said, extender.ask)
    agent.run(1)
    agent.monitor.hand_over.target = new
    agent.run(1)
    extender.now_s = agent.driver.now_s
    extender.says(**{HELD[old]: [G]})
    agent.run(SETTLE_S)
    return agent


FIGURES = {ENVIRONMENT: (4, None), DRA_QUEUE: (4, 4), DRA: (0, 4)}


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_what_is_reported_and_published_in_the_middle(node, old, new):
    agent = closing(node, old, new)
    stays, moved = agent.gpu(0), agent.gpu(1)
    assert (stays.shares, stays.dra_shares) == (0, None if old == ENVIRONMENT else 0)
    assert stays.shares_reason.startswith(f"it moves from {old} to {new}: ")
    assert (moved.shares, moved.dra_shares) == FIGURES[new]
    # Claims of the old way are prepared as before, and no new one finds the device.
    assert ("gpu-a" in inventory(agent.report())) == (old != ENVIRONMENT)
    published = {each["name"]: each.get("taints", []) for each in devices(agent.report(), {})}
    assert published.keys() == ({"gpu-b"} if new != ENVIRONMENT else set())
    if new == DRA_QUEUE:
        assert [taint["key"] for taint in published["gpu-b"]] == [QUEUE_TAINT]
    elif new == DRA:
        assert not published["gpu-b"]


def test_a_label_that_is_no_way_is_a_condition(node):
    agent = node()
    agent.monitor.hand_over.trouble = "Node n0 has the label tandem.gpu/hand-over=x."
    agent.run(1)
    (found,) = (each for each in agent.report().conditions if each.type == WAY_CONDITION)
    assert (found.status, found.message) == ("False", agent.monitor.hand_over.trouble)
    assert agent.gpu().shares == 2
