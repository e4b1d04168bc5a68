"""A cluster of any size, made up from a seed, as objects of the API server."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.state import ClusterState
from tandem.contracts import names
from tandem.reasons.causes import Cause, Reason
from tandem.reasons.words import in_full

Object = dict[str, Any]
GIB = 2**30
GPUS_PER_NODE = 8
TYPES = (("NVIDIA A100-SXM4-80GB", 80), ("NVIDIA H100 80GB HBM3", 80), ("NVIDIA L40S", 45))
NAMESPACES = ("vision", "language", "speech", "ranking", "robotics")
#: Model, memory base and peak in GiB, time in the peak, utilisation.
MODELS = (
    ("resnet50", 9, 5, 0.2, 46), ("bert-large", 21, 8, 0.25, 58), ("vit-l-16", 26, 9, 0.2, 61),
    ("whisper-small", 7, 4, 0.3, 34), ("gpt2-medium", 30, 12, 0.35, 72), ("dlrm", 38, 4, 0.1, 28),
)  # fmt: skip
REASONS = (
    (Cause(Reason.MEMORY_COLLISION, gpus=3, value=0.16, bound=0.1),
     Cause(Reason.PLACES_TAKEN, gpus=8, value=2, bound=2)),
    (Cause(Reason.NEEDS_WHOLE_GPU, gpus=8, value=1),
     Cause(Reason.NOT_PREEMPTED, detail="the jobs there save no state")),
    (Cause(Reason.SLOWDOWN, gpus=2, value=0.41, bound=0.35),
     Cause(Reason.UTILISATION, gpus=6, value=131, bound=100)),
    (Cause(Reason.BEHIND, job="2 jobs of other namespaces"),),
    (Cause(Reason.QUOTA, namespace="speech", gpus=2, value=24, bound=24),),
    (Cause(Reason.WAITING_IS_BETTER),),
)  # fmt: skip


class Fleet:
    """Makes objects; `now_s` is the time of all of them."""

    def __init__(self, nodes: int, waiting: int, seed: int, now_s: float) -> None:
        self._draw = random.Random(seed)
        self._now_s = now_s
        self._version = 0
        self.nodes, self.waiting = nodes, waiting
        self.pods: dict[tuple[str, str], list[Object]] = {}  # uses by (node, GPU)

    def objects(self) -> Iterator[tuple[str, Object]]:
        """Yield (kind, object) of the whole cluster."""
        placed: list[tuple[str, Object]] = []
        for number in range(self.nodes):
            for index in range(GPUS_PER_NODE):
                placed += self._residents(number, index)
        for number in range(self.nodes):
            yield "gpunodes", self.node(number)
        yield from placed
        for position in range(self.waiting):
            yield "gpujobs", self.waiting_job(position)
        for number in range(max(1, self.waiting // 5)):
            yield "gpujobs", self._ended_job(number)

    def fill(self, state: ClusterState) -> None:
        """Let a state have all of it."""
        for kind, made in self.objects():
            state.upsert(kind, made)

    def node(self, number: int) -> Object:
        """Return the report of a node's agent; each call measures anew."""
        name, draw = f"gpu-{number:04}", self._draw
        model, memory_gib = TYPES[number * len(TYPES) // max(1, self.nodes)]
        gpus = []
        for index in range(GPUS_PER_NODE):
            uses = self.pods.get((name, f"GPU-{number:04}-{index}"), [])
            made = {
                "uuid": f"GPU-{number:04}-{index}",
                "index": index,
                "model": model,
                "memoryBytes": memory_gib * GIB,
                "memoryReservedBytes": GIB // 2,
                "memoryUsedBytes": sum(use["memoryBytes"] for use in uses) + GIB // 2,
                "utilisationPercent": min(
                    100.0, sum(use["utilisationPercent"] for use in uses) + draw.randrange(3)
                ),
                "temperatureCelsius": 34 + 9 * len(uses) + draw.randrange(9),
                "powerWatts": 70 + 120 * len(uses) + draw.randrange(20),
                "eccUncorrectedErrors": 0,
                "mig": False,
                "mps": False,
                "shares": 2,
                "pods": uses,
            }
            if number % 61 == 7 and index == 3:
                made |= {"health": "Quarantined", "healthReason": "2 uncorrected ECC errors"}
            gpus.append(made)
        silent = number % 97 == 11
        return {
            "metadata": self._meta(name),
            "spec": {},
            "status": {
                "agentVersion": "0.1.0",
                "driverVersion": "570.86.15",
                "observedAt": rfc3339(self._now_s - (900 if silent else draw.randrange(25))),
                "gpus": gpus,
            },
        }

    def waiting_job(self, position: int) -> Object:
        """Return a job that waits at a position."""
        draw = self._draw
        model = MODELS[position % len(MODELS)]
        causes = REASONS[position % len(REASONS)]
        made = self._job(f"{model[0]}-sweep-{position}", draw.choice(NAMESPACES), model)
        first_s = 40 + position * 35
        made["status"] |= {
            "phase": "Queued",
            "reason": "Waiting",
            "message": in_full(causes),
            "causes": [each.wire() for each in causes],
            "foundAt": rfc3339(self._now_s - 21),
            "position": position,
            "queuedAt": rfc3339(self._now_s - 3600 + position % 3600),
            "waitingSince": rfc3339(self._now_s - 3600 + position % 3600),
            "expectedStart": {
                "earliest": rfc3339(self._now_s + first_s),
                "latest": rfc3339(self._now_s + first_s * 2.4),
                "asOf": rfc3339(self._now_s - 21),
            },
        }
        return made

    # --- parts --------------------------------------------------------------------------------

    def _residents(self, number: int, index: int) -> list[tuple[str, Object]]:
        draw = self._draw
        count = draw.choices((0, 1, 2), (18, 52, 30))[0]
        if number % 61 == 7 and index == 3:
            return []
        made: list[tuple[str, Object]] = []
        for share in range(count):
            model = draw.choice(MODELS)
            name = f"{model[0]}-{number}-{index}{'ab'[share]}"
            namespace = draw.choice(NAMESPACES)
            job = self._job(name, namespace, model)
            slowed = draw.random() * (0.18 if count == 2 else 0.0)
            began_s = self._now_s - draw.randrange(300, 40_000)
            peak = round((model[1] + model[2]) * draw.uniform(0.8, 1.02) * GIB)
            job["spec"]["demand"]["exclusive"] = count == 1 and draw.random() < 0.15
            job["status"] |= {
                "phase": "Running",
                "reason": "Running",
                "message": "It runs (1 pod).",
                "queuedAt": rfc3339(began_s - 240),
                "admittedAt": rfc3339(began_s - 4),
                "startedAt": rfc3339(began_s),
                "runningSince": rfc3339(began_s),
                "attainedGpuSeconds": self._now_s - began_s,
                "observed": {
                    "at": rfc3339(self._now_s),
                    "kind": model[0],
                    "gpuModel": TYPES[0][0],
                    "memoryBaseBytes": model[1] * GIB,
                    "memoryPeakBytes": peak,
                    "peakProbability": model[3],
                    "utilisationPercent": model[4] * 0.94,
                    "soloUtilisationPercent": model[4] * 0.97,
                },
            }
            if count == 2:
                job["status"]["observed"] |= {
                    "slowdown": {
                        "value": round(slowed, 3),
                        "means": "utilisation",
                        "reference": "solo",
                        "estimated": True,
                    },
                    "neighbours": [
                        {"kind": "bert-large", "slowdown": slowed, "means": "utilisation"}
                    ],
                }
            job["status"]["decisions"] = [
                {
                    "at": rfc3339(began_s - 5),
                    "what": "Placed",
                    "why": f"gpu-{number:04}/{index}: memory {model[1]}.0 GiB needed,"
                    " 79.5 GiB there",
                }
            ]
            uuid, pod = f"GPU-{number:04}-{index}", f"{name}-0"
            made += [
                ("gpujobs", job),
                ("pods", self._pod(pod, name, namespace, f"gpu-{number:04}", uuid, began_s)),
            ]
            self.pods.setdefault((f"gpu-{number:04}", uuid), []).append(
                {
                    "namespace": namespace,
                    "pod": pod,
                    "uid": f"uid-{namespace}-{pod}",
                    "memoryBytes": model[1] * GIB,
                    "memoryBaseBytes": model[1] * GIB,
                    "memoryPeakBytes": peak,
                    "peakProbability": model[3],
                    "utilisationPercent": round(model[4] * draw.uniform(0.8, 1.0), 1),
                    "iterationsPerSecond": 6.5,
                }
            )
        return made

    def _ended_job(self, number: int) -> Object:
        made = self._job(f"nightly-{number}", NAMESPACES[number % 5], MODELS[number % 6])
        failed = number % 9 == 4
        made["status"] |= {
            "phase": "Failed" if failed else "Completed",
            "message": "The workload failed." if failed else "The workload completed.",
            "queuedAt": rfc3339(self._now_s - 9000),
            "startedAt": rfc3339(self._now_s - 8000),
            "finishedAt": rfc3339(self._now_s - 600 - number),
        }
        return made

    def _job(self, name: str, namespace: str, model: tuple[str, int, int, float, int]) -> Object:
        kind, base, extra, peak, busy = model
        return {
            "metadata": self._meta(f"job-{name}", namespace),
            "spec": {
                "workload": {
                    "apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": f"w-{name}",
                },
                "demand": {"gpusPerPod": 1, "model": kind, "batchSize": 32, "iterations": 20000},
            },
            "status": {
                "load": {
                    "utilisationPercent": busy,
                    "utilisationP95Percent": busy + 8,
                    "memoryBaseBytes": base * GIB,
                    "memoryPeakExtraBytes": extra * GIB,
                    "peakProbability": peak,
                    "memoryP95Bytes": (base + extra + 1) * GIB,
                    "utilisationSource": "model",
                    "memorySource": "formula",
                    "modelVersion": "2026-11",
                },
            },
        }  # fmt: skip

    def _pod(
        self, name: str, job: str, namespace: str, node: str, gpu: str, began_s: float
    ) -> Object:
        return {
            "metadata": self._meta(name, namespace)
            | {
                "annotations": {names.VISIBLE_DEVICES: gpu},
                "ownerReferences": [
                    {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": f"w-{job}",
                     "controller": True}
                ],
            },
            "spec": {
                "nodeName": node,
                "containers": [
                    {"name": "main", "resources": {"limits": {names.RESOURCE: "1"}}}
                ],
            },
            "status": {
                "phase": "Running",
                "containerStatuses": [
                    {"name": "main", "state": {"running": {"startedAt": rfc3339(began_s)}}}
                ],
            },
        }  # fmt: skip

    def _meta(self, name: str, namespace: str = "") -> Object:
        self._version += 1
        found = {
            "name": name,
            "uid": f"uid-{namespace}-{name}",
            "resourceVersion": str(self._version),
        }
        return found | ({"namespace": namespace} if namespace else {})
