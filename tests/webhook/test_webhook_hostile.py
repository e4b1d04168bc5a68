"""Reviews that a hostile client makes up: what judging and answering them may cost."""

from __future__ import annotations

import json

import pytest
from admission_cases import ask, container, fields, job, pod, review
from fastapi import FastAPI
from fastapi.testclient import TestClient

from scheduler_extender.admission import podshape
from scheduler_extender.admission.config import AdmissionConfig
from scheduler_extender.admission.webhook import MAX_PARTS, admission_router
from scheduler_extender.cluster.selectors import MAX_NODE_REQUIREMENTS
from tandem.contracts import annotations, names
from tandem.contracts.annotations import MAX_ERRORS

SMALL_BYTES = 16_000


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI()
    app.include_router(admission_router(AdmissionConfig()))
    return TestClient(app)


def post(client: TestClient, body: object) -> tuple[int, bytes]:
    answer = client.post("/mutate", content=json.dumps(body))
    return answer.status_code, answer.content


def terms(count: int) -> dict:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    required = {"nodeSelectorTerms": [term] * count}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


MADE_UP = {
    "unknown annotations": pod(annotations={f"tandem.gpu/memorie-{i}": "" for i in range(12_000)}),
    "own annotations": pod(annotations={f"cdi.k8s.io/{i}": "x" * 30 for i in range(9_000)}),
    "an annotation with a long name": pod(annotations={"tandem.gpu/" + "x" * 10**6: ""}),
    "numbers as annotations": pod(annotations={str(i): 1 for i in range(9_000)}),
    "containers that are none": pod() | {"spec": {"containers": [0] * 115_000}},
    "a few hundred that are none": pod() | {"spec": {"containers": [0] * 900}},
    "many containers": pod(*[container(str(i), gpus="1") for i in range(1_100)]),
    "requests in each container": pod(*[container(str(i), gpus="1") for i in range(900)]),
    "amounts that are none": pod(container(resources={"limits": {str(i): [] for i in range(999)}})),
    "variables that are none": pod(container(gpus="1", env=[0] * 5_000)),
    "variables of ours": pod(
        container(gpus="1", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "x" * 200}] * 5_000)
    ),
    "mounts": pod(
        container(gpus="1", volumeMounts=[{"mountPath": "/nvidia-container-devices"}] * 9_000)
    ),
    "volumes": pod(volumes=[{"hostPath": {"path": "/dev/nvidia" + "x" * 100}}] * 9_000),
    "capabilities": pod(
        container(gpus="1", securityContext={"capabilities": {"add": ["ALL"] * 9_000}})
    ),
    "terms": pod(affinity=terms(15_000)),
    "a list as a name": pod(nodeName=[[]] * 100_000),
}


@pytest.mark.slow
@pytest.mark.parametrize("made_up", MADE_UP)
def test_an_answer_stays_small_whatever_is_asked(client: TestClient, made_up: str) -> None:
    for body in (MADE_UP[made_up], job(MADE_UP[made_up])):
        status, answer = post(client, review(body))
        assert status in (200, 413)
        if status == 200:
            said = json.loads(answer)["response"]
            assert not said["allowed"]
            assert 1 <= len(said["status"]["details"]["causes"]) <= MAX_ERRORS
        assert len(answer) < SMALL_BYTES


def test_templates_without_end_are_refused_with_the_bound() -> None:
    templates = [{"template": {"spec": {"template": {"spec": {}}}}}] * 2_000
    body = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "x"},
        "spec": {"replicatedJobs": templates},
    }
    verdict = ask(body)
    assert fields(verdict) == ["spec.replicatedJobs"]
    assert verdict.errors[0].value == "JobSet"
    assert "at most 1000 templates" in verdict.errors[0].allowed


def test_the_nearest_name_is_searched_for_the_first_few_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[str] = []
    monkeypatch.setattr(
        annotations.difflib, "get_close_matches", lambda name, *_, **__: searched.append(name) or []
    )
    found = annotations.check_names({f"{names.GROUP}/x{i}": "" for i in range(5_000)})
    assert len(found) == MAX_ERRORS
    assert len(searched) == 3


def test_the_first_wrong_entry_ends_the_reading_of_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """pydantic keeps about 1 KiB for each error: 115,000 of them took 316 MiB."""
    errors: list[int] = []
    real = podshape.PodShape.model_validate

    def counting(value: object) -> object:
        try:
            return real(value)
        except podshape.ValidationError as error:  # type: ignore[attr-defined]
            errors.append(error.error_count())
            raise

    monkeypatch.setattr(podshape, "ValidationError", __import__("pydantic").ValidationError, False)
    monkeypatch.setattr(podshape.PodShape, "model_validate", counting)
    for made_up in (
        "containers that are none",
        "a few hundred that are none",
        "numbers as annotations",
    ):
        assert len(ask(MADE_UP[made_up]).errors) == 1
    assert errors == [1, 1, 1]


def test_a_review_of_too_many_parts_is_refused_before_it_is_decoded(client: TestClient) -> None:
    status, answer = post(client, [{}] * (MAX_PARTS + 1))
    assert (status, b"objects and lists" in answer) == (413, True)


@pytest.mark.parametrize(("parts", "status"), [(MAX_PARTS, 422), (MAX_PARTS + 1, 413)])
def test_the_bound_on_parts_may_be_reached(client: TestClient, parts: int, status: int) -> None:
    assert client.post("/mutate", content=b"[" * parts).status_code == status


@pytest.mark.parametrize(
    ("entries", "errors"), [(podshape.MAX_ENTRIES, 0), (podshape.MAX_ENTRIES + 1, 1)]
)
def test_the_bound_on_entries_may_be_reached(entries: int, errors: int) -> None:
    verdict = ask(pod(volumes=[{"name": "v"}] * entries))
    said = [(error.field, error.allowed) for error in verdict.errors]
    assert said == [("spec.volumes", "at most 10000 entries are allowed")] * errors


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"request": {"uid": 7}}', b"[" * 100_000])
def test_what_is_no_review_is_refused_without_its_content(client: TestClient, body: bytes) -> None:
    answer = client.post("/mutate", content=body)
    assert answer.status_code == 422
    assert len(answer.content) < 1_000


def test_too_many_terms_are_refused_at_apply_with_bound_and_number() -> None:
    allowed = ask(pod(affinity=terms(100)))
    assert allowed.errors == []
    verdict = ask(job(pod(affinity=terms(5_000))))
    assert fields(verdict) == ["spec.template.spec"]
    assert f"at most {MAX_NODE_REQUIREMENTS} entries" in verdict.errors[0].allowed
    assert "there are 10000" in verdict.errors[0].allowed


def test_requirements_on_fields_of_nodes_count_like_those_on_labels() -> None:
    field = {"key": "metadata.name", "operator": "In", "values": ["n0"]}
    term = {"matchFields": [field] * (MAX_NODE_REQUIREMENTS + 1)}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    verdict = ask(pod(affinity={"nodeAffinity": required}))
    assert fields(verdict) == ["spec"]
    assert f"there are {MAX_NODE_REQUIREMENTS + 2}" in verdict.errors[0].allowed
