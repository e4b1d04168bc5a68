"""Pods that ask for GPUs, or parts of them, in the words of other systems."""

import copy
import itertools
import re
from pathlib import Path

import pytest
from admission_cases import admit, ask, container, fields, job, pod

from tandem.contracts import fractions, names

ROOT = Path(__file__).resolve().parents[2]
DRA = "(nvidia[.]com|deviceclass[.]resource[.]kubernetes[.]io)"
GPU, NVIDIA, MEMORY = names.RESOURCE, names.NVIDIA_RESOURCE, names.MEMORY


def asks(name="main", **amounts):
    """A container that asks for amounts, as the API server completes it."""
    amounts = {key.replace("__", "/").replace("_", "-"): str(v) for key, v in amounts.items()}
    return container(name, resources={"limits": dict(amounts), "requests": dict(amounts)})


def wants(amounts, name="main"):
    return container(name, resources={"limits": dict(amounts), "requests": dict(amounts)})


#: What is asked for, and what it is in Tandem's words: GPUs, memory, exclusive.
EXACT = [
    ({NVIDIA: "1", "nvidia.com/gpumem": "3000"}, "1", "3000Mi", None),
    ({NVIDIA: "2", "nvidia.com/gpumem": "10240"}, "2", "10240Mi", None),
    ({"nvidia.com/gpumem": "4k"}, "1", "4000Mi", None),
    ({NVIDIA: "1", "nvidia.com/gpumem-percentage": "100"}, "1", None, "true"),
    ({NVIDIA: "1", "nvidia.com/gpucores": "100"}, "1", None, "true"),
    ({"nvidia.com/gpumem": "8000", "nvidia.com/gpucores": "100"}, "1", "8000Mi", "true"),
    ({NVIDIA: "1", "nvidia.com/gpumem": "0", "nvidia.com/gpucores": "0"}, "1", None, "true"),
    ({"volcano.sh/vgpu-number": "2", "volcano.sh/vgpu-memory": "3000"}, "2", "3000Mi", None),
    ({"volcano.sh/vgpu-number": "1"}, "1", None, "true"),
    ({"volcano.sh/gpu-memory": "1024"}, "1", "1024Mi", None),
    ({"aliyun.com/gpu-mem": "3"}, "1", "3Gi", None),
    ({NVIDIA: "4"}, "4", None, "true"),
]


@pytest.mark.parametrize(("amounts", "gpus", "memory", "exclusive"), EXACT)
def test_what_is_exact_is_written_in_tandem_s_words_with_a_warning(
    amounts, gpus, memory, exclusive
):
    body = pod(wants(amounts))
    at_pod, at_apply = ask(body, adopt=True), ask(job(body), adopt=True)
    assert at_apply.errors == []
    parts = [
        name for name, value in amounts.items() if name not in fractions.COUNTS and value != "0"
    ]
    assert len(at_pod.warnings) == len(parts)
    for each, part in zip(at_pod.warnings, parts, strict=True):
        assert each.startswith(f"spec.containers[0].resources.limits[{part}]: read as ")
        assert f"spec.template.{each}" in at_apply.warnings, "the same words at apply"
        assert len(each) < 256, "kubectl shows no more"
    after = admit(body, adopt=True)
    resources = after["spec"]["containers"][0]["resources"]
    for section in ("limits", "requests"):
        left = {name: amount for name, amount in resources[section].items() if amount != "0"}
        assert left == {GPU: gpus}
    annotations = after["metadata"]["annotations"]
    assert (annotations.get(MEMORY), annotations.get(names.EXCLUSIVE)) == (memory, exclusive)
    again = ask(after, adopt=True)
    assert (again.errors, again.patch, again.warnings) == ([], [], [])


#: What is asked for, and what the refusal says to write.
REFUSED = [
    ({NVIDIA: "1", "nvidia.com/gpumem-percentage": "50"}, f"write the annotation {MEMORY}"),
    ({NVIDIA: "1", "nvidia.com/gpucores": "30"}, f"{names.UTILIZATION}: 30"),
    ({"nvidia.com/gpu.shared": "1"}, f"write {GPU} and the annotation {MEMORY}"),
    ({"nvidia.com/a100.shared": "1"}, f"write {GPU} and the annotation {MEMORY}"),
    ({"nvidia.com/mig-1g.5gb": "1"}, f"write {GPU}: 1 and the annotation {MEMORY}: 5Gi"),
    ({"nvidia.com/mig-3g.40gb": "2"}, f"write {GPU}: 2 and the annotation {MEMORY}: 40Gi"),
    ({"nvidia.com/mig-1c.2g.10gb.me": "1"}, f"{MEMORY}: 10Gi"),
    ({"nvidia.com/gpu-memory": "8"}, f"write {GPU}"),
    ({"nvidia.com/gpumem": "64"}, "must be from 128 to 1048576, in MiB"),
    ({"nvidia.com/gpumem": "12Gi"}, f"write the annotation {MEMORY}"),
    ({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "24"}, "in MiB"),
    ({"volcano.sh/vgpu-memory-percentage": "25"}, f"write the annotation {MEMORY}"),
    ({"volcano.sh/vgpu-cores": "50"}, f"{names.UTILIZATION}: 50"),
    ({"aliyun.com/gpu-mem": "4096"}, "must be from 1 to 1024, in GiB"),
    ({"aliyun.com/gpu-count": "1"}, f"write {GPU}"),
    ({"koordinator.sh/gpu-memory-ratio": "50"}, f"write {GPU}"),
    ({"tencent.com/vcuda-memory": "32"}, f"write {GPU}"),
    ({NVIDIA: "1", "nvidia.com/priority": "1"}, "remove it"),
]


@pytest.mark.parametrize(("amounts", "says"), REFUSED, ids=lambda v: str(v)[:60])
def test_what_is_not_exact_is_refused_with_what_to_write(amounts, says):
    body = pod(wants(amounts))
    at_pod, at_apply = ask(body, adopt=True), ask(job(body), adopt=True)
    refused = list(amounts)[-1]
    assert fields(at_pod) == [f"spec.containers[0].resources.limits[{refused}]"]
    assert fields(at_apply) == [f"spec.template.{fields(at_pod)[0]}"]
    assert says in at_pod.errors[0].allowed
    assert at_apply.errors[0].allowed == at_pod.errors[0].allowed, "the same words at apply"


@pytest.mark.parametrize("amounts", [a for a, *_ in EXACT] + [a for a, _ in REFUSED])
def test_no_pod_that_uses_tandem_keeps_the_parts_of_another_system(amounts):
    """In a namespace that is not adopted, next to Tandem's own resource."""
    body = pod(wants({GPU: "1"} | {k: v for k, v in amounts.items() if k not in fractions.COUNTS}))
    verdict = ask(body)
    if verdict.errors:
        assert fields(verdict)[0].startswith("spec.containers[0].resources.limits[")
    else:
        resources = admit(body)["spec"]["containers"][0]["resources"]
        assert {name for name, value in resources["limits"].items() if value != "0"} == {GPU}
    counted = ask(pod(wants({GPU: "1", "volcano.sh/vgpu-number": "1"})))
    assert fields(counted) == ["spec.containers[0].resources.limits[volcano.sh/vgpu-number]"]


def test_pods_of_other_systems_are_left_alone_where_nothing_is_adopted():
    for amounts in [a for a, *_ in EXACT] + [a for a, _ in REFUSED]:
        for body in (pod(wants(amounts)), job(pod(wants(amounts)))):
            verdict = ask(body)
            assert (verdict.errors, verdict.patch, verdict.warnings) == ([], [], [])
    noted = pod(container(), annotations={"gpu-fraction": "0.5"})
    assert ask(noted).errors == ask(job(noted)).errors == []
    claim = pod(wants({"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1"}))
    assert (ask(claim, adopt=True).errors, ask(claim, adopt=True).patch) == ([], [])


def kai(annotations, *containers, **spec):
    return pod(*(containers or [container()]), annotations=annotations, **spec)


@pytest.mark.parametrize(
    ("annotations", "index", "gpus", "memory"),
    [
        ({"gpu-memory": "2000"}, 0, "1", "2000Mi"),
        ({"gpu-memory": "4096", "gpu-fraction-num-devices": "2"}, 0, "2", "4096Mi"),
        ({"gpu-memory": "2500", "gpu-fraction-container-name": "train"}, 1, "1", "2500Mi"),
    ],
)
@pytest.mark.parametrize("resources", [None, {}, {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
                                       {"requests": {"cpu": "1"}}])  # fmt: skip
def test_the_memory_of_kai_and_run_ai_is_translated(annotations, index, gpus, memory, resources):
    both = [
        container(name, **({} if resources is None else {"resources": copy.deepcopy(resources)}))
        for name in ("proxy", "train")
    ]
    body = kai(annotations, *both)
    at_pod, at_apply = ask(body, adopt=True), ask(job(body), adopt=True)
    assert at_apply.errors == []
    assert at_pod.warnings == [
        f'metadata.annotations[gpu-memory]: read as the annotation {MEMORY}: "{memory}"'
    ]
    assert at_apply.warnings == [f"spec.template.{at_pod.warnings[0]}"]
    after = admit(body, adopt=True)
    assert after["spec"]["containers"][index]["resources"]["limits"][GPU] == gpus
    other = after["spec"]["containers"][1 - index]
    assert GPU not in other.get("resources", {}).get("limits", {})
    assert other["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert after["metadata"]["annotations"][MEMORY] == memory
    assert names.EXCLUSIVE not in after["metadata"]["annotations"]
    again = ask(after, adopt=True)
    assert (again.errors, again.patch, again.warnings) == ([], [], [])


@pytest.mark.parametrize(
    ("annotations", "refused"),
    [
        ({"gpu-fraction": "0.5"}, "gpu-fraction"),
        ({"gpu-fraction": "1"}, "gpu-fraction"),
        ({"gpu-fraction": "half"}, "gpu-fraction"),
        ({"gpu-memory": "much"}, "gpu-memory"),
        ({"gpu-memory": "12"}, "gpu-memory"),
        ({"gpu-memory": "2000", "gpu-memory.limit": "4000"}, "gpu-memory.limit"),
        ({"gpu-memory": "2000", "gpu-fraction-num-devices": "0"}, "gpu-fraction-num-devices"),
        ({"gpu-memory": "2000", "gpu-fraction-num-devices": "9" * 999}, "gpu-fraction-num-devices"),
    ],
    ids=range(8),
)  # fmt: skip
@pytest.mark.parametrize("own", [False, True])
def test_fractions_of_kai_and_run_ai_are_refused_with_what_to_write(annotations, refused, own):
    body = kai(annotations, container(gpus="1") if own else container())
    at_pod, at_apply = ask(body, adopt=not own), ask(job(body), adopt=not own)
    assert fields(at_pod) == [f"metadata.annotations[{refused}]"]
    assert fields(at_apply) == [f"spec.template.metadata.annotations[{refused}]"]
    assert at_apply.errors[0].allowed == at_pod.errors[0].allowed
    assert re.search("write |must be |remove ", at_pod.errors[0].allowed)


def test_a_container_that_is_not_there_is_refused():
    named = {"gpu-memory": "2000", "gpu-fraction-container-name": "no-container"}
    at_pod = ask(kai(named), adopt=True)
    assert fields(at_pod) == ["metadata.annotations[gpu-fraction-container-name]"]
    assert ask(kai(named, container(gpus="1"))).errors == [], "Tandem's resource says which"


def test_run_ai_s_limit_is_refused_where_the_memory_is_translated():
    grows = container(env=[{"name": "RUNAI_GPU_MEMORY_LIMIT", "value": "8Gi"}])
    verdict = ask(kai({"gpu-memory": "4096"}, grows), adopt=True)
    assert fields(verdict) == ["spec.containers[0].env[0]"]


def test_zeros_of_kai_and_run_ai_ask_for_nothing():
    for value in ("0", "0.0", ""):
        body = kai({"gpu-fraction": value, "gpu-memory": value})
        verdict = ask(body, adopt=True)
        assert (verdict.errors, verdict.patch) == ([], [])


def test_an_annotation_of_tandem_s_own_takes_precedence():
    body = pod(wants({NVIDIA: "1", "nvidia.com/gpumem": "3000"}), annotations={MEMORY: "8Gi"})
    assert 'read as the annotation tandem.gpu/memory: "8Gi"' in ask(body, adopt=True).warnings[0]
    assert admit(body, adopt=True)["metadata"]["annotations"][MEMORY] == "8Gi"


def test_two_amounts_of_memory_are_refused_and_one_that_is_said_twice_is_not():
    amounts = {NVIDIA: "1", "nvidia.com/gpumem": "3000"}
    assert ask(pod(wants(amounts), annotations={"gpu-memory": "3000"}), adopt=True).errors == []
    two = ask(pod(wants(amounts), annotations={"gpu-memory": "4000"}), adopt=True)
    assert fields(two) == ["metadata.annotations[gpu-memory]"]
    devices = {"gpu-memory": "3000", "gpu-fraction-num-devices": "2"}
    other = ask(pod(wants({NVIDIA: "1"}), annotations=devices), adopt=True)
    assert fields(other) == ["metadata.annotations[gpu-fraction-num-devices]"]


def test_parts_in_two_containers_are_refused():
    """HAMi gives each container GPUs of its own, Tandem one container of a pod."""
    one = {NVIDIA: "1", "nvidia.com/gpumem": "3000"}
    two = pod(wants(one, "a"), wants(one, "b"))
    assert fields(ask(two, adopt=True))[0] == f"spec.containers[1].resources.limits[{NVIDIA}]"
    part = pod(wants({NVIDIA: "1"}, "a"), wants({"nvidia.com/gpumem": "3000"}, "b"))
    assert fields(ask(part, adopt=True)) == [
        "spec.containers[1].resources.limits[nvidia.com/gpumem]"
    ]
    init = pod(container(gpus="1"), initContainers=[wants({"nvidia.com/gpumem": "3000"}, "i")])
    assert fields(ask(init)) == ["spec.initContainers[0].resources.limits[nvidia.com/gpumem]"]


def test_hami_s_choice_of_gpus_has_no_effect_and_says_so():
    body = pod(
        wants({NVIDIA: "1", "nvidia.com/gpumem": "3000"}),
        annotations={"nvidia.com/use-gputype": "A100"},
    )
    (_, warning) = ask(body, adopt=True).warnings
    assert warning.startswith("metadata.annotations[nvidia.com/use-gputype]: has no effect here")
    assert "nvidia.com/gpu.product" in warning


def test_the_chart_has_the_expression_of_the_code():
    policy = (ROOT / "helm" / "policies.yaml").read_text()
    webhook = (ROOT / "helm" / "tandem" / "templates" / "webhook.yaml").read_text()
    assert f"'^({names.GPU_RESOURCES})$'" in policy
    # What is given out by claims is not Tandem's.
    assert f"'^({names.GPU_RESOURCES})$'".replace(DRA, "nvidia[.]com") in webhook


def test_every_resource_that_is_known_is_one_of_gpus():
    amounts = itertools.chain(*(a for a, *_ in EXACT), *(a for a, _ in REFUSED))
    assert all(names.is_gpu(name) or name == "nvidia.com/priority" for name in amounts)
    for other in ("nvidia.com/hostdev", "volcano.sh/queue", "aliyun.com/eni", "amd.com/gpu"):
        assert not names.is_gpu(other)
