"""The commit of a release, and what is refused before anything is built."""

from __future__ import annotations

import re
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from deploy.release.tools import run
from tandem.errors import TandemError

_STEPS = 'docs/release.md, "Before", has the steps.'


@dataclass(frozen=True)
class Source:
    """A commit that may be released as `version`; `time` is its own, in seconds of Unix time."""

    root: Path
    version: str
    commit: str
    time: int

    @property
    def environment(self) -> dict[str, str]:
        """Return what has programs write the commit's time in place of today's."""
        return {"SOURCE_DATE_EPOCH": str(self.time)}


def read(root: Path, version: str) -> Source:
    """Return the commit that is checked out in `root`, which is to be released as `version`.

    Raises:
        TandemError: files have changed since the commit; the version is another one than that of
            package or chart; a tag of git names it for another commit.
    """
    changed = run("git", "status", "--porcelain", cwd=root)
    if changed:
        raise TandemError(
            f"the checkout has changes that no commit holds:\n{changed.rstrip()}",
            "Commit or remove them: a release is built from a commit.",
        )
    for place, found in versions(root).items():
        if found != version:
            raise TandemError(f"{place} has {found}, and not {version}", _STEPS)
    commit = run("git", "rev-parse", "HEAD", cwd=root).strip()
    tag = f"v{version}"
    if run("git", "tag", "--list", tag, cwd=root):
        tagged = run("git", "rev-parse", f"{tag}^{{commit}}", cwd=root).strip()
        if tagged != commit:
            raise TandemError(
                f"the tag {tag} of git is of commit {tagged[:12]}, and this is {commit[:12]}",
                "What has been released does not change: take the next version.",
            )
    time = int(run("git", "show", "--no-patch", "--format=%ct", "HEAD", cwd=root))
    return Source(root, version, commit, time)


def versions(root: Path) -> dict[str, str]:
    """Return the versions that a checkout states, by where they are."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((root / "helm" / "tandem" / "Chart.yaml").read_text())
    return {
        "version of pyproject.toml": project["version"],
        "version of helm/tandem/Chart.yaml": chart["version"],
        "appVersion of helm/tandem/Chart.yaml": chart["appVersion"],
    }


def notes(changelog: str, version: str) -> str:
    """Return what the changelog says of a version, without its heading.

    Raises:
        TandemError: there is no section of the version with a date, or it is empty.
    """
    heading = rf"^## \[?{re.escape(version)}\]? - \d{{4}}-\d\d-\d\d\s*$"
    found = re.search(rf"{heading}\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        raise TandemError(
            f"CHANGELOG.md says nothing of {version}",
            f'Give what is under "Unreleased" the heading `## {version} - YYYY-MM-DD`.',
        )
    return found[1].strip() + "\n"


@contextmanager
def exported(source: Source) -> Iterator[Path]:
    """Yield a folder with the files of the commit and no others, with the commit's time."""
    with tempfile.TemporaryDirectory(prefix="tandem-release-") as folder:
        packed = Path(folder, "source.tar")
        tree = Path(folder, "source")
        run("git", "archive", "--output", packed, source.commit, cwd=source.root)
        with tarfile.open(packed) as tar:
            # Python 3.11 has filters since 3.11.4. What is unpacked is a commit of our own.
            filters = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(tree, **filters)
        packed.unlink()
        yield tree
