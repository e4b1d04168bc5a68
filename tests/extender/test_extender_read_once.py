"""A write of ours comes twice, as its answer and as an event of the watch: it is read once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from extender_builders import NOW, gpu_job, pod

from scheduler_extender.cluster import parsing, writes
from scheduler_extender.cluster.feed import Feed
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.cluster.writes import Writer
from tandem.kube.client import Object
from tandem.kube.memory import MemoryCluster

KEY = ("ml", "pod-p")


def version(raw: Object, number: int, uid: str = "u1") -> Object:
    known = {"namespace": "ml", "uid": uid, "resourceVersion": str(number)}
    return {**raw, "metadata": {**raw["metadata"], **known}}


def job(number: int, uid: str = "u1") -> Object:
    return version(gpu_job("pod-p"), number, uid)


@pytest.fixture
def state() -> ClusterState:
    return ClusterState(now_s=NOW)


def test_the_event_of_a_version_that_is_held_is_not_read_again(state: ClusterState) -> None:
    async def scenario() -> None:
        trim = Feed(state).trim("gpujobs")
        state.upsert("gpujobs", job(7))
        held = state.gpu_jobs()[KEY]
        assert trim(job(7), None) is held
        assert trim(job(8), held) is not held
        assert trim(job(6), held) is not held
        assert trim(job(7, uid="another"), held) is not held

    asyncio.run(scenario())


def test_a_status_that_is_not_written_yet_is_not_undone_by_the_event_of_its_version(
    state: ClusterState,
) -> None:
    async def scenario() -> None:
        feed = Feed(state)
        state.upsert("gpujobs", job(7))
        record = state.gpu_jobs()[KEY]
        kept = record.status.model_copy(update={"reason": "Kept"})
        state.keep(record, kept, NOW)
        feed.put("gpujobs", feed.trim("gpujobs")(job(7), None))
        assert state.gpu_jobs()[KEY].status.reason == "Kept"
        feed.put("gpujobs", feed.trim("gpujobs")(job(8), None))
        assert state.gpu_jobs()[KEY].status.reason != "Kept"

    asyncio.run(scenario())


@pytest.mark.parametrize(("kind", "take"), [("gpujobs", "take"), ("pods", "take_pod")])
def test_an_answer_that_the_watch_was_faster_with_is_not_read_again(
    state: ClusterState, monkeypatch: pytest.MonkeyPatch, kind: str, take: str
) -> None:
    read: list[str] = []

    def counted(raw: Object) -> Any:
        read.append(raw["metadata"]["resourceVersion"])
        return parsing.PARSERS[kind](raw)

    monkeypatch.setattr(writes, {"gpujobs": "parse_gpu_job", "pods": "parse_pod"}[kind], counted)
    raw = gpu_job("pod-p") if kind == "gpujobs" else pod("p")

    async def scenario() -> None:
        writer = Writer(MemoryCluster(), state, lambda *_: None, lambda: NOW)
        state.upsert(kind, version(raw, 7))
        getattr(writer, take)(version(raw, 7))
        assert read == []
        getattr(writer, take)(version(raw, 8))
        assert read == ["8"]
        held = state.held(kind, version(raw, 8))
        assert held is not None
        assert held.resource_version == "8"

    asyncio.run(scenario())
