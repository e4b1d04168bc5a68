"""`admission.gpu_claims`: what the chart gives for it, and that nothing is there without it."""

from __future__ import annotations

import json

from helm_render import Object, render

from tandem.contracts import names

ON = ("--set", "scheduler.extender.config.admission.gpu_claims=true")


def of(objects: list[Object], kind: str, name: str) -> list[Object]:
    return [o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name)]


def test_without_it_nothing_of_claims_is_rendered() -> None:
    text = json.dumps(render())
    assert "resource.k8s.io/v1" not in text
    assert "resourceclaims" not in text
    assert names.QUEUE_CLASS not in text


def test_with_it_there_are_rights_a_class_that_selects_nothing_and_a_policy() -> None:
    objects = render(*ON)
    (role,) = of(objects, "ClusterRole", "tandem-extender")
    rights = {
        resource: rule["verbs"]
        for rule in role["rules"]
        if rule["apiGroups"] == ["resource.k8s.io"]
        for resource in rule["resources"]
    }
    assert rights == {
        "resourceclaims": ["get", "list", "watch", "create"],
        "resourceclaims/status": ["patch"],
        "resourceclaims/binding": ["patch"],
    }
    (queue,) = of(objects, "DeviceClass", names.QUEUE_CLASS)
    assert queue["spec"]["selectors"] == [{"cel": {"expression": "false"}}]
    assert of(objects, "ValidatingAdmissionPolicy", "tandem-claims")
    assert of(objects, "ValidatingAdmissionPolicyBinding", "tandem-claims")
    (pods,) = of(objects, "ValidatingAdmissionPolicy", "tandem-pods")
    (claims,) = (
        each["expression"]
        for each in pods["spec"]["validations"]
        if "resourceClaims" in each["expression"]
    )
    assert "startsWith('tandem-gpu-')" in claims


def test_without_policies_the_class_alone_is_there() -> None:
    objects = render(*ON, "--set", "policies.enabled=false")
    assert of(objects, "DeviceClass", names.QUEUE_CLASS)
    assert not of(objects, "ValidatingAdmissionPolicy", "tandem-claims")


def test_in_shadow_mode_there_is_nothing_of_it() -> None:
    assert "resource.k8s.io" not in json.dumps(render(*ON, "--set", "mode=shadow"))
