"""What is written into a ResourceClaim, and what is read of one."""

import copy

import pytest

from tandem.contracts import claims
from tandem.contracts.claims import Allocation, Asked

UID = "6f1c1a5e-0000-4000-8000-000000000001"
GPUS = ["GPU-A", "GPU-B"]
CAPACITY = {"gpu-a": {"shares": "1"}, "gpu-b": {"shares": "1"}}


def allocated(allocation, capacity=CAPACITY):
    status = {"allocation": claims.written(allocation, capacity, "2026-01-01T00:00:00Z")}
    return {**claims.body("c", "default", "p", UID, 2), "status": status}


@pytest.mark.parametrize("by_claims", [True, False])
def test_what_is_written_is_read_as_planned_and_any_leader_writes_the_same(by_claims):
    wanted = claims.planned(UID, "n0", GPUS, by_claims=by_claims)
    assert wanted == claims.planned(UID, "n0", GPUS, by_claims=by_claims)
    assert claims.read(allocated(wanted)) == wanted
    assert [device for device, _ in wanted.devices] == (["gpu-a", "gpu-b"] if by_claims else [])


def test_each_pod_and_gpu_has_a_share_of_its_own():
    shares = {
        share
        for uid in (UID, UID[:-1] + "2")
        for _, share in claims.planned(uid, "n0", GPUS, by_claims=True).devices
    }
    assert len(shares) == 4


def test_a_claim_without_an_allocation_has_none_and_other_drivers_devices_are_not_ours():
    assert claims.read(claims.body("c", "default", "p", UID, 2)) is None
    claim = allocated(claims.planned(UID, "n0", GPUS, by_claims=True))
    claim["status"]["allocation"]["devices"]["results"][0]["driver"] = "other"
    found = claims.read(claim)
    assert found is not None
    assert [device for device, _ in found.devices] == ["gpu-b"]


def test_an_allocation_for_several_nodes_is_none_of_ours():
    wanted = claims.planned(UID, "n0", GPUS, by_claims=False)
    claim = allocated(wanted)
    (term,) = claim["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
    term["matchFields"][0]["values"] = ["n0", "n1"]
    assert claims.read(claim) == Allocation("")
    claim["status"]["allocation"]["nodeSelector"] = {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "x", "operator": "Exists"}]}]
    }
    assert claims.read(claim) == Allocation("")


def test_devices_of_another_pool_than_the_selected_node_are_none_of_ours():
    claim = allocated(claims.planned(UID, "n0", GPUS, by_claims=True))
    claim["status"]["allocation"]["devices"]["results"][0]["pool"] = "n1"
    found = claims.read(claim)
    assert found is not None
    assert found.node == ""


def changed(change):
    claim = claims.body("c", "default", "p", UID, 2)
    change(claim["spec"]["devices"])
    return claim


@pytest.mark.parametrize(
    "change",
    [
        lambda devices: devices.update(requests=[]),
        lambda devices: devices["requests"].append(copy.deepcopy(devices["requests"][0])),
        lambda devices: devices["requests"][0]["exactly"].update(deviceClassName="tandem.gpu"),
        lambda devices: devices["requests"][0]["exactly"].update(adminAccess=True),
        lambda devices: devices["requests"][0]["exactly"].update(allocationMode="All"),
        lambda devices: devices.update(config=[{"opaque": {}}]),
        lambda devices: devices.update(constraints=[{"matchAttribute": "x"}]),
        lambda devices: devices["requests"].__setitem__(0, {"name": "gpu", "firstAvailable": []}),
    ],
)
def test_a_claim_that_asks_for_something_else_is_not_the_queues(change):
    assert claims.asked_of(claims.body("c", "default", "p", UID, 2)) == Asked("gpu", 2)
    assert claims.asked_of(changed(change)) is None
    assert claims.asked_of({}) is None


def test_a_pod_has_the_claim_that_the_entry_of_the_webhook_names_and_no_other():
    name = claims.claim_name("review")
    assert claims.claim_of({"resourceClaims": [{"name": "net"}, claims.entry(name)]}) == name
    assert claims.claim_name("another") != name
    for wrong in (
        {"name": claims.ENTRY, "resourceClaimTemplateName": name},
        {"name": "other", "resourceClaimName": name},
        {"name": claims.ENTRY, "resourceClaimName": None},
    ):
        assert claims.claim_of({"resourceClaims": [wrong]}) == ""
    assert claims.claim_of({}) == ""
    assert claims.is_made(name)
    assert not claims.is_made("mine")
