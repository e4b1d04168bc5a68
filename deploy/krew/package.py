"""The kubectl plugin for krew: its archive, and the manifest with the archive's sha256.

    python deploy/krew/package.py [--out FOLDER] [--url BASE]

The archive stores its files without compression and without times, so that the same files have
the same sha256 everywhere. A release uploads it to BASE and gives the manifest to krew's index.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import re
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ARCHIVE = "kubectl-tandem.zip"
BIN = "kubectl-tandem"
MANIFEST = "tandem.yaml"
URL = "https://releases.example.com/tandem"
_FILES = ((HERE / BIN, 0o755), (ROOT / "LICENSE", 0o644))
_LONG_AGO = (1980, 1, 1, 0, 0, 0)

TEMPLATE = """\
# Written by deploy/krew/package.py. A release gives it the address of the archive.
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: tandem
spec:
  version: v{version}
  homepage: {url}
  shortDescription: See GPU sharing, queue and reasons of Tandem
  description: |
    Shows the GPUs that training jobs share under Tandem: what runs on them, how much of them is
    predicted and measured, which jobs wait, why, and when they will start. Reads with the rights
    of your kubeconfig through the API server's proxy.

      kubectl tandem top            GPUs and queue, live
      kubectl tandem why JOB        why it waits, when it starts, what slows it down
      kubectl tandem queue          the jobs that wait
      kubectl tandem gpus           GPUs and what holds them
      kubectl tandem doctor         what is wrong with the installation
  caveats: |
    The plugin runs the command `tandem`:

      pipx install tandem-gpu

    With it comes kubectl_complete-tandem, by which kubectl completes names from the cluster.
  platforms:
    - selector:
        matchExpressions:
          - {{ key: os, operator: In, values: [linux, darwin] }}
      uri: {url}/v{version}/{archive}
      sha256: {sha256}
      files:
        - {{ from: {bin}, to: . }}
        - {{ from: LICENSE, to: . }}
      bin: {bin}
"""


def archive() -> bytes:
    """Return the archive: the same bytes for the same files."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as packed:
        for path, mode in _FILES:
            entry = zipfile.ZipInfo(path.name, _LONG_AGO)
            entry.create_system = 3  # Unix: the mode counts
            entry.external_attr = (0o100000 | mode) << 16
            packed.writestr(entry, path.read_bytes())
    return made.getvalue()


def manifest(content: bytes, url: str = URL) -> str:
    """Return krew's manifest of an archive that lies under `url`."""
    found = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found, "pyproject.toml has a version"
    return TEMPLATE.format(
        version=found[1],
        url=url.rstrip("/"),
        archive=ARCHIVE,
        sha256=hashlib.sha256(content).hexdigest(),
        bin=BIN,
    )


def main() -> int:
    """Write both, the archive into the folder that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE, help="a folder for both files")
    parser.add_argument("--url", default=URL, help="where the archive will lie, by version")
    options = parser.parse_args()
    content = archive()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.out != HERE:
        (options.out / ARCHIVE).write_bytes(content)
    (options.out / MANIFEST).write_text(manifest(content, options.url))
    return 0


if __name__ == "__main__":
    sys.exit(main())
