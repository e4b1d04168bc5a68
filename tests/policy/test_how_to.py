"""docs/how-to.md, followed literally in a copy of the packages; the files are counted."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
NEW = re.compile(r"New file `([^`]+)`:\n\n```\w+\n(.*?)```", re.S)
REPLACE = re.compile(
    r"In `([^`]+)`, replace\n\n```text\n(.*?)\n```\n\nby\n\n```text\n(.*?)\n```", re.S
)
CHECK = re.compile(r"Check:\n\n```python\n(.*?)```", re.S)


@pytest.mark.slow
@pytest.mark.parametrize("title", SECTIONS)
def test_a_change_as_the_page_says(title: str, tmp_path: Path) -> None:
    text, touched = SECTIONS[title], set()
    for package in ("tandem", "scheduler_extender"):
        shutil.copytree(ROOT / package, tmp_path / package)
    for path, code in NEW.findall(text):
        (tmp_path / path).write_text(code)
        touched.add(path)
    for path, old, new in REPLACE.findall(text):
        if not (tmp_path / path).exists():
            (tmp_path / path).parent.mkdir(parents=True)
            shutil.copy(ROOT / path, tmp_path / path)
        before = (tmp_path / path).read_text()
        assert before.count(old) == 1, f"{path}: {old}"
        (tmp_path / path).write_text(before.replace(old, new))
        touched.add(path)
    stated = re.search(r"\((\d) files?", title)
    assert stated is not None
    assert len(touched) == int(stated.group(1))
    (check,) = CHECK.findall(text)
    paths = [str(tmp_path), str(ROOT / "tests" / "queue")]
    done = subprocess.run(
        [sys.executable, "-c", check],
        cwd=tmp_path, env={"PYTHONPATH": ":".join(paths)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
