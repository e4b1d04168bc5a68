"""Reports of agents and residents of GPUs in one line."""

from scheduler_extender.cluster.parsing import parse_gpu_node
from scheduler_extender.cluster.records import GpuNodeRecord
from scheduler_extender.learning.separation import Resident, SharedGpu

GIB = 1 << 30
NOW = 1_700_000_000.0


def report(
    at_s: float, busy: float, *uses: dict, node: str = "n0", gpu: str = "g0"
) -> GpuNodeRecord:
    from scheduler_extender.cluster.jobs import rfc3339

    return parse_gpu_node(
        {
            "metadata": {"name": node, "uid": node, "resourceVersion": str(int(at_s))},
            "status": {
                "observedAt": rfc3339(NOW + at_s),
                "gpus": [
                    {
                        "uuid": gpu, "index": 0, "model": "NVIDIA A100-SXM4-80GB",
                        "memoryBytes": 80 * GIB, "shares": 2, "utilisationPercent": busy,
                        "utilisationSource": "samples", "pods": list(uses),
                    }
                ],
            },
        }
    )  # fmt: skip


def use(uid: str, percent: float, rate: float | None = None, memory: int = GIB) -> dict:
    said = {} if rate is None else {"iterationsPerSecond": rate}
    return {"uid": uid, "memoryBytes": memory, "utilisationPercent": percent, **said}


def resident(name: str, slowdown: float | None, namespace: str = "ml", **more: object) -> Resident:
    return Resident((namespace, name), slowdown, **{"measured": True, "cost_gib": 8.0, **more})  # type: ignore[arg-type]


def gpu(*residents: Resident, name: str = "g0") -> SharedGpu:
    return SharedGpu(("n0", name), residents)
