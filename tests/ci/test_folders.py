"""CONTRIBUTING.md lists each folder of the repository in one line, a package by its docstring."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "CONTRIBUTING.md").read_text().split("## Where things are\n")[1].split("\n## ")[0]
LISTED = re.findall(r"^    (\S+) +(\S.*)$", SECTION, re.M)
LINES = dict(LISTED)


def _folders() -> set[str]:
    """Return the folders that hold a tracked file; `a/*` of the list stands for all within a."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    found = {str(each) for path in tracked for each in Path(path).parents} - {"."}
    return {
        f"{Path(each).parent}/*" if f"{Path(each).parent}/*" in LINES else each for each in found
    }


def test_each_folder_has_one_line_and_each_line_has_a_folder() -> None:
    named = [folder for folder, _ in LISTED]
    assert named == sorted(_folders()), "CONTRIBUTING.md, Where things are"


def test_the_line_of_a_package_is_the_first_of_its_docstring() -> None:
    wrong = {}
    for folder, line in LISTED:
        module = ROOT / folder / "__init__.py"
        if module.exists():
            first = (ast.get_docstring(ast.parse(module.read_text())) or "").partition("\n")[0]
            if line != first:
                wrong[folder] = first
    assert not wrong
