"""The documentation's site in a browser: search, and the way from one version to another."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.page import browser as driver

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]


def build(root: Path, output: Path, version: str) -> None:
    command = [sys.executable, root / "deploy/site/build.py", "--version", version]
    subprocess.run([*map(str, command), "--output", str(output)], check=True)


def test_a_search_finds_the_page_of_a_term(tmp_path: Path) -> None:
    if why := driver.absent():
        pytest.skip(why)
    build(ROOT, tmp_path, "1.0")
    with driver.chromium() as browser:
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        for terms, expected in (
            ("preemption quota", "queueing.html"),
            ("checkpoint", "jobs.html"),
            ("Alertmanager", "notifications.html"),
        ):
            page.goto(f"{tmp_path.as_uri()}/index.html")
            page.get_by_role("link", name="1.0").click()
            page.get_by_placeholder("Search").first.fill(terms)
            page.keyboard.press("Enter")
            # The list fills while the index is searched.
            found = page.locator(f'#search-results li a[href*="{expected}"]')
            found.first.wait_for()
        page.get_by_placeholder("Search").first.fill("quetzalcoatl")
        page.keyboard.press("Enter")
        page.get_by_text("did not match any documents").wait_for()
        assert all(url.startswith("file:") for url in asked)


def test_a_reader_goes_to_the_same_page_of_another_version(tmp_path: Path) -> None:
    if why := driver.absent():
        pytest.skip(why)
    shutil.copytree(ROOT / "deploy" / "site", tmp_path / "deploy" / "site")
    docs = tmp_path / "docs"
    docs.mkdir()
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.0"\n')

    def write(version: str, *names: str) -> None:
        for name in names:
            (docs / f"{name}.md").write_text(f"# {name} of {version}\n\n## One part\n")
        rows = "".join(f"| [docs/{name}.md](docs/{name}.md) | it |\n" for name in names)
        readme = f"# Start of {version}\n\n## Documentation\n\n| all | |\n|---|---|\n{rows}"
        (tmp_path / "README.md").write_text(readme)
        build(tmp_path, tmp_path / "out", version)

    write("1.0", "jobs")
    write("1.1", "jobs", "later")
    write("2.0rc1", "jobs", "later")
    site = (tmp_path / "out").as_uri()
    with driver.chromium() as browser:
        page = browser.new_page()
        page.goto(f"{site}/1.0/docs/jobs.html")
        choice = page.get_by_label("Version")
        shown = [each.inner_text() for each in choice.locator("option").all()]
        assert shown == ["2.0rc1 (latest)", "1.1 (stable)", "1.0"]
        assert choice.input_value() == "1.0"
        choice.select_option("1.1")
        page.get_by_role("heading", name="jobs of 1.1").wait_for()
        assert page.get_by_label("Version").input_value() == "1.1"
        # An earlier version has no such page.
        page.goto(f"{site}/1.1/docs/later.html")
        page.get_by_label("Version").select_option("1.0")
        page.get_by_role("heading", name="Start of 1.0").wait_for()
        for alias, version in (("latest", "2.0rc1"), ("stable", "1.1")):
            page.goto(f"{site}/{alias}/docs/jobs.html#one-part")
            page.get_by_role("heading", name=f"jobs of {version}").wait_for()
            assert page.url == f"{site}/{version}/docs/jobs.html#one-part"
