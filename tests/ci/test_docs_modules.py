"""Every `python -m` of a page, the Makefile or a docstring names a module of the repository."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = {each.parent.name for each in ROOT.glob("*/__init__.py")}
#: Not `python -m studies.papers.$$paper`: the Makefile fills in the name.
_CALL = re.compile(r"(?:python3?|\$\(PYTHON\)) -m ([a-z_]\w*(?:\.\w+)*)(?![\w.]*\$)")


def _called() -> list[tuple[str, str]]:
    """Return each file with each module of ours that it calls."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    written = [
        path for path in tracked
        if path == "Makefile" or Path(path).suffix in {".md", ".py", ".toml"}
    ]  # fmt: skip
    return [
        (path, module)
        for path in written
        for module in _CALL.findall((ROOT / path).read_text())
        if module.split(".")[0] in ROOMS
    ]


def _runs(module: str) -> bool:
    place = ROOT.joinpath(*module.split("."))
    return place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()


def test_each_module_that_is_called_can_be_run() -> None:
    called = _called()
    assert {"benchmarks", "studies", "proof"} <= {module.split(".")[0] for _, module in called}
    assert [each for each in called if not _runs(each[1])] == []


def test_each_line_that_says_how_a_page_was_made_names_a_module() -> None:
    made = re.compile(r"^Written by (?:`make \w+` \()?`python -m (\S+?)[ `]", re.M)
    pages = {path: made.findall(path.read_text()) for path in (ROOT / "docs").rglob("*.md")}
    assert len([path for path, found in pages.items() if found]) > 20
    assert [path for path, found in pages.items() if not all(map(_runs, found))] == []
