"""`admission.gpu_claims` and `dra`: what the chart gives for each, and nothing without it."""

from __future__ import annotations

import json

import pytest
import yaml
from helm_render import CHART, ROOT, Object, render, run_helm

from tandem.contracts import names

ON = ("--set", "scheduler.extender.config.admission.gpu_claims=true")
DRIVER = ("--set", "dra.enabled=true")


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
        "resourceclaims": ["get", "list", "watch", "create", "patch"],
        "resourceclaimtemplates": ["get"],
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
    assert "c.name == 'tandem-gpu'" in claims


def test_with_it_pods_that_name_templates_come_to_the_webhook_and_do_not_depend_on_it() -> None:
    (hooks,) = of(render(*ON), "MutatingWebhookConfiguration", "tandem")
    found = {each["name"]: each for each in hooks["webhooks"]}
    # Before those that see what became of the pod, and are asked again after other webhooks.
    assert list(found)[:2] == ["adopted-claims.tandem.gpu", "claims.tandem.gpu"]
    for name, path in (("claims", "/mutate"), ("adopted-claims", "/mutate-adopted")):
        hook = found[f"{name}.tandem.gpu"]
        assert hook["failurePolicy"] == "Ignore"
        assert hook["clientConfig"]["service"]["path"] == path
        assert hook["matchConditions"]


def test_without_policies_the_class_alone_is_there() -> None:
    objects = render(*ON, "--set", "policies.enabled=false")
    assert of(objects, "DeviceClass", names.QUEUE_CLASS)
    assert not of(objects, "ValidatingAdmissionPolicy", "tandem-claims")


def test_in_shadow_mode_there_is_nothing_of_it() -> None:
    assert "resource.k8s.io" not in json.dumps(render(*ON, "--set", "mode=shadow"))


def component(objects: list[Object], name: str) -> list[Object]:
    key = "app.kubernetes.io/component"
    return [o for o in objects if (o["metadata"].get("labels") or {}).get(key) == name]


def test_with_the_driver_there_is_all_of_it_in_the_namespace_of_the_agents() -> None:
    objects = component(render(*DRIVER, "--set", "agent.namespace=gpu-agents"), "dra")
    kinds = sorted(o["kind"] for o in objects)
    assert kinds == [
        "ClusterRole",
        "ClusterRoleBinding",
        "DaemonSet",
        "DeviceClass",
        "NetworkPolicy",
        "ServiceAccount",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ]
    assert {o["metadata"].get("namespace", "gpu-agents") for o in objects} == {"gpu-agents"}
    (policy,) = of(objects, "ValidatingAdmissionPolicy", "tandem-dra-own-node")
    (condition,) = policy["spec"]["matchConditions"]
    assert "'system:serviceaccount:gpu-agents:tandem-dra'" in condition["expression"]
    (daemons,) = of(objects, "DaemonSet", "tandem-dra")
    (driver,) = daemons["spec"]["template"]["spec"]["containers"]
    assert driver["image"].startswith("tandem-agent:")
    assert driver["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    # Of any value: it stays on a node that goes back to the environment, for the claims there.
    node = daemons["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": names.HAND_OVER_LABEL, "operator": "Exists"}]


@pytest.mark.parametrize(
    ("more", "hand_over"),
    [
        ((), None),
        (DRIVER, "label"),
        ((*DRIVER, "--set", "agent.config.hand_over=dra-queue"), "dra-queue"),
    ],
)
def test_with_the_driver_agents_do_as_their_nodes_say(
    more: tuple[str, ...], hand_over: str | None
) -> None:
    (settings,) = of(render(*more), "ConfigMap", "tandem-agent")
    assert yaml.safe_load(settings["data"]["agent.yaml"]).get("hand_over") == hand_over


def test_without_the_driver_and_in_shadow_mode_there_is_nothing_of_it() -> None:
    assert not component(render(), "dra")
    assert not component(render(*DRIVER, "--set", "mode=shadow"), "dra")


def test_an_upgrade_that_reuses_values_of_before_the_driver_renders() -> None:
    """`helm upgrade --reuse-values` knows nothing of values that are new in the chart."""
    assert render("--set", "dra=null") == render()
    assert component(render("--set", "dra.resources=null", *DRIVER), "dra")


def test_a_cluster_without_claims_gets_no_driver() -> None:
    options = ("--namespace", names.NAMESPACE, "--kube-version", "v1.33.0", *DRIVER)
    answer = run_helm("template", "tandem", str(CHART), *options)
    assert answer.returncode != 0
    assert "dra.enabled: the driver needs Kubernetes 1.34 or later" in answer.stderr


def test_what_is_applied_without_helm_is_what_the_chart_makes() -> None:
    applied = yaml.safe_load_all((ROOT / "deploy" / "manifests" / "dra.yaml").read_text())
    given = {(o["kind"], o["metadata"]["name"]) for o in applied}
    assert given == {(o["kind"], o["metadata"]["name"]) for o in component(render(*DRIVER), "dra")}
