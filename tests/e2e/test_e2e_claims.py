"""Plans that allocate ResourceClaims, on a real control plane, with a node of each way.

No kubelet is here: what a node does with an allocated claim is in tests/realnode.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from controlplane_binaries import need_control_plane
from e2e_cluster import BOARD, BOARD_BYTES, TandemCluster, job

from controlplane import ControlPlane, Node, wait_until
from controlplane.installation import Installation
from node_agent.stub import StubGpu, StubState, build, environment
from scheduler_extender.faults import CLAIM_POINTS, VARIABLE
from tandem.contracts import claims, names
from tandem.errors import TandemError

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("claims"),
    pytest.mark.timeout(1800),
]

CLAIMS, ENVIRONMENT = "n0", "n1"
SMALL = {"tandem.gpu/memory": "4Gi", "tandem.gpu/utilization": "20"}
SMALL_TEMPLATE = {"resourceClaimTemplateName": "small"}
LOW = {"tandem.gpu/utilization": "20"}
WHOLE = {"tandem.gpu/exclusive": "true"}
PATH = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
RESTARTED = Path(__file__).with_name("e2e_restarted.py")
SETTINGS = {"admission": {"gpu_claims": True}, "queue": {"plan_life_s": 20}}


class ClaimsCluster(TandemCluster):
    """A Tandem whose plans allocate claims, and what the API server says of these."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        super().__init__(plane, folder)
        values = {"scheduler": {"extender": {"config": SETTINGS}}}
        self.installation = Installation(plane, folder, values=values)
        self.fault = folder / "fault"

    def begin(self, folder: Path) -> None:
        """Start everything: one GPU on each node."""
        self.installation.install()
        library = build(folder)
        for node, way in ((CLAIMS, "dra-queue"), (ENVIRONMENT, "environment")):
            state = folder / f"{node}.gpus"
            board = StubGpu(f"GPU-{node}-0", name=BOARD, memory=BOARD_BYTES)
            StubState(gpus=[board]).write(state)
            self.installation.start_agent(
                node, environment(library, state), {"shares": 2, "hand_over": way}
            )
        self._supervise(folder)

    def _supervise(self, folder: Path) -> None:
        """Have the extender started anew when it is killed."""
        argv = self.plane.processes["extender"].argv
        self.plane.processes["extender"].kill()
        deaths = folder / "deaths"
        deaths.touch()
        self.plane.run(
            "extender",
            [sys.executable, RESTARTED, deaths, *argv[argv.index("--config") :]],
            env={VARIABLE: f"@{self.fault}"},
        )
        self.await_ready()

    def await_ready(self) -> None:
        def ready() -> bool:
            try:
                url = f"{self.installation.verbs_url}/readyz"
                return httpx.get(url, timeout=2.0, trust_env=False).is_success
            except httpx.TransportError:
                return False

        wait_until(ready, "the extender is ready", timeout_s=120)

    def submit(self, namespace: str, name: str, node: str = "", **notes: Any) -> None:
        """Apply a job, for one of the nodes where one is named."""
        body = job(name, annotations=notes.pop("annotations", SMALL), **notes)
        if node:
            template = body["spec"]["template"]["spec"]
            template["nodeSelector"] = {"kubernetes.io/hostname": node}
        wait_until(lambda: self.accepts(namespace, body), f"{name} is accepted", timeout_s=120)

    def submit_by_claim(self, namespace: str, name: str, by: dict[str, str], **notes: Any) -> None:
        """Apply a job for the node of claims whose pod asks for GPUs by a claim alone."""
        body = job(name, **notes)
        spec = body["spec"]["template"]["spec"]
        spec["nodeSelector"] = {"kubernetes.io/hostname": CLAIMS}
        spec["resourceClaims"] = [{"name": "card"} | by]
        spec["containers"][0]["resources"] = {"claims": [{"name": "card"}]}
        self.apply_job(namespace, body)

    def claims(self, namespace: str) -> list[dict[str, Any]]:
        return self.read(PATH.format(namespace))["items"]

    def claim_of(self, namespace: str, job_name: str) -> dict[str, Any] | None:
        """Return the claim of a job's pod, None before there is one."""
        pod = self.pod_of(namespace, job_name)
        if pod is None:
            return None
        name = claims.claim_of(pod["spec"])
        assert name
        found = (each for each in self.claims(namespace) if each["metadata"]["name"] == name)
        return next(found, None)

    def allocated(self, namespace: str, job_name: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            claim = self.claim_of(namespace, job_name)
            return claim if claim and claim.get("status", {}).get("allocation") else None

        return wait_until(look, f"the claim of {job_name} is allocated", timeout_s=60)

    def hold(self, namespace: str, job_name: str, hold: bool) -> None:
        self.plane.kubectl(
            "patch", "gpujob", f"job-{job_name}", "-n", namespace, "--type=merge",
            "-p", json.dumps({"spec": {"hold": hold}}),
        )  # fmt: skip

    def check(self, namespace: str) -> None:
        """Compare claims with pods: each that runs has what its claim gives, and its share once."""
        shares = []
        for pod in self.pods(namespace):
            if pod["status"].get("phase") != "Running":
                continue
            uid, node = pod["metadata"]["uid"], pod["spec"]["nodeName"]
            gpus = pod["metadata"]["annotations"][names.VISIBLE_DEVICES].split(",")
            (claim,) = (
                each
                for each in self.claims(namespace)
                if each["metadata"]["name"] == claims.claim_of(pod["spec"])
            )
            assert claims.read(claim) == claims.planned(uid, node, gpus, by_claims=node == CLAIMS)
            assert [each["uid"] for each in claim["status"]["reservedFor"]] == [uid]
            shares += claims.read(claim).devices
        assert len(set(shares)) == len(shares)
        assert all(len(pods) <= 2 for pods in self.holders().values())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClaimsCluster]:
    need_control_plane()
    folder = tmp_path_factory.mktemp("claims")
    nodes = [Node(name, cpu=64) for name in (CLAIMS, ENVIRONMENT)]
    with ControlPlane.start(nodes=nodes) as plane:
        cluster = ClaimsCluster(plane, folder)
        cluster.begin(folder)
        yield cluster


@pytest.fixture
def namespace(cluster: ClaimsCluster) -> Iterator[str]:
    name = cluster.namespace()
    yield name
    cluster.remove(name)
    wait_until(lambda: not cluster.claims(name), "no claim is left", timeout_s=120)


def test_two_jobs_share_a_gpu_by_claims_and_a_third_goes_to_the_other_node(
    cluster: ClaimsCluster, namespace: str
) -> None:
    for name in ("left", "right"):
        cluster.submit(namespace, name, CLAIMS)
        cluster.running(namespace, name)
    given = [cluster.claim_of(namespace, name) for name in ("left", "right")]
    results = [each["status"]["allocation"]["devices"]["results"][0] for each in given]
    assert [each["device"] for each in results] == ["gpu-n0-0", "gpu-n0-0"]
    assert [each["pool"] for each in results] == [CLAIMS, CLAIMS]
    assert len({each["shareID"] for each in results}) == 2
    assert all(each["consumedCapacity"]["shares"] == "1" for each in results)
    described = cluster.plane.kubectl("describe", "resourceclaims", "-n", namespace)
    assert all(
        cluster.pod_of(namespace, n)["metadata"]["name"] in described for n in ("left", "right")
    )
    cluster.submit(namespace, "third")
    assert cluster.running(namespace, "third")["spec"]["nodeName"] == ENVIRONMENT
    third = cluster.claim_of(namespace, "third")
    assert not third["status"]["allocation"]["devices"].get("results")
    cluster.check(namespace)


def test_the_claim_of_an_ended_pod_is_gone_and_its_share_is_anothers(
    cluster: ClaimsCluster, namespace: str
) -> None:
    cluster.submit(namespace, "first", CLAIMS, annotations=WHOLE)
    cluster.running(namespace, "first")
    (result,) = cluster.claim_of(namespace, "first")["status"]["allocation"]["devices"]["results"]
    assert result["consumedCapacity"]["shares"] == "2"
    cluster.submit(namespace, "next", CLAIMS, annotations=WHOLE)
    cluster.waiting_reason(namespace, "next")
    assert cluster.claim_of(namespace, "next") is None, "it has no claim before it has a plan"
    cluster.let_end(namespace, "first")
    cluster.running(namespace, "next")
    wait_until(lambda: len(cluster.claims(namespace)) == 1, "the claim of the first is gone")
    cluster.check(namespace)


def test_a_plan_that_is_taken_back_takes_its_allocation_back(
    cluster: ClaimsCluster, namespace: str
) -> None:
    scheduler = cluster.plane.processes[names.SCHEDULER_NAME]
    scheduler.pause()
    try:
        cluster.submit(namespace, "held", CLAIMS)
        first = cluster.allocated(namespace, "held")
        cluster.hold(namespace, "held", True)

        def cleared() -> bool:
            return "allocation" not in cluster.claim_of(namespace, "held").get("status", {})

        wait_until(cleared, "the allocation is taken back", timeout_s=60)
    finally:
        scheduler.resume()
    cluster.hold(namespace, "held", False)
    cluster.running(namespace, "held")
    again = cluster.claim_of(namespace, "held")
    assert again["metadata"]["uid"] == first["metadata"]["uid"]
    assert claims.read(again) == claims.read(first), (
        "the same share, since pod and GPU are the same"
    )
    cluster.check(namespace)


def test_a_plan_that_expires_gives_the_gpu_to_others(
    cluster: ClaimsCluster, namespace: str
) -> None:
    """Its pod cannot be scheduled for a reason of its own, so that nothing reserves its claim."""
    body = job("stuck", annotations=WHOLE)
    template = body["spec"]["template"]["spec"]
    template["nodeSelector"] = {"kubernetes.io/hostname": CLAIMS}
    template["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "missing"}}]
    cluster.apply_job(namespace, body)
    first = cluster.allocated(namespace, "stuck")
    assert "reservedFor" not in first["status"]

    def cleared() -> bool:
        return "allocation" not in cluster.claim_of(namespace, "stuck").get("status", {})

    wait_until(cleared, "the plan has expired", timeout_s=90, poll_s=0.02)


def written_by_hand(name: str, namespace: str, **exactly: Any) -> dict[str, Any]:
    """Return a claim of the queue's class, as a user writes it."""
    request = {"name": "any", "exactly": {"deviceClassName": names.QUEUE_CLASS} | exactly}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": [request]}},
    }


def template(name: str, namespace: str, **exactly: Any) -> dict[str, Any]:
    """Return a template of such claims."""
    claim = written_by_hand(name, namespace, **exactly)
    return claim | {"kind": "ResourceClaimTemplate", "spec": {"spec": claim["spec"]}}


def test_pods_that_ask_by_a_template_wait_and_share_like_others(
    cluster: ClaimsCluster, namespace: str
) -> None:
    small = {"requests": {"memory": "4Gi"}}
    cluster.plane.apply(template("small", namespace, capacity=small))
    cluster.submit(namespace, "first", CLAIMS, annotations=WHOLE)
    cluster.running(namespace, "first")
    for name in ("left", "right"):
        cluster.submit_by_claim(namespace, name, SMALL_TEMPLATE, annotations=LOW)
    print(cluster.waiting_reason(namespace, "left"))
    assert all(cluster.claim_of(namespace, name) is None for name in ("left", "right")), (
        "Kubernetes makes no claim of the template"
    )
    cluster.let_end(namespace, "first")
    for name in ("left", "right"):
        pod = cluster.running(namespace, name)
        assert pod["metadata"]["annotations"][names.MEMORY] == "4Gi"
        (result,) = cluster.claim_of(namespace, name)["status"]["allocation"]["devices"]["results"]
        assert (result["device"], result["consumedCapacity"]["shares"]) == ("gpu-n0-0", "1")
    cluster.check(namespace)


def test_a_template_that_asks_for_what_the_queue_does_not_give_is_refused(
    cluster: ClaimsCluster, namespace: str
) -> None:
    cluster.plane.apply(template("all", namespace, allocationMode="All"))
    cluster.submit_by_claim(namespace, "all", {"resourceClaimTemplateName": "all"})

    def refused() -> bool:
        return "ExactCount" in cluster.plane.kubectl("describe", "job", "all", "-n", namespace)

    wait_until(refused, "the pod is refused, in words", timeout_s=60)


def test_pods_have_a_claim_that_a_user_has_made_one_after_the_other(
    cluster: ClaimsCluster, namespace: str
) -> None:
    cluster.plane.apply(written_by_hand("mine", namespace))
    mine = {"resourceClaimName": "mine"}
    for name in ("first", "next"):
        cluster.submit_by_claim(namespace, name, mine, annotations=WHOLE)
        pod = cluster.running(namespace, name)
        (claim,) = cluster.claims(namespace)
        assert (claim["metadata"]["name"], cluster.claim_of(namespace, name)) == ("mine", claim)
        described = cluster.plane.kubectl("describe", "resourceclaim", "mine", "-n", namespace)
        assert pod["metadata"]["name"] in described
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        assert (result["request"], result["device"]) == ("any", "gpu-n0-0")
        cluster.check(namespace)
        other = {"resource": "pods", "name": "other", "uid": "other"}
        reserved = {"reservedFor": [*claim["status"]["reservedFor"], other]}
        with pytest.raises(TandemError, match="for its own pod"):
            cluster.plane.kubectl(
                "patch", "resourceclaim", "mine", "-n", namespace, "--subresource=status",
                "--type=merge", "-p", json.dumps({"status": reserved}),
            )  # fmt: skip
        if name == "first":
            cluster.submit_by_claim(namespace, "second", mine)

            def refused() -> bool:
                said = cluster.plane.kubectl("describe", "job", "second", "-n", namespace)
                return "one pod's at a time" in said

            wait_until(refused, "a second pod is refused, in words", timeout_s=60)
            cluster.plane.kubectl("delete", "job", "second", "-n", namespace)
        cluster.let_end(namespace, name)

        def free() -> bool:
            (claim,) = cluster.claims(namespace)
            return not {"allocation", "reservedFor"} & claim.get("status", {}).keys()

        wait_until(free, "the claim is free again, and there", timeout_s=60)
    cluster.plane.kubectl("delete", "resourceclaim", "mine", "-n", namespace)
    assert not cluster.claims(namespace)


def test_a_tenant_gives_no_claim_of_the_queue_to_a_pod(
    cluster: ClaimsCluster, namespace: str
) -> None:
    for wrong in (
        written_by_hand("tandem-gpu-1", namespace),
        {"annotations": {names.CLAIM_POD: "someone"}},
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]},
    ):
        body = written_by_hand("taken", namespace)
        body = wrong if "kind" in wrong else body | {"metadata": body["metadata"] | wrong}
        with pytest.raises(TandemError, match="Tandem makes the claims"):
            cluster.plane.kubectl("create", "-f", "-", stdin=json.dumps(body))
    cluster.plane.apply(written_by_hand("free", namespace))
    patch = json.dumps({"metadata": {"annotations": {names.CLAIM_POD: "someone"}}})
    with pytest.raises(TandemError, match="stays with its pod"):
        cluster.plane.kubectl(
            "patch", "resourceclaim", "free", "-n", namespace, "--type=merge", "-p", patch
        )
    cluster.plane.kubectl("delete", "resourceclaim", "free", "-n", namespace)


def test_a_pod_that_came_past_the_webhook_gets_no_claim_of_the_queue(
    cluster: ClaimsCluster, namespace: str
) -> None:
    """Of a pod that was made while Tandem was away, Kubernetes would make a claim by itself."""
    cluster.plane.apply(template("late", namespace))
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "late", "namespace": namespace},
        "spec": {
            "containers": [{"name": "train", "image": "train:1"}],
            "resourceClaims": [{"name": "card", "resourceClaimTemplateName": "late"}],
        },
    }
    hooks = "mutatingwebhookconfiguration"
    before = cluster.plane.kubectl("get", hooks, "tandem", "-o", "json")
    cluster.plane.kubectl("delete", hooks, "tandem")
    try:
        cluster.plane.apply(body)
    finally:
        kept = json.loads(before)
        for field in ("resourceVersion", "uid", "creationTimestamp", "managedFields"):
            kept["metadata"].pop(field, None)
        cluster.plane.kubectl("create", "-f", "-", stdin=json.dumps(kept))

    def said() -> bool:
        events = cluster.plane.kubectl("get", "events", "-n", namespace)
        return "is to be created again" in events

    wait_until(said, "an event says what to do", timeout_s=60)
    assert not cluster.claims(namespace)


@pytest.mark.parametrize("point", CLAIM_POINTS)
def test_killed_while_it_writes_a_claim_another_goes_on(
    cluster: ClaimsCluster, namespace: str, point: str
) -> None:
    scheduler = cluster.plane.processes[names.SCHEDULER_NAME]
    clears = "clear" in point
    if clears:
        scheduler.pause()
        cluster.submit(namespace, "killed", CLAIMS)
        cluster.allocated(namespace, "killed")
    cluster.fault.write_text(point)
    if clears:
        cluster.hold(namespace, "killed", True)
    else:
        cluster.submit(namespace, "killed", CLAIMS)
    wait_until(lambda: not cluster.fault.exists(), f"killed at {point}", timeout_s=60)
    if clears:
        scheduler.resume()
        cluster.await_ready()

        def cleared() -> bool:
            return "allocation" not in cluster.claim_of(namespace, "killed").get("status", {})

        wait_until(cleared, "the allocation is taken back", timeout_s=60)
        cluster.hold(namespace, "killed", False)
    cluster.running(namespace, "killed")
    cluster.check(namespace)


def test_an_allocation_that_no_plan_knows_is_taken_back(
    cluster: ClaimsCluster, namespace: str
) -> None:
    """As an earlier leader would leave it, whose last write arrives late."""
    cluster.submit(namespace, "holder", CLAIMS, annotations=WHOLE)
    cluster.running(namespace, "holder")
    cluster.submit(namespace, "late", CLAIMS, annotations=WHOLE)
    cluster.waiting_reason(namespace, "late")
    pod = cluster.pod_of(namespace, "late")
    name, uid = claims.claim_of(pod["spec"]), pod["metadata"]["uid"]
    account = cluster.plane.service_account_kubeconfig(names.NAMESPACE, "tandem-scheduler")
    body = claims.body(name, namespace, pod["metadata"]["name"], uid, 1)
    cluster.plane.kubectl("create", "-f", "-", stdin=json.dumps(body), kubeconfig=account)
    wanted = claims.planned(uid, CLAIMS, ["GPU-n0-0"], by_claims=True)
    capacity = {"gpu-n0-0": {"shares": "2", "memory": "1Gi"}}
    status = {"allocation": claims.written(wanted, capacity, "2026-01-01T00:00:00Z")}
    cluster.plane.kubectl(
        "patch", "resourceclaim", name, "-n", namespace, "--subresource=status", "--type=merge",
        "-p", json.dumps({"status": status}), kubeconfig=account,
    )  # fmt: skip

    def cleared() -> bool:
        return "allocation" not in cluster.claim_of(namespace, "late").get("status", {})

    wait_until(cleared, "it is taken back", timeout_s=60)
    cluster.let_end(namespace, "holder")
    cluster.running(namespace, "late")
    cluster.check(namespace)


def test_a_gpu_that_a_claim_by_hand_has_goes_to_no_job(
    cluster: ClaimsCluster, namespace: str
) -> None:
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "by-hand"}}]
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "by-hand", "namespace": namespace},
        "spec": {"devices": {"requests": requests}},
    }
    cluster.plane.apply(body)
    wanted = claims.planned("someone", CLAIMS, ["GPU-n0-0"], by_claims=True)
    capacity = {"gpu-n0-0": {"shares": "1", "memory": "1Gi"}}
    status = {"allocation": claims.written(wanted, capacity, "2026-01-01T00:00:00Z")}
    cluster.plane.kubectl(
        "patch", "resourceclaim", "by-hand", "-n", namespace, "--subresource=status",
        "--type=merge", "-p", json.dumps({"status": status}),
    )  # fmt: skip
    cluster.submit(namespace, "waits", CLAIMS)
    print(cluster.waiting_reason(namespace, "waits"))
    cluster.plane.kubectl("delete", "resourceclaim", "by-hand", "-n", namespace)
    cluster.running(namespace, "waits")


def test_no_other_client_makes_a_claim_of_the_queue_and_no_other_pod_uses_one(
    cluster: ClaimsCluster, namespace: str
) -> None:
    body = claims.body("mine", namespace, "someone", "1", 1)
    with pytest.raises(TandemError, match="Tandem makes the claims"):
        cluster.plane.kubectl("create", "-f", "-", stdin=json.dumps(body))
    cluster.submit(namespace, "owner", CLAIMS)
    cluster.running(namespace, "owner")
    claim = cluster.claim_of(namespace, "owner")
    reserved = claim["status"]["reservedFor"]
    other = {"resource": "pods", "name": "other", "uid": "other"}
    with pytest.raises(TandemError, match="for its own pod"):
        cluster.plane.kubectl(
            "patch", "resourceclaim", claim["metadata"]["name"], "-n", namespace,
            "--subresource=status", "--type=merge",
            "-p", json.dumps({"status": {"reservedFor": [*reserved, other]}}),
        )  # fmt: skip
    with pytest.raises(TandemError, match="stays with its pod"):
        cluster.plane.kubectl(
            "patch", "resourceclaim", claim["metadata"]["name"], "-n", namespace,
            "--type=merge", "-p", json.dumps({"metadata": {"ownerReferences": None}}),
        )  # fmt: skip
