"""Real nodes on one machine: kubelet, containerd, runc and kube-proxy, each node in namespaces.

A node has its own PID, mount, network, UTS and cgroup namespaces, so that every node uses the
standard paths and ports, and that the end of its first process is the end of everything on it.
`ControlPlane.start(real_nodes=2)` starts them; `plane.real_nodes["real-0"]` is one of them.
"""

from controlplane.realnode.cluster import RealNodes
from controlplane.realnode.machine import obstacles
from controlplane.realnode.node import NodeOptions, RealNode

__all__ = ["NodeOptions", "RealNode", "RealNodes", "obstacles"]
