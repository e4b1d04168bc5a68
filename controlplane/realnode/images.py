"""Images of one program each, written as archives without any tool of containers.

Kubernetes publishes kube-scheduler, CoreDNS and the pause program as such images; a machine that
cannot pull makes them from the programs that it has built.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from controlplane import binaries
from controlplane.realnode.configuration import PAUSE_IMAGE
from tandem.errors import TandemError

COREDNS_IMAGE = "tandem.local/coredns:1"

#: Holds the namespaces of a pod, and reaps what its containers leave where they share a PID
#: namespace.
_PAUSE = """\
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void stop(int signal) { (void)signal; _exit(0); }
static void reap(int signal) { (void)signal; while (waitpid(-1, NULL, WNOHANG) > 0) {} }
int main(void) {
    signal(SIGINT, stop);
    signal(SIGTERM, stop);
    signal(SIGCHLD, reap);
    for (;;) pause();
}
"""


def folder() -> Path:
    """Return where the archives are kept."""
    path = binaries.node_build_folder() / "images"
    path.mkdir(parents=True, exist_ok=True)
    return path


def pause_image() -> Path:
    """Return the archive of the pause image; compile the program the first time."""
    archive = folder() / "pause.tar"
    if not archive.exists():
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            raise TandemError("the pause image needs a C compiler", "Install gcc.")
        with tempfile.TemporaryDirectory() as scratch:
            source, program = Path(scratch) / "pause.c", Path(scratch) / "pause"
            source.write_text(_PAUSE)
            subprocess.run([compiler, "-O2", "-static", "-o", program, source], check=True)
            write_archive(archive, PAUSE_IMAGE, {"pause": program}, ["/pause"])
    return archive


def program_image(name: str, reference: str, program: Path, user: str = "65532") -> Path:
    """Return the archive of an image that holds one static program, /usr/local/bin/NAME."""
    archive = folder() / f"{name}.tar"
    if not archive.exists():
        path = f"usr/local/bin/{name}"
        write_archive(archive, reference, {path: program}, [f"/{path}"], user)
    return archive


def scheduler_image() -> Path:
    """Return the archive of kube-scheduler, under the name that the chart gives it."""
    program = binaries.require("kube-scheduler")
    kubernetes = next(p for p in binaries.PROGRAMS if p.name == "kube-scheduler")
    reference = f"registry.k8s.io/kube-scheduler:{binaries.version(kubernetes)}"
    return program_image("kube-scheduler", reference, program)


def coredns_image() -> Path:
    """Return the archive of CoreDNS."""
    return program_image("coredns", COREDNS_IMAGE, binaries.require("coredns"))


def write_archive(
    archive: Path,
    reference: str,
    files: Mapping[str, Path],
    entrypoint: Sequence[str],
    user: str = "",
) -> None:
    """Write an OCI archive with one layer that holds `files` (path in the image -> file)."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for path, source in sorted(files.items()):
            info = tarfile.TarInfo(path)
            info.size, info.mode = source.stat().st_size, 0o755
            with source.open("rb") as file:
                tar.addfile(info, file)
    plain = layer.getvalue()
    config = {
        "architecture": binaries.architecture(),
        "os": "linux",
        "config": {
            "Entrypoint": list(entrypoint),
            "User": user,
            "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
        },
        "rootfs": {"type": "layers", "diff_ids": [_digest(plain)]},
    }
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, kind: str) -> dict[str, object]:
        digest = _digest(content)
        blobs[digest] = content
        media = f"application/vnd.oci.image.{kind}"
        return {"mediaType": media, "digest": digest, "size": len(content)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), "config.v1+json"),
        "layers": [blob(gzip.compress(plain, 1, mtime=0), "layer.v1.tar+gzip")],
    }
    described = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    names = {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference}
    index = {"schemaVersion": 2, "manifests": [{**described, "annotations": names}]}
    contents = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps(index).encode(),
        **{f"blobs/sha256/{d.removeprefix('sha256:')}": content for d, content in blobs.items()},
    }
    partial = archive.with_suffix(".partial")
    with tarfile.open(partial, "w") as tar:
        for path, content in contents.items():
            info = tarfile.TarInfo(path)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    partial.replace(archive)


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
