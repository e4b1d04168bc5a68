"""A kind of workload that the values add: webhook, rights and configuration follow from them."""

from __future__ import annotations

from pathlib import Path

import yaml
from helm_render import CHART, ROOT, Object, render

from scheduler_extender.cluster.kinds import SHIPPED
from scheduler_extender.config import ExtenderConfig

KIND = {
    "group": "ml.example.com",
    "version": "v1",
    "kind": "Experiment",
    "plural": "experiments",
    "roles": [{"name": "driver", "template": ["spec", "template"]}],
    "templates": [["spec", "template"]],
    "suspend": ["spec", "paused"],
}


def rendered_with(kinds: list[Object], folder: Path) -> list[Object]:
    values = folder / "values.yaml"
    values.write_text(yaml.safe_dump({"scheduler": {"extender": {"config": {"kinds": kinds}}}}))
    return render("--values", str(values))


def rules_of(objects: list[Object], kind: str, name: str) -> list[Object]:
    (found,) = (o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name))
    if kind == "ClusterRole":
        return list(found["rules"])
    return [rule for webhook in found["webhooks"] for rule in webhook["rules"]]


def of_group(rules: list[Object], group: str) -> list[Object]:
    return [rule for rule in rules if rule["apiGroups"] == [group]]


def test_a_kind_of_the_values_has_webhook_rules_rights_and_a_place_in_the_settings(
    tmp_path: Path,
) -> None:
    objects = rendered_with([KIND], tmp_path)
    hooks = of_group(rules_of(objects, "MutatingWebhookConfiguration", "tandem"), KIND["group"])
    assert [rule["resources"] for rule in hooks] == [["experiments"]] * 2, "adopted or not"
    (right,) = of_group(rules_of(objects, "ClusterRole", "tandem-extender"), KIND["group"])
    assert (right["resources"], right["verbs"]) == (["experiments"], ["get", "patch"])
    maps = [o for o in objects if o["kind"] == "ConfigMap" and "data" in o]
    texts = [text for each in maps for text in each["data"].values() if "experiments" in text]
    (config,) = (ExtenderConfig.model_validate(yaml.safe_load(text)) for text in texts)
    assert config.kinds[0].name == "Experiment.ml.example.com"


def test_a_kind_of_the_values_takes_the_place_of_the_shipped_one(tmp_path: Path) -> None:
    group = "leaderworkerset.x-k8s.io"
    workers = {
        "group": group,
        "version": "v1",
        "kind": "LeaderWorkerSet",
        "plural": "leaderworkersets",
    }
    objects = rendered_with([workers | {"suspend": ["spec", "suspend"]}], tmp_path)
    (right,) = of_group(rules_of(objects, "ClusterRole", "tandem-extender"), group)
    assert right["verbs"] == ["get", "patch"]
    assert not of_group(rules_of(objects, "MutatingWebhookConfiguration", "tandem"), group)


def test_the_chart_has_the_kinds_of_the_scheduler() -> None:
    assert (CHART / "files" / "kinds.yaml").read_text() == SHIPPED.read_text()
    assert (ROOT / "docs" / "workloads.md").read_text().count("\n| ") > 20


def test_a_kind_that_gets_fewer_pods_may_be_changed_though_it_never_rests(tmp_path: Path) -> None:
    scale = {"replicas": ["spec", "workers"], "role": "worker", "index": "ml.example.com/index"}
    grows = {**KIND, "minimum": ["spec", "least"], "scale": scale}
    del grows["suspend"]
    objects = rendered_with([grows], tmp_path)
    (right,) = of_group(rules_of(objects, "ClusterRole", "tandem-extender"), KIND["group"])
    assert right["verbs"] == ["get", "patch"]


def test_the_rights_on_a_kind_of_the_core_group_name_that_group(tmp_path: Path) -> None:
    core = {"group": "", "version": "v1", "kind": "Batch", "plural": "batches"}
    rules = rules_of(rendered_with([core], tmp_path), "ClusterRole", "tandem-extender")
    (right,) = (rule for rule in rules if rule["resources"] == ["batches"])
    assert right["apiGroups"] == [""]


def test_there_are_no_rights_on_kinds_of_which_templates_alone_are_checked() -> None:
    objects = render()
    rules = rules_of(objects, "ClusterRole", "tandem-extender")
    hooks = rules_of(objects, "MutatingWebhookConfiguration", "tandem")
    for group, checked, read in (
        ("ray.io", "rayservices", {"rayclusters", "rayjobs"}),
        ("trainer.kubeflow.org", "trainingruntimes", {"trainjobs"}),
    ):
        assert [checked] in [rule["resources"] for rule in of_group(hooks, group)]
        assert {each for rule in of_group(rules, group) for each in rule["resources"]} == read
