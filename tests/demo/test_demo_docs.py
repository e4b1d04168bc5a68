"""The front page keeps its word: what it links to is there, what it shows can be read."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tandem.contracts import names
from tandem.contracts.annotations import check_names, parse_demand

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "docs/architecture.md",
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "decisions").glob("*.md")),
]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    targets = [
        target.partition("#")[0]
        for target in re.findall(r"\]\(([^)\s]+)\)", text)
        if not target.startswith(("http", "#"))
    ]
    assert [t for t in targets if not ((ROOT / page).parent / t).exists()] == []


def test_the_job_on_the_front_page_is_one_that_we_would_admit():
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    template = yaml.safe_load(block)["spec"]["template"]
    annotations = template["metadata"]["annotations"]
    limits = template["spec"]["containers"][0]["resources"]["limits"]
    assert check_names(annotations) == []
    demand = parse_demand(annotations, limits[names.RESOURCE])
    assert (demand.model, demand.batch_size, demand.gpus_per_pod) == ("resnet50", 32, 1)


def test_every_annotation_stands_on_the_front_page():
    text = (ROOT / "README.md").read_text()
    assert [name for name in names.USER_ANNOTATIONS if f"`{name}`" not in text] == []


def test_every_library_that_runs_is_accounted_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    components = ("service", "extender", "agent", "predictor", "kubeconfig")
    required = [*project["dependencies"], *(each for name in components for each in extras[name])]
    needed = {re.match(r"[a-z0-9-]+", each)[0] for each in required} - {"tandem-gpu"}
    text = (ROOT / "docs" / "architecture.md").read_text()
    listed = {
        name.strip()
        for row in re.findall(r"^\| ([a-z0-9, -]+) \|", text.split("## Libraries")[1], re.M)
        for name in row.split(",")
    } - {"library"}
    assert needed == listed


def test_the_comparison_on_the_front_page_is_that_of_the_results():
    compared = (ROOT / "README.md").read_text().split("## How it compares")[1].split("\n## ")[0]
    row = r"^\| (`[a-z-]+`(?: \(one seed\))?)[^|]*\| ([\d.]+) \| ([\d.]+) \| (\d+) \|$"
    rows = re.findall(row, compared, re.M)
    measured = (ROOT / "docs" / "results.md").read_text().split("## With measured interference")[1]
    found = {}
    for line in measured.split("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 10:
            found[f"`{cells[0].split()[0]}`"] = (cells[2], cells[8], cells[9])
        if len(cells) == 9:
            found[f"`{cells[0].split()[0]}` (one seed)"] = (cells[1], cells[7], cells[8])
    assert len(rows) >= 6
    assert {name: figures for name, *figures in rows} == {n: list(found[n]) for n, *_ in rows}
