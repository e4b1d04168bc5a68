"""docs/add-a-policy.md, followed literally in a copy of the package."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_adding_a_policy_as_the_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "add-a-policy.md").read_text()
    blocks = re.findall(r"```(?:python|yaml)\n(.*?)```", page, flags=re.DOTALL)
    code, line, union, profile, scenario = blocks
    shutil.copytree(ROOT / "tandem", tmp_path / "tandem")
    policy = tmp_path / "tandem" / "policy"
    (policy / "scorers" / "fewest_jobs.py").write_text(code)
    (policy / "profiles" / "spread.yaml").write_text(profile)
    catalog = policy / "catalog.py"
    text = catalog.read_text()
    before = "from tandem.policy.scorers.horus_cost import HorusCost\n"
    old_union = union.replace("    FewestJobs\n    | HorusCost\n", "    HorusCost\n")
    assert before in text
    assert old_union in text
    catalog.write_text(text.replace(before, line + before).replace(old_union, union))
    done = subprocess.run(
        [sys.executable, "-c", scenario],
        cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
