"""Pages that lead readers into the code: what they name exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = re.findall(r"`([\w/]+\.py): ([\w.]+)`", (ROOT / "docs/architecture.md").read_text())
ROWS = re.findall(r"^\|.*\| ([^|]*`[^|]*) \|$", (ROOT / "docs/glossary.md").read_text(), re.M)
TERMS = [name for row in ROWS for name in re.findall(r"`([^`]+)`", row)]
PACKAGES = ("scheduler_extender", "tandem", "tandem_demo", "node_agent", "predictor")


def names(tree: ast.Module) -> set[str]:
    """Return what a module defines at its top, and its methods as Class.method."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                    found.add(f"{node.name}.{part.name}")
                elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    found.add(f"{node.name}.{part.target.id}")
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            if isinstance(target, ast.Name):
                found.add(target.id)
    return found


@cache
def everything() -> dict[str, set[str]]:
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {str(p.relative_to(ROOT)): names(ast.parse(p.read_text())) for p in paths}


@pytest.mark.parametrize(("file", "name"), FUNCTIONS)
def test_the_path_of_a_job_names_functions_that_exist(file: str, name: str) -> None:
    assert name in everything()[file]


def test_the_path_of_a_job_names_a_function_in_each_step() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    steps = re.findall(r"^(\d+)\. \*\*.*?(?=^\d+\. \*\*|^#)", text, re.M | re.S)
    parts = re.split(
        r"^\d+\. \*\*", text.split("## The path of a job")[1].split("###")[0], flags=re.M
    )
    assert len(steps) == len(parts) - 1 >= 10
    assert all(re.search(r"\.py: ", part) for part in parts[1:])


@pytest.mark.parametrize("term", TERMS)
def test_the_glossary_names_code_that_exists(term: str) -> None:
    if term.endswith(".py"):
        assert any(f"/{file}".endswith(f"/{term}") for file in everything())
        return
    module, _, name = term.partition(".")
    homes = [
        found
        for file, found in everything().items()
        if term in found or (name and file.endswith(f"/{module}.py") and name in found)
    ]
    kinds = any(
        f'"{term}"' in (ROOT / file).read_text()
        for file in everything()
        if file.startswith("tandem/policy/constraints")
    )
    assert homes or kinds, term


#: Pages whose readers write the files; a page of a run, whose code is that of its commit; a page
#: whose tests `test_promises.py` looks for.
NOT_READ = {
    "docs/add-a-policy.md",
    "docs/how-to.md",
    "docs/evidence/mutants.md",
    "docs/evidence/promises.md",
}
FILES = re.compile(
    r"`((?:tandem|tandem_demo|scheduler_extender|node_agent|predictor|controlplane|benchmarks|proof"
    r"|studies|tests|deploy|helm|docs)/[\w./-]+\.(?:py|c|h|js|sh|toml|yaml|json|md))[`:]"
)


def test_every_file_that_a_page_names_exists() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/data/*.md")]
    named = [
        (str(page.relative_to(ROOT)), file)
        for page in pages
        for file in FILES.findall(page.read_text())
    ]
    assert len(named) > 200
    missing = [each for each in named if each[0] not in NOT_READ and not (ROOT / each[1]).exists()]
    assert missing == []
