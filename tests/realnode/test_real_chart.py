"""The chart as it is, on two real nodes: everything that Helm does, with pods that really run."""

from __future__ import annotations

import json

import pytest
from real_cluster import RealCluster, job

from controlplane import wait_until
from tandem.contracts import names

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.real,
    pytest.mark.xdist_group("real"),
    pytest.mark.timeout(900),
]

#: What the processes of a container may do, as the kernel says it there. The agent sees all
#: processes of its node; those of its container are in the control group of the one that asks.
_WHO = """\
import json, os, pathlib

def read(pid, name):
    return pathlib.Path("/proc", pid, name).read_text()

def status(pid):
    return dict(line.split(":", 1) for line in read(pid, "status").splitlines())

def in_container():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if read(pid, "cgroup") == read("self", "cgroup"):
                yield status(pid)
        except OSError:
            pass

found = list(in_container())
print(json.dumps({"uids": sorted({int(each["Uid"].split()[1]) for each in found}),
                  "capabilities": sorted({int(each["CapEff"], 16) for each in found}),
                  "several": len(found) > 1,
                  "root_writable": os.access("/", os.W_OK) and not os.statvfs("/").f_flag & 1}))
"""


def ready_pods(cluster: RealCluster, namespace: str, component: str) -> list[dict]:
    selector = f"app.kubernetes.io/component={component}"
    found = cluster.plane.get("pods", "-n", namespace, "-l", selector)["items"]
    return [
        pod
        for pod in found
        if {"type": "Ready", "status": "True"}.items()
        <= next(c for c in pod["status"]["conditions"] if c["type"] == "Ready").items()
    ]


def test_every_component_is_ready_on_the_nodes_that_it_belongs_to(two_nodes: RealCluster) -> None:
    schedulers = ready_pods(two_nodes, names.NAMESPACE, "scheduler")
    assert {pod["spec"]["nodeName"] for pod in schedulers} == {"real-0", "real-1"}
    assert len(ready_pods(two_nodes, names.NAMESPACE, "predictor")) == 1
    agents = ready_pods(two_nodes, names.AGENT_NAMESPACE, "agent")
    assert {pod["spec"]["nodeName"] for pod in agents} == {"real-0", "real-1"}
    for pod in [*schedulers, *agents]:
        assert not any(each["restartCount"] for each in pod["status"]["containerStatuses"])
    for node in ("real-0", "real-1"):
        status = two_nodes.plane.get("gpunode", node)["status"]
        assert [gpu["health"] for gpu in status["gpus"]] == ["Healthy", "Healthy"]


@pytest.mark.parametrize(
    ("target", "container", "uid"),
    [
        ("deployment/tandem-scheduler", "extender", 65532),
        ("deployment/tandem-predictor", "predictor", 65532),
        ("daemonset/tandem-agent", "agent", 59405),
    ],
)
def test_components_run_without_rights(
    two_nodes: RealCluster, target: str, container: str, uid: int
) -> None:
    namespace = names.AGENT_NAMESPACE if container == "agent" else names.NAMESPACE
    said = two_nodes.plane.kubectl(
        "exec", "-n", namespace, target, "-c", container, "--", "python", "-c", _WHO
    )
    assert json.loads(said) == {
        "uids": [uid],
        "capabilities": [0],
        "several": True,  # the program of the image, and this one
        "root_writable": False,
    }


def test_helm_test_reaches_the_webhook_by_its_name_and_certificate(two_nodes: RealCluster) -> None:
    assert "Succeeded" in two_nodes.helm("test", "tandem")


def test_when_the_leading_scheduler_dies_the_other_starts_jobs(two_nodes: RealCluster) -> None:
    lease = two_nodes.plane.get("lease", "tandem-scheduler", "-n", names.NAMESPACE)
    leader = lease["spec"]["holderIdentity"].split("_")[0]
    two_nodes.plane.kubectl("delete", "pod", leader, "-n", names.NAMESPACE, "--wait=false")
    namespace = two_nodes.namespace()
    two_nodes.apply_patiently(namespace, job("after", "--iterations=5"))
    two_nodes.succeeded(namespace, "after")
    lease = two_nodes.plane.get("lease", "tandem-scheduler", "-n", names.NAMESPACE)
    assert not lease["spec"]["holderIdentity"].startswith(leader)
    two_nodes.wait_installed()
    two_nodes.empty(namespace)


def test_upgrade_rollback_and_uninstall_leave_a_running_job_alone(two_nodes: RealCluster) -> None:
    namespace = two_nodes.namespace()
    two_nodes.apply_patiently(namespace, job("steady", "--iterations=100000"))
    before = two_nodes.running(namespace, "steady")
    chart = ["upgrade", "tandem", str(two_nodes.chart), "--reset-then-reuse-values"]
    two_nodes.helm(*chart, "--set", "scheduler.extender.config.max_jobs_per_gpu=3")
    two_nodes.wait_installed()
    two_nodes.helm("rollback", "tandem")
    two_nodes.wait_installed()
    assert "deployed" in two_nodes.helm("status", "tandem")
    two_nodes.apply_patiently(namespace, job("meanwhile", "--iterations=5"))
    two_nodes.succeeded(namespace, "meanwhile")

    two_nodes.helm("uninstall", "tandem", "--wait")
    wait_until(
        lambda: not two_nodes.plane.get("pods", "-n", names.NAMESPACE)["items"],
        "the pods of the release are gone",
    )
    # A pod that asks for no GPU of ours does not notice.
    two_nodes.apply(namespace, job("plain", "--iterations=5", gpus=0))
    two_nodes.succeeded(namespace, "plain")
    after = two_nodes.running(namespace, "steady")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert not any(each["restartCount"] for each in after["status"]["containerStatuses"])

    two_nodes.helm("install", "tandem", str(two_nodes.chart))
    two_nodes.wait_installed()
    two_nodes.apply_patiently(namespace, job("again", "--iterations=5"))
    two_nodes.succeeded(namespace, "again")
    two_nodes.empty(namespace)
