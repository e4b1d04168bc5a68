"""How a release was built, as the predicate `https://slsa.dev/provenance/v1` of SLSA 1.0."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

from deploy.release.source import Source

#: Names what the parameters mean: docs/release.md describes them.
BUILD_TYPE = "urn:tandem.gpu:release:v1"
#: Of a release that names no builder of its own.
BUILDER = "urn:tandem.gpu:builder:unnamed"


def write(source: Source, tree: Path, base: str, registry: str, builder: str, path: Path) -> None:
    """Write the predicate: the commit, the base, every lock file, who built it and when."""
    locks = [
        {"name": lock.name, "digest": {"sha256": _sha256(lock)}}
        for lock in sorted(tree.glob("requirements-*.lock"))
    ]
    name, _, digest = base.partition("@sha256:")
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"version": source.version, "registry": registry},
            "internalParameters": {"SOURCE_DATE_EPOCH": source.time},
            "resolvedDependencies": [
                {"name": "source", "digest": {"gitCommit": source.commit}},
                {"name": name, "digest": {"sha256": digest}},
                *locks,
            ],
        },
        "runDetails": {
            "builder": {"id": builder},
            "metadata": {"finishedOn": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"},
        },
    }
    path.write_text(json.dumps(predicate, indent=2) + "\n")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
