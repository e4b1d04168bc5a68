"""The agent finds the pod of each process on a GPU: of threads, forks and `kubectl exec`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from real_cluster import RealCluster, job

from controlplane import binaries, wait_until
from controlplane.realnode.node import on_node
from tandem.contracts import names

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.xdist_group("real"),
    pytest.mark.timeout(900),
]

GIB = 1 << 30
#: A thread of the first process takes 2 GiB, a process that it forks 4 GiB.
_FAMILY = """
import os, sys, threading, time
sys.path.insert(0, "/app")
import simulated_gpu
gpus = []
def use(gib):
    gpus.append(simulated_gpu.connect())
    gpus[-1].use(gib, 10)
if os.fork() == 0:
    use(4)
    time.sleep(600)
thread = threading.Thread(target=use, args=(2,))
thread.start()
thread.join()
time.sleep(600)
"""
_EXECUTED = """
import sys, time
sys.path.insert(0, "/app")
import simulated_gpu
gpu = simulated_gpu.connect()
gpu.use(8, 10)
time.sleep(600)
"""
#: A process of the node, in no pod, that uses the GPU of the pod.
_FOREIGN = """
import socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect(sys.argv[1])
line.sendall(b'{"gpu": 0, "memory": 17179869184, "sm": 10, "mem": 5}\\n')
sys.stdin.read()
"""


@pytest.fixture
def namespace(two_nodes: RealCluster) -> Iterator[str]:
    name = two_nodes.namespace()
    yield name
    two_nodes.empty(name)


def memory_on(cluster: RealCluster, gpu: str) -> dict[str, int]:
    """Return the memory on a GPU that the agent reports, by the UID of the pod or `foreign`."""
    found: dict[str, int] = {}
    for node in cluster.plane.get("gpunodes")["items"]:
        for each in node["status"]["gpus"]:
            if each["uuid"] == gpu:
                for use in each.get("pods", []):
                    key = "foreign" if use.get("foreign") else use["uid"]
                    found[key] = found.get(key, 0) + use.get("memoryBytes", 0)
    return found


def test_threads_forks_and_executed_programs_count_for_the_pod_and_the_host_s_as_foreign(
    two_nodes: RealCluster, namespace: str
) -> None:
    family = job("family", annotations={names.EXCLUSIVE: "true"}, command=["python", "-c", _FAMILY])
    family["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    two_nodes.apply_patiently(namespace, family)
    pod = two_nodes.running(namespace, "family")
    uid = pod["metadata"]["uid"]
    (gpu,) = two_nodes.gpus_of(pod)
    node = two_nodes.plane.real_nodes[pod["spec"]["nodeName"]]

    def reported(expected: dict[str, int]) -> None:
        in_bytes: dict[str, Any] = {key: gib * GIB for key, gib in expected.items()}
        wait_until(
            lambda: memory_on(two_nodes, gpu) == in_bytes,
            f"the agent reports {expected} GiB on {gpu}",
            timeout_s=90,
            poll_s=0.5,
        )

    reported({uid: 6})
    kubectl = [str(binaries.require("kubectl")), "--kubeconfig", str(two_nodes.plane.kubeconfig())]
    executed = subprocess.Popen(
        [
            *kubectl,
            "exec",
            "-n",
            namespace,
            pod["metadata"]["name"],
            "--",
            "python",
            "-c",
            _EXECUTED,
        ]
    )
    try:
        reported({uid: 14})
    finally:
        executed.kill()
        executed.wait()
    socket = str(node.folder / "gpu-usage" / "socket")
    foreign = subprocess.Popen(
        on_node(node.folder, ["python3", "-c", _FOREIGN, socket]),
        env={**os.environ, names.VISIBLE_DEVICES_ENV: gpu},
        stdin=subprocess.PIPE,
    )
    try:
        # The program that `kubectl exec` started goes on: nothing tells it to end.
        reported({uid: 14, "foreign": 16})
    finally:
        foreign.communicate()  # it ends at the end of its input
    reported({uid: 14})
