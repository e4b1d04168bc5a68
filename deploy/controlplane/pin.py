#!/usr/bin/env python3
"""Pin the versions of the control plane: write one small Go module for each program.

`k8s.io/kubernetes` and etcd replace their own submodules by folders beside them, so
`go install PATH@VERSION` refuses them. A wrapper module that requires the program and replaces
each of those submodules by its published version builds them unchanged.

    python deploy/controlplane/pin.py --kubernetes v1.37.1 --etcd v3.7.3 --kwok v0.8.0 \
        --helm v4.3.1 --containerd v2.4.2

Of other versions of Kubernetes that the suite runs on, `--also` pins the programs of Kubernetes
alone, in folders that end in the version:

    python deploy/controlplane/pin.py --also v1.34.4 v1.36.3

`coredns` has a program of its own, and is moved with `go get`.
Run it only to move to another version; go.mod and go.sum are committed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
KUBERNETES_TOOLS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
#: In a module of their own, so that a plane without real nodes needs none of their modules.
NODE_TOOLS = ("kubelet", "kube-proxy")
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


def main() -> None:
    """Write all modules but that of CoreDNS, or those of other versions of Kubernetes."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = ("kubernetes", "etcd", "kwok", "helm", "containerd")
    for name in names:
        parser.add_argument(f"--{name}", metavar="vX.Y.Z")
    parser.add_argument("--also", nargs="+", default=[], metavar="vX.Y.Z")
    args = parser.parse_args()

    for version in args.also:
        write_kubernetes(version, "-" + ".".join(version.removeprefix("v").split(".")[:2]))
    given = [name for name in names if getattr(args, name)]
    if not given and args.also:
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
