"""A small checkout that can be released, this repository's own commit, and a registry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from release_checkout import (
    CHANGELOG,
    CURRENT,
    PASSWORD,
    ROOT,
    VERSION,
    RegistryProcess,
    git,
    serve,
)

from deploy.release.source import Source


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository of one commit whose package, chart and changelog are of `VERSION`."""
    folder = tmp_path / "checkout"
    chart = folder / "helm" / "tandem"
    chart.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(f'[project]\nname = "x"\nversion = "{VERSION}"\n')
    (chart / "Chart.yaml").write_text(f"name: x\nversion: {VERSION}\nappVersion: {VERSION}\n")
    (folder / "CHANGELOG.md").write_text(CHANGELOG)
    (folder / "requirements-run.lock").write_text("library==1\n")
    (folder / ".gitignore").write_text("ignored\n")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "First")
    return folder


@pytest.fixture(scope="session")
def head() -> Source:
    """The commit of this repository that is checked out, whatever has changed since."""
    time = int(git(ROOT, "show", "--no-patch", "--format=%ct", "HEAD"))
    return Source(ROOT, CURRENT, git(ROOT, "rev-parse", "HEAD"), time)


@pytest.fixture(scope="session")
def registry_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcess]:
    """The reference registry as a process, while cosign finds the password of the test's keys."""
    folder = tmp_path_factory.mktemp("registry")
    with serve(folder, "127.0.0.1") as registry, pytest.MonkeyPatch.context() as patched:
        for name, value in PASSWORD.items():
            patched.setenv(name, value)
        yield registry
