"""The command line of each program of the control plane; nothing is started here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane import binaries
from controlplane.nodes import KWOK_NODE

SERVICE_CIDR = "10.96.0.0/16"
POD_CIDR = "10.128.0.0/9"
#: Between a client that is throttled and a machine with two cores, let the machine be the limit.
CLIENT_QPS, CLIENT_BURST = 1_000, 2_000
#: kwok renews a node's Lease four times in this time. With the usual 40 s, 5,000 nodes cost 500
#: writes a second, all that two cores can do.
NODE_LEASE_S = 240
#: kubelet's own default, which a plane with real nodes keeps.
REAL_NODE_LEASE_S = 40
#: Controllers for volumes, autoscaling and kubelets' caches, none of which a plane on kwok has.
_IDLE_CONTROLLERS = (
    "endpointslice-mirroring-controller",
    "ephemeral-volume-controller",
    "horizontal-pod-autoscaler-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-expander-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "ttl-controller",
    "volumeattributesclass-protection-controller",
)

DEFAULT_SCHEDULER_CONFIGURATION: Mapping[str, Any] = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": False},
    "clientConnection": {"qps": CLIENT_QPS, "burst": CLIENT_BURST},
}

#: What the API server logs of writes, a line each once it has been answered: who, what, where.
AUDIT_POLICY: Mapping[str, Any] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "Metadata"},
    ],
}


@dataclass(frozen=True)
class Layout:
    """Where a plane keeps its files, and how its API server is reached.

    `real_nodes`: kubelets join as well, at an `address` that they reach, and the plane does for
    them what it leaves out for nodes that kwok plays.
    """

    folder: Path
    api_port: int
    address: str = "127.0.0.1"
    service_cidr: str = SERVICE_CIDR
    real_nodes: bool = False

    @property
    def url(self) -> str:
        """The API server's address."""
        return f"https://{self.address}:{self.api_port}"

    @property
    def node_lease_s(self) -> int:
        """For how long a node is thought alive that does not renew its Lease."""
        return REAL_NODE_LEASE_S if self.real_nodes else NODE_LEASE_S

    @property
    def etcd_url(self) -> str:
        """Where etcd listens: a socket file, so that there is no port to lose a race for."""
        return f"unix://{self.folder}/etcd.sock"

    def file(self, name: str) -> Path:
        """Return the path of a file of the plane."""
        return self.folder / name

    @property
    def logs(self) -> Path:
        """Where the logs are."""
        return self.folder / "logs"

    def log(self, name: str) -> Path:
        """Return the path of a program's log."""
        return self.logs / f"{name}.log"


def etcd(program: Path, layout: Layout) -> list[str]:
    """One member, on tmpfs where there is one, that syncs nothing: its data dies with the plane."""
    peer_url = f"unix://{layout.folder}/etcd-peer.sock"
    return [
        str(program),
        f"--data-dir={layout.file('etcd')}",
        "--unsafe-no-fsync=true",
        f"--listen-client-urls={layout.etcd_url}",
        f"--advertise-client-urls={layout.etcd_url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=default={peer_url}",
        f"--quota-backend-bytes={8 << 30}",
        "--log-level=warn",
    ]


def apiserver(program: Path, layout: Layout, extra: Sequence[str]) -> list[str]:
    """RBAC on, and admission as in a cluster but for one plugin that costs a write per node."""
    argv = [
        str(program),
        f"--etcd-servers={layout.etcd_url}",
        f"--bind-address={layout.address}",
        f"--secure-port={layout.api_port}",
        f"--tls-cert-file={layout.file('apiserver.crt')}",
        f"--tls-private-key-file={layout.file('apiserver.key')}",
        f"--client-ca-file={layout.file('ca.crt')}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={layout.file('service-accounts.key')}",
        f"--service-account-key-file={layout.file('service-accounts.key')}",
        f"--service-cluster-ip-range={layout.service_cidr}",
        "--allow-privileged=true",
        "--profiling=false",
    ]
    if layout.real_nodes:
        argv += [
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--kubelet-certificate-authority={layout.file('ca.crt')}",
            f"--kubelet-client-certificate={layout.file('kubelet-client.crt')}",
            f"--kubelet-client-key={layout.file('kubelet-client.key')}",
            "--kubelet-preferred-address-types=InternalIP",
        ]
    else:
        argv += [
            "--authorization-mode=RBAC",
            # It taints each new node as not ready until the controllers take that away again,
            # which for 5,000 nodes that are ready as they are made takes minutes.
            "--disable-admission-plugins=TaintNodesByCondition",
            # A loopback address cannot stand in the `kubernetes` Service's endpoints.
            "--endpoint-reconciler-type=none",
        ]
    return [*argv, *extra]


def audit(layout: Layout) -> list[str]:
    """Let the API server log writes by `AUDIT_POLICY`, which the caller has written."""
    return [
        f"--audit-policy-file={layout.file('audit.yaml')}",
        f"--audit-log-path={layout.file('audit.log')}",
        "--audit-log-mode=blocking",
    ]


def controller_manager(program: Path, layout: Layout, kubeconfig: Path) -> list[str]:
    """Everything but what needs volumes, clouds or metrics; volumes too with real nodes."""
    idle = () if layout.real_nodes else _IDLE_CONTROLLERS
    return [
        str(program),
        f"--kubeconfig={kubeconfig}",
        "--secure-port=0",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={layout.file('service-accounts.key')}",
        f"--root-ca-file={layout.file('ca.crt')}",
        f"--kube-api-qps={CLIENT_QPS}",
        f"--kube-api-burst={CLIENT_BURST}",
        "--controllers=" + ",".join(["*", *(f"-{name}" for name in idle)]),
        f"--node-monitor-grace-period={layout.node_lease_s + (10 if layout.real_nodes else 40)}s",
        "--profiling=false",
    ]


def kwok(program: Path, layout: Layout, kubeconfig: Path) -> list[str]:
    """Plays the kubelet of every node, by our own stages; next to real nodes, of its own only."""
    own = f"--manage-nodes-with-annotation-selector={KWOK_NODE}=true"
    stages = sorted((binaries.recipes() / "stages").glob("*.yaml"))
    return [
        str(program),
        f"--kubeconfig={kubeconfig}",
        own if layout.real_nodes else "--manage-all-nodes=true",
        "--node-ip=127.0.0.1",
        f"--cidr={POD_CIDR}",
        f"--node-lease-duration-seconds={layout.node_lease_s}",
        "-v=WARN",
        *(f"--config={stage}" for stage in stages),
    ]


def scheduler(program: Path, config: Path, port: int, extra: Sequence[str]) -> list[str]:
    """Given a configuration; its health and metrics may be read by anyone on loopback."""
    return [
        str(program),
        f"--config={config}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={config.parent}/{config.stem}-serving",
        "--authentication-skip-lookup=true",
        "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
        "--profiling=false",
        *extra,
    ]
