"""Files by which the container runtime gives a claim's GPUs to containers (CDI).

One file for each prepared claim. It is written in one step, and it is the only record of what was
prepared: there is no second file that could say something else after a kill.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from node_agent.dra import DRIVER
from node_agent.dra.claims import ClaimError, ClaimRef

log = logging.getLogger(__name__)

#: Where container runtimes look, on the host.
FOLDER = Path("/var/run/cdi")
STATIC_FOLDER = Path("/etc/cdi")
#: The kind that NVIDIA's container toolkit gives to its GPUs, which it names by index and UUID.
TOOLKIT_KIND = "nvidia.com/gpu"
_KIND = f"{DRIVER}/claim"
_PREFIX = f"{DRIVER}-claim-"
_CLAIM = f"{DRIVER}/claim"
_LARGEST_SPEC = 4 << 20


def device_id(ref: ClaimRef) -> str:
    """Return the name by which the runtime finds what containers of a claim are given."""
    return f"{_KIND}={ref.uid}"


class Specs:
    """The claims' files in `folder`; the folder is made when it is needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, uid: str) -> Path:
        return self._folder / f"{_PREFIX}{uid}.json"

    def write(self, ref: ClaimRef, environment: Mapping[str, str]) -> None:
        """Write the file of a claim; it is on the disk when this returns.

        Raises:
            ClaimError: it cannot be written.
        """
        edits = {"env": [f"{name}={value}" for name, value in environment.items()]}
        spec = {
            "cdiVersion": "0.6.0",
            "kind": _KIND,
            "annotations": {_CLAIM: f"{ref.namespace}/{ref.name}"},
            "devices": [{"name": ref.uid, "containerEdits": edits}],
        }
        # Runtimes read files of known endings only, so that a half of one is never read.
        fresh = self._path(ref.uid).with_suffix(".new")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with fresh.open("w") as file:
                file.write(json.dumps(spec, indent=1))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path(ref.uid))
        except OSError as error:
            raise ClaimError(f"the CDI file of the claim is not written: {error}") from error

    def has(self, uid: str) -> bool:
        """Say whether a claim is prepared."""
        return self._path(uid).exists()

    def remove(self, uid: str) -> None:
        """Remove what there is of a claim.

        Raises:
            ClaimError: it cannot be removed.
        """
        path = self._path(uid)
        try:
            path.unlink(missing_ok=True)
            path.with_suffix(".new").unlink(missing_ok=True)
        except OSError as error:
            raise ClaimError(f"the CDI file of the claim is not removed: {error}") from error

    def claims(self) -> Iterator[ClaimRef]:
        """Yield the claims that have a file; remove what a kill has left half written."""
        if not self._folder.is_dir():
            return
        for path in sorted(self._folder.glob(f"{_PREFIX}*")):
            if path.suffix == ".new":
                path.unlink(missing_ok=True)
                continue
            try:
                namespace, _, name = json.loads(path.read_text())["annotations"][_CLAIM].partition(
                    "/"
                )
                yield ClaimRef(namespace, name, path.stem.removeprefix(_PREFIX))
            except (OSError, ValueError, KeyError, TypeError, AttributeError, ClaimError) as error:
                log.warning("not a file of a claim path=%s error=%r", path, str(error))


class Toolkit:
    """The GPUs for which NVIDIA's container toolkit has made CDI files."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._read: dict[tuple[Path, int, int], frozenset[str]] = {}

    def names(self) -> frozenset[str]:
        """Return the names of its devices: indices, and UUIDs where it was made to use them."""
        now = {}
        for path in self._files():
            with contextlib.suppress(OSError):
                known = path.stat()
                key = (path, known.st_mtime_ns, known.st_size)
                now[key] = self._read[key] if key in self._read else _toolkit_names(path)
        self._read = now
        return frozenset().union(*now.values())

    def _files(self) -> Iterator[Path]:
        for folder in self._folders:
            if folder.is_dir():
                for ending in ("*.json", "*.yaml"):
                    # Ours are as many as claims, and none of the toolkit's.
                    yield from (
                        path
                        for path in sorted(folder.glob(ending))
                        if not path.name.startswith(_PREFIX)
                    )


def _toolkit_names(path: Path) -> frozenset[str]:
    """Return the devices of a file; none where it is of another kind or not readable."""
    try:
        if path.stat().st_size > _LARGEST_SPEC:
            return frozenset()
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        spec: Any = yaml.load(path.read_text(), Loader=loader)  # noqa: S506 - both are safe loaders
        if spec["kind"] != TOOLKIT_KIND:
            return frozenset()
        return frozenset(str(device["name"]) for device in spec["devices"])
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return frozenset()
