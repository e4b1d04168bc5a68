"""The chart on a control plane: its pods are played by kwok, and its services are processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from controlplane_binaries import need_control_plane

from tandem.contracts import names

if TYPE_CHECKING:
    from cli_live import Live


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """The chart with its pods played by kwok, and its services as processes."""
    from cli_live import Live, own_address

    from controlplane import ControlPlane, Node, wait_until
    from controlplane.installation import Installation
    from node_agent.stub import FakeProc, StubGpu, StubState, build, environment
    from tandem.local.processes import free_port

    need_control_plane("helm")
    folder = tmp_path_factory.mktemp("cli")
    node = Node(
        "n0", {"nvidia.com/gpu.present": "true"}, cpu=32, taints=(names.GPU_TAINT + ":NoSchedule",)
    )
    with ControlPlane.start(nodes=[node, Node("n1")], scheduler=True) as plane:
        plane.apply(
            {
                "apiVersion": "node.k8s.io/v1",
                "kind": "RuntimeClass",
                "metadata": {"name": "nvidia"},
                "handler": "nvidia",
            }
        )
        installation = Installation(plane, folder, values={})
        port = free_port()
        installation.install(
            {
                "tunnel": {"host": "0.0.0.0", "port": port},
                "queue": {"quotas": [{"namespace": "over", "gpus": 0}]},
            }
        )
        gpus = [StubGpu(uuid=f"GPU-n0-{index}") for index in range(2)]
        StubState(gpus=gpus).write(folder / "gpus")
        library = environment(build(folder), folder / "gpus")
        settings = {"proc": str(FakeProc(folder / "proc").root), "report_interval_s": 1.0}
        installation.start_agent("n0", library, settings)
        found = Live(plane, installation, own_address(), port)
        found.lead_to(port)

        def played() -> bool:
            deployments = plane.get("deployments", "-n", names.NAMESPACE)["items"]
            daemons = plane.get("daemonsets", "-n", names.AGENT_NAMESPACE)["items"]
            return all(
                each["status"].get("availableReplicas") == each["spec"]["replicas"]
                for each in deployments
            ) and all(each["status"].get("numberReady") for each in daemons)

        wait_until(played, "the chart's pods are played", timeout_s=120)
        yield found
