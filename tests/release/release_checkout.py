"""What the tests of a release share: a small changelog, git, a registry, and cosign."""

from __future__ import annotations

import os
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from controlplane import Process, free_port, releasetools, wait_until

ROOT = Path(__file__).parents[2]
CURRENT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
#: Of the small checkout.
VERSION = "1.2.0"
CHANGELOG = f"""\
# Changelog

## Unreleased

- Not yet.

## {VERSION} - 2026-12-01

### Added

- One thing.

## 1.1.0 - 2026-11-01

- Earlier.
"""


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
    command = ["git", *who, "-c", "commit.gpgsign=false", *arguments]
    return subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@dataclass(frozen=True)
class RegistryProcess:
    """A registry at an address of this machine, with its files in `folder`."""

    address: str
    folder: Path

    @contextmanager
    def changed(self, digest: str) -> Iterator[None]:
        """Change the last byte of what the registry keeps under a digest, for a while."""
        kind, _, value = digest.partition(":")
        below = self.folder / "docker" / "registry" / "v2" / "blobs" / kind / value[:2] / value
        data = below / "data"
        content = data.read_bytes()
        data.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        try:
            yield
        finally:
            data.write_bytes(content)


@contextmanager
def serve(folder: Path, host: str) -> Iterator[RegistryProcess]:
    """Run the reference registry at an address; several may serve the files of one folder."""
    address = f"{host}:{free_port()}"
    settings = {
        "version": "0.1",
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "files")}},
        "http": {"addr": address},
    }
    config = folder / f"{host}.yml"
    config.write_text(yaml.safe_dump(settings))
    process = Process(
        "registry",
        [tool("registry"), "serve", config],
        folder / f"{host}.log",
        env={"OTEL_TRACES_EXPORTER": "none"},
    )
    process.start()
    try:
        wait_until(lambda: answers(address) or not process.running, "the registry answers")
        assert process.running, process.log_tail()
        yield RegistryProcess(address, folder / "files")
    finally:
        process.kill()


def answers(address: str) -> bool:
    """Return whether a registry serves at an address."""
    try:
        return httpx.get(f"http://{address}/v2/").is_success
    except httpx.TransportError:
        return False


def tool(name: str) -> Path:
    """Return a program of the pipeline; skip where this machine has none."""
    found = releasetools.find(name)
    if found is None:
        pytest.skip(f"no {name} on this machine. {releasetools.HOW_TO_GET}")
    return found


PASSWORD = {"COSIGN_PASSWORD": "of the test"}


def cosign(*arguments: str, folder: Path | None = None) -> str:
    """Run cosign; return what it prints, or nothing where it refuses."""
    done = subprocess.run(
        [tool("cosign"), *arguments],
        cwd=folder,
        env={**os.environ, **PASSWORD},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stderr)
    return (done.stdout or "fine") if done.returncode == 0 else ""


def keys(folder: Path) -> Path:
    """Make a pair of keys; return the private one. The public one ends in `.pub`."""
    folder.mkdir()
    assert cosign("generate-key-pair", folder=folder)
    return folder / "cosign.key"


def verified(command: str, reference: str, key: Path, *more: str) -> str:
    """Return what cosign says of a signature or an attestation; nothing where it refuses."""
    plain = ("--allow-http-registry", "--insecure-ignore-tlog")
    return cosign(command, *more, "--key", str(key), *plain, reference)
