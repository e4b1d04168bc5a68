"""Messages that are read, and equal, take the memory of one."""

from __future__ import annotations

import pytest

from tandem.contracts.base import NO_ENTRIES
from tandem.contracts.resources import GPUJobSpec, GPUJobStatus

LOAD = {
    "utilisationPercent": 40.0, "utilisationP95Percent": 55.0, "memoryBaseBytes": 1 << 30,
    "memoryPeakExtraBytes": 0, "peakProbability": 0.0, "memoryP95Bytes": 1 << 30,
    "utilisationSource": "formula", "memorySource": "formula",
}  # fmt: skip

TIME = "2026-01-01T00:00:00Z"


def test_equal_loads_are_one_object_and_others_are_not() -> None:
    one, same = (GPUJobStatus.model_validate({"load": LOAD}) for _ in range(2))
    other = GPUJobStatus.model_validate({"load": LOAD | {"memoryBaseBytes": 1}})
    assert one.load is same.load
    assert other.load is not None
    assert other.load.memory_base_bytes == 1
    assert one.load is not None
    assert one.load.memory_base_bytes == 1 << 30


def test_equal_demands_are_one_object_and_a_status_needs_no_load() -> None:
    workload = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}
    specs = [
        GPUJobSpec.model_validate({"workload": workload, "demand": {"gpusPerPod": gpus}})
        for gpus in (1, 1, 2)
    ]
    assert specs[0].demand is specs[1].demand
    assert [spec.demand.gpus_per_pod for spec in specs] == [1, 1, 2]
    assert GPUJobStatus.model_validate({}).load is None


@pytest.mark.parametrize("written", [{}, {"causes": [], "conditions": [], "preemptedAt": []}])
def test_lists_without_entries_are_one_object_that_cannot_be_filled(written: dict) -> None:
    status = GPUJobStatus.model_validate(written)
    lists = status.causes, status.conditions, status.preempted_at, status.decisions, status.waits
    assert all(each is NO_ENTRIES for each in lists)
    assert lists == ([],) * len(lists)
    for change in (
        lambda: status.preempted_at.append("2026-01-01T00:00:00Z"),
        lambda: status.conditions.extend([]),
        lambda: status.causes.insert(0, None),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match="messages do not change"):
            change()
    assert status.preempted_at + ["x"] == ["x"]  # noqa: RUF005 - this is what is tested
    assert status.model_copy(deep=True) == status
    assert status.wire()["causes"] == []
    assert GPUJobStatus.model_validate(status.wire()) == status


def test_a_list_with_entries_is_the_messages_own() -> None:
    one, same = (GPUJobStatus.model_validate({"preemptedAt": [TIME]}) for _ in range(2))
    assert one.preempted_at == same.preempted_at == [TIME]
    assert one.preempted_at is not same.preempted_at


def test_a_text_is_cut_and_control_characters_are_replaced() -> None:
    long = "é" * 70
    status = GPUJobStatus.model_validate({"reason": f"a\nb\x7f{long}", "message": "a\nb"})
    assert status.reason == ("a b " + long)[:63] + "…"
    assert status.message == "a\nb"
    assert GPUJobStatus.model_validate({"reason": "a\u00a0b"}).reason == "a\u00a0b"
