"""`admission.gpu_claims`: a pod with GPUs names a claim of its own."""

import copy

import pytest
from admission_cases import admit, ask, container, fields, pod

from scheduler_extender.admission.config import AdmissionConfig
from tandem.contracts import claims

ON = AdmissionConfig(gpu_claims=True)


def test_a_pod_and_its_container_with_the_gpus_name_one_claim():
    admitted = admit(pod(container("side"), container("train", gpus="2")), config=ON)["spec"]
    assert admitted["resourceClaims"] == [claims.entry(claims.claim_name("review-1"))]
    side, train = admitted["containers"]
    assert "claims" not in side.get("resources", {})
    assert train["resources"]["claims"] == [{"name": claims.ENTRY}]
    assert train["resources"]["limits"] == {"tandem.gpu/gpu": "2"}


def test_off_there_is_no_trace_of_it():
    body = pod()
    assert "resourceClaims" not in admit(body)["spec"]
    assert admit(body) == admit(body, config=AdmissionConfig(gpu_claims=False))


def test_asked_again_nothing_changes():
    once = admit(pod(), config=ON)
    assert admit(copy.deepcopy(once), config=ON) == once


def test_what_an_adopted_pod_asks_for_is_by_claim_as_well():
    admitted = admit(pod(container(gpus=1, resource="nvidia.com/gpu")), config=ON, adopt=True)
    assert admitted["spec"]["containers"][0]["resources"]["claims"] == [{"name": claims.ENTRY}]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": claims.ENTRY, "resourceClaimTemplateName": "tandem-gpu-1"},
        {"name": "net", "resourceClaimName": "tandem-gpu-1"},
    ],
)
def test_other_claims_are_refused_as_before(wrong):
    assert fields(ask(pod(resourceClaims=[wrong]), config=ON)) == ["spec.resourceClaims[0]"]


def test_claims_for_others_stay_where_an_operator_lets_them():
    net = {"name": "net", "resourceClaimName": "card"}
    both = AdmissionConfig(gpu_claims=True, resource_claims="allow")
    resources = {"limits": {"tandem.gpu/gpu": "1"}, "claims": [{"name": "net"}]}
    body = pod(container(resources=resources), resourceClaims=[net])
    admitted = admit(body, config=both)["spec"]
    assert admitted["resourceClaims"] == [net, claims.entry(claims.claim_name("review-1"))]
    assert admitted["containers"][0]["resources"]["claims"] == [
        {"name": "net"},
        {"name": claims.ENTRY},
    ]
