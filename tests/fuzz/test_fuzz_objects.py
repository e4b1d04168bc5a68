"""Objects as watches bring them: reports, GPUJobs, nodes, pods, the Lease, what is remembered.

An API server admits what a schema of ours admits; of built-in kinds, what has their types. All of
that is taken in. What it would not admit may be passed over, as the reflector does with an error.
"""

from __future__ import annotations

import base64
import copy
import gzip
import json
import logging
import random
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import pytest
from extender_builders import NOW, Object, gpu, gpu_job, gpu_node, load, meta, node, pod
from fuzz_batch import WATCHDOG, Batch
from mutators import ODD, changed, from_schema, some
from quantities import value_of

from scheduler_extender.cluster.jobs import job_of
from scheduler_extender.cluster.pair_slowdowns import PairSlowdowns, PlacementHistory
from scheduler_extender.cluster.parsing import parse_gpu_job, parse_gpu_node, parse_node
from scheduler_extender.cluster.pods import pod_info
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.leader import LeaseWatch
from scheduler_extender.learning.history_store import HistoryStore
from scheduler_extender.learning.run_history import RunHistory, Runs
from scheduler_extender.serving.status.changes import Changes
from scheduler_extender.serving.status.model import Cluster
from scheduler_extender.serving.status.objects import Scope
from scheduler_extender.serving.status.views import document, query_of
from tandem.contracts import names
from tandem.contracts.base import Message
from tandem.contracts.crds import DEFINITIONS
from tandem.contracts.resources import GPUJobSpec, GPUJobStatus, GPUNodeStatus
from tandem.kube.errors import KubeError
from tandem.kube.memory import MemoryCluster
from tandem.kube.resource import CONFIG_MAPS, GPU_JOBS, GPU_NODES, LEASES, Resource
from tandem.kube.schema import schema_errors

pytestmark = [pytest.mark.slow, WATCHDOG]

SCHEMAS = {
    each["names"]["kind"]: each["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    for each in (definition.manifest()["spec"] for definition in DEFINITIONS)
}


class World:
    """A state with a node, two GPUs and two jobs on them, the page that follows it, and checks."""

    def __init__(self) -> None:
        self.state = ClusterState(now_s=NOW)
        self.changes = Changes(self.state, list, dict)
        self.page = Cluster()
        self.take("nodes", node("n0"))
        self.take("gpunodes", gpu_node("n0", "GPU-a", "GPU-b"))
        for name in ("a", "b"):
            job = gpu_job(f"job-{name}", job_load=load(10, 4, 0.2))
            self.take("gpujobs", job)
            devices = f"GPU-{name}"
            self.take("pods", pod(name, node_name="n0", devices=devices, phase="Running"))
        self.sound()

    def take(self, kind: str, raw: Object) -> None:
        """Take in a newer version of an object."""
        raw["metadata"] |= {"resourceVersion": meta("x")["resourceVersion"]}
        self.state.upsert(kind, raw)

    def sound(self) -> None:
        """Check that all that follows from the objects agrees, is finite, and can be shown."""
        self.state.check()
        gpus = self.state.snapshot().gpus
        for field in fields(gpus):
            column = getattr(gpus, field.name)
            if column.dtype.kind == "f" and field.name not in ("slowdown", "worst_slowdown"):
                assert not np.isnan(column).any(), field.name
        assert (gpus.memory_capacity_gib >= 0).all()
        lines = b"".join(self.changes.pieces(self.page.version))
        for line in lines.splitlines():
            json.loads(line, parse_constant=no_constant)
        self.page.apply(lines)
        for view in ("overview", "nodes", "gpus", "jobs"):
            shown = document(self.page, Scope(), query_of(view, (), ()))
            json.dumps(shown, allow_nan=False)


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> Callable[[], World]:
    caplog.set_level(logging.CRITICAL)
    made: list[World] = []
    uses = [0]

    def make() -> World:
        """Return a world that is made anew from time to time: its objects are kept."""
        if uses[0] % 50 == 0:
            made[:] = [World()]
        uses[0] += 1
        return made[0]

    return make


def same_numbers(read: Message, said: Any) -> None:
    """Fail where a message has another value than the object that it was read from."""
    known = {field.alias or name: name for name, field in type(read).model_fields.items()}
    for alias, value in said.items():
        if alias in known:
            same_value(getattr(read, known[alias]), value, alias)


def same_value(has: Any, value: Any, at: str) -> None:
    if isinstance(has, Message):
        same_numbers(has, value)
    elif isinstance(has, list) and isinstance(value, list):
        assert len(has) <= len(value)
        if len(has) == len(value):
            for one, other in zip(has, value, strict=True):
                same_value(one, other, at)
    elif isinstance(has, bool) or isinstance(value, bool):
        assert has is value, (at, has, value)
    elif isinstance(has, int | float):
        # Rates too low to divide by are 0, in words of the contract.
        said = float(value) if isinstance(has, float) else value  # the nearest one
        assert has == said or (has == 0 and 0 <= value < 1e-6), (at, has, value)
    elif isinstance(has, str):
        assert (
            has == value
            or has.endswith("…")
            or has.replace(" ", "") in value.replace(" ", "")
            or any(ord(character) < 32 for character in value)
        ), (at, has, value)


def again(message: Message) -> None:
    """Check that a message is the same when it is written and read again."""
    assert type(message).model_validate(message.wire()) == message
    assert type(message).model_validate_json(json.dumps(message.wire(), allow_nan=False)) == message


def without_nulls(value: Any) -> Any:
    """Return a document as the API server keeps it: a field that is null is not there."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def is_admitted(resource: Resource, raw: Object) -> bool:
    """Say whether an API server would have it: its texts are Unicode, and it fits the schema."""
    try:
        json.dumps(raw, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return False
    return not schema_errors(resource, raw)


def reported(rng: random.Random) -> tuple[Object, bool]:
    """Return a GPUNode, and whether the definition admits it."""
    raw = gpu_node(rng.choice(("n0", "n0", "n1")), "GPU-a", gpu("GPU-b", 40))
    if rng.random() < 0.6:
        raw["status"] = from_schema(SCHEMAS["GPUNode"]["status"], rng)
    if rng.random() < 0.2:
        inventories = ("", "{}", "[", '{"GPU-a":["x",1]}', '{"GPU-a":7}', '{"a":["b","c"]}', "[[[")
        raw["metadata"]["annotations"] = {names.INVENTORY: rng.choice(inventories)}
    if rng.random() < 0.5:
        raw |= without_nulls(changed({"status": raw["status"]}, rng))
    return raw, is_admitted(GPU_NODES, raw)


def has_room(said: Object) -> bool:
    """Say whether jobs may have any of the memory of a GPU as it is reported."""
    taken = said.get("memoryReservedBytes", 0) + said.get("memoryForeignBytes", 0)
    return said.get("memorySource") == "Unknown" or taken < said["memoryBytes"]


def test_reports_are_taken_in_as_they_stand(world: Callable[[], World]) -> None:
    def case(rng: random.Random) -> str:
        raw, admitted = reported(rng)
        before = copy.deepcopy(raw)
        try:
            record = parse_gpu_node(raw)
        except Exception:
            if admitted:
                raise
            return "passed over"
        assert raw == before, "the object was changed"
        if not admitted:
            return "read, though no API server would have it"
        if raw.get("status"):
            status = GPUNodeStatus.model_validate(raw["status"])
            again(status)
            same_numbers(status, raw["status"])
        for facts in record.gpus:
            assert any(
                facts.uuid == said["uuid"]
                and facts.capacity_gib <= said["memoryBytes"] / 2**30
                and facts.shares == (said.get("shares", 2) if has_room(said) else 0)
                and (not facts.healthy or said.get("health", "Healthy") == "Healthy")
                for said in raw["status"]["gpus"]
            )
        there = world()
        there.take("gpunodes", raw)
        there.sound()
        return "taken in"

    Batch("reports of GPUs as the scheduler reads them", 120).run(case)


def test_gpu_jobs_are_taken_in_as_they_stand(world: Callable[[], World]) -> None:
    def case(rng: random.Random) -> str:
        raw = gpu_job(rng.choice(("job-a", "job-b", "job-c")), job_load=load(10, 4, 0.2))
        if rng.random() < 0.6:
            raw["status"] = from_schema(SCHEMAS["GPUJob"]["status"], rng)
        if rng.random() < 0.3:
            raw["spec"] = from_schema(SCHEMAS["GPUJob"]["spec"], rng)
        if rng.random() < 0.5:
            raw |= without_nulls(changed({"spec": raw["spec"], "status": raw["status"]}, rng))
        admitted = is_admitted(GPU_JOBS, raw)
        try:
            record = parse_gpu_job(raw)
        except Exception:
            if admitted:
                raise
            return "passed over"
        if not admitted:
            return "read, though no API server would have it"
        spec = GPUJobSpec.model_validate(raw["spec"])
        status = GPUJobStatus.model_validate(raw.get("status") or {})
        for message, said in ((spec, raw["spec"]), (status, raw.get("status") or {})):
            again(message)
            same_numbers(message, said)
        job = job_of("x/y", spec, status)
        for worker in (record.worker, job):
            figures = (worker.memory_base_gib, worker.memory_peak_extra_gib, worker.gpu_utilisation)
            assert all(0 <= figure < np.inf for figure in figures), figures
        there = world()
        there.take("gpujobs", raw)
        there.sound()
        return "taken in"

    Batch("GPUJobs as the scheduler reads them", 120).run(case)


_AMOUNTS = (
    "0",
    "1",
    "64",
    "500m",
    "1k",
    "512Gi",
    "9223372036854775807",
    "1E",
    "8Ei",
    "1n",
    "100u",
    "123456789012345678",
    "1e3",
    "18446744073709551616m",
)
_WHOLE = ("0", "1", "64", "1k", "9223372036854775807", "1E", "1e3")
_EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")


def test_nodes_are_taken_in_as_they_stand(world: Callable[[], World]) -> None:
    def case(rng: random.Random) -> str:
        amounts = {name: rng.choice(_AMOUNTS) for name in ("cpu", "memory", "pods")}
        raw = node(
            rng.choice(("n0", "n1")),
            **amounts,
            **some(
                rng,
                {
                    "taints": [
                        [{"key": "k", "effect": e} for e in _EFFECTS],
                        None,
                        [{"key": "", "value": "v", "effect": "NoSchedule"}],
                    ],
                    "unschedulable": [True, False],
                    "labels": [{}, {"zone": "a", "": "b"}, {names.ADOPT_LABEL: "é"}],
                },
            ),
        )
        raw["status"]["allocatable"] |= some(
            rng,
            {
                "tandem.gpu/gpu": ["1"],
                "nvidia.com/gpu": ["8"],
                "hugepages-2Mi": ["0"],
                "rdma/hca": ["1k"],
            },
        )
        if rng.random() < 0.2:
            raw |= rng.choice(
                (
                    {"status": {}},
                    {"status": None},
                    {"spec": None},
                    {"status": {"allocatable": None}},
                )
            )
        read = parse_node(raw)
        said = (raw.get("status") or {}).get("allocatable") or {}
        assert read.cpu == float(value_of(said.get("cpu", "0")))
        assert read.memory_bytes == int(value_of(said.get("memory", "0")))
        assert read.pods == int(value_of(said.get("pods", "0")))
        there = world()
        there.take("nodes", raw)
        there.sound()
        return "taken in"

    Batch("nodes as the scheduler reads them", 60).run(case)


_TIMES = (
    "2026-11-25T15:00:00Z",
    "2026-11-25T15:00:00.123456Z",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
    None,
)


def a_state(rng: random.Random) -> Object | None:
    return rng.choice(
        (
            None,
            {},
            {"running": {"startedAt": rng.choice(_TIMES)}},
            {"running": {}},
            {"waiting": {"reason": rng.choice(("ImagePullBackOff", "x" * 300, "", None))}},
            {
                "terminated": {
                    "exitCode": rng.choice((0, 1, 137, -1, 255)),
                    "finishedAt": rng.choice(_TIMES),
                    "startedAt": rng.choice(_TIMES),
                    "reason": rng.choice(("Error", "OOMKilled", None)),
                    "message": rng.choice(("CUDA out of memory", "\x00\x1b[2J", "é" * 5000, None)),
                }
            },
        )
    )


def a_running_pod(rng: random.Random) -> Object:
    """A pod with the types that an API server demands, and anything in them."""
    name = rng.choice(("a", "b", "c"))
    raw = pod(
        name,
        rng.choice((0, 1, 2, 64, 10**18)),
        memory=rng.choice((None, "10Gi", "x", "1" * 30)),
        node_name=rng.choice(("", "n0", "n9")),
        devices=rng.choice(("", "GPU-a", "GPU-a,GPU-b", "x,,y")),
        phase=rng.choice(("Pending", "Running", "Succeeded", "Failed", "Unknown", "")),
        cpu=rng.choice(_AMOUNTS),
    )
    raw["metadata"]["annotations"] |= some(
        rng,
        {
            names.GANG: ["g", "G g", ""],
            names.GANG_SIZE: ["2", "١", "9" * 5000, "", "-1", "2.0"],
            names.EXCLUSIVE: ["true", "yes"],
            names.CHECKPOINT: ["true"],
            names.MODEL: ["m", "é"],
            names.ACCUMULATION_STEPS: ["4", "0", "²", "9" * 400, "-1", "x"],
            names.GPU_JOB: ["job-a", ""],
            names.PLACED_WITH: [
                "{",
                '{"gpuJob":"job-a","memoryBaseBytes":1073741824}',
                "null",
                "[]",
                '{"gpuJob":"j","memoryBaseBytes":1e400}',
                "[" * 1000,
            ],
            names.EPOCH: ["e"],
            "x": ["y" * 1000],
        },
    )
    raw["metadata"] |= some(
        rng,
        {
            "labels": [
                None,
                {"a": "b"},
                {names.JOBSET_LABEL: "j"},
                {names.LEADER_WORKER_SET_LABEL: "l"},
            ],
            "ownerReferences": [
                None,
                [],
                [
                    {
                        "apiVersion": "batch/v1",
                        "kind": "Job",
                        "name": "é" * 200,
                        "uid": "u",
                        "controller": True,
                    }
                ],
                [{"apiVersion": "v1", "kind": "X", "name": "n", "uid": "u"}],
            ],
            "deletionTimestamp": [_TIMES[0], _TIMES[2], _TIMES[3]],
            "deletionGracePeriodSeconds": [0, 30, 2**62],
            "creationTimestamp": [_TIMES[0], _TIMES[2]],
        },
    )
    raw["spec"] |= some(
        rng,
        {
            "schedulingGates": [None, [], [{"name": names.SCHEDULING_GATE}], [{"name": "x" * 300}]],
            "nodeSelector": [None, {"zone": "a"}, {"": ""}],
            "tolerations": [
                None,
                [],
                [{"operator": "Exists"}],
                [{"key": "k", "operator": "Lt", "value": "5", "effect": "NoSchedule"}],
                [{}],
            ],
            "affinity": [
                None,
                {},
                {"nodeAffinity": {}},
                {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {},
                                {
                                    "matchExpressions": [
                                        {
                                            "key": "zone",
                                            "operator": rng.choice(
                                                (
                                                    "In",
                                                    "NotIn",
                                                    "Exists",
                                                    "DoesNotExist",
                                                    "Gt",
                                                    "Lt",
                                                    "Of",
                                                )
                                            ),
                                            "values": rng.choice(
                                                ([], ["a"], ["5"], ["x", "5"], None)
                                            ),
                                        }
                                    ]
                                },
                                {
                                    "matchFields": [
                                        {"key": "metadata.name", "operator": "In", "values": ["n0"]}
                                    ]
                                },
                            ]
                        }
                    }
                },
            ],
            "initContainers": [
                None,
                [],
                [
                    {
                        "name": "i",
                        "restartPolicy": "Always",
                        "resources": {"requests": {"cpu": rng.choice(_AMOUNTS)}},
                    }
                ],
                [{"name": "i", "resources": None}],
            ],
            "hostNetwork": [True],
            "containers": [
                None,
                [],
                [{"name": "m", "resources": {"limits": {names.RESOURCE: rng.choice(_WHOLE)}}}],
            ],
        },
        3,
    )
    raw["status"] |= some(
        rng,
        {
            "containerStatuses": [
                None,
                [],
                [
                    {
                        "name": "main",
                        "state": a_state(rng),
                        "lastState": a_state(rng),
                        "restartCount": 3,
                    }
                ],
            ],
            "initContainerStatuses": [None, [{"name": "i", "state": a_state(rng)}]],
            "podIPs": [None, [], [{"ip": "10.0.0.1"}], [{}]],
            "startTime": [None, *_TIMES[:3]],
            "conditions": [
                None,
                [],
                [
                    {
                        "type": "PodScheduled",
                        "status": "True",
                        "lastTransitionTime": rng.choice(_TIMES),
                    }
                ],
                [{"type": "x", "status": "y"}],
            ],
        },
    )
    if rng.random() < 0.1:
        raw |= rng.choice(({"status": None}, {"status": {}}))
    return raw


def test_pods_are_taken_in_as_they_stand(world: Callable[[], World]) -> None:
    def case(rng: random.Random) -> str:
        raw = a_running_pod(rng)
        before = copy.deepcopy(raw)
        info = pod_info(raw)
        wanted = 0
        for each in raw["spec"].get("containers") or ():
            amount = ((each.get("resources") or {}).get("limits") or {}).get(names.RESOURCE)
            wanted += int(value_of(str(amount)) or 0) if amount is not None else 0
        assert info.gpus == min(wanted, 2**62), (info.gpus, wanted)
        there = world()
        there.take("pods", raw)
        before["metadata"]["resourceVersion"] = raw["metadata"]["resourceVersion"]
        assert raw == before, "the object was changed"
        record = there.state.pod(raw["metadata"]["uid"])
        assert record is not None
        if info.gpus:
            worker = there.state.worker(record.pod)
            assert 0 <= worker.memory_peak_gib < np.inf
        there.sound()
        return "ours" if info.gpus else "of others"

    Batch("pods as the scheduler reads them", 120).run(case)


def test_a_lease_of_any_kind_ends_no_watch() -> None:
    cluster = MemoryCluster()
    now = [NOW]
    watch = LeaseWatch(cluster, "tandem-system", "x", "host", lambda: now[0])
    sound = {
        "holderIdentity": "host_1",
        "leaseDurationSeconds": 15,
        "renewTime": "2023-11-14T22:13:20.000000Z",
        "leaseTransitions": 1,
    }
    cluster.create(
        LEASES,
        {"metadata": {"name": "x", "namespace": "tandem-system"}, "spec": sound},
        "tandem-system",
    )

    def case(rng: random.Random) -> str:
        spec: Object = {
            **sound,
            **some(
                rng,
                {
                    "holderIdentity": ["", "host", "other_1", "host_", "_", "é_1", None],
                    "leaseDurationSeconds": [0, 1, 2**31 - 1, -1, None],
                    "renewTime": [None, *_TIMES],
                    "leaseTransitions": [None, 0, 2**31 - 1],
                },
            ),
        }
        raw = cluster.get(LEASES, "x", "tandem-system")
        cluster.replace(
            LEASES, {**raw, "spec": rng.choice((spec, spec, spec, None, {}))}, "tandem-system"
        )
        watch.look()
        if watch.active():
            assert str(spec["holderIdentity"]).startswith("host_")
            return "active"
        assert watch.term() == ""
        return "not active"

    Batch("Leases as the extender reads them", 60).run(case)


def remembered() -> Object:
    """What an extender with a history writes."""
    return {
        "serviceGpuSeconds": {"u1": 10.5, "u2": 3},
        "gangGpus": {"u1": 4},
        "namespaces": {"u1": "a"},
        "pairs": [["a", "b", "ns", 0.5, True, 10.0], ["b", "a", "", 0.25, False, 11.5]],
        "runs": [["ns", "k", "Tesla T4", asdict(Runs(3, 1, 2, 0.5, 50, None, 1.5, 0.1, 10.0))]],
        "placements": [["ns", "k", "Tesla T4", 4, 0.2, 1.5, None, 10.0]],
    }


def test_what_is_remembered_is_read_or_begun_anew(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)

    def case(rng: random.Random) -> str:
        kept = {"pairs": PairSlowdowns(), "placements": PlacementHistory(), "runs": RunHistory()}
        store = HistoryStore("ns", 100, kept)
        cluster = MemoryCluster()
        data, binary = {}, {}
        for name, value in changed(remembered(), rng).items():
            text = json.dumps(value)
            if rng.random() < 0.1:
                text = text[: rng.randrange(len(text) + 1)]
            if rng.random() < 0.3:
                packed = base64.b64encode(gzip.compress(text.encode())).decode()
                binary[name] = packed[: rng.choice((len(packed), 10))]
            else:
                data[name] = text
        body = {"metadata": {"name": names.HISTORY_CONFIG_MAP}, "data": data, "binaryData": binary}
        try:
            cluster.create(CONFIG_MAPS, body, "ns")
        except KubeError:
            return "no ConfigMap"
        _, known = store._read(cluster)
        store._merge(known)
        history = store.history()
        for each in kept.values():
            stored = json.loads(json.dumps(each.stored(), allow_nan=False))
            each.merge(stored)
            assert each.stored() == stored, "not the same when it is written and read again"
        json.dumps(store._rows(), allow_nan=False)
        assert np.isfinite(history.service_gpu_s).all()
        assert (history.gpus is None) or (history.gpus >= 0).all()
        return "read"

    Batch("what the extender remembers", 60).run(case)


assert ODD
