"""docs/release.md: its files exist, and the versions that it wants equal are."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "release.md").read_text()


def test_the_page_names_files_and_targets_that_exist() -> None:
    files = set(re.findall(r"\b(?:docs|deploy|helm|tests)/[\w/.-]+\.\w+", PAGE))
    assert len(files) >= 5
    assert [name for name in files if not (ROOT / name).exists()] == []
    made = set(re.findall(r"`make ([a-z]+)", PAGE))
    makefile = (ROOT / "Makefile").read_text()
    assert [name for name in made if f"\n{name}: " not in makefile] == []


def test_package_and_chart_have_one_version() -> None:
    chart = yaml.safe_load((ROOT / "helm/tandem/Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]


def test_the_chart_lists_the_definitions_that_it_installs() -> None:
    chart = yaml.safe_load((ROOT / "helm/tandem/Chart.yaml").read_text())
    listed = yaml.safe_load(chart["annotations"]["artifacthub.io/crds"])
    assert {tuple(each) for each in listed} == {
        ("kind", "version", "name", "displayName", "description")
    }
    shipped = [
        yaml.safe_load(file.read_text()) for file in (ROOT / "helm/tandem/crds").glob("*.yaml")
    ]
    assert {(each["kind"], each["version"], each["name"]) for each in listed} == {
        (crd["spec"]["names"]["kind"], version["name"], crd["metadata"]["name"])
        for crd in shipped
        for version in crd["spec"]["versions"]
    }
