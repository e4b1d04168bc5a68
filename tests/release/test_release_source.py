"""What may be released: a commit without changes, of one version, with notes."""

from __future__ import annotations

from pathlib import Path

import pytest
from release_checkout import CHANGELOG, VERSION, git

from deploy.release import source
from tandem.errors import TandemError


def test_a_commit_of_that_version_is_taken(checkout: Path) -> None:
    found = source.read(checkout, VERSION)
    assert found.commit == git(checkout, "rev-parse", "HEAD")
    assert found.time == int(git(checkout, "show", "--no-patch", "--format=%ct", "HEAD"))
    assert found.environment == {"SOURCE_DATE_EPOCH": str(found.time)}


@pytest.mark.parametrize("name", ["CHANGELOG.md", "new"])
def test_changes_that_no_commit_holds_are_refused_by_name(checkout: Path, name: str) -> None:
    (checkout / "ignored").write_text("1")
    source.read(checkout, VERSION)
    (checkout / name).write_text("1")
    with pytest.raises(TandemError, match=name):
        source.read(checkout, VERSION)


@pytest.mark.parametrize(
    ("file", "line", "place"),
    [
        ("pyproject.toml", f'version = "{VERSION}"', "version of pyproject.toml has 9.9.9"),
        ("helm/tandem/Chart.yaml", f"\nversion: {VERSION}", "version of helm/tandem/Chart.yaml"),
        ("helm/tandem/Chart.yaml", f"appVersion: {VERSION}", "appVersion of helm/tandem/Chart"),
    ],
)
def test_another_version_in_one_file_is_refused(
    checkout: Path, file: str, line: str, place: str
) -> None:
    text = (checkout / file).read_text()
    assert line in text
    (checkout / file).write_text(text.replace(line, line.replace(VERSION, "9.9.9")))
    git(checkout, "commit", "--quiet", "--all", "--message", "Second")
    with pytest.raises(TandemError, match=place):
        source.read(checkout, VERSION)


def test_a_version_that_git_has_tagged_is_of_that_commit_for_good(checkout: Path) -> None:
    git(checkout, "tag", "--annotate", f"v{VERSION}", "--message", "Release")
    source.read(checkout, VERSION)
    git(checkout, "commit", "--quiet", "--allow-empty", "--message", "Second")
    with pytest.raises(TandemError, match=f"the tag v{VERSION} of git is of commit"):
        source.read(checkout, VERSION)


def test_notes_are_the_section_of_the_version() -> None:
    assert source.notes(CHANGELOG, VERSION) == "### Added\n\n- One thing.\n"
    assert source.notes(CHANGELOG, "1.1.0") == "- Earlier.\n"
    assert source.notes("## [0.1.0] - 2026-01-01\n\n- First.\n", "0.1.0") == "- First.\n"


@pytest.mark.parametrize(
    "changelog",
    [
        "## Unreleased\n\n- Something.\n",
        "## 1.2.0\n\n- Without a date.\n",
        "## 1.2.0 - 2026-12-01\n\n## 1.1.0 - 2026-11-01\n\n- Earlier.\n",
        "## 11.2.0 - 2026-12-01\n\n- Another.\n",
        "## 1.2.0-rc1 - 2026-12-01\n\n- Another.\n",
        "## 1x2x0 - 2026-12-01\n\n- Another.\n",
    ],
)
def test_a_version_without_notes_is_refused(changelog: str) -> None:
    with pytest.raises(TandemError, match=r"CHANGELOG.md says nothing of 1\.2\.0"):
        source.notes(changelog, "1.2.0")


def test_what_is_built_has_the_files_and_the_time_of_the_commit(checkout: Path) -> None:
    found = source.read(checkout, VERSION)
    (checkout / "ignored").write_text("1")
    with source.exported(found) as tree:
        files = {file.relative_to(tree) for file in tree.rglob("*") if file.is_file()}
        assert files == {Path(name) for name in git(checkout, "ls-files").split()}
        assert {(tree / name).stat().st_mtime for name in files} == {found.time}
    assert not tree.exists()
