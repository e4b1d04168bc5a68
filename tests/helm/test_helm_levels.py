"""`admission.topology_from`: the right to read Kueue's object, and nothing without the setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_render import CHART, Object, render, run_helm

SET = "scheduler.extender.config.admission.topology_from"


def rights(objects: list[Object]) -> list[dict[str, Any]]:
    return [
        {"account": o["metadata"]["name"], **rule}
        for o in objects
        if o["kind"] in ("ClusterRole", "Role")
        for rule in o.get("rules") or ()
        if "kueue.x-k8s.io" in rule["apiGroups"]
    ]


def settings(objects: list[Object]) -> dict[str, Any]:
    (found,) = (
        o
        for o in objects
        if (o["kind"], o["metadata"]["name"]) == ("ConfigMap", "tandem-scheduler")
    )
    return dict(yaml.safe_load(found["data"]["extender.yaml"]))


@pytest.mark.parametrize("options", [(), ("--set", f"{SET}=")])
def test_without_it_the_account_has_no_right_on_kueue(options: tuple[str, ...]) -> None:
    objects = render(*options)
    assert rights(objects) == []
    assert "kueue" not in json.dumps(objects).lower()


def test_with_it_the_extender_may_read_that_kind() -> None:
    objects = render("--set", f"{SET}=default")
    assert rights(objects) == [
        {
            "account": "tandem-extender", "apiGroups": ["kueue.x-k8s.io"],
            "resources": ["topologies"], "verbs": ["get"],
        }
    ]  # fmt: skip
    assert settings(objects)["admission"]["topology_from"] == "default"


def test_in_shadow_mode_there_is_nothing_of_it() -> None:
    assert rights(render("--set", f"{SET}=default", "--set", "mode=shadow")) == []


def test_a_name_that_cannot_be_is_refused() -> None:
    answer = run_helm("template", "tandem", str(CHART), "--set", f"{SET}=Not a name")
    assert answer.returncode != 0
    assert "topology_from" in answer.stderr


def test_an_upgrade_that_reuses_values_of_before_the_setting_renders(tmp_path: Path) -> None:
    """`helm upgrade --reuse-values` knows nothing of values that are new in the chart."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    config = values["scheduler"]["extender"]["config"]
    config.pop("admission", None)
    before = tmp_path / "values.yaml"
    before.write_text(yaml.safe_dump(values))
    for admission in ({}, {"admission": {}}):
        values["scheduler"]["extender"]["config"] = {**config, **admission}
        before.write_text(yaml.safe_dump(values))
        assert rights(render("--values", str(before))) == []
