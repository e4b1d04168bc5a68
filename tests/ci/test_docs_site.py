"""The documentation builds as a site: each link leads somewhere, README.md lists each page."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "deploy" / "site"
# One worker builds the site once.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site"), pytest.mark.timeout(900)]


def build(root: Path, output: Path, version: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, root / "deploy/site/build.py", "--version", version]
    return subprocess.run(
        [*map(str, command), "--output", str(output)],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("site")
    done = build(ROOT, output, "1.2.0")
    assert done.returncode == 0, done.stderr
    return output


def test_each_page_of_the_docs_is_there(site: Path) -> None:
    pages = {each.relative_to(ROOT).with_suffix(".html") for each in ROOT.glob("docs/**/*.md")}
    built = {each.relative_to(site / "1.2.0") for each in site.glob("1.2.0/**/*.html")}
    assert pages | {Path("README.html"), Path("CHANGELOG.html")} <= built
    assert 'href="1.2.0/README.html"' in (site / "index.html").read_text()


def test_the_readers_come_in_the_order_of_the_readme(site: Path) -> None:
    text = (site / "1.2.0" / "README.html").read_text()
    captions = re.findall(r'class="caption"[^>]*><span class="caption-text">([^<]+)', text)
    tables = re.findall(r"^\| ([^|\[]+) \| \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert list(dict.fromkeys(captions)) == [each.capitalize() for each in tables]


def test_the_search_knows_the_terms(site: Path) -> None:
    text = (site / "1.2.0" / "searchindex.js").read_text()
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    found = index["terms"]["preempt"]
    pages = {index["docnames"][each] for each in ([found] if isinstance(found, int) else found)}
    assert "docs/queueing" in pages


def test_pages_ask_no_other_host(site: Path) -> None:
    asked = re.compile(r'<(?:link|script|img|iframe)\b[^>]*\b(?:href|src)="(https?:)?//')
    for page in site.glob("1.2.0/**/*.html"):
        assert not asked.search(page.read_text()), page


class Links(HTMLParser):
    """The links of a page, and the names of its parts."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.parts: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.links += [given[key] or "" for key in ("href", "src") if key in given]
        self.parts |= {given["id"] or ""} if "id" in given else set()


def test_each_link_of_each_page_leads_to_a_page_or_a_part_of_one(site: Path) -> None:
    pages = {page: Links(page) for page in site.rglob("*.html")}
    wrong = []
    for page, found in pages.items():
        for link in found.links:
            at = urlsplit(link)
            if at.scheme or at.netloc:
                continue
            to = (page.parent / unquote(at.path)).resolve() if at.path else page
            parts = pages[to].parts if to in pages else {at.fragment}
            if not to.is_file() or (at.fragment and at.fragment not in parts):
                wrong.append(f"{page.relative_to(site)}: {link}")
    assert len(pages) > 100
    assert wrong == []


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Another repository with two pages, built by the same files."""
    shutil.copytree(SITE, tmp_path / "deploy" / "site")
    (tmp_path / "docs").mkdir()
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.0"\n')
    (tmp_path / "docs" / "a.md").write_text("# A\n\n## One part\n")
    readme = "# It\n\n## Documentation\n\n| all | |\n|---|---|\n| [docs/a.md](docs/a.md) | a |\n"
    (tmp_path / "README.md").write_text(readme)
    return tmp_path


def test_versions_stand_side_by_side_newest_first(small: Path) -> None:
    output = small / "out"
    for version in ("0.9", "0.10", "0.10rc1"):
        done = build(small, output, version)
        assert done.returncode == 0, done.stderr
    listed = re.findall(r">([\d.rc]+)</a>", (output / "index.html").read_text())
    assert listed == ["0.10", "0.10rc1", "0.9"]
    assert [(each["name"], each["alias"]) for each in known(output)] == [
        ("0.10", "stable"),
        ("0.10rc1", ""),
        ("0.9", ""),
    ]
    assert "docs/a" in known(output)[0]["pages"]


def known(output: Path) -> list[dict[str, Any]]:
    """Return the versions among which each page lets its reader choose."""
    text = (output / "versions.js").read_text()
    found: list[dict[str, Any]] = json.loads(
        text.removeprefix("const tandemVersions = ").removesuffix(";\n")
    )
    return found


def test_latest_and_stable_lead_to_the_newest_of_their_kind(tmp_path: Path) -> None:
    lead = runpy.run_path(str(SITE / "build.py"))["lead_to_versions"]

    def built(version: str, *names: str) -> None:
        for name in ("README", *names):
            file = tmp_path / version / f"{name}.html"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        lead(tmp_path)

    built("0.10rc1", "docs/a")
    assert not (tmp_path / "stable").exists()
    built("0.9", "docs/a")
    for alias, version in (("latest", "0.10rc1"), ("stable", "0.9")):
        page = tmp_path / alias / "docs" / "a.html"
        assert f"../../{version}/docs/a.html" in Links(page).links
    # A page that the new version has no more.
    built("0.11", "docs/b")
    assert {each.name for each in (tmp_path / "stable" / "docs").iterdir()} == {"b.html"}
    assert known(tmp_path)[0] == {"name": "0.11", "alias": "stable", "pages": ["README", "docs/b"]}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[b](b.md)", "b.md"),
        ("[part](#another-part)", "another-part"),
        ("[part](../README.md#nothing)", "nothing"),
    ],
)
def test_a_link_that_leads_nowhere_fails(small: Path, text: str, named: str) -> None:
    (small / "docs" / "a.md").write_text(f"# A\n\n{text}\n")
    done = build(small, small / "out", "1.0")
    assert done.returncode != 0
    assert named in done.stderr


def test_a_page_that_the_readme_does_not_list_fails(small: Path) -> None:
    (small / "docs" / "lost.md").write_text("# Lost\n")
    done = build(small, small / "out", "1.0")
    assert done.returncode != 0
    assert "lost.md" in done.stderr


@pytest.mark.parametrize("version", ["../up", "", "1.0/2"])
def test_a_version_that_is_no_name_of_a_folder_is_refused(small: Path, version: str) -> None:
    assert build(small, small / "out", version).returncode == 2


def test_the_figure_is_what_its_file_draws() -> None:
    done = subprocess.run(
        [sys.executable, str(SITE / "figures.py"), "--check"], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
