"""The programs of a control plane, and where they are on this machine.

Looked for in this order: our own build in the cache (`controlplane.build`), the folder
named by KUBEBUILDER_ASSETS, PATH.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tandem.errors import TandemError

BUILD_COMMAND = "tandem controlplane build"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Program:
    """One program: its Go package, the wrapper module that pins it, what to link into it."""

    name: str
    wrapper: str  # folder below deploy/controlplane
    module: str  # whose version in the wrapper's go.mod is the program's
    package: str
    version_symbols: tuple[str, ...] = ()  # Go variables that hold the version
    tags: str = ""  # Go build tags, separated by commas


_COMPONENT_BASE = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")

PROGRAMS: tuple[Program, ...] = (
    Program("etcd", "etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3"),
    *(
        Program(
            name,
            "kubernetes",
            "k8s.io/kubernetes",
            f"k8s.io/kubernetes/cmd/{name}",
            _COMPONENT_BASE,
        )
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
    ),
    Program(
        "kwok",
        "kwok",
        "sigs.k8s.io/kwok",
        "sigs.k8s.io/kwok/cmd/kwok",
        ("sigs.k8s.io/kwok/pkg/consts.Version",),
    ),
    Program("helm", "helm", "helm.sh/helm/v4", "helm.sh/helm/v4/cmd/helm"),
)
#: What a control plane cannot start without; helm is for the chart's tests alone.
REQUIRED = tuple(program.name for program in PROGRAMS if program.name != "helm")

_CONTAINERD = "github.com/containerd/containerd/v2"
_CNI_PLUGINS = "github.com/containernetworking/plugins"

#: What a real node needs in addition (`controlplane.realnode`): built only when asked for.
NODE_PROGRAMS: tuple[Program, ...] = (
    *(
        Program(
            name,
            "kubelet",
            "k8s.io/kubernetes",
            f"k8s.io/kubernetes/cmd/{name}",
            _COMPONENT_BASE,
        )
        for name in ("kubelet", "kube-proxy")
    ),
    *(
        Program(
            name,
            "containerd",
            _CONTAINERD,
            f"{_CONTAINERD}/cmd/{name}",
            (f"{_CONTAINERD}/version.Version",),
            # Snapshotters for file systems that no test uses, and the exporter of traces.
            "no_btrfs,no_devmapper,no_zfs,no_tracing",
        )
        for name in ("containerd", "containerd-shim-runc-v2", "ctr")
    ),
    *(
        Program(folder.rpartition("/")[2], "containerd", _CNI_PLUGINS, f"{_CNI_PLUGINS}/{folder}")
        for folder in (
            "plugins/main/bridge",
            "plugins/main/loopback",
            "plugins/ipam/host-local",
            "plugins/meta/portmap",
        )
    ),
    Program("coredns", "coredns", "github.com/coredns/coredns", "."),
)
NODE_REQUIRED = tuple(program.name for program in NODE_PROGRAMS)

#: Names the minor version of Kubernetes that is built and run, such as `1.34`.
VERSION_VARIABLE = "TANDEM_KUBERNETES"
_KUBERNETES = "k8s.io/kubernetes"

BUILD_FLAGS = ("-trimpath",)
BUILD_ENVIRONMENT = {"CGO_ENABLED": "0", "GOWORK": "off"}


def recipes() -> Path:
    """Return the folder with the Go modules and kwok's stages: `deploy/controlplane`."""
    folder = Path(__file__).resolve().parents[1] / "deploy" / "controlplane"
    if not folder.is_dir():
        raise TandemError(
            f"{folder} is not there, so a control plane can neither be built nor started",
            "Run from a checkout of the repository (`make setup` installs it in place).",
        )
    return folder


def other_versions() -> list[str]:
    """Return the minor versions of Kubernetes that are pinned next to the default one."""
    folders = recipes().glob("kubernetes-*/go.mod")
    return sorted(folder.parent.name.removeprefix("kubernetes-") for folder in folders)


def wrapper(program: Program) -> Path:
    """Return the folder of the Go module that pins `program`.

    Raises TandemError when TANDEM_KUBERNETES names a version that is not pinned.
    """
    chosen = os.environ.get(VERSION_VARIABLE)
    name = program.wrapper
    if not chosen or program.module != _KUBERNETES:
        return recipes() / name
    if (recipes() / f"{name}-{chosen}" / "go.mod").exists():
        return recipes() / f"{name}-{chosen}"
    default = _pinned(recipes() / name, program)
    if chosen == ".".join(default.removeprefix("v").split(".")[:2]):
        return recipes() / name
    raise TandemError(
        f"Kubernetes {chosen} is not pinned here",
        f"Use {', '.join(other_versions())} or leave {VERSION_VARIABLE} unset for {default}.",
    )


def version(program: Program) -> str:
    """Return the version that `program` is pinned to, such as `v1.37.1`."""
    return _pinned(wrapper(program), program)


def _pinned(folder: Path, program: Program) -> str:
    text = (folder / "go.mod").read_text()
    found = re.search(rf"^\s*(?:require\s+)?{re.escape(program.module)} (v\S+)", text, re.M)
    assert found is not None, f"{folder.name}/go.mod does not require {program.module}"
    return found.group(1)


def ldflags(program: Program) -> str:
    """Return the linker flags: without the version, `/version` says v0.0.0 and Helm fails."""
    flags = ["-s", "-w"]
    pinned = version(program)
    for symbol in program.version_symbols:
        if symbol not in _COMPONENT_BASE:
            flags.append(f"-X {symbol}={pinned}")
            continue
        major, minor, _ = pinned.removeprefix("v").split(".", 2)
        values = {
            "gitVersion": pinned,
            "gitMajor": major,
            "gitMinor": minor,
            "gitCommit": "0" * 40,
            "gitTreeState": "clean",
            "buildDate": "1970-01-01T00:00:00Z",
        }
        flags += [f"-X {symbol}.{name}={value}" for name, value in values.items()]
    return " ".join(flags)


def architecture() -> str:
    """Return what Go calls this machine's processor, such as `amd64`."""
    machine = platform.machine().lower()
    return _ARCHITECTURES.get(machine, machine)


def cache_key(programs: tuple[Program, ...] = PROGRAMS) -> str:
    """Return the name of the build: it changes with versions, modules, flags and platform."""
    digest = hashlib.sha256()
    for program in programs:
        parts = (program.package, version(program), *BUILD_FLAGS, ldflags(program))
        digest.update("\0".join(parts).encode())
    for folder in sorted({wrapper(program) for program in programs}):
        for file in ("go.mod", "go.sum"):
            digest.update((folder / file).read_bytes())
    digest.update(repr(sorted(BUILD_ENVIRONMENT.items())).encode())
    target = f"{sys.platform}-{architecture()}"
    digest.update(target.encode())
    kubernetes = next((p for p in programs if p.module == _KUBERNETES), None)
    first = programs[0]
    named = version(kubernetes) if kubernetes else f"{first.name}-{version(first)}"
    return f"{named}-{target}-{digest.hexdigest()[:12]}"


def cache_root() -> Path:
    """Return the folder outside the tree that holds every build.

    TANDEM_CACHE_DIR names it outright; otherwise it is `tandem` below XDG_CACHE_HOME or ~/.cache.
    """
    if chosen := os.environ.get("TANDEM_CACHE_DIR"):
        return Path(chosen) / "controlplane"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tandem" / "controlplane"


def build_folder(programs: tuple[Program, ...] = PROGRAMS) -> Path:
    """Return where this version's programs are built to."""
    return cache_root() / cache_key(programs)


def node_build_folder() -> Path:
    """Return where the programs of real nodes are built to."""
    return build_folder(NODE_PROGRAMS)


def prometheus_folder() -> Path:
    """Return where Debian's prometheus package is unpacked to, for its promtool."""
    return cache_root() / "prometheus"


def find(name: str) -> Path | None:
    """Return the path of one program (also of `promtool`, `prometheus`), or None."""
    folders = [build_folder(), node_build_folder(), prometheus_folder() / "usr" / "bin"]
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        folders.append(Path(assets))
    for folder in folders:
        if os.access(folder / name, os.X_OK):
            return folder / name
    on_path = shutil.which(name)
    return Path(on_path) if on_path else None


def missing() -> list[str]:
    """Return the required programs that are nowhere on this machine."""
    return [name for name in REQUIRED if find(name) is None]


def how_to_get() -> str:
    """Return one sentence on how to get the programs on this machine."""
    if shutil.which("go"):
        return f"Run `{BUILD_COMMAND}` (10 to 20 minutes on two cores, once)."
    return (
        f"Install Go and run `{BUILD_COMMAND}`, "
        "or point KUBEBUILDER_ASSETS or PATH to a folder that has them."
    )


def require(name: str) -> Path:
    """Return the path of one program; raise an error that says how to get it."""
    path = find(name)
    if path is None:
        raise TandemError(f"{name} is not on this machine", how_to_get())
    return path


def require_all() -> dict[str, Path]:
    """Return the paths of the required programs by name; raise if one is missing."""
    absent = missing()
    if absent:
        raise TandemError(
            f"no control plane without {', '.join(absent)}, which this machine lacks", how_to_get()
        )
    return {name: require(name) for name in REQUIRED}
