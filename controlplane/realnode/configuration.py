"""The configuration files of a node's programs: text only, nothing is written or started here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

PAUSE_IMAGE = "tandem.local/pause:1"
#: Folders below that of the node's files.
CNI, REGISTRIES = "cni", "registries"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
#: What a chart for GPU nodes names; its runtime injects the simulated driver (`gpu_runtime`).
GPU_RUNTIME = "nvidia"


def containerd(folder: Path, runc: Path, gpu_runtime: Path, cni_plugins: Path) -> str:
    """Return containerd's config.toml; `folder` has the node's other files."""

    def runtime(name: str, program: Path) -> str:
        table = f"plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{name}"
        return f"""
[{table}]
runtime_type = "io.containerd.runc.v2"
[{table}.options]
BinaryName = "{program}"
SystemdCgroup = false
"""

    return f"""\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE_IMAGE}"
[plugins.'io.containerd.cri.v1.images'.registry]
config_path = "{folder / REGISTRIES}"

[plugins.'io.containerd.cri.v1.runtime']
# Without CAP_SYS_RESOURCE no process may lower its oom_score_adj, and no sandbox would start.
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{cni_plugins}"]
conf_dir = "{folder / CNI}"
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = "runc"
{runtime("runc", runc)}{runtime(GPU_RUNTIME, gpu_runtime)}"""


def cni(pod_cidr: str) -> str:
    """Return the list of CNI plugins: a bridge, addresses from `pod_cidr`, host ports."""
    plugins: list[Mapping[str, Any]] = [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isDefaultGateway": True,
            "hairpinMode": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": pod_cidr}]]},
        },
        {"type": "portmap", "capabilities": {"portMappings": True}, "backend": "nftables"},
    ]
    return json.dumps({"cniVersion": "1.0.0", "name": "tandem", "plugins": plugins}, indent=1)


def kubelet(folder: Path, dns_address: str, eviction: Mapping[str, str], *, own_disk: bool) -> str:
    """Return a KubeletConfiguration; `folder` has the certificates.

    `own_disk`: the node has a disk of its own, so kubelet measures it, and evicts when it is full.
    """
    return yaml.safe_dump(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "cgroupDriver": "cgroupfs",
            # Version 1 still works, and machines that run the tests have it.
            "failCgroupV1": False,
            "failSwapOn": False,
            # The node's own programs are in no group that kubelet could limit.
            "enforceNodeAllocatable": [],
            # Without this kubelet measures no disk. With it, it does not start where it cannot:
            # the disk of some machines is none that it knows.
            "localStorageCapacityIsolation": own_disk,
            "clusterDNS": [dns_address],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(folder / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(folder / "kubelet.crt"),
            "tlsPrivateKeyFile": str(folder / "kubelet.key"),
            "evictionHard": dict(eviction),
            # Five minutes by default, for which a node that has room again would stay tainted.
            "evictionPressureTransitionPeriod": "10s",
            # The machine's disk is shared with all else that runs on it.
            "imageGCHighThresholdPercent": 100,
            "registryPullQPS": 0,
            "eventRecordQPS": 0,
        },
        sort_keys=False,
    )


def kube_proxy(kubeconfig: Path, pod_cidr: str) -> str:
    """Return a KubeProxyConfiguration; what comes from outside `pod_cidr` is masqueraded."""
    return yaml.safe_dump(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "clusterCIDR": pod_cidr,
            "detectLocalMode": "ClusterCIDR",
            # The table of connections is sized for the whole machine, not for one node of it.
            "conntrack": {"maxPerCore": 0, "min": 0},
        },
        sort_keys=False,
    )
