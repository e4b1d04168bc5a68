"""Take the libraries of the status page from their npm packages, and check that they are the same.

    python deploy/page/vendor.py            # write the files, and their sums into vendor.json
    python deploy/page/vendor.py --check    # fail where a file is not what its package has

The page is served as it is in the repository, without a build. `npm pack` fetches a package.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LIST = HERE / "vendor.json"
PAGE = HERE.parents[1] / "scheduler_extender" / "serving" / "status" / "page" / "vendor"


def changed_for_browsers(content: bytes) -> bytes:
    """Return a module as browsers load it: they know paths, and no names of packages.

    A map from names to paths would be an inline script, which the page's policy forbids. The
    comment that names a source map is dropped, since the map is not served.
    """
    for quote in (b'"', b"'"):
        content = content.replace(b"from" + quote + b"preact" + quote, b'from"./preact.js"')
    lines = [line for line in content.splitlines() if not line.startswith(b"//# sourceMapping")]
    return b"\n".join(lines).rstrip() + b"\n"


def files_of(name: str, version: str, folder: Path) -> tuple[dict[str, bytes], str]:
    """Return the files of an npm package by path, and the sum of the package."""
    command = ["npm", "pack", "--silent", "--pack-destination", str(folder), f"{name}@{version}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    package = folder / f"{name}-{version}.tgz"
    found = {}
    with tarfile.open(package) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member)
            if content is not None:
                found[member.name] = content.read()
    return found, hashlib.sha256(package.read_bytes()).hexdigest()


def main(arguments: list[str]) -> int:
    """Write or check the files; return 1 where a check fails."""
    known: dict[str, Any] = json.loads(LIST.read_text())
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for name, entry in known.items():
            files, total = files_of(name, entry["version"], Path(folder))
            sums = {}
            for path, target in entry["files"].items():
                content = files[path]
                if target.endswith(".js"):
                    content = changed_for_browsers(content)
                sums[target] = hashlib.sha256(content).hexdigest()
                if "--check" in arguments:
                    if (PAGE / target).read_bytes() != content:
                        wrong.append(f"{target} is not that of {name} {entry['version']}")
                else:
                    PAGE.mkdir(parents=True, exist_ok=True)
                    (PAGE / target).write_bytes(content)
            if "--check" in arguments:
                if entry["package_sha256"] != total:
                    wrong.append(f"the package {name} {entry['version']} has another sum")
            else:
                entry["package_sha256"], entry["sha256"] = total, sums
    if "--check" not in arguments:
        LIST.write_text(json.dumps(known, indent=2) + "\n")
    for each in wrong:
        sys.stderr.write(f"{each}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
