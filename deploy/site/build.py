"""Build the documentation as a site: `python deploy/site/build.py [--output DIR]`.

Each version has a folder of its own; the first page lists those that are there, newest first. A
warning of Sphinx is an error: a link that leads nowhere, an anchor that does not exist, a page that
README.md does not list.
"""

from __future__ import annotations

import argparse
import html
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.version import InvalidVersion, Version

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OUTPUT = ROOT / ".out" / "site"
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Tandem: documentation by version</title>
<h1>Tandem</h1>
<ul>
{items}
</ul>
</html>
"""


def build(version: str, output: Path) -> int:
    """Build the pages of this checkout into a folder of their version; return Sphinx's status."""
    command = [
        sys.executable, "-m", "sphinx", "--builder", "html", "--fail-on-warning", "--keep-going",
        "--quiet", "--conf-dir", HERE, "--doctree-dir", output / ".cache" / version,
        "--define", f"version={version}", "--define", f"release={version}",
        "--define", f"html_title=Tandem {version}", ROOT, output / version,
    ]  # fmt: skip
    return subprocess.run(list(map(str, command)), check=False).returncode


def first_page(output: Path) -> str:
    """Return the page that lists the versions in a folder, newest first."""
    versions = [Version(each.parent.name) for each in output.glob("*/README.html")]
    names = (html.escape(str(each)) for each in sorted(versions, reverse=True))
    return _PAGE.format(
        items="\n".join(f'<li><a href="{name}/README.html">{name}</a></li>' for name in names)
    )


def main() -> int:
    """Build one version and the first page."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    parser = argparse.ArgumentParser(prog="python deploy/site/build.py")
    parser.add_argument("--version", default=project["version"])
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    try:
        version = str(Version(options.version))
    except InvalidVersion:
        parser.error(f"--version {options.version}: such as 1.2.0")
    status = build(version, options.output)
    if status == 0:
        (options.output / "index.html").write_text(first_page(options.output))
        print(f"{options.output}/index.html")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
