"""What happens to jobs and their GPUs when something fails on a real node.

Each test makes one fault and follows it from outside: the pods of the API server, the processes
in the control groups, and the GPUs in the environment of these processes. `record` keeps what a
fault did; `python -m proof.real_faults` writes the table of docs/evidence/real-node.md from it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from real_cluster import RealCluster, image_archives, job
from real_oracle import Container, Oracle

from controlplane import wait_until
from controlplane.realnode import RealNode, images
from tandem.contracts import names
from tandem.errors import TandemError

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.xdist_group("real"),
    pytest.mark.timeout(1200),
]

#: Each victim has both GPUs of a node for itself.
ALONE = {names.EXCLUSIVE: "true"}
SAVING = {**ALONE, names.CHECKPOINT: "true"}
TRAINING = "--iterations=100000"
#: Shorter than the five minutes and 50 s after which the API server would delete the pods.
CUT_OFF_S = 300.0


class Site:
    """A namespace, the oracle that watches the nodes, and the record of one fault."""

    def __init__(self, cluster: RealCluster, oracle: Oracle) -> None:
        self.cluster, self.oracle = cluster, oracle
        self.namespace = cluster.namespace()

    def apply(self, manifest: Mapping[str, Any]) -> None:
        self.cluster.apply_patiently(self.namespace, manifest)

    def start(self, manifest: Mapping[str, Any]) -> tuple[dict[str, Any], Container]:
        """Start a job; return its pod and its container once its processes have GPUs."""
        self.apply(manifest)
        name = manifest["metadata"]["name"]
        pod = self.cluster.running(self.namespace, name)
        return pod, self.container(pod)

    def container(self, pod: Mapping[str, Any]) -> Container:
        """Return the newest container of a pod once its processes have GPUs."""
        uid = pod["metadata"]["uid"]
        found = wait_until(lambda: self.oracle.of(uid), "the pod's processes see GPUs")
        return found[-1]

    def queue_next(self) -> str:
        """Submit a job that needs the same GPUs; return why it waits."""
        self.apply(job("next", "--iterations=5", annotations=ALONE, gpus=2))
        return self.why_next_waits()

    def why_next_waits(self) -> str:
        def reason() -> str:
            status = self.cluster.status(self.namespace, "next")
            return status.get("message", "") if status.get("reason") == "Waiting" else ""

        return wait_until(reason, "the next job says why it waits")

    def next_started(self) -> float:
        """Return when the first process of the next job had its GPUs."""

        def started() -> Container | None:
            pod = self.cluster.pod(self.namespace, "next")
            found = self.oracle.of(pod["metadata"]["uid"]) if pod else []
            return found[0] if found else None

        return wait_until(started, "the next job runs", timeout_s=240, poll_s=0.2).first_s

    def next_has_not_started(self) -> None:
        pod = self.cluster.pod(self.namespace, "next")
        assert pod is not None
        assert not pod["spec"].get("nodeName")
        assert not self.oracle.of(pod["metadata"]["uid"])

    def seen(self, what: str, condition: Callable[[], object], timeout_s: float = 180) -> float:
        """Wait for something that the API server shows; return the time at which it does."""
        wait_until(condition, what, timeout_s=timeout_s, poll_s=0.1)
        return time.time()

    def container_state(self, job_name: str) -> dict[str, Any]:
        pod = self.cluster.pod(self.namespace, job_name) or {}
        statuses = pod.get("status", {}).get("containerStatuses", [])
        return statuses[0] if statuses else {}

    def held(self) -> str:
        """Return the GPUs that pods which have not ended hold, by the API server."""
        return ", ".join(sorted(self.cluster.holders())) or "nothing"

    def said(self, job_name: str) -> str:
        """Return what the GPUJob says."""
        status = self.cluster.status(self.namespace, job_name)
        words = (status.get("phase", ""), status.get("reason", ""), status.get("message", ""))
        return ": ".join(dict.fromkeys(filter(None, words))) or "(no GPUJob)"

    def delete(self, job_name: str) -> float:
        self.cluster.plane.kubectl("delete", "job", job_name, "-n", self.namespace, "--wait=false")
        return time.time()


@pytest.fixture
def site(two_nodes: RealCluster) -> Iterator[Site]:
    """Afterwards no rule of sharing may have been broken, and nothing may be left."""
    two_nodes.spread_schedulers()
    with Oracle(two_nodes) as oracle:
        site = Site(two_nodes, oracle)
        yield site
        two_nodes.plane.kubectl("uncordon", *two_nodes.plane.real_nodes)
        two_nodes.empty(site.namespace)
    assert oracle.violations == []
    assert oracle.looks > 10
    two_nodes.wait_installed()


@contextlib.contextmanager
def only(site: Site, node: str) -> Iterator[None]:
    """Cordon all other nodes meanwhile."""
    others = [name for name in site.cluster.plane.real_nodes if name != node]
    site.cluster.plane.kubectl("cordon", *others)
    yield
    site.cluster.plane.kubectl("uncordon", *others)


def record(fault: str, *, detected_s: float, held: str, freed_s: float | None, **more: str) -> None:
    """Print what a fault did, and write it down where TANDEM_REAL_RECORD names a file."""
    row = {"fault": fault, "detected_s": round(detected_s, 1), "held": held}
    row |= {"freed_s": None if freed_s is None else round(freed_s, 1), **more}
    row["load"] = round(os.getloadavg()[0], 1)
    print(json.dumps(row))
    if path := os.environ.get("TANDEM_REAL_RECORD"):
        with Path(path).open("a") as file:
            file.write(json.dumps(row) + "\n")


def failing(name: str, code: str, **changes: Any) -> dict[str, Any]:
    """Return a job with both GPUs of a node that runs a few lines of Python."""
    manifest = job(name, annotations=ALONE, gpus=2, command=["python", "-c", code])
    manifest["spec"]["template"]["spec"] |= {"terminationGracePeriodSeconds": 2}
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    container |= changes
    return manifest


# --- one container ------------------------------------------------------------------------------

_GROWS = "import time; time.sleep(10); held = [b'x' * (1 << 20) for _ in range(1 << 12)]"


def test_a_container_that_the_kernel_kills_for_its_memory(site: Site) -> None:
    with only(site, "real-0"):
        manifest = failing("hog", _GROWS)
        manifest["spec"]["backoffLimit"] = 0
        _, container = site.start(manifest)
        site.queue_next()
        held = site.held()

        def killed() -> bool:
            state = site.container_state("hog").get("state", {})
            return state.get("terminated", {}).get("reason") == "OOMKilled"

        known = site.seen("the API server says OOMKilled", killed)
        started = site.next_started()
        assert started > container.last_s
        wait_until(lambda: site.said("hog").startswith("Failed"), "the GPUJob has failed")
        record(
            "a container is killed by the kernel for its memory",
            detected_s=known - container.last_s,
            held=held,
            freed_s=started - container.last_s,
            reported=f"pod: OOMKilled; GPUJob: {site.said('hog')}",
        )


def test_a_crash_loop_keeps_its_gpus_until_the_job_fails(site: Site) -> None:
    with only(site, "real-0"):
        manifest = failing("crashes", "import time; time.sleep(1); raise SystemExit(3)")
        manifest["spec"]["backoffLimit"] = 3  # pauses of 10 and 20 s
        manifest["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
        site.apply(manifest)
        site.apply(job("next", "--iterations=5", annotations=ALONE, gpus=2))

        def loops() -> bool:
            # `CrashLoopBackOff` is the container's state for a second only, before each restart.
            status = site.container_state("crashes")
            return status.get("restartCount", 0) > 0 and "terminated" in status["state"]

        known = site.seen("the API server says that a restarted container has ended", loops)
        pod = site.cluster.pod(site.namespace, "crashes")
        site.container(pod)
        began = site.oracle.of(pod["metadata"]["uid"])[0].first_s
        held, said = site.held(), site.said("crashes")
        started = site.next_started()
        crashed = site.oracle.of(pod["metadata"]["uid"])
        assert len({each.gpus for each in crashed}) == 1, "each restart sees the same GPUs"
        assert len(crashed) > 1
        assert started > max(each.last_s for each in crashed)
        wait_until(lambda: site.said("crashes").startswith("Failed"), "the GPUJob has failed")
        record(
            "a crash loop",
            detected_s=known - began,
            held=held,
            freed_s=started - began,
            reported=f"pod: restartCount, Error; GPUJob meanwhile: {said}; at the end: "
            + site.said("crashes"),
        )


def test_an_image_that_cannot_be_pulled_keeps_its_gpus_until_the_job_is_deleted(
    site: Site,
) -> None:
    with only(site, "real-0"):
        site.apply(job("absent", annotations=ALONE, gpus=2, image="tandem.local/absent:1"))
        bound = site.seen(
            "the pod has its node",
            lambda: (
                (site.cluster.pod(site.namespace, "absent") or {}).get("spec", {}).get("nodeName")
            ),
        )

        def refused() -> bool:
            state = site.container_state("absent").get("state", {})
            reason = state.get("waiting", {}).get("reason")
            return reason in ("ErrImagePull", "ImagePullBackOff")

        known = site.seen("the API server says that the image cannot be pulled", refused)
        site.queue_next()
        held, said = site.held(), site.said("absent")
        site.next_has_not_started()
        deleted = site.delete("absent")
        started = site.next_started()
        record(
            "an image that cannot be pulled",
            detected_s=known - bound,
            held=held,
            freed_s=started - deleted,
            reported=f"pod: ErrImagePull; GPUJob: {said}",
        )


_HANGS = """\
import pathlib, time
alive, ran = pathlib.Path("/alive/now"), pathlib.Path("/alive/ran")
alive.touch()
if not ran.exists():
    ran.touch()
    time.sleep(8)
    alive.unlink()
    print(time.time(), flush=True)
time.sleep(600)
"""


def test_a_container_that_fails_its_liveness_probe_restarts_with_the_same_gpus(
    site: Site,
) -> None:
    with only(site, "real-0"):
        probe = {"exec": {"command": ["test", "-e", "/alive/now"]}, "initialDelaySeconds": 4,
                 "periodSeconds": 1, "failureThreshold": 2, "timeoutSeconds": 5}  # fmt: skip
        mounts = [{"name": "alive", "mountPath": "/alive"}]
        manifest = failing("hangs", _HANGS, livenessProbe=probe, volumeMounts=mounts)
        pod_spec = manifest["spec"]["template"]["spec"]
        pod_spec |= {"restartPolicy": "OnFailure", "volumes": [{"name": "alive", "emptyDir": {}}]}
        pod, first = site.start(manifest)
        site.queue_next()

        def restarted() -> bool:
            status = site.container_state("hangs")
            return status.get("restartCount") == 1 and "running" in status["state"]

        site.seen("the container runs again", restarted)
        second = wait_until(
            lambda: site.oracle.of(pod["metadata"]["uid"])[1:], "the new container has GPUs"
        )[0]
        held = site.held()
        hung = float(
            site.cluster.plane.kubectl(
                "logs", "-n", site.namespace, pod["metadata"]["name"], "--previous"
            )
        )
        assert second.gpus == first.gpus
        assert second.first_s > first.last_s
        site.next_has_not_started()
        said = site.said("hangs")
        site.delete("hangs")
        site.next_started()
        record(
            "a container fails its liveness probe",
            detected_s=first.last_s - hung,
            held=held,
            freed_s=None,
            reported=f"pod: restartCount 1; GPUJob: {said}",
        )


# --- one node -----------------------------------------------------------------------------------


def test_a_drained_node_hands_its_job_with_the_saved_state_to_another(site: Site) -> None:
    arguments = ["--iterations=450", "--checkpoints=/checkpoints/moves"]
    with only(site, "real-0"):
        moves = job("moves", *arguments, annotations=SAVING, gpus=2, volume=True)
        pod, first = site.start(moves)
        time.sleep(5)
    began = time.time()
    try:
        site.cluster.plane.kubectl(
            "drain", "real-0", "--ignore-daemonsets", "--delete-emptydir-data", "--force",
            "--timeout=180s",
        )  # fmt: skip
        new = wait_until(
            lambda: [
                each
                for each in site.oracle.containers.values()
                if each.node == "real-1" and each.first_s > began
            ],
            "the job runs on the other node",
            timeout_s=180,
        )[0]
        held = site.held()
        assert not any("real-0" in gpu for gpu in site.cluster.holders())
    finally:
        site.cluster.plane.kubectl("uncordon", "real-0")
    assert new.first_s > first.last_s
    result = site.cluster.succeeded(site.namespace, "moves")
    assert result["begins_at"] > 0
    assert result["iterations"] == 450
    assert pod["metadata"]["uid"] != new.pod_uid
    record(
        "a node is drained",
        detected_s=first.last_s - began,
        held=f"afterwards {held}",
        freed_s=new.first_s - began,
        reported=f"went on at iteration {result['begins_at']}; GPUJob: {site.said('moves')}",
    )


def ready_since(cluster: RealCluster, node: str) -> str:
    """Return since when a node is ready, or an empty string."""
    conditions = cluster.plane.get("node", node)["status"]["conditions"]
    ready = next(c for c in conditions if c["type"] == "Ready")
    return ready["lastTransitionTime"] if ready["status"] == "True" else ""


@pytest.mark.parametrize("program", ["kubelet", "containerd"])
def test_a_job_does_not_notice_the_restart_of(site: Site, program: str) -> None:
    with only(site, "real-0"):
        pod, container = site.start(job("steady", TRAINING, annotations=ALONE, gpus=2))
        site.queue_next()
        since = ready_since(site.cluster, "real-0")
        began = time.time()
        site.cluster.plane.real_nodes["real-0"].restart(program)

        def answers() -> bool:
            with contextlib.suppress(TandemError):
                return bool(site.cluster.results(site.namespace, pod["metadata"]["name"]))
            return False

        known = site.seen("kubelet answers, and has the pod's log", answers)
        time.sleep(20)  # two rounds of kubelet's housekeeping
        after = site.cluster.running(site.namespace, "steady")
        assert after["metadata"]["uid"] == pod["metadata"]["uid"]
        assert after["status"]["containerStatuses"][0]["restartCount"] == 0
        assert site.oracle.alive(container)
        assert len(site.oracle.of(pod["metadata"]["uid"])) == 1
        held, said = site.held(), site.said("steady")
        site.next_has_not_started()
        stayed = ready_since(site.cluster, "real-0") == since
        site.delete("steady")
        started = site.next_started()
        assert started > container.last_s
        record(
            f"{program} restarts",
            detected_s=known - began,
            held=held,
            freed_s=None,
            reported=f"node {'stays ready' if stayed else 'is not ready meanwhile'};"
            f" GPUJob: {said}",
        )


def test_a_node_that_is_cut_off_for_five_minutes_keeps_its_jobs_and_gets_no_others(
    site: Site,
) -> None:
    node = site.cluster.plane.real_nodes["real-1"]
    with only(site, "real-1"):
        pod, container = site.start(job("isolated", TRAINING, annotations=ALONE, gpus=2))
        began = time.time()
        node.disconnect()
        try:
            known = site.seen(
                "the node is not ready", lambda: not ready_since(site.cluster, "real-1")
            )
            reason = site.queue_next()
            held = site.held()
            while time.time() < began + CUT_OFF_S:
                assert site.held() == held
                site.next_has_not_started()
                time.sleep(5)
            said = site.said("isolated")
        finally:
            node.reconnect()
        back = time.time()
        ready = site.seen("the node is ready", lambda: ready_since(site.cluster, "real-1"))
        after = site.cluster.running(site.namespace, "isolated")
        assert after["metadata"]["uid"] == pod["metadata"]["uid"]
        assert site.oracle.alive(container)
        assert len(site.oracle.of(pod["metadata"]["uid"])) == 1
        assert after["status"]["containerStatuses"][0]["restartCount"] == 0
        site.delete("isolated")
        started = site.next_started()
        assert started > container.last_s
        record(
            "a node is cut off for five minutes",
            detected_s=known - began,
            held=f"{held}, all the time",
            freed_s=None,
            reported=f"node: not ready, ready {ready - back:.0f} s after the reconnection; GPUJob:"
            f" {said}; the next job: {reason}",
        )


def test_a_rebooted_node_runs_its_job_again(site: Site) -> None:
    node = site.cluster.plane.real_nodes["real-1"]
    with only(site, "real-1"):
        pod, first = site.start(job("restarts", TRAINING, annotations=SAVING, gpus=2))
        held = site.held()
        began = time.time()
        node.reboot()
        up = time.time()

        def ended() -> bool:
            path = f"/api/v1/namespaces/{site.namespace}/pods/{pod['metadata']['name']}"
            answer = site.cluster.plane.http.get(path)
            return not answer.is_success or answer.json()["status"]["phase"] == "Failed"

        known = site.seen("the API server says that the pod has ended", ended)
        new = wait_until(
            lambda: [c for c in site.oracle.containers.values() if c.first_s > up],
            "the job runs again",
            timeout_s=240,
        )[0]
        assert first.last_s < up
        assert new.pod_uid != first.pod_uid
        record(
            "a node reboots: all its containers are killed",
            detected_s=known - began,
            held=f"{held} until then",
            freed_s=new.first_s - began,
            reported=f"the node was up after {up - began:.0f} s; GPUJob: {site.said('restarts')}",
        )
    site.cluster.wait_installed()


def under_pressure(cluster: RealCluster, node: str) -> bool:
    """Return whether a node reports that its disk is full."""
    conditions = cluster.plane.get("node", node)["status"]["conditions"]
    return any(c["type"] == "DiskPressure" and c["status"] == "True" for c in conditions)


def fill(node: RealNode) -> None:
    """Leave 100 MiB of the node's disk, as a program that goes on writing would."""
    free = int(node.check("df", "--output=avail", "-B1", "/var/lib").split()[-1])
    if free > 150 << 20:
        file = f"/var/lib/filler-{time.time_ns()}"
        node.check("fallocate", "-l", str(free - (100 << 20)), file)


def test_a_full_disk_evicts_the_job_and_keeps_others_away(site: Site) -> None:
    node = site.cluster.plane.real_nodes["real-1"]
    with only(site, "real-1"):
        pod, container = site.start(job("evicted", TRAINING, annotations=SAVING, gpus=2))
        held = site.held()
        path = f"/api/v1/namespaces/{site.namespace}/pods/{pod['metadata']['name']}"
        began = time.time()
        try:
            fill(node)
            known = site.seen(
                "the node is under pressure", lambda: under_pressure(site.cluster, "real-1")
            )

            def evicted() -> bool:
                fill(node)  # kubelet first removes images that no container uses
                answer = site.cluster.plane.http.get(path)
                return not answer.is_success or answer.json()["status"].get("reason") == "Evicted"

            gone = site.seen("the pod is evicted", evicted)

            def waits() -> str:
                status = site.cluster.status(site.namespace, "evicted")
                return status.get("message", "") if status.get("reason") == "Waiting" else ""

            kept_away = wait_until(waits, "the GPUJob says why it waits")
            assert under_pressure(site.cluster, "real-1")
            assert not site.cluster.holders()
        finally:
            node.check("sh", "-c", "rm -f /var/lib/filler-*")
        site.seen("the pressure is over", lambda: not under_pressure(site.cluster, "real-1"))
        for archive in (*image_archives(), images.coredns_image(), images.scheduler_image()):
            node.import_image(archive)
        again = site.cluster.running(site.namespace, "evicted", timeout_s=240)
        new = site.container(again)
        assert new.first_s > container.last_s
        record(
            "a full disk",
            detected_s=known - began,
            held=f"{held} until the eviction",
            freed_s=gone - began,
            reported=f"pod: Evicted; GPUJob meanwhile: {kept_away}",
        )
