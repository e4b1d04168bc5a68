#!/usr/bin/env python3
"""Pin the versions of the control plane: write one small Go module for each program.

`k8s.io/kubernetes` and etcd replace their own submodules by folders next to them, so
`go install PATH@VERSION` refuses them. A wrapper module that requires the program and replaces
each of those submodules by its published version builds them unchanged.

    python deploy/controlplane/pin.py --kubernetes v1.37.1 --etcd v3.7.3 --kwok v0.8.0 \
        --helm v4.3.1 --containerd v2.4.2

Of other versions of Kubernetes that the suite runs on, `--also` pins the programs of Kubernetes
alone, in folders that end in the version:

    python deploy/controlplane/pin.py --also v1.34.4 v1.36.3

Operators of workloads are pinned one by one, by the names of `controlplane.operators`:

    python deploy/controlplane/pin.py --operators jobset=v0.12.0

`coredns` has a program of its own, and is moved with `go get`.
Run it only to move to another version; go.mod and go.sum are committed.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
from pathlib import Path

from controlplane.binaries import Program
from controlplane.operators import by_name

HERE = Path(__file__).parent
KUBERNETES_TOOLS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
#: In a module of their own, so that a plane without real nodes needs none of their modules.
NODE_TOOLS = ("kubelet", "kube-proxy")
#: The one that is made for the version of Kubernetes that is pinned.
CONTROLLER_RUNTIME = "v0.25.2"
#: Operators that are built with the libraries of their release. KubeRay 1.6.0 does not compile with
#: the control plane's: controller-runtime has another way to make a webhook there. Kueue was not
#: tried with them.
OWN_LIBRARIES = ("kuberay", "training-operator", "trainer", "kueue")
CONTAINERD = "github.com/containerd/containerd/v2"
CNI_PLUGINS = "github.com/containernetworking/plugins/plugins"
CONTAINERD_TOOLS = (
    *(f"{CONTAINERD}/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")),
    *(
        f"{CNI_PLUGINS}/{name}"
        for name in ("main/bridge", "main/loopback", "ipam/host-local", "meta/portmap")
    ),
)


def upstream_go_mod(module: str, version: str) -> str:
    """Return the text of the go.mod that `module` was published with."""
    answer = subprocess.run(
        ["go", "mod", "download", "-json", f"{module}@{version}"],
        check=True,
        capture_output=True,
        text=True,
    )
    return Path(json.loads(answer.stdout)["GoMod"]).read_text()


def write_module(
    name: str, module: str, version: str, tools: list[str], replaced: dict[str, str]
) -> None:
    """Write the wrapper `name`: requires `module`, names `tools`, replaces `replaced`."""
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    upstream = upstream_go_mod(module, version)
    go_line = re.search(r"^go .*$", upstream, re.M)
    godebug = re.search(r"^godebug .*$", upstream, re.M)
    assert go_line is not None
    lines = [f"module tandem.gpu/controlplane/{name}", "", go_line.group(0), ""]
    if godebug:
        lines += [godebug.group(0), ""]
    lines += ["tool (", *(f"\t{tool}" for tool in tools), ")", ""]
    lines += [f"require {module} {version}", ""]
    if replaced:
        lines += ["replace (", *(f"\t{k} => {k} {v}" for k, v in replaced.items()), ")", ""]
    (folder / "go.mod").write_text("\n".join(lines))
    subprocess.run(["go", "mod", "tidy"], cwd=folder, check=True)


def write_kubernetes(version: str, suffix: str = "") -> None:
    """Write the two wrappers of Kubernetes' programs at `version`; `suffix` ends their names."""
    staging = re.findall(
        r"^\s*(k8s\.io/\S+) => \./staging/",
        upstream_go_mod("k8s.io/kubernetes", version),
        re.M,
    )
    library_version = "v0." + version.removeprefix("v1.")
    for name, tools in (("kubernetes", KUBERNETES_TOOLS), ("kubelet", NODE_TOOLS)):
        write_module(
            name + suffix,
            "k8s.io/kubernetes",
            version,
            [f"k8s.io/kubernetes/cmd/{tool}" for tool in tools],
            dict.fromkeys(staging, library_version),
        )


def required(folder: Path) -> dict[str, str]:
    """Return the versions that a wrapper requires, by module."""
    listed = subprocess.run(
        ["go", "mod", "edit", "-json"], cwd=folder, check=True, capture_output=True, text=True
    )
    return {each["Path"]: each["Version"] for each in json.loads(listed.stdout)["Require"]}


def write_operator(program: Program, version: str) -> None:
    """Write the wrapper of an operator, with the control plane's versions of what they share.

    Those of `OWN_LIBRARIES` keep their own. Of the others, most of what they are built of is built
    for the control plane already, and building them takes a fraction of the time. `go mod tidy`
    would also ask for what their dependencies are tested with, which may not be there.
    """
    folder = HERE / program.wrapper
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    go_line = re.search(r"^go .*$", upstream_go_mod(program.module, version), re.M)
    assert go_line is not None
    lines = [f"module tandem.gpu/controlplane/{program.wrapper}", "", go_line.group(0), ""]
    (folder / "go.mod").write_text("\n".join(lines))
    command = ["go", "get", "-tool", f"{program.package}@{version}"]
    subprocess.run(command, cwd=folder, check=True)
    if program.name not in OWN_LIBRARIES:
        share_libraries(folder)
    subprocess.run(["go", "list", "-mod=mod", "-deps", program.package], cwd=folder, check=True)


def share_libraries(folder: Path) -> None:
    """Require the control plane's versions of what a wrapper shares with it."""
    plane = required(HERE / "kubernetes")
    library_version = "v0." + plane["k8s.io/kubernetes"].removeprefix("v1.")
    plane |= {name: library_version for name, found in plane.items() if found == "v0.0.0"}
    plane["sigs.k8s.io/controller-runtime"] = CONTROLLER_RUNTIME
    shared = [f"-require={name}@{plane[name]}" for name in required(folder) if name in plane]
    subprocess.run(["go", "mod", "edit", *shared], cwd=folder, check=True)


def main() -> None:
    """Write all modules but that of CoreDNS, or those of other versions of Kubernetes."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = ("kubernetes", "etcd", "kwok", "helm", "containerd")
    for name in names:
        parser.add_argument(f"--{name}", metavar="vX.Y.Z")
    parser.add_argument("--also", nargs="+", default=[], metavar="vX.Y.Z")
    parser.add_argument("--operators", nargs="+", default=[], metavar="NAME=vX.Y.Z")
    args = parser.parse_args()

    for version in args.also:
        write_kubernetes(version, "-" + ".".join(version.removeprefix("v").split(".")[:2]))
    for operator in args.operators:
        name, version = operator.split("=")
        write_operator(by_name(name).program, version)
    given = [name for name in names if getattr(args, name)]
    if not given and (args.also or args.operators):
        return
    if len(given) != len(names):
        parser.error(f"all of {', '.join('--' + name for name in names)} are needed")
    write_kubernetes(args.kubernetes)
    write_module("containerd", CONTAINERD, args.containerd, list(CONTAINERD_TOOLS), {})
    siblings = re.findall(
        r"^\s*(go\.etcd\.io/\S+) => \.\./",
        upstream_go_mod("go.etcd.io/etcd/server/v3", args.etcd),
        re.M,
    )
    write_module(
        "etcd",
        "go.etcd.io/etcd/server/v3",
        args.etcd,
        ["go.etcd.io/etcd/server/v3"],
        dict.fromkeys(siblings, args.etcd),
    )
    write_module("kwok", "sigs.k8s.io/kwok", args.kwok, ["sigs.k8s.io/kwok/cmd/kwok"], {})
    write_module("helm", "helm.sh/helm/v4", args.helm, ["helm.sh/helm/v4/cmd/helm"], {})


if __name__ == "__main__":
    main()
