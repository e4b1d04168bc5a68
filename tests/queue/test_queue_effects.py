"""What the one executor asks of the API server for each effect that no other test looks at."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from queue_builders import gang, pod

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.records import GpuJobRecord
from scheduler_extender.cluster.writes import Object, Writer
from scheduler_extender.queue.steps.effects import (
    DeleteGpuJob,
    Effect,
    Effects,
    Executor,
    ReadWorkload,
    WriteEvent,
)
from tandem.contracts.resources import Phase
from tandem.kube.errors import Conflict
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import GPU_JOBS

NOW = 1_800_000_000.0


class Picture:
    def apply(self, kind: str, record: Any) -> None:
        raise AssertionError(f"{kind} {record} taken in")

    def held(self, kind: str, raw: Any) -> None:
        return None


def carry_out(api: MemoryCluster, some: Gang, *effects: Effect) -> list[tuple[Any, ...]]:
    """Return the events that were written."""
    written: list[tuple[Any, ...]] = []
    writer = Writer(api, Picture(), lambda *words: written.append(words), lambda: NOW)
    executor = Executor(writer, lambda: NOW)
    asyncio.run(executor.carry_out(some, effects))
    return written


def stored(api: MemoryCluster, record: GpuJobRecord) -> dict[str, Any]:
    body = {"metadata": {"name": record.name}, "spec": record.spec.wire()}
    return api.create(GPU_JOBS, body, record.namespace)


def test_a_gpujob_is_deleted_in_its_namespace_and_only_the_one_that_is_meant() -> None:
    api, some = MemoryCluster(), gang(pod("p0"), phase=Phase.COMPLETED)
    assert some.record is not None
    some.record = replace(some.record, namespace="team")
    uid = stored(api, some.record)["metadata"]["uid"]
    with pytest.raises(Conflict):
        carry_out(api, some, DeleteGpuJob())
    assert [one["metadata"]["uid"] for one in api.list(GPU_JOBS)] == [uid]
    some.record = replace(some.record, uid=uid)
    carry_out(api, some, DeleteGpuJob())
    assert api.list(GPU_JOBS) == []


def test_an_event_names_the_pod_by_its_uid() -> None:
    one = pod("p0")
    event = WriteEvent(one, "Blocked", "why", "Normal")
    ((regarding, *words),) = carry_out(MemoryCluster(), gang(one), event)
    assert regarding["metadata"] == {"name": "p0", "namespace": "default", "uid": "uid-p0"}
    assert words == ["Blocked", "why", "Normal"]


def test_a_workload_of_an_unknown_kind_is_nowhere_to_be_read() -> None:
    some, answers = gang(phase=Phase.RUNNING), list[Object | None]()
    assert some.record is not None
    workload = some.record.spec.workload.model_copy(update={"kind": "Unheard"})
    some.record = replace(
        some.record, spec=some.record.spec.model_copy(update={"workload": workload})
    )

    def then(found: Object | None, now_s: float) -> Effects:
        answers.append(found)
        return ()

    carry_out(MemoryCluster(), some, ReadWorkload(then))
    assert answers == [None]
