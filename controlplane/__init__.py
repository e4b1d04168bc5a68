"""A real Kubernetes control plane as plain processes on loopback.

For tests, the demo and the benchmarks alike::

    from controlplane import ControlPlane, Node, wait_until

    with ControlPlane.start(nodes=[Node("n0", labels={"zone": "a"}, cpu=8)]) as plane:
        plane.start_scheduler(config=Path("scheduler.yaml"))
        plane.apply({"apiVersion": "v1", "kind": "Pod", ...})
        wait_until(lambda: plane.get("pod", "p")["status"].get("phase") == "Running", "p runs")
        plane.processes["kube-apiserver"].restart()
        plane.wait_ready()

- `ControlPlane.start(nodes=3 | [Node(...)], scheduler=False, apiserver_args=())`
- `plane.kubectl(*args, stdin=None, kubeconfig=None) -> str`, `plane.apply(...)`,
  `plane.get("pods", "-n", "x") -> dict`, `plane.http`: an administrator's `httpx.Client`
- `plane.kubeconfig(user="admin", groups=()) -> Path`,
  `plane.service_account_kubeconfig(namespace, name, pod=None) -> Path`: with a token whose
  rights are those that RBAC gives the account
- `plane.add_node(name, labels=..., cpu=..., memory=..., pods=..., taints=("k=v:NoSchedule",))`,
  `plane.add_nodes([Node(...), ...])`
- `plane.start_scheduler(name, config=..., kubeconfig=..., args=(), hostname="", wait=True,
  kept_up=True)`: any number, each under its own name; `plane.scheduler_url(name)` has /readyz and
  /metrics
- `plane.run(name, argv, env=None, hostname="")`: any other program, such as a service of ours
- `plane.processes[name]`: `pause()`, `resume()`, `kill()`, `terminate()`, `restart()`,
  `running`, `log`, `log_tail()`

Every process ends with the process that started it, however that ends. Annotations that say how
long a pod runs: `deploy/controlplane/stages/pod.yaml`.
"""

from controlplane.nodes import Node
from controlplane.plane import ControlPlane
from tandem.local.processes import Process, free_port
from tandem.local.waiting import wait_until

__all__ = ["ControlPlane", "Node", "Process", "free_port", "wait_until"]
