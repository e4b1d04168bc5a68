"""An agent that starts while its API server is away offers its GPUs once that is back."""

import contextlib
import threading
import time

import pytest

from node_agent.app import Agent
from node_agent.config import AgentSettings
from node_agent.handover import DRA_QUEUE, ENVIRONMENT, SETTLE_S, HandOver
from node_agent.publish import WriteError
from node_agent.stub import StubGpu
from tandem.contracts.nodepods import NodeHolds
from tandem.contracts.resources import GPU, GPUNodeStatus

STAMP = "2026-01-02T03:04:05Z"
GIB = 1 << 30


class Api:
    """Keeps one GPUNode, and answers nothing until it is back."""

    def __init__(self, before=None):
        self.there = threading.Event()
        self.tried = threading.Event()
        self.gpu_node = before
        self.written = []

    def read(self, node):
        self.tried.set()
        if not self.there.is_set():
            raise WriteError("away")
        return self.gpu_node

    def write(self, node, gpu_node):
        self.written.append(GPUNodeStatus.model_validate(gpu_node["status"]))


def object_of(**gpu):
    fields = {"uuid": "GPU-a", "index": 0, "model": "Tesla T4", "memory_bytes": 16 * GIB} | gpu
    status = GPUNodeStatus(observed_at=STAMP, gpus=[GPU(**fields)])
    return {"metadata": {"name": "n0"}, "status": status.wire()}


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def start(driver, proc, monkeypatch):
    """Start an agent at an API; its extender lets plans allocate no claims unless `claims`."""
    monkeypatch.setattr("node_agent.publish.RETRY_MIN_S", 0.05)
    monkeypatch.setattr("node_agent.publish.FIRST_READ_S", 0.1)
    driver.state.gpus = [StubGpu("GPU-a")]
    driver.apply()
    with contextlib.ExitStack() as stack:

        def begin(api, way=ENVIRONMENT, **said):
            holds = NodeHolds(leads=True, report_s=time.time() + 3600, **said)
            settings = AgentSettings(
                node="n0", proc=proc.root, sys=proc.root / "sys",
                interval_s=0.1, memory_interval_s=0.05, report_interval_s=0.2,
            )  # fmt: skip
            agent = Agent(
                settings, api, ("127.0.0.1", 0), hand_over=HandOver(way, holds=lambda: holds)
            )
            thread = threading.Thread(target=agent.run)
            thread.start()
            stack.callback(thread.join, 60)
            stack.callback(agent.stop)
            return agent

        yield begin


@pytest.mark.parametrize("before", [None, object_of(shares=2)])
def test_what_was_reported_is_read_before_it_is_replaced(start, before):
    api = Api(before)
    agent = start(api)
    assert api.tried.wait(60)
    wait_for(lambda: agent.latest is not None and agent.latest.gpus)
    assert agent.latest.gpus[0].shares == 0
    assert api.written == [], "it would take the place of what is not known yet"
    wait_for(lambda: agent._publisher.failed > 0)  # as TandemAgentReportsFail counts
    api.there.set()
    wait_for(lambda: api.written)
    assert [(gpu.uuid, gpu.shares, gpu.dra_shares) for gpu in api.written[0].gpus] == [
        ("GPU-a", 2, None)
    ]


def test_a_gpu_of_another_way_is_closed_by_the_first_report(start):
    """Which is only safe by what the earlier one said: a pod may have it by a claim."""
    api = Api(object_of(shares=0, dra_shares=2))
    start(api)
    api.there.set()
    wait_for(lambda: api.written)
    (gpu,) = api.written[0].gpus
    assert (gpu.shares, gpu.dra_shares) == (0, 0)
    assert "moves from dra to environment" in gpu.shares_reason


@pytest.mark.parametrize("dra_shares", [None, 2])
def test_the_ways_are_taken_from_a_report_of_another_version(start, dra_shares):
    before = object_of(shares=2, dra_shares=dra_shares)
    before["status"]["gpus"][0]["health"] = "Melancholic"
    api = Api(before)
    api.there.set()
    start(api, DRA_QUEUE if dra_shares else ENVIRONMENT)
    wait_for(lambda: api.written)
    (gpu,) = api.written[0].gpus
    assert (gpu.shares, gpu.dra_shares) == (2, dra_shares)


def test_a_label_that_could_not_be_read_closes_no_gpu_to_the_next_agent():
    first = HandOver(None, holds=lambda: None)
    first.remember_ways({})
    handed = first.look(["GPU-a"], 0.0, STAMP)["GPU-a"]
    assert (handed.way, bool(handed.closed)) == (ENVIRONMENT, True)
    said = NodeHolds(leads=True, report_s=2e9, by_others=None)
    second = HandOver(ENVIRONMENT, holds=lambda: said)
    second.remember_ways({"GPU-a": handed.way})
    assert second.look(["GPU-a"], SETTLE_S, STAMP)["GPU-a"].closed == ""
