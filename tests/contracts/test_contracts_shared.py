"""Messages that are read, and equal, take the memory of one."""

from __future__ import annotations

from tandem.contracts.resources import GPUJobSpec, GPUJobStatus

LOAD = {
    "utilisationPercent": 40.0, "utilisationP95Percent": 55.0, "memoryBaseBytes": 1 << 30,
    "memoryPeakExtraBytes": 0, "peakProbability": 0.0, "memoryP95Bytes": 1 << 30,
    "utilisationSource": "formula", "memorySource": "formula",
}  # fmt: skip


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
