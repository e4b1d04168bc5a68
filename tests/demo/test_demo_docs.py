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
    components = ("service", "extender", "agent", "dra", "predictor", "kubeconfig")
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
    row = r"^\| (`[a-z-]+`)[^|]*\| ([\d.]+) \| ([\d.]+) \| (\d+) \| ([\d.-]+) \|$"
    rows = re.findall(row, compared, re.M)
    pages = (ROOT / "docs" / "evidence" / "results.md").read_text().split("\n## ")
    newest = (ROOT / "docs" / "evidence" / "results" / "promised.md").read_text().split("\n## ")
    tuned = figures_of("With measured interference", pages) | figures_of("V100", newest)
    other = figures_of("P100", newest)
    assert len(rows) >= 6
    for name, completion, speed, ooms, untuned in rows:
        assert [completion, speed, ooms] == tuned[name]
        assert untuned == (other[name][0] if name in other else "-")
    assert other.keys() <= {name for name, *_ in rows}


def figures_of(heading: str, pages: list[str]) -> dict[str, list[str]]:
    """Return mean completion, speed and OOMs by profile, of a section of the results."""
    (section,) = (each for each in pages if each.startswith(heading))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()]
    return {
        f"`{cells[0].split()[0]}`": [cells[2], cells[8], cells[9]]
        for cells in rows
        if len(cells) == 10 and cells[1].isdigit()
    }


def test_the_workloads_that_nothing_was_chosen_on_are_those_of_their_page():
    said = " ".join((ROOT / "README.md").read_text().split())
    lines = (ROOT / "docs" / "evidence" / "results" / "fresh.md").read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("| trace |"))
    head, _, *rest = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]
    )
    cells = [dict(zip(head, row, strict=True)) for row in rest[: rest.index([""])]]
    ours = [float(cell["tandem"]) for cell in cells]
    over_all = lines[
        lines.index("## Over all cells") : lines.index("## Where our profiles fall short")
    ]
    means = {
        line.split(" | ")[0].removeprefix("| "): line.split(" | ")[1]
        for line in over_all
        if line.startswith("| ")
    }
    for words in (
        f"[{len(cells)} other workloads](docs/evidence/results/fresh.md)",
        f"the geometric mean of `tandem` is {means['tandem']} and that of `srtf` {means['srtf']}",
        f"in {sum(each > 1 for each in ours)} of them, by {max(ours) - 1:.0%} at worst".replace(
            "%", " %"
        ),
    ):
        assert words in said
