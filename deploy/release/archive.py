"""The archive of an image, with the same bytes from every build of a commit.

buildah writes the container that it built in into the image's configuration, and to each step the
time at which its layer was first built and the image that it began with, whatever its --timestamp.
Of an image whose layers it takes, it keeps the labels. All of these change the digest of an image
whose files are the same.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Collection
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import IO, Any

#: Of the build, and read by no runtime.
_OF_THE_BUILD = ("container", "container_config", "parent")


def settle(archive: Path, time_s: int, labels: Collection[str] = ()) -> None:
    """Write an image's archive anew: layers as they are, all times `time_s`, no trace of the build.

    The archive is that of `docker save`, as buildah writes it. Its tags stay; `labels` go.
    """
    partial = archive.with_suffix(".settled")
    with tarfile.open(archive) as old, tarfile.open(partial, "w") as new:
        (image,) = json.load(_member(old, "manifest.json"))
        configuration = json.load(_member(old, image["Config"]))
        content = json.dumps(_settled(configuration, time_s, labels), sort_keys=True).encode()
        name = f"{hashlib.sha256(content).hexdigest()}.json"
        manifest = json.dumps([image | {"Config": name}], sort_keys=True).encode()
        for layer in image["Layers"]:
            _add(new, layer, _member(old, layer), old.getmember(layer).size, time_s)
        for each, data in ((name, content), ("manifest.json", manifest)):
            _add(new, each, BytesIO(data), len(data), time_s)
    partial.replace(archive)


def _settled(configuration: dict[str, Any], time_s: int, labels: Collection[str]) -> dict[str, Any]:
    when = datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kept = {key: value for key, value in configuration.items() if key not in _OF_THE_BUILD}
    run = {k: v for k, v in configuration["config"].items() if k not in ("Hostname", "Image")}
    run["Labels"] = {k: v for k, v in (run.get("Labels") or {}).items() if k not in labels}
    steps = ({k: v for k, v in each.items() if k != "comment"} for each in kept["history"])
    history = [step | {"created": when} for step in steps]
    return kept | {"created": when, "config": run, "history": history}


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    found = archive.extractfile(name)
    assert found is not None, f"{name} is a file"
    return found


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes], size: int, time_s: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime = size, time_s
    archive.addfile(entry, content)
