"""What the reports of one node may cost the extender."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from extender_builders import NOW, gpu, gpu_node

from scheduler_extender.cluster import parsing
from scheduler_extender.cluster.feed import Feed
from scheduler_extender.cluster.state import ClusterState
from tandem.contracts.inventory import changes
from tandem.kube.reflector import EventType


class Reports:
    """A feed whose clock is moved by hand; `read` counts the reports that were read."""

    def __init__(self, monkeypatch: Any) -> None:
        self.now, self.read = 0.0, 0
        self.known: dict[str, Any] = {}
        self.state = ClusterState(now_s=NOW)
        self.feed = Feed(self.state, clock=lambda: self.now)
        parse = parsing.PARSERS["gpunodes"]

        def counting(raw: Any) -> Any:
            self.read += 1
            return parse(raw)

        monkeypatch.setitem(parsing.PARSERS, "gpunodes", counting)

    def take(self, node: str, *gpus: Any, uid: str = "", event: Any = EventType.MODIFIED) -> int:
        """Take a report; return how many reports that reads."""
        before = self.read
        raw = gpu_node(node, *gpus, uid=uid)
        known = self.known.get(node)
        if known is not None and known.uid != raw["metadata"]["uid"]:
            known = None  # the reflector tells of the end of the one before
        trimmed = self.feed.trim("gpunodes")(raw, known)
        self.known[node] = trimmed
        self.feed.take("gpunodes", event, trimmed)
        if event is EventType.DELETED:
            del self.known[node]
        return self.read - before


USES = [{"uid": f"pod-{number}"} for number in range(64)]
LARGEST = [gpu(f"GPU-{number}", pods=USES) for number in range(64)]


def test_a_node_that_reports_without_end_has_a_few_reports_read(monkeypatch: Any) -> None:
    async def scenario() -> None:
        reports = Reports(monkeypatch)
        assert sum(reports.take("stolen", *LARGEST) for _ in range(1000)) == 2
        assert reports.feed.reports_passed_over == 998
        assert reports.take("honest", "GPU-0") == 1, "each node has a budget of its own"
        reports.now += 60
        assert sum(reports.take("stolen", *LARGEST) for _ in range(1000)) == 2
        reports.feed._drain()
        assert len(reports.state.table.rows("stolen")) == 64

    asyncio.run(scenario())


@pytest.mark.long
def test_an_agent_that_reports_each_second_has_every_report_read(monkeypatch: Any) -> None:
    async def scenario() -> None:
        reports = Reports(monkeypatch)
        full = [gpu(f"GPU-{number}", pods=USES[:2]) for number in range(64)]
        for _ in range(3600):
            reports.now += 1
            assert reports.take("busy", *full) == 1
        reports.feed._pending.clear()

    asyncio.run(scenario())


def test_a_node_that_comes_back_is_read_at_once(monkeypatch: Any) -> None:
    async def scenario() -> None:
        reports = Reports(monkeypatch)
        while reports.take("n0", *LARGEST):
            pass
        assert reports.take("n0", *LARGEST, uid="another") == 1
        assert reports.take("n0", *LARGEST, uid="another") == 0
        reports.take("n0", *LARGEST, uid="another", event=EventType.DELETED)
        assert reports.take("n0", *LARGEST, uid="another") == 1
        reports.feed._pending.clear()

    asyncio.run(scenario())


@pytest.mark.long
def test_of_made_up_gpus_without_end_64_are_read_and_none_holds_the_loop() -> None:
    many = [gpu(f"GPU-{number}", pods=USES * 100) for number in range(14_000)]
    record = parsing.parse_gpu_node(gpu_node("stolen", *many))
    assert len(record.gpus) == len(record.status.gpus) == 64
    assert {len(each.pods) for each in record.status.gpus} == {64}


def test_a_gpu_without_a_size_has_a_share_and_one_without_room_has_none() -> None:
    unsized = {**gpu("a"), "memoryBytes": 0, "memorySource": "Unknown", "shares": 1}
    reserved = {**gpu("b"), "memoryReservedBytes": gpu("b")["memoryBytes"]}
    taken = {**gpu("c"), "memoryForeignBytes": gpu("c")["memoryBytes"]}
    empty = {**gpu("d"), "memoryBytes": 0}
    record = parsing.parse_gpu_node(gpu_node("n", unsized, reserved, taken, empty))
    assert [(each.capacity_gib, each.shares) for each in record.gpus] == [
        (0, 1),
        (0, 0),
        (0, 0),
        (0, 0),
    ]


def test_what_a_pod_holds_of_a_gpu_without_a_size_counts() -> None:
    use = {"uid": "u", "memoryBytes": 3 << 30}
    unsized = {**gpu("a"), "memoryBytes": 0, "memorySource": "Unknown", "pods": [use]}
    record = parsing.parse_gpu_node(gpu_node("n", unsized))
    assert record.status.gpus[0].pods[0].memory_bytes == 3 << 30


def test_a_size_that_was_not_known_is_no_change_of_the_inventory() -> None:
    known = {"a": ("A100", 0), "b": ("A100", 40 << 30)}
    now = {"a": ("A100", 80 << 30), "b": ("A100", 80 << 30)}
    assert [uuid for uuid, _ in changes(known, now)] == ["b"]


def test_a_report_that_is_kept_as_json_is_the_same_and_does_not_grow_back() -> None:
    state = ClusterState(now_s=NOW)
    used = gpu("a", pods=[{"uid": "u", "memoryBytes": 2**30, "utilisationPercent": 12.5}])
    raw = gpu_node("n0", used, gpu("b", health="Quarantined"))
    said = parsing.parse_gpu_node(raw).status
    state.upsert("gpunodes", raw)
    record = state.gpu_nodes()["", "n0"]
    assert record.status == said
    assert record.status is not record.status  # read anew: nothing of it stays
    assert json.loads(record.kept.json) == said.wire()
    assert [(uuid, number) for uuid, number, _ in record.named] == [("a", "0"), ("b", "0")]
    assert state.gpu_name("n0", "a") == "n0/0"
