"""Pods that ask for GPUs by a ResourceClaimTemplate of the queue's DeviceClass."""

import copy
import json

import pytest
from admission_cases import admit, ask, container, fields, pod, review

from scheduler_extender.admission.config import AdmissionConfig
from scheduler_extender.admission.webhook import answer_review
from tandem.contracts import claims, names
from tandem.kube.errors import Unavailable
from tandem.kube.resource import RESOURCE_CLAIMS

ON = AdmissionConfig(gpu_claims=True)
GPU = {"name": "gpu", "resourceClaimTemplateName": "one-gpu"}
NET = {"name": "net", "resourceClaimTemplateName": "card"}


QUEUED = {"deviceClassName": names.QUEUE_CLASS}


def devices(**found):
    return {"spec": {"spec": {"devices": found}}}


def template(**exactly):
    return devices(requests=[{"name": "any", "exactly": QUEUED | exactly}])


OTHERS = devices(requests=[{"exactly": {"deviceClassName": "card"}}])


def reader(**found):
    """Read templates of the namespace `team-a`; `one-gpu` is ours unless it is given.

    A claim has the same name and spec as its template.
    """
    known = {"one-gpu": template(), "card": OTHERS} | found

    def read(resource, namespace, name):
        one = known.get(name) if namespace == "team-a" else None
        return one["spec"] if one and resource is RESOURCE_CLAIMS else one

    return read


def user(name="train", *claim_names, **extra):
    named = [{"name": each} for each in claim_names or ("gpu",)]
    return container(name, resources={"claims": named} | extra.pop("resources", {}), **extra)


def by_template(*containers, **spec):
    return pod(*(containers or [user()]), resourceClaims=[GPU], **spec)


def asked(body, read=None, **options):
    return ask(body, config=ON, claims=read or reader(), **options)


def admitted(body, read=None, **options):
    return admit(body, config=ON, claims=read or reader(), **options)


def test_it_is_the_pod_that_asks_for_the_resource():
    spec = admitted(by_template())["spec"]
    plain = admit(pod(container("train", gpus="1")), config=ON)["spec"]
    assert spec["resourceClaims"] == plain["resourceClaims"]
    assert spec["containers"][0]["resources"] == {
        "claims": [{"name": claims.ENTRY}],
        "limits": {"tandem.gpu/gpu": "1"},
    }
    for same in ("schedulingGates", "schedulerName", "tolerations", "priorityClassName"):
        assert spec[same] == plain[same]
    assert spec["containers"][0]["env"] == plain["containers"][0]["env"]


def test_count_and_memory_are_the_templates():
    read = reader(**{"one-gpu": template(count=2, capacity={"requests": {"memory": "12Gi"}})})
    changed = admitted(by_template(), read)
    assert changed["spec"]["containers"][0]["resources"]["limits"] == {"tandem.gpu/gpu": "2"}
    assert changed["metadata"]["annotations"][names.MEMORY] == "12Gi"


def test_an_annotation_counts_for_more_than_the_template():
    read = reader(**{"one-gpu": template(capacity={"requests": {"memory": "12Gi"}})})
    body = by_template(annotations={names.MEMORY: "3Gi"})
    assert admitted(body, read)["metadata"]["annotations"][names.MEMORY] == "3Gi"
    assert any("takes the place of its memory" in each for each in asked(body, read).warnings)


def test_requests_and_other_resources_stay():
    resources = {"limits": {"cpu": "1"}, "requests": {"cpu": "1", "memory": "1Gi"}}
    found = admitted(by_template(user(resources=resources)))["spec"]["containers"][0]["resources"]
    assert found["limits"] == {"cpu": "1", "tandem.gpu/gpu": "1"}
    assert found["requests"] == {"cpu": "1", "memory": "1Gi", "tandem.gpu/gpu": "1"}


def test_asked_again_nothing_changes():
    once = admitted(by_template())
    assert admitted(copy.deepcopy(once)) == once


def test_in_an_adopted_namespace_as_well():
    assert admitted(by_template(), adopt=True)["spec"]["containers"][0]["resources"]["limits"]


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (template(selectors=[{"cel": {"expression": "true"}}]), "nodeSelector"),
        (template(tolerations=[{"operator": "Exists"}]), "tolerations"),
        (template(adminAccess=True), "adminAccess"),
        (template(allocationMode="All"), "ExactCount"),
        (template(count=65), "64"),
        (template(capacity={"requests": {"shares": "2"}}), names.EXCLUSIVE),
        (template(capacity={"requests": {"cores": "2"}}), "cores"),
        (template(capacity={"requests": {"shares": "many"}}), "quantity"),
        (devices(requests=[{"name": "a", "firstAvailable": [QUEUED]}]), "exactly"),
        (devices(requests=[{"exactly": QUEUED}], constraints=[{}]), "constraints"),
        (devices(requests=[{"exactly": QUEUED}] * 2), "one request"),
    ],
)
def test_what_the_queue_does_not_decide_is_refused(found, word):
    verdict = asked(by_template(), reader(**{"one-gpu": found}))
    assert fields(verdict) == ["spec.resourceClaims[0].resourceClaimTemplateName"]
    assert word in str(verdict.errors[0])


def test_one_container_gets_the_gpus():
    assert fields(asked(by_template(user("a"), user("b")))) == [
        "spec.containers[0].resources.claims",
        "spec.containers[1].resources.claims",
    ]
    side = by_template(user(), initContainers=[user("first")])
    assert "spec.initContainers[0].resources.claims" in fields(asked(side))
    assert fields(asked(by_template(container("idle")))) == ["spec.containers"]


def test_two_templates_of_the_queue_are_refused():
    second = {"name": "more", "resourceClaimTemplateName": "one-gpu"}
    body = pod(user("train", "gpu", "more"), resourceClaims=[GPU, second])
    assert fields(asked(body)) == ["spec.resourceClaims[1]"]


def test_templates_of_other_drivers_are_none_of_ours():
    body = pod(user("train", "net"), resourceClaims=[NET])
    assert admitted(body) == body
    assert admitted(pod(user("train", "net"), resourceClaims=[NET | {
        "resourceClaimTemplateName": "missing"}]))  # fmt: skip


def test_next_to_one_of_ours_they_are_as_the_operator_says():
    body = pod(user("train", "net", "gpu"), resourceClaims=[NET, GPU])
    assert fields(asked(body)) == ["spec.resourceClaims[0]"]
    both = AdmissionConfig(gpu_claims=True, resource_claims="allow")
    spec = admit(body, config=both, claims=reader())["spec"]
    assert [each["name"] for each in spec["resourceClaims"]] == ["net", claims.ENTRY]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "net"}, {"name": claims.ENTRY}]


def test_off_no_template_is_read():
    def read(resource, namespace, name):
        raise AssertionError(name)

    assert ask(by_template(), config=AdmissionConfig(), claims=read).patch == []


def test_a_pod_with_many_templates_costs_few_questions():
    names_read = []

    def read(resource, namespace, name):
        names_read.append(name)

    many = [{"name": f"c{i}", "resourceClaimTemplateName": f"t{i}"} for i in range(500)]
    assert asked(pod(container(), resourceClaims=many), read).patch == []
    assert names_read == ["t0", "t1", "t2", "t3"]


def test_where_the_api_server_does_not_answer_the_review_fails():
    """The API server goes on without the webhook: `failurePolicy: Ignore`."""

    def read(resource, namespace, name):
        raise Unavailable(503, "gone")

    counted = []
    status, content = answer_review(
        ON,
        lambda: False,
        counted.append,
        json.dumps(review(by_template())).encode(),
        adopt=False,
        claims=read,
    )
    assert (status, counted) == (503, [])
    assert "claims" in json.loads(content)["error"]


MINE = {"name": "card", "resourceClaimName": "mine"}


def test_a_claim_by_hand_stays_the_pods_own():
    read = reader(mine=template(count=2, capacity={"requests": {"memory": "12Gi"}}))
    changed = admitted(pod(user("train", "card"), resourceClaims=[MINE]), read)
    assert changed["spec"]["resourceClaims"] == [claims.entry("mine")]
    assert changed["spec"]["containers"][0]["resources"] == {
        "claims": [{"name": claims.ENTRY}],
        "limits": {"tandem.gpu/gpu": "2"},
    }
    assert changed["metadata"]["annotations"][names.MEMORY] == "12Gi"
    assert claims.claim_of(changed["spec"]) == "mine"
    assert admitted(copy.deepcopy(changed), read) == changed


def test_a_claim_that_another_pod_has_is_refused():
    taken = template()
    taken["spec"]["status"] = {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}
    verdict = asked(pod(user("train", "card"), resourceClaims=[MINE]), reader(mine=taken))
    assert fields(verdict) == ["spec.resourceClaims[0].resourceClaimName"]
    assert "ResourceClaimTemplate" in str(verdict.errors[0])


def test_a_claim_by_hand_and_a_template_are_one_too_many():
    body = pod(user("train", "card", "gpu"), resourceClaims=[MINE, GPU])
    assert fields(asked(body, reader(mine=template()))) == ["spec.resourceClaims[1]"]
