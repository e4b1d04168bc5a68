"""200 manifests of the field: each is admitted with all that its pods need, or refused in words."""

import base64
import json
import re

import field_manifests
import jsonschema
import pytest
import yaml
from admission_cases import apply_patch
from field_manifests import GPU, USES, answers, ask, is_known, manifests, outcome

from tandem.contracts import names
from tandem.contracts.annotations import parse_demand

SHARED = field_manifests.PAGE.parents[3] / "shared" / "crds"
#: A refusal says one of these.
REMEDY = re.compile(r"\b(write|remove|use|leave it out|did you mean|must be)\b")
ADMITTED = [
    (manifest, made, answer)
    for manifest, _, pods in answers()
    for made, answer in zip(manifest.pods, pods, strict=True)
    if answer.allowed and answer.patch
]


def test_they_are_200_different_ones_of_twelve_projects_and_more():
    found = list(manifests())
    assert len(found) == len({json.dumps(each.body, sort_keys=True) for each in found}) == 200
    assert len({each.project for each in found}) >= 12
    assert {each.use for each in found} == set(USES)
    counts = {"admitted": 0, "translated": 0, "refused": 0, "no GPUs": 0}
    for each, _, pods in answers():
        counts[outcome(each, pods)] += 1
    assert all(count >= 5 for count in counts.values()), counts


def test_a_refusal_names_the_field_and_says_what_to_write():
    for each, at_apply, pods in answers():
        for answer in (at_apply, *pods):
            if answer is None or answer.allowed:
                continue
            assert answer.causes, each
            for at, message in answer.causes:
                assert at.startswith(("spec.", "metadata.")), (each.kind, at)
                assert REMEDY.search(message.partition(" is not allowed: ")[2]), message


def test_a_workload_is_refused_what_its_pods_are_refused_in_the_same_words():
    known = 0
    for each, at_apply, pods in answers():
        if at_apply is None or each.body["kind"] == "Pod":
            continue
        known += 1
        assert at_apply.allowed == all(answer.allowed for answer in pods), (each.kind, each.use)
        said = {message for answer in pods for _, message in answer.causes}
        assert {message for _, message in at_apply.causes} == said
        warned = {w.partition(": ")[2] for answer in pods for w in answer.warnings}
        assert {w.partition(": ")[2] for w in at_apply.warnings} == warned
    assert known > 100


@pytest.mark.parametrize(
    ("manifest", "made", "answer"),
    ADMITTED,
    ids=[made["metadata"]["name"] for _, made, _ in ADMITTED],
)
def test_an_admitted_pod_has_what_the_scheduler_needs(manifest, made, answer):
    after = apply_patch(made, json.loads(base64.b64decode(answer.patch)))
    spec, annotations = after["spec"], after["metadata"]["annotations"]
    assert spec["schedulerName"] == names.SCHEDULER_NAME
    assert {"name": names.SCHEDULING_GATE} in spec["schedulingGates"]
    assert any(each.get("key") == names.GPU_TAINT for each in spec["tolerations"])
    assert spec["priorityClassName"] == names.PRIORITY_CLASS
    assert annotations[names.GPU_JOB]
    containers = [*spec["containers"], *spec.get("initContainers", [])]
    asking = []
    for each in containers:
        limits, requests = (
            each["resources"].get("limits", {}),
            each["resources"].get("requests", {}),
        )
        amounts = {k: v for k, v in {**requests, **limits}.items() if names.is_gpu(k) or k == GPU}
        assert {k for k, v in amounts.items() if v != "0"} <= {GPU}, "nothing that no node has"
        devices = next(e for e in each["env"] if e["name"] == names.VISIBLE_DEVICES_ENV)
        if amounts.get(GPU, "0") != "0":
            asking.append(each)
            assert limits[GPU] == requests[GPU]
            assert names.VISIBLE_DEVICES in devices["valueFrom"]["fieldRef"]["fieldPath"]
        else:
            assert devices["value"] == names.NO_DEVICES
    (gpu,) = asking
    demand = parse_demand(annotations, int(gpu["resources"]["limits"][GPU]))
    shares = demand.declared_memory_bytes or demand.model or manifest.use == "whole"
    assert demand.exclusive or shares or GPU in USES[manifest.use].limits
    again = ask(after, adopted=manifest.adopted)
    assert (again.allowed, again.patch, again.causes) == (True, "", ()), "nothing is left to change"


def test_what_asks_for_no_gpu_is_left_as_it_is():
    for each, at_apply, pods in answers():
        for answer in (at_apply, *pods) if each.use == "none" else ():
            assert answer is None or (answer.allowed, answer.patch, answer.warnings) == (
                True,
                "",
                (),
            )


FILES = ["jobsets", "leaderworkersets", "mpijobs", "rayclusters", "rayjobs", "trainjobs"]


@pytest.mark.parametrize("file", FILES)
def test_they_are_what_the_projects_own_definitions_accept(file):
    path = SHARED / f"{file}.yaml"
    if not path.exists():
        pytest.skip(f"the definitions of other projects are not at {path}")
    definition = yaml.load(path.read_text(), yaml.CSafeLoader)
    group, kind = definition["spec"]["group"], definition["spec"]["names"]["kind"]
    # `jsonschema.validate` would check each schema, of thousands of lines, anew for each body.
    schemas = {
        f"{group}/{version['name']}": jsonschema.Draft202012Validator(
            closed(version["schema"]["openAPIV3Schema"])
        )
        for version in definition["spec"]["versions"]
    }
    checked = 0
    for each in manifests():
        schema = schemas.get(each.body["apiVersion"]) if each.body["kind"] == kind else None
        if schema is not None:
            schema.validate(each.body)
            checked += 1
    assert checked >= 5


def closed(schema):
    """Return a schema that refuses fields it does not know, which an API server would drop."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: closed(value) for key, value in schema.items()}
    known = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if known and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    return schema


def test_kinds_whose_templates_are_read_are_marked_on_the_page():
    read = {(m.body["apiVersion"].rpartition("/")[0], m.body["kind"]) for m in manifests()
            if is_known(m.body)}  # fmt: skip
    assert ("batch", "Job") in read
    assert ("tekton.dev", "TaskRun") not in read


def test_the_page_is_current():
    assert field_manifests.PAGE.read_text() == field_manifests.page(), (
        "run python tests/webhook/field_manifests.py"
    )
