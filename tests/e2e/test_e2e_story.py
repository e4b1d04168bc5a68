"""The way of a training job, from `kubectl apply` onto a GPU that another job is using."""

from __future__ import annotations

import random
import re
import subprocess
import time

import httpx
import pytest
from e2e_cluster import (
    DEVICES,
    HAND_OVER,
    TandemCluster,
    job,
    ungated_pod,
)

from controlplane import binaries, wait_until
from controlplane.containers import resolved_environment
from tandem.errors import TandemError

pytestmark = [pytest.mark.controlplane, pytest.mark.slow]

RESNET = {"tandem.gpu/model": "resnet50", "tandem.gpu/batch-size": "32"}
SQUEEZENET = {"tandem.gpu/model": "squeezenet", "tandem.gpu/batch-size": "64"}


def devices(pod: dict) -> list[str]:
    return pod["metadata"]["annotations"][DEVICES].split(",")


def test_two_jobs_share_a_gpu_the_exclusive_one_has_its_own_and_the_fourth_waits_for_its_turn(
    cluster: TandemCluster,
) -> None:
    namespace = cluster.namespace()
    cluster.push(namespace, "resnet50", "squeezenet")

    # One that never shares has a GPU for itself.
    cluster.apply_job(namespace, job("whole", annotations={"tandem.gpu/exclusive": "true"}))
    third = cluster.running(namespace, "whole")

    # Two annotated jobs on the other: their graphs say that they get along.
    cluster.apply_job(namespace, job("resnet", annotations=RESNET, sidecar=True))
    first = cluster.running(namespace, "resnet")
    cluster.apply_job(namespace, job("squeeze", annotations=SQUEEZENET))
    second = cluster.running(namespace, "squeeze")
    assert devices(first) == devices(second)
    assert first["spec"]["nodeName"] == second["spec"]["nodeName"]

    assert devices(third) != devices(first)

    # What a kubelet resolves gives the training container exactly its GPUs, all others none.
    for pod in (first, second, third):
        environment = resolved_environment(pod)
        assert environment.pop("train")["NVIDIA_VISIBLE_DEVICES"].split(",") == devices(pod)
        assert {env["NVIDIA_VISIBLE_DEVICES"] for env in environment.values()} == {"void"}

    # A fourth would make three for whose memory there is no room: it waits, and says where and why.
    needs = RESNET | {"tandem.gpu/memory": "30Gi"}
    cluster.apply_job(namespace, job("late", annotations=needs))
    reason = cluster.waiting_reason(namespace, "late")
    (shared,) = devices(first)
    assert shared not in reason  # names of GPUs are for those who may list them
    assert re.search(r"\d+\.\d GiB needed, \d+\.\d GiB there", reason), reason
    assert "a job runs that does not share its GPU" in reason
    late = cluster.pod_of(namespace, "late")
    assert late is not None

    def described() -> bool:
        text = cluster.plane.kubectl("describe", "pod", "-n", namespace, late["metadata"]["name"])
        return "the memory is too small" in text and "kubectl describe gpujob job-late" in text

    wait_until(described, "kubectl describe pod names the reasons and where the figures are")
    figures = cluster.plane.kubectl("describe", "gpujob", "-n", namespace, "job-late")
    assert shared not in figures
    assert "GiB needed" in figures
    columns = cluster.plane.kubectl("get", "gpujobs", "-n", namespace)
    assert "job-late" in columns
    assert "Queued" in columns
    assert {gpu: len(pods) for gpu, pods in cluster.holders().items()} == {
        shared: 2,
        devices(third)[0]: 1,
    }

    # When both have ended, the fourth takes their place (within ten seconds on a quiet machine).
    for name in ("resnet", "squeeze"):
        cluster.let_end(namespace, name)
    ended = time.monotonic()
    fourth = cluster.running(namespace, "late")
    print(f"the fourth ran {time.monotonic() - ended:.1f} s after the two had ended")
    assert devices(fourth) == [shared]
    cluster.remove(namespace)


def test_the_binding_carries_the_gpus_in_the_same_update_as_the_node(
    cluster: TandemCluster,
) -> None:
    namespace = cluster.namespace()
    path = f"/api/v1/namespaces/{namespace}/pods"
    before = cluster.plane.http.get(path).json()["metadata"]["resourceVersion"]
    cluster.apply_job(namespace, job("j", annotations={"tandem.gpu/memory": "8Gi"}))
    cluster.running(namespace, "j")
    seen = [event["object"] for event in cluster.plane.events_since(path, before)]
    placed = [
        ("nodeName" in pod["spec"], DEVICES in pod["metadata"].get("annotations", {}))
        for pod in seen
    ]
    assert (True, True) in placed
    assert set(placed) <= {(False, False), (True, True)}
    cluster.remove(namespace)


def test_a_stock_manifest_in_an_adopted_namespace_runs_on_whole_gpus(
    cluster: TandemCluster,
) -> None:
    namespace = cluster.namespace(**{"tandem.gpu/adopt": "true"})
    for name in ("a", "b"):
        cluster.apply_job(namespace, job(name, resource="nvidia.com/gpu"))
    pods = [cluster.running(namespace, name) for name in ("a", "b")]
    assert len({gpu for pod in pods for gpu in devices(pod)}) == 2
    assert all(pod["spec"]["schedulerName"] == "tandem-scheduler" for pod in pods)
    cluster.remove(namespace)


def test_an_unreadable_annotation_is_refused_at_apply_and_nothing_is_half_created(
    cluster: TandemCluster,
) -> None:
    namespace = cluster.namespace()
    with pytest.raises((TandemError, subprocess.CalledProcessError)) as refused:
        cluster.apply_job(namespace, job("bad", annotations={"tandem.gpu/memory": "a lot"}))
    message = str(refused.value) + str(getattr(refused.value, "hint", ""))
    assert "spec.template.metadata.annotations[tandem.gpu/memory]" in message
    assert "a lot" in message
    assert "12Gi" in message
    for kind in ("jobs", "pods", "gpujobs"):
        assert cluster.plane.get(kind, "-n", namespace)["items"] == []
    cluster.remove(namespace)


@pytest.mark.skipif(HAND_OVER != "environment", reason="pods past the webhook have no claim")
def test_of_two_sent_to_the_same_last_share_one_is_bound_and_the_other_learns_why(
    cluster: TandemCluster,
) -> None:
    """Pods that came past the webhook have no gate, and are bound in their turn all the same."""
    namespace = cluster.namespace()
    whole = {"tandem.gpu/exclusive": "true"}
    cluster.apply_job(namespace, job("holder", annotations=whole))
    cluster.running(namespace, "holder")
    scheduler = cluster.plane.processes["tandem-scheduler"]
    extender = cluster.plane.processes["extender"]
    with cluster.without_webhook():
        # Both are in the scheduler's queue before it takes the first, and none is planned.
        scheduler.pause()
        extender.pause()
        for name in ("left", "right"):
            cluster.plane.apply(ungated_pod(namespace, name, whole))
        extender.resume()
        scheduler.resume()

        def one_runs() -> str:
            pods = cluster.pods(namespace)
            phases = {pod["metadata"]["name"]: pod["status"].get("phase") for pod in pods}
            running = [name for name in ("left", "right") if phases[name] == "Running"]
            return running[0] if len(running) == 1 else ""

        bound = wait_until(one_runs, "one of the two runs")
        (other,) = {"left", "right"} - {bound}

        def said() -> bool:
            events = cluster.plane.get("events", "-n", namespace)["items"]
            of_other = [e["message"] for e in events if e["involvedObject"]["name"] == other]
            return any("a job runs that does not share its GPU" in message for message in of_other)

        wait_until(said, f"{other} says why it waits")
        assert all(len(pods) == 1 for pods in cluster.holders().values())

    # It is still in the queue: what comes free is its.
    cluster.plane.kubectl("delete", "pod", "-n", namespace, bound, "--grace-period=0")
    wait_until(
        lambda: cluster.plane.get("pod", "-n", namespace, other)["status"]["phase"] == "Running",
        f"{other} runs in its turn",
    )
    cluster.remove(namespace)


if HAND_OVER == "dra-queue":

    def test_a_pod_that_came_past_the_webhook_learns_that_it_has_no_claim(
        cluster: TandemCluster,
    ) -> None:
        namespace = cluster.namespace()
        with cluster.without_webhook():
            cluster.plane.apply(
                ungated_pod(namespace, "unclaimed", {"tandem.gpu/exclusive": "true"})
            )

        def said() -> bool:
            events = cluster.plane.get("events", "-n", namespace)["items"]
            return any("pods get GPUs by ResourceClaims" in each["message"] for each in events)

        wait_until(said, "the pod learns why it waits")
        cluster.remove(namespace)


def test_the_metrics_of_all_three_services_are_as_prometheus_wants_them(
    cluster: TandemCluster,
) -> None:
    promtool = binaries.find("promtool")
    if promtool is None:
        pytest.skip("no promtool on this machine: it comes with Debian's package prometheus")
    installation = cluster.installation
    for url in (
        installation.verbs_url,
        installation.predictor_url,
        installation.agent_url("n0"),
    ):
        text = httpx.get(f"{url}/metrics", trust_env=False).raise_for_status().text
        assert "tandem_" in text
        said = subprocess.run(
            [promtool, "check", "metrics"], input=text, text=True, capture_output=True, check=False
        )
        assert (said.returncode, said.stdout + said.stderr) == (0, "")


def test_a_restart_of_any_component_at_any_moment_loses_nothing(
    cluster: TandemCluster, seed: int
) -> None:
    order = random.Random(seed)
    namespace = cluster.namespace()
    declared = {"tandem.gpu/memory": "8Gi", "tandem.gpu/utilization": "20"}
    for name in ("a", "b"):
        cluster.apply_job(namespace, job(name, annotations=declared))
    before = {name: cluster.running(namespace, name)["metadata"]["uid"] for name in ("a", "b")}
    held = cluster.holders()
    components = ["extender", "tandem-scheduler", "predictor", "agent-n0", "kube-apiserver"]
    order.shuffle(components)
    for number, component in enumerate(components):
        # While the only replica of the webhook starts, our workloads are refused: apply again.
        wait_until(
            lambda number=number: cluster.accepts(
                namespace, job(f"during-{number}", annotations=declared)
            ),
            f"during-{number} is accepted",
        )
        process = cluster.plane.processes[component]
        process.kill()
        process.restart()
        cluster.plane.wait_ready()

    def running() -> int:
        return sum(pod["status"].get("phase") == "Running" for pod in cluster.pods(namespace))

    # Two GPUs of three shares each: six run, the seventh waits for what comes free.
    wait_until(lambda: running() == 6, "all shares are in use", timeout_s=180)
    for name, uid in before.items():
        pod = cluster.pod_of(namespace, name)
        assert pod is not None
        assert (pod["metadata"]["uid"], pod["status"]["phase"]) == (uid, "Running")
    now = cluster.holders()
    assert all(set(pods) <= set(now[gpu]) for gpu, pods in held.items())
    assert sorted(len(pods) for pods in now.values()) == [3, 3]
    for name in ("a", "b"):
        cluster.let_end(namespace, name)
    wait_until(lambda: running() == len(components), "the last one runs as well", timeout_s=180)
    assert max(len(pods) for pods in cluster.holders().values()) <= 3
    cluster.remove(namespace)
