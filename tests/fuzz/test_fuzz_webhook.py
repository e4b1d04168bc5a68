"""Manifests at the webhook: pods, every kind of workload whose templates it reads, the envelope."""

from __future__ import annotations

import base64
import json
import math
import random
from copy import deepcopy
from fractions import Fraction
from typing import Any

import pytest
from admission_cases import apply_patch, container, pod, review
from fuzz_batch import WATCHDOG, Batch
from mutators import ODD, changed, changed_bytes, some
from quantities import value_of

from scheduler_extender.admission.config import AdmissionConfig
from scheduler_extender.admission.webhook import answer_review
from scheduler_extender.cluster.kinds import TEMPLATES
from scheduler_extender.cluster.pods import pod_info
from tandem.contracts import names
from tandem.contracts.annotations import parse_demand

pytestmark = [pytest.mark.slow, WATCHDOG]

CONFIG = AdmissionConfig()
_SMALL_BYTES = 16_000
_AMOUNTS = (
    "1",
    "2",
    1,
    4,
    "0",
    0,
    "64",
    "65",
    "-1",
    "1k",
    "1Ki",
    "0.5",
    "500m",
    "1e0",
    "1E",
    "1.0",
    "2000m",
    "+1",
    "01",
    "",
    " 1",
    "one",
    "١",
    "1Gi",
    "1.",
    ".5",
    "1e3",
    "9" * 40,
    1.0,
    1.5,
    True,
    None,
    [],
    "1000000000n",
)
_RESOURCES = (
    names.RESOURCE,
    names.RESOURCE,
    names.NVIDIA_RESOURCE,
    "nvidia.com/gpumem",
    "nvidia.com/gpucores",
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-1g.5gb",
    "amd.com/gpu",
    "cpu",
    "memory",
    "rdma/hca",
    "hugepages-2Mi",
    "ephemeral-storage",
    "tandem.gpu/gpus",
    "Tandem.gpu/GPU",
)
_NUMBERS = (
    "1",
    "32",
    "0",
    "-1",
    "1000000",
    "1e3",
    "1_000",
    " 1",
    "1 ",
    "+1",
    "0x10",
    "١٢",
    "1.0",
    "9" * 30,
    "",
    "007",
)
_FLAGS = ("true", "false", "True", "yes", "1", "", "true ")
_LEVELS = (*names.TOPOLOGY_LEVELS[:3], "rack", "example.com/rack", "", "a/b/c", "\x00", "a" * 400)
_NAMES = ("resnet50", "a.b-c", "A", "a/b", "", "..", "a" * 254, "1", "[x]", "a\nb", "é")
ANNOTATIONS: dict[str, tuple[Any, ...]] = {
    names.MODEL: _NAMES,
    names.BATCH_SIZE: _NUMBERS,
    names.ITERATIONS: _NUMBERS,
    names.MEMORY: (
        "12Gi",
        "1500Mi",
        "1",
        "1Mi",
        "1Pi",
        "2Pi",
        "0",
        "-1Gi",
        "12 Gi",
        "12GiB",
        "1e10",
        "١٢Gi",
        "12gi",
        "1.5Gi",
        "0.1m",
        "1048576001m",
        "9" * 29,
        "12Gi\n",
        "Gi",
    ),
    names.UTILIZATION: ("35", "0", "100", "100.1", "-1", "35%", "1e1", "٣٥", "35.5", "NaN", "035"),
    names.PRECISION: ("fp32", "amp", "bf16", "fp16", "", "FP32"),
    names.OPTIMIZER: ("adam", "sgd", "Adam", "adamw", ""),
    names.SEQUENCE_LENGTH: _NUMBERS,
    names.FRAMEWORK: ("pytorch", "jax", "torch", ""),
    names.PARALLELISM: ("ddp", "zero-1", "fsdp", "zero1", ""),
    names.GRADIENT_CHECKPOINTING: _FLAGS,
    names.EXCLUSIVE: _FLAGS,
    names.CHECKPOINT: _FLAGS,
    names.ACCUMULATION: _FLAGS,
    names.GANG: _NAMES,
    names.GANG_SIZE: _NUMBERS,
    names.REQUIRED_TOPOLOGY: _LEVELS,
    names.PREFERRED_TOPOLOGY: _LEVELS,
    names.VISIBLE_DEVICES: ("GPU-a", ""),
    names.GPU_JOB: ("pod-x", ""),
    "tandem.gpu/memorie": ("12Gi",),
    "gpu-fraction": ("0.5", "1", "0", "2", "-1", "0.5x", "1e-1", "٠.٥", " 0.5", ".5", "nan", ""),
    "gpu-memory": ("2000", "0", "-1", "2_0", "٢٠", "2000Mi", "9" * 40, "1.5", " 1", "", "02"),
    "cdi.k8s.io/x": ("nvidia.com/gpu=all",),
    "io.kubernetes.cri-o.Devices": ("/dev/fuse", "/dev/nvidia0", "/dev/fuse,/dev/kvm", ""),
    "app.io/owner": ("team", "\x00", "é" * 90),
}
#: Of these nothing is wrong.
SOUND: dict[str, tuple[Any, ...]] = {
    names.MODEL: ("resnet50", "a.b-c"),
    names.BATCH_SIZE: ("1", "32", "007"),
    names.ITERATIONS: ("1", "1000000"),
    names.MEMORY: ("12Gi", "1500Mi", "1e10", "1.5Gi", "1048576001m", "+1Gi"),
    names.UTILIZATION: ("35", "0", "100", "35.5", "035"),
    names.PRECISION: ("amp", "bf16"),
    names.OPTIMIZER: ("adam", "sgd"),
    names.SEQUENCE_LENGTH: ("512", "1048576"),
    names.FRAMEWORK: ("pytorch", "jax"),
    names.PARALLELISM: ("ddp", "fsdp"),
    names.GRADIENT_CHECKPOINTING: ("true", "false"),
    names.EXCLUSIVE: ("true", "false"),
    names.CHECKPOINT: ("true", "false"),
    names.ACCUMULATION: ("true", "false"),
    names.GANG_SIZE: ("1", "10000"),
    names.REQUIRED_TOPOLOGY: names.TOPOLOGY_LEVELS[:2],
    names.PREFERRED_TOPOLOGY: names.TOPOLOGY_LEVELS[-2:],
    "app.io/owner": ("team", "\x00", "é" * 90),
}
_SPEC: dict[str, tuple[Any, ...]] = {
    "schedulerName": ("default-scheduler", "tandem-scheduler", "volcano", "", None),
    "nodeName": ("n0", "", None),
    "schedulingGates": ([], [{"name": names.SCHEDULING_GATE}], [{"name": "x"}], None, [{}]),
    "tolerations": (
        [],
        None,
        [{"operator": "Exists"}],
        [{"key": names.GPU_TAINT, "operator": "Exists", "effect": "NoSchedule"}],
    ),
    "terminationGracePeriodSeconds": (0, 30, 3600, 3601, 10**9, -1, None),
    "priorityClassName": ("", "high", names.PRIORITY_CLASS),
    "priority": (None, 0, 1000),
    "runtimeClassName": ("", "nvidia", "gvisor", None),
    "hostPID": (True, False, None),
    "volumes": (
        [],
        [{"name": "d", "hostPath": {"path": "/dev/nvidia0"}}],
        [{"name": "d", "hostPath": {"path": "/data/x"}}],
        [{"name": "tandem-token", "emptyDir": {}}],
        None,
    ),
    "resourceClaims": ([], [{"name": "gpu"}], None),
    "nodeSelector": ({}, {"zone": "a"}, None),
    "restartPolicy": ("Never", "Always", "OnFailure"),
    "affinity": (
        None,
        {},
        {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}
            }
        },
    ),
}
_CONTAINER: dict[str, tuple[Any, ...]] = {
    "env": (
        [],
        None,
        [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
        [{"name": "A", "value": "1"}],
        [{"name": "XLA_PYTHON_CLIENT_PREALLOCATE", "value": "true"}],
        [{}],
    ),
    "volumeMounts": (
        [],
        None,
        [{"name": "d", "mountPath": "/d"}],
        [{"mountPath": "/var/run/nvidia-container-devices/0"}],
    ),
    "securityContext": (
        None,
        {},
        {"privileged": True},
        {"procMount": "Unmasked"},
        {"capabilities": {"add": ["sys_admin"]}},
    ),
    "terminationMessagePolicy": ("File", "FallbackToLogsOnError"),
    "restartPolicy": ("Always",),
}


_SOUND_SPEC: dict[str, tuple[Any, ...]] = {
    "schedulerName": ("default-scheduler", "", names.SCHEDULER_NAME, None),
    "schedulingGates": ([], [{"name": names.SCHEDULING_GATE}], [{"name": "x"}], None),
    "tolerations": ([], None, [{"operator": "Exists"}]),
    "terminationGracePeriodSeconds": (0, 30, 3600, None),
    "priorityClassName": ("", "high", names.PRIORITY_CLASS),
    "priority": (None, 0, 1000),
    "runtimeClassName": ("", "nvidia", "gvisor", None),
    "volumes": (
        [],
        [{"name": "d", "hostPath": {"path": "/data/x"}}],
        [{"name": "tandem-token", "emptyDir": {}}],
        None,
    ),
    "nodeSelector": ({}, {"zone": "a"}, None),
    "restartPolicy": ("Never", "Always", "OnFailure"),
}
#: The names of limits of memory, by framework: one that the user sets leaves out all of ours.
LIMITS = (
    ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"),
    (names.PYTORCH_ALLOC_CONF_ENV, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"),
)
LIMIT_NAMES = tuple(name for framework in LIMITS for name in framework)
_SOUND_CONTAINER: dict[str, tuple[Any, ...]] = {
    "env": (
        [],
        None,
        [{"name": "A", "value": "1"}],
        [{"name": "XLA_PYTHON_CLIENT_PREALLOCATE", "value": "true"}],
        *(
            [{"name": name, **value}]
            for name in LIMIT_NAMES
            for value in ({"value": "0.9"}, {"value": ""}, {}, {"valueFrom": {"x": {}}})
        ),
        [{"name": name, "value": "0.9"} for name in LIMIT_NAMES],
    ),
    "volumeMounts": ([], None, [{"name": "d", "mountPath": "/d"}]),
    "securityContext": (None, {}, {"capabilities": {"add": ["IPC_LOCK"]}}),
    "terminationMessagePolicy": ("File", "FallbackToLogsOnError"),
}


def a_container(rng: random.Random, name: str, resources: dict[str, Any]) -> dict[str, Any]:
    odd = some(rng, _CONTAINER, 1) if rng.random() < 0.1 else {}
    return (
        container(
            name,
            **some(rng, _SOUND_CONTAINER, 2),
            **({"resources": resources} if resources else {}),
        )
        | odd
    )


def amounts(rng: random.Random) -> dict[str, Any]:
    """What a container asks for: GPUs as they should be asked for, or anything."""
    if rng.random() < 0.7:
        gpus = rng.choice(("1", 1, "2", "64", "1e0", "2000m", "1.", "0", "+1", "1", "1"))
        resource = rng.choice((names.RESOURCE, names.RESOURCE, names.NVIDIA_RESOURCE))
        both = rng.random() < 0.5
        return {"limits": {resource: gpus, "cpu": 4}} | (
            {"requests": {resource: gpus, "cpu": "500m"}} if both else {}
        )
    found: dict[str, Any] = {}
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        resource, amount = rng.choice(_RESOURCES), rng.choice(_AMOUNTS)
        for section in rng.choice((("limits",), ("limits", "requests"), ("requests",))):
            found.setdefault(section, {})[resource] = amount
    return found


def a_pod(rng: random.Random) -> dict[str, Any]:
    """A pod as people write them, often with something in it that no user should write."""
    annotations = some(rng, SOUND, 5)
    if rng.random() < 0.25:
        annotations |= some(rng, ANNOTATIONS, 2)
    if rng.random() < 0.1:
        of_others = {name: ANNOTATIONS[name] for name in ("gpu-fraction", "gpu-memory")}
        annotations |= some(rng, of_others, 1)
    odd = some(rng, _SPEC, 2) if rng.random() < 0.15 else {}
    asks_of_others = "gpu-memory" in annotations or "gpu-fraction" in annotations
    containers = [
        a_container(rng, "c0", {} if asks_of_others and rng.random() < 0.5 else amounts(rng))
    ]
    for index in range(1, rng.choice((1, 1, 1, 2, 3))):
        more = amounts(rng) if rng.random() < 0.2 else {"limits": {"cpu": "1", names.RESOURCE: 0}}
        containers.insert(rng.randrange(2), a_container(rng, f"c{index}", more))
    made = pod(*containers, annotations=annotations, **some(rng, _SOUND_SPEC, 3) | odd)
    if rng.random() < 0.2:
        made["spec"]["initContainers"] = [
            a_container(rng, "init", amounts(rng) if rng.random() < 0.3 else {})
        ]
    made["metadata"] |= some(
        rng, {"labels": [{"a": "b"}, {names.JOBSET_LABEL: "j"}, None], "name": ["train-0"]}
    )
    if rng.random() < 0.2:
        made = changed(made, rng) | {"apiVersion": "v1", "kind": "Pod"}
    return made


def owners(path: tuple[str, ...], templates: list[Any]) -> Any:
    """Return what holds templates at the end of a way."""
    if not path:
        return templates[0]
    if path[0] == "*":
        return {f"Role{i}": owners(path[1:], [each]) for i, each in enumerate(templates)}
    return {path[0]: owners(path[1:], templates)}


def asked(body: bytes, *, adopt: bool) -> tuple[int, dict[str, Any]]:
    """Return status and content of the answer to a review; it is small JSON, whatever is asked."""
    status, content = answer_review(CONFIG, lambda: True, lambda _: None, body, adopt=adopt)
    assert len(content) < _SMALL_BYTES + len(body)
    return status, json.loads(content, parse_constant=_no_constant)


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def verdict_on(body: dict[str, Any], *, adopt: bool, **options: Any) -> dict[str, Any] | None:
    """Return the response to a review of an object; None where that is none that JSON can hold."""
    sent = review(body, **options)
    status, answer = asked(json.dumps(sent).encode(), adopt=adopt)
    if status != 200:
        assert answer["error"], answer
        return None
    response = answer["response"]
    assert response["uid"] == sent["request"]["uid"]
    if not response["allowed"]:
        causes = response["status"]["details"]["causes"]
        assert response["status"]["message"]
        assert causes
        # A field, except where the whole object is none; and words of more than one.
        assert all(isinstance(each["field"], str) and " " in each["message"] for each in causes)
        assert "patch" not in response
    return response


def gpus_in(spec: Any, resource: str) -> Fraction | None:
    """Return how many GPUs containers ask for under limits, by the API server's grammar."""
    total = Fraction(0)
    for each in spec.get("containers") or ():
        amount = ((each.get("resources") or {}).get("limits") or {}).get(resource)
        if amount is not None:
            value = value_of(amount if isinstance(amount, str) else repr(amount))
            if value is None:
                return None
            total += value
    return total


def check_admitted(
    before: dict[str, Any], after: dict[str, Any], warnings: list[str], *, adopt: bool
) -> str:
    """Compare a pod that was let in with what the scheduler makes of it."""
    annotations = after["metadata"].get("annotations") or {}
    given = before["metadata"].get("annotations") or {}
    for name, value in given.items():
        if name not in names.OWN_ANNOTATIONS:
            assert annotations[name] == value, "an annotation of the user was changed"
    wanted = gpus_in(before["spec"], names.RESOURCE)
    assert wanted is not None, "an amount that the API server takes for none was let in"
    if adopt:
        more = gpus_in(before["spec"], names.NVIDIA_RESOURCE)
        assert more is not None
        wanted += more
    info = pod_info(after)
    if not wanted and info.gpus == 1:
        # What it asks of another system is put into our words, and its author is warned.
        assert adopt
        assert any("read as" in each for each in warnings), warnings
        check_demand(annotations, 1)
        check_translated(given, annotations)
        return "put into our words"
    assert info.gpus == wanted, (info.gpus, wanted)
    if not wanted:
        return "none of ours"
    spec = after["spec"]
    assert {"name": names.SCHEDULING_GATE} in spec["schedulingGates"]
    assert spec["schedulerName"] == names.SCHEDULER_NAME
    assert not any(gpus_in({"containers": [c]}, names.NVIDIA_RESOURCE) for c in spec["containers"])
    unknown = {name for name in given if name.startswith("tandem.gpu/")} - {
        *names.USER_ANNOTATIONS,
        names.GPU_JOB,
    }
    assert not unknown, "an annotation without a meaning was let in"
    check_demand(annotations, info.gpus)
    check_translated(given, annotations)
    for index, container_before in enumerate(before["spec"]["containers"]):
        check_limits(container_before, spec["containers"][index], annotations)
    return "changed"


def check_limits(
    before: dict[str, Any], after: dict[str, Any], annotations: dict[str, str]
) -> None:
    """Check that a limit of the user's own is kept, and has none of ours next to it."""
    own, env = before.get("env") or [], after.get("env") or []
    assert env[len(env) - len(own) :] == own
    alone = annotations.get(names.EXCLUSIVE) == "true"
    has_gpus = gpus_in({"containers": [after]}, names.RESOURCE)
    ours = [each["name"] for each in env[: len(env) - len(own)]]
    for framework in LIMITS:
        stated = {each.get("name") for each in own} & {*framework}
        added = [name for name in ours if name in framework]
        wanted = [] if stated or alone or not has_gpus else [framework[0]]
        assert added == wanted, (added, wanted)


def check_translated(given: dict[str, str], annotations: dict[str, str]) -> None:
    """Check the memory that is asked for in the words of another system, in MiB."""
    if names.MEMORY in annotations and names.MEMORY not in given and "gpu-memory" in given:
        assert value_of(annotations[names.MEMORY]) == number_of(given["gpu-memory"]) * 2**20


def number_of(text: str) -> int:
    """Return a whole number as every program reads it."""
    assert text.isascii()
    assert text.isdigit()
    return int(text)


def check_demand(annotations: dict[str, str], gpus: int) -> None:
    """Compare what is read of annotations with what they say."""
    demand = parse_demand(annotations, gpus)
    assert demand.gpus_per_pod == gpus
    numbers = {
        names.BATCH_SIZE: demand.batch_size,
        names.ITERATIONS: demand.iterations,
        names.SEQUENCE_LENGTH: demand.sequence_length,
        names.GANG_SIZE: demand.gang_size,
    }
    for name, number in numbers.items():
        if name in annotations:
            assert annotations[name].isascii()
            assert annotations[name].lstrip("0") == str(number)
    if names.MEMORY in annotations:
        memory = value_of(annotations[names.MEMORY])
        assert memory is not None
        assert demand.declared_memory_bytes == math.ceil(memory)
    if names.UTILIZATION in annotations:
        assert annotations[names.UTILIZATION].isascii()
        assert demand.declared_utilisation_percent == float(
            Fraction(annotations[names.UTILIZATION])
        )
    for name, word in (
        (names.MODEL, demand.model),
        (names.PRECISION, demand.precision),
        (names.OPTIMIZER, demand.optimizer),
        (names.FRAMEWORK, demand.framework),
        (names.PARALLELISM, demand.parallelism),
    ):
        assert annotations.get(name) == word
    for name, flag in (
        (names.EXCLUSIVE, demand.exclusive),
        (names.CHECKPOINT, demand.checkpoint),
        (names.ACCUMULATION, demand.accumulation),
        (names.GRADIENT_CHECKPOINTING, demand.gradient_checkpointing),
    ):
        assert (annotations.get(name) == "true") == flag


def decoded(pod: dict[str, Any]) -> dict[str, Any]:
    """Return a pod as the API server hands it on: null in a map of texts is an empty text there."""
    pod = deepcopy(pod)
    maps = (pod["metadata"].get("annotations"), pod["metadata"].get("labels"))
    for texts in filter(None, maps):
        texts.update({name: "" for name, value in texts.items() if value is None})
    return pod


def patched(body: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    return apply_patch(body, json.loads(base64.b64decode(response.get("patch", "W10="))))


def test_pods_are_admitted_as_they_are_written_or_refused_in_words() -> None:
    def case(rng: random.Random) -> str:
        body, adopt = a_pod(rng), rng.random() < 0.5
        response = verdict_on(body, adopt=adopt)
        if response is None:
            return "no review"
        if not response["allowed"]:
            return "refused"
        if not isinstance(body.get("metadata"), dict):
            return "let through, and for the API server to refuse"
        after = patched(body, response)
        again = verdict_on(after, adopt=adopt)
        assert again is not None
        assert again["allowed"]
        assert "patch" not in again, "a second admission changes it again"
        if not well_formed(body):
            return "let through, and for the API server to refuse"
        warnings = response.get("warnings") or []
        return check_admitted(decoded(body), decoded(after), warnings, adopt=adopt)

    Batch("pods at the webhook", 250).run(case)


def well_formed(body: dict[str, Any]) -> bool:
    """Say whether what the scheduler reads of a pod has the types that the API server demands."""
    metadata, spec = body.get("metadata"), body.get("spec")
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        return False
    containers = spec.get("containers")
    if not isinstance(containers, list) or not isinstance(metadata.get("annotations") or {}, dict):
        return False
    for each in (*containers, *(spec.get("initContainers") or ())):
        if not isinstance(each, dict) or not isinstance(each.get("resources") or {}, dict):
            return False
        for section in ("limits", "requests"):
            amounts = (each.get("resources") or {}).get(section) or {}
            if not isinstance(amounts, dict):
                return False
            if not all(is_amount(each) for each in amounts.values()):
                return False
        if not all(
            isinstance(each, dict) and isinstance(each.get("name"), str)
            for each in each.get("env") or ()
        ):
            return False
    gates, tolerations = spec.get("schedulingGates") or (), spec.get("tolerations") or ()
    return all(isinstance(gate.get("name"), str) for gate in gates) and all(
        isinstance(each, str | int) for toleration in tolerations for each in toleration.values()
    )


def is_amount(amount: object) -> bool:
    """Say whether the API server may hand on an amount: it caps them at 2^63."""
    text = amount if isinstance(amount, str) else repr(amount)
    return value_of(text) is not None and len(text) <= 30


def test_workloads_of_every_kind_are_judged_as_their_pods_are() -> None:
    def case(rng: random.Random) -> str:
        (group, kind), paths = rng.choice(sorted(TEMPLATES.items()))
        path = rng.choice(paths)
        pods = [a_pod(rng) for _ in range(rng.choice((1, 2)) if "*" in path else 1)]
        templates = [{k: v for k, v in each.items() if k in ("metadata", "spec")} for each in pods]
        body = {
            "apiVersion": f"{group}/v1",
            "kind": kind,
            "metadata": {"name": "x"},
            **owners(path, templates),
        }
        if rng.random() < 0.3:
            body = {**changed(body, rng), "apiVersion": f"{group}/v1", "kind": kind}
            templates = []
        adopt = rng.random() < 0.5
        old = changed(body, rng) if rng.random() < 0.2 else None
        options = {"operation": "UPDATE", "old": old} if old is not None else {}
        response = verdict_on(body, adopt=adopt, **options)
        if response is None:
            return "no review"
        if not response["allowed"]:
            return "refused"
        patched(body, response)
        if not templates or old is not None:
            return "changed at random, and let in"
        for template in templates:
            made = verdict_on({"apiVersion": "v1", "kind": "Pod", **template}, adopt=adopt)
            assert made is None or made["allowed"], (
                "the workload is let in, and its pods are refused",
                made["status"]["message"],
            )
        return "let in"

    Batch("workloads at the webhook", 250).run(case)


def test_whatever_comes_as_a_review_is_answered() -> None:
    def case(rng: random.Random) -> str:
        sent: Any = review(
            a_pod(rng), operation=rng.choice(("CREATE", "UPDATE", "DELETE", "CONNECT"))
        )
        if rng.random() < 0.5:
            sent = changed(sent, rng)
        elif rng.random() < 0.5:
            sent["request"] = {
                **sent["request"],
                **changed(sent["request"] | {"object": None}, rng),
            }
        body = json.dumps(sent).encode()
        if rng.random() < 0.4:
            body = changed_bytes(body, rng)
        status, answer = asked(body, adopt=rng.random() < 0.5)
        if status != 200:
            assert status in (413, 422)
            assert answer["error"]
            return "refused as no review"
        read = json.loads(body)  # what is no JSON to others is none to us
        assert answer["response"]["uid"] == read["request"]["uid"]
        assert read["request"]["operation"] in ("CREATE", "UPDATE", "DELETE", "CONNECT")
        return "allowed" if answer["response"]["allowed"] else "refused"

    Batch("reviews at the webhook", 250).run(case)


assert set(names.USER_ANNOTATIONS) <= set(ANNOTATIONS), "each annotation has values here"
assert ODD
