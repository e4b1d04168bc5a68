"""The documentation as a site: `make site`, which is Sphinx with the pages as they stand.

README.md is the start page. Its section "Documentation" gives the order of the pages: a table for
each reader. A page with a folder of its own name leads to the pages in it.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

project = "Tandem"
author = project_copyright = "The authors of Tandem"
version = release = PROJECT["version"]
html_title = f"Tandem {release}"
root_doc = "README"
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/*/*.md",
    "docs/*/*/*.md",
    "predictor/data/*.md",
    "helm/tandem/README.md",
    "deploy/examples/**/README.md",
]
exclude_patterns = [".*", "docs/evidence/results/.*"]
extensions = ["myst_parser"]
myst_heading_anchors = 6
#: A link to a file that is no page takes a copy of it along; one to a folder has no place to go.
suppress_warnings = ["myst.xref_missing_folder"]
html_theme = "furo"
html_copy_source = html_show_sourcelink = False
html_static_path: list[str] = []
#: The page that a browser asks for first.
html_additional_pages = {"index": "start.html"}
templates_path = ["templates"]
html_theme_options = {"navigation_with_keys": True}
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}

_LINK = re.compile(r"\]\(([^)\s#]+\.md)\)")
_ROW = re.compile(r"^\| (.+?) \|", re.MULTILINE)


def trees(readme: str) -> str:
    """Return a tree of pages for each table of the section "Documentation"."""
    _, _, section = readme.partition("\n## Documentation\n")
    tables = [part for part in section.strip().split("\n\n") if part.startswith("|")]
    return "".join(
        tree(rows[0].capitalize(), [path for row in rows[1:] for path in _LINK.findall(row)])
        for rows in map(_ROW.findall, tables)
    )


def tree(caption: str, pages: list[str], maxdepth: int = 1) -> str:
    """Return a hidden tree, in MyST's words."""
    lines = "\n".join(page.removesuffix(".md") for page in pages)
    heading = f":caption: {caption}\n" if caption else ""
    return f"\n\n```{{toctree}}\n:hidden:\n:maxdepth: {maxdepth}\n{heading}\n{lines}\n```\n"


def below(page: Path) -> list[Path]:
    """Return the pages that a page leads to: those next to an index, or in a folder of its name."""
    name = page.relative_to(ROOT)
    if name == Path("docs/predictor.md"):
        return [ROOT / "predictor" / "data" / "README.md"]
    folder = page.parent if page.name == "README.md" else page.with_suffix("")
    return sorted(set(folder.glob("*.md")) - {page})


def read(_: Sphinx, name: str, content: list[str]) -> None:
    """Add to a page the trees of what comes below it."""
    page = ROOT / f"{name}.md"
    if name == root_doc:
        content[0] += trees(content[0])
    elif pages := below(page):
        content[0] += tree("", [f"/{each.relative_to(ROOT)}" for each in pages])


def setup(app: Sphinx) -> None:
    """Register what this file does to the pages."""
    app.connect("source-read", read)
