#!/usr/bin/env python3
"""Build the images of the three components without Docker, and say how large they are.

    python deploy/images/build.py [--only extender ...]
    python deploy/images/build.py --check    say which images are missing or stale

The base is made of Debian's packages (mmdebstrap) and kept in the cache; buildah follows the
Dockerfile unchanged. Each image is written as an archive that `ctr images import`, `docker load`
and `tandem controlplane load` read. Nothing is pulled. A label of each image is a hash of the
sources that it was built from: an image whose sources have not changed is not built again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSION = "0.1.0"
#: Layers by overlayfs, as containerd has them; with `vfs` each step copies the whole image.
DRIVER = "overlay"
#: MB unpacked, base included, that an image may have.
LIMITS_MB = {"extender": 250, "agent": 250, "predictor": 350}
#: The image of the example's training jobs.
EXAMPLE = "train"
TOOLS = {"buildah": "buildah", "mmdebstrap": "mmdebstrap", "runc": "runc"}
SUITE = "bookworm"
#: A container's files come from images, never from packages installed in it.
USRMERGE = (
    "usrmerge",
    "libfile-find-rule-perl",
    "libnumber-compare-perl",
    "libtext-glob-perl",
    "perl",
    "libperl5.36",
    "perl-modules-5.36",
)
EXCLUDED = ("doc", "man", "locale", "info", "lintian")
LABEL = "tandem.gpu/sources"
#: What an image is built from, besides the recipe of its base; paths below the checkout.
SERVICE = (
    "Dockerfile",
    "deploy/images/install.sh",
    "requirements-build.lock",
    "requirements-compiler.lock",
    "pyproject.toml",
    "hatch_build.py",
)
SOURCES = {
    "extender": (*SERVICE, "requirements-extender.lock", "tandem", "scheduler_extender"),
    "agent": (*SERVICE, "requirements-agent.lock", "tandem", "node_agent"),
    "predictor": (*SERVICE, "requirements-predictor.lock", "tandem", "predictor"),
    EXAMPLE: ("deploy/examples/train", "tandem/progress.py"),
}
#: Made from the sources, and made anew in each image.
MADE = ("_share.so",)
#: No service imports it: an image with an older copy does the same.
NOT_RUN = (ROOT / "tandem" / "local",)


def run(*command: str | Path, quiet: bool = True) -> str:
    """Run a command; return its output, or end with it."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command[:6]))} ...\n{done.stdout[-4000:]}")
    if not quiet:
        print(done.stdout)
    return done.stdout


def cache() -> Path:
    """Return the folder of base, storage and archives."""
    chosen = os.environ.get("TANDEM_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = (Path(chosen) if chosen else Path(base) / "tandem") / "images"
    path.mkdir(parents=True, exist_ok=True)
    return path


def buildah(*arguments: str | Path) -> str:
    """Run buildah on a storage of our own, so that the user's images stay as they are."""
    storage = cache() / "storage"
    # The kernel of a small virtual machine may not stack overlays; plain copies always work.
    options = ["--root", storage, "--runroot", cache() / "run", "--storage-driver", DRIVER]
    return run("buildah", *options, *arguments)


def install_tools() -> None:
    """Install Debian's packages of the tools that are missing; end where that is not possible."""
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if not missing:
        return
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        sys.exit(f"no images without {', '.join(missing)}; as root: {' '.join(command)}")
    print(f"installing Debian's {' '.join(missing)}", flush=True)
    run("apt-get", "-qq", "update")
    run(*command)


def base_recipe() -> list[str]:
    """Return mmdebstrap's arguments for the base, without the path of the result."""
    return [
        "--variant=essential",
        "--include=python3-venv,media-types,libstdc++6",
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in EXCLUDED),
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
        # It moves /bin below /usr once, and keeps 45 MB of Perl for that.
        f'--customize-hook=chroot "$1" dpkg --purge --force-depends {" ".join(USRMERGE)}',
        SUITE,
    ]


def files(component: str) -> Iterator[Path]:
    """Yield the files that decide what an image does, in a fixed order."""
    for source in SOURCES[component]:
        path = ROOT / source
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if (
                file.is_file()
                and "__pycache__" not in file.parts
                and file.name not in MADE
                and (not any(file.is_relative_to(folder) for folder in NOT_RUN))
            ):
                yield file


def sources_hash(component: str) -> str:
    """Return the hash of an image's sources and of the recipe of its base."""
    digest = hashlib.sha256(repr(base_recipe()).encode())
    for file in files(component):
        digest.update(f"{file.relative_to(ROOT)}\0{file.stat().st_size}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def archive_path(component: str) -> Path:
    """Return where the archive of an image is."""
    return cache() / f"tandem-{component}.tar"


def recorded_hash(component: str) -> str | None:
    """Return the hash that an image's label records; None where there is no such image."""
    try:
        with tarfile.open(archive_path(component)) as tar:
            manifest = json.load(tar.extractfile("manifest.json"))
            config = json.load(tar.extractfile(manifest[0]["Config"]))
    except FileNotFoundError:
        return None
    return str((config["config"].get("Labels") or {}).get(LABEL))


def outdated() -> dict[str, str]:
    """Return why images have to be built: component -> `missing` or `stale`."""
    found = {name: recorded_hash(name) for name in SOURCES}
    return {
        name: "missing" if recorded is None else "stale"
        for name, recorded in found.items()
        if recorded != sources_hash(name)
    }


def base_image() -> str:
    """Return the name of the base image; make it when it is not there."""
    recipe = base_recipe()
    key = hashlib.sha256(repr(recipe).encode()).hexdigest()[:12]
    archive = cache() / f"base-{key}.tar"
    if not archive.exists():
        partial = archive.with_suffix(".partial.tar")
        run("mmdebstrap", *recipe[:-1], SUITE, partial)
        partial.replace(archive)
    name = f"localhost/tandem-base:{key}"
    if name not in buildah("images", "--format", "{{.Name}}:{{.Tag}}"):
        container = buildah("from", "scratch").strip()
        buildah("add", "--quiet", container, archive, "/")
        buildah("commit", "--quiet", container, name)
        buildah("rm", container)
    return name


def certificates() -> str | None:
    """Return this machine's file of authorities, where pip needs one that it does not bring."""
    return os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")


def pip_settings() -> Path:
    """Write how this machine reaches its package index; mounted, so that no image keeps it."""
    lines = ["[global]"]
    for name, value in (
        ("cert", certificates()),
        ("index-url", os.environ.get("PIP_INDEX_URL")),
        ("extra-index-url", os.environ.get("PIP_EXTRA_INDEX_URL")),
        ("timeout", os.environ.get("PIP_DEFAULT_TIMEOUT")),
    ):
        if value:
            lines.append(f"{name} = {value}")
    path = cache() / "pip.conf"
    path.write_text("\n".join(lines) + "\n")
    return path


def build_image(name: str, base: str, context: Path, *options: str) -> None:
    """Build the Dockerfile of `context` on `base` as the image `name` of our storage."""
    # This machine's settings are mounted, so that no image keeps them.
    given = ["--network", "host", "--isolation", "chroot", "--format", "docker", "--layers"]
    given += ["--volume", f"{pip_settings()}:/etc/pip.conf:ro"]
    if bundle := certificates():
        given += ["--volume", f"{bundle}:{bundle}:ro"]
    buildah(
        "build", *given, "--build-arg", f"PYTHON_IMAGE={base}", "--tag", name, *options, context
    )


def save(name: str, archive: Path) -> None:
    """Write an image of our storage as an archive."""
    partial = archive.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    buildah("push", "--quiet", name, f"docker-archive:{partial}:{name}")
    partial.replace(archive)


def build(component: str, base: str) -> Path:
    """Build one target; return its archive."""
    name = f"docker.io/library/tandem-{component}:{VERSION}"
    # Read before the build: a file that changes meanwhile makes the image stale.
    label = ("--label", f"{LABEL}={sources_hash(component)}")
    if component == EXAMPLE:
        with tempfile.TemporaryDirectory() as context:
            folder = Path(context)
            shutil.copytree(ROOT / "deploy" / "examples" / "train", folder, dirs_exist_ok=True)
            shutil.copy(ROOT / "tandem" / "progress.py", folder)
            build_image(name, base, folder, *label)
    else:
        build_image(name, base, ROOT, *label, "--target", component)
    archive = archive_path(component)
    save(name, archive)
    return archive


@contextmanager
def mounted(name: str) -> Iterator[Path]:
    """Mount the files of an image of our storage."""
    container = buildah("from", name).strip()
    try:
        yield Path(buildah("mount", container).strip())
    finally:
        buildah("rm", container)


def size_mb(component: str) -> float:
    """Return the size of an image's files, unpacked."""
    files = {}
    with mounted(f"docker.io/library/tandem-{component}:{VERSION}") as root:
        for folder, _, names in os.walk(root):
            for name in names:
                info = os.lstat(Path(folder) / name)
                files[info.st_ino] = info.st_size
    return sum(files.values()) / 1e6


def load() -> None:
    """Give the images to the real nodes of the plane in the background, where there is one."""
    ours = ROOT / ".venv" / "bin"
    tandem = shutil.which("tandem", path=f"{ours}{os.pathsep}{os.environ.get('PATH', '')}")
    if tandem is None:
        return
    status = subprocess.run([tandem, "controlplane", "status", "--json"], stdout=subprocess.PIPE)
    if status.returncode == 0 and json.loads(status.stdout).get("real_nodes"):
        archives = sorted(cache().glob("tandem-*.tar"))
        run(tandem, "controlplane", "load", *archives)
        print(f"loaded into the real nodes: {', '.join(each.stem for each in archives)}")


def main() -> None:
    """Build what was asked for and is outdated, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--check", action="store_true", help="build nothing; 1 where one is due")
    arguments = parser.parse_args()
    due = {name: why for name, why in outdated().items() if name in arguments.only}
    if arguments.check:
        for why in sorted(set(due.values())):
            names = ", ".join(name for name in due if due[name] == why)
            print(f"{why} images ({names}): run `make images`")
        sys.exit(1 if due else 0)
    install_tools()
    sizes_file = cache() / "sizes.json"
    sizes = json.loads(sizes_file.read_text()) if sizes_file.exists() else {}
    if due:
        began = time.monotonic()
        base = base_image()
        print(f"base: {base}, {time.monotonic() - began:.0f} s", flush=True)
    for component in arguments.only:
        began, what = time.monotonic(), "its sources have not changed"
        if component in due or component not in sizes:
            build(component, base_image())
            sizes[component] = round(size_mb(component), 1)
            sizes_file.write_text(json.dumps(sizes))
            what = f"built in {time.monotonic() - began:.0f} s"
        limit = LIMITS_MB.get(component, "-")
        size = f"{sizes[component]:.0f} MB unpacked (limit {limit})"
        print(f"{component}: {size}, {what}, {archive_path(component)}", flush=True)
    large = [name for name, size in sizes.items() if size > LIMITS_MB.get(name, size)]
    load()
    if large:
        sys.exit(f"larger than their limit: {', '.join(large)}")


if __name__ == "__main__":
    main()
