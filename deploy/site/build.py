"""Build the documentation as a site: `python deploy/site/build.py [--output DIR]`.

Each version has a folder of its own; the first page lists those that are there, newest first, and
each page leads to the same page of another version. `latest` is the newest version, `stable` the
newest that is no pre-release: their pages lead to those of that version. A warning of Sphinx is
an error: a link that leads nowhere, an anchor that does not exist, a page that README.md does not
list.
"""

from __future__ import annotations

import argparse
import html
import json
import shutil
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
#: Keeps the part of a page that a link names, which a refresh alone does not.
_ALIAS = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Tandem {version}</title>
<link rel="canonical" href="{to}">
<script>location.replace("{to}" + location.search + location.hash)</script>
<noscript><meta http-equiv="refresh" content="0; url={to}"></noscript>
<p><a href="{to}">Tandem {version}</a></p>
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


def versions(output: Path) -> list[Version]:
    """Return the versions in a folder, newest first."""
    found = (Version(each.parent.name) for each in output.glob("[0-9]*/README.html"))
    return sorted(found, reverse=True)


def aliases(known: list[Version]) -> dict[str, Version]:
    """Return which version each alias leads to."""
    stable = next((each for each in known if not each.is_prerelease), None)
    return {"latest": known[0], **({"stable": stable} if stable else {})}


def pages(folder: Path) -> list[str]:
    """Return the pages of a version, without their ending."""
    found = (each.relative_to(folder).with_suffix("").as_posix() for each in folder.rglob("*.html"))
    return sorted(name for name in found if not name.startswith("_"))


def lead_to_versions(output: Path) -> None:
    """Write what follows from the versions in a folder: first page, list, pages of the aliases."""
    known = versions(output)
    by_alias = aliases(known)
    # Where both are the same version, it is called stable.
    called = {version: alias for alias, version in by_alias.items()}
    items = (f'<li><a href="{html.escape(str(v))}/README.html">{v}</a></li>' for v in known)
    (output / "index.html").write_text(_PAGE.format(items="\n".join(items)))
    listed = [
        {"name": str(v), "alias": called.get(v, ""), "pages": pages(output / str(v))} for v in known
    ]
    (output / "versions.js").write_text(f"const tandemVersions = {json.dumps(listed)};\n")
    for alias in ("latest", "stable"):
        shutil.rmtree(output / alias, ignore_errors=True)
    for alias, version in by_alias.items():
        for page in pages(output / str(version)):
            file = output / alias / f"{page}.html"
            file.parent.mkdir(parents=True, exist_ok=True)
            up = "../" * (page.count("/") + 1)
            file.write_text(_ALIAS.format(version=version, to=f"{up}{version}/{page}.html"))


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
        lead_to_versions(options.output)
        print(f"{options.output}/index.html")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
