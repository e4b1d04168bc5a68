"""Each reason of the closed set, produced on a real control plane, and its text read.

A scenario makes a cluster in which a job has to hear a reason, and says with which parameters. The
scenarios of one profile run at the same time, each on nodes and in a namespace of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any

import pytest
from controlplane_binaries import need_control_plane
from e2e_cluster import DEVICES, HAND_OVER, job
from e2e_reasons import GIB, KNOWN, ReasonsCluster, gpu
from reason_texts import unsaid

from controlplane import ControlPlane, wait_until
from scheduler_extender.planning.cluster_pipeline import TRIES
from tandem.contracts.names import COSCHEDULING_GROUP_LABEL, FOREIGN_ANNOTATION_BYTES
from tandem.policy.catalog import load_profile
from tandem.reasons.causes import Cause, Reason
from tandem.reasons.words import WORDS, sentence

ALONE = {"tandem.gpu/exclusive": "true"}
SAVES = {"tandem.gpu/checkpoint": "true"}
WHOLE = {**ALONE, **SAVES}
TURINGS = {"model": KNOWN, "memoryBytes": 32 * GIB}
ZONE = "topology.kubernetes.io/zone"
LONG_AGO = "2026-01-01T00:00:00Z"
PREEMPTIONS = "kwok.tandem.gpu/checkpoint-delay"

SHARING: dict[str, Any] = {
    "name": "reasons",
    "order": {"kind": "fifo"},
    "dispatch": {"kind": "admit"},
    "constraints": [
        {"kind": "healthy"},
        {"kind": "shares"},
        {"kind": "exclusive"},
        {"kind": "fresh_telemetry"},
        {"kind": "utilisation"},
        {"kind": "peak_fits"},
        {"kind": "memory_capacity"},
        {"kind": "apart"},
        {"kind": "balance", "max_imbalance": 0},
        {"kind": "interference", "max_interference": 0.2},
    ],
}
COLLISION = {"kind": "memory_collision", "strict": True, "max_collision_probability": 0}
COLLIDING = SHARING | {"constraints": [COLLISION, *SHARING["constraints"]]}
TIRESIAS = {
    "name": "preempting",
    "order": {"kind": "queues", "thresholds_gpu_s": [4], "within": "first_start"},
    "dispatch": {"kind": "preempt"},
    "constraints": [{"kind": "healthy"}, {"kind": "shares", "at_most": 1}],
}
LIGHT = {"tandem.gpu/memory": "1Gi", "tandem.gpu/utilization": "10"}
HALF = {"tandem.gpu/memory": "8Gi", "tandem.gpu/utilization": "45"}
MORE_THAN_HALF = {"tandem.gpu/memory": "8Gi", "tandem.gpu/utilization": "60"}
BUSY = {"tandem.gpu/memory": "8Gi", "tandem.gpu/utilization": "95"}
#: What each profile's extender is started with. Reports are written once, so that none is stale
#: but the one that says so itself.
QUEUE: dict[str, Any] = {
    "min_run_s": 0,
    "preemption_cost_s": 0,
    "max_preemptions_per_hour": 100,
    "start_within_s": 60,
    "pull_within_s": 60,
    "quotas": [
        {"namespace": "reasons-cap", "max_gpus": 1},
        {"namespace": "reasons-small", "max_gpus": 1},
        {"namespace": "reasons-services", "endless_gpus": 1},
        {"namespace": "reasons-time", "gpus": 2, "gpu_seconds": 0.1, "borrow": False},
        {"namespace": "reasons-share", "gpus": 1, "borrow": False},
    ],
}
#: A kind of the scenarios' own: no controller makes its pods.
KIND = {"group": "ml.example.com", "version": "v1", "kind": "Experiment", "plural": "experiments",
        "suspend": ["spec", "paused"]}  # fmt: skip
#: As the coscheduling plugin has it; nothing of it is read but `minMember`.
POD_GROUPS: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "podgroups.scheduling.x-k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, a test's own"},
    },
    "spec": {
        "group": "scheduling.x-k8s.io",
        "scope": "Namespaced",
        "names": {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}
COMMON = {
    "stale_after_s": 86_400,
    "learning": {"mode": "act", "every_s": 1, "settle_s": 1},
    "kinds": [KIND],
}
#: Jobs move to whatever is better, at no cost.
MOVING = load_profile("tandem").model_dump(mode="json")
MOVING["dispatch"] |= {"move_cost_s": 0, "move_below_speed": 1}
SETTINGS: Mapping[str, dict[str, Any]] = {
    "in-order": {**COMMON, "profile": "fifo", "queue": QUEUE},
    "preempting": {**COMMON, "profile": TIRESIAS, "queue": QUEUE},
    "colliding": {**COMMON, "profile": COLLIDING},
    "default": {**COMMON, "profile": "tandem", "queue": QUEUE},
    "moving": {**COMMON, "profile": MOVING, "queue": QUEUE},
    "crowded": {**COMMON, "profile": SHARING},
    "sharing": {**COMMON, "profile": SHARING, "queue": QUEUE},
}  # fmt: skip

#: Reasons that are in no scenario, and why.
NOT_HERE: Mapping[Reason, str] = (
    {} if HAND_OVER == "environment" else {Reason.CLAIM_MISSING: "all pods have claims"}
)


class Site:
    """Where one scenario plays: its namespace, and what it does there."""

    def __init__(self, cluster: ReasonsCluster, namespace: str) -> None:
        self._cluster = cluster
        self.plane = cluster.plane
        self.namespace = cluster.cluster.namespace(namespace)
        self.heard: list[Cause] = []

    def node(self, *gpus: dict[str, Any], **other: Any) -> str:
        """Create a node with GPUs; return its name."""
        name = f"r-{secrets.token_hex(3)}"
        return self._cluster.node(name, *(gpus or (gpu(),)), **other)

    def report(self, node: str, *gpus: dict[str, Any], **other: str) -> None:
        """Report other GPUs of a node than before."""
        self._cluster.report(node, *gpus, **other)

    def job(self, name: str, node: str = "", **other: Any) -> None:
        """Apply a Job on a node."""
        self.apply(placed(job(name, **other), node))

    def apply(self, *objects: dict[str, Any]) -> None:
        """Apply objects in the namespace, all of them at once.

        Their image is that of the namespace: jobs are known by it, and what one scenario teaches
        about its jobs is not believed of another's.
        """
        for each in objects:
            each["metadata"].setdefault("namespace", self.namespace)
            spec = each.get("spec") or {}
            spec = (spec.get("template") or {}).get("spec", spec)
            for container in spec.get("containers") or ():
                container["image"] = f"{self.namespace}:1"
        self.plane.apply(list(objects))

    def experiment(self, name: str, *, paused: bool = False) -> dict[str, Any]:
        """Create an Experiment; return the reference by which its pods name it."""
        api = f"{KIND['group']}/{KIND['version']}"
        self.apply({"apiVersion": api, "kind": KIND["kind"], "metadata": {"name": name},
                    "spec": {"paused": paused}})  # fmt: skip
        path = f"/apis/{api}/namespaces/{self.namespace}/{KIND['plural']}/{name}"
        made = self.plane.http.get(path).raise_for_status().json()
        return {"apiVersion": api, "kind": KIND["kind"], "name": name,
                "uid": made["metadata"]["uid"], "controller": True}  # fmt: skip

    def delete(self, kind: str, name: str) -> None:
        """Delete an object."""
        self.plane.kubectl("delete", kind, name, "-n", self.namespace, "--wait=false")

    def deleted(self, job: str) -> bool:
        """Say whether the pod of a Job is being deleted."""
        found = self._cluster.cluster.pod_of(self.namespace, job)
        return found is not None and "deletionTimestamp" in found["metadata"]

    def pod(self, name: str) -> dict[str, Any]:
        """Return a pod as it is now, nothing where it is gone."""
        answer = self.plane.http.get(f"/api/v1/namespaces/{self.namespace}/pods/{name}")
        found: dict[str, Any] = answer.json() if answer.is_success else {}
        return found

    def pods_of(self, job: str) -> list[dict[str, Any]]:
        """Return the pods of a Job."""
        answer = self.plane.http.get(
            f"/api/v1/namespaces/{self.namespace}/pods",
            params={"labelSelector": f"batch.kubernetes.io/job-name={job}"},
        )
        found: list[dict[str, Any]] = answer.raise_for_status().json()["items"]
        return found

    def pod_runs(self, name: str) -> None:
        """Wait until a pod runs."""
        wait_until(
            lambda: (self.pod(name).get("status") or {}).get("phase") == "Running",
            f"{name} runs",
        )

    def status(self, gpujob: str) -> dict[str, Any]:
        """Return what a GPUJob said last."""
        said = self._cluster.said.statuses(self.namespace, gpujob)
        return said[-1] if said else {}

    def another(self) -> Site:
        """Return a site of another namespace."""
        return Site(self._cluster, f"{self.namespace}-b")

    @contextmanager
    def changing(self, node: str) -> Iterator[None]:
        """Report another size of a node's GPU again and again."""
        sizes = cycle((80, 81))
        report = partial(self._report_size, node, sizes)
        with self._cluster.reporting(report, every_s=0.05):
            yield

    def _report_size(self, node: str, sizes: Iterator[int]) -> None:
        self.report(node, gpu(memoryBytes=next(sizes) * GIB))

    def gpu_of(self, name: str) -> str:
        """Return the GPU on which the pod of a Job runs, '' while it runs on none."""
        found = self._cluster.cluster.pod_of(self.namespace, name)
        if found is None or self.deleted(name) or found["status"].get("phase") != "Running":
            return ""
        return str((found["metadata"].get("annotations") or {}).get(DEVICES, ""))

    def push(self, *models: str) -> None:
        """Push models, as users of the namespace would."""
        self._cluster.cluster.push(self.namespace, *models)

    def runs(self, name: str) -> dict[str, Any]:
        """Wait until the pod of a Job runs, and return it."""
        return self._cluster.cluster.running(self.namespace, name)

    def ends(self, name: str) -> None:
        """Let the pod of a Job end."""
        self._cluster.cluster.let_end(self.namespace, name)

    def patch(self, path: str, change: dict[str, Any]) -> None:
        """Change an object of the namespace as an administrator; `path` is without it."""
        group, _, rest = path.rpartition("/namespaces/")
        self._cluster.patch(f"{group}/namespaces/{self.namespace}/{rest}", change)

    def hears(
        self, reason: Reason, name: str = "", where: Callable[[Cause], bool] = lambda _: True
    ) -> Cause:
        """Return the cause by which a GPUJob of the namespace has heard of a reason."""
        cause = self._cluster.hears(self.namespace, reason, name, where)
        self.heard.append(cause)
        return cause

    def measuring(
        self, node: str, *gpus: dict[str, Any], percent: Mapping[str, tuple[float, float]]
    ) -> AbstractContextManager[None]:
        """Report what the Jobs of the namespace get of a GPU's time, alone and next to another."""
        return self._cluster.measuring(self.namespace, node, *gpus, percent=percent)

    def without_leader(self) -> AbstractContextManager[None]:
        """Stop the scheduler for a while, so that its Lease ends."""
        return self._cluster.without_leader()

    def explained(self, reason: Reason, job: str) -> Cause:
        """Return the cause by which `tandem explain` speaks of the pod of a Job."""
        found = self._cluster.cluster.pod_of(self.namespace, job)
        assert found is not None
        cause = self._cluster.explains(self.namespace, found["metadata"]["name"], reason)
        self.heard.append(cause)
        return cause

    def has_been(self, reason: str) -> None:
        """Wait until `status.reason` of a GPUJob was that."""
        wait_until(
            lambda: any(
                status.get("reason") == reason
                for status in self._cluster.said.statuses(self.namespace)
            ),
            f"{reason} in {self.namespace}",
        )


@dataclass(frozen=True)
class Scenario:
    """What makes a job hear reasons: `plays` goes through it, and checks their parameters."""

    name: str
    plays: Callable[[Site], None]
    reasons: tuple[Reason, ...]
    profile: str = "sharing"
    namespace: str = ""


SCENARIOS: list[Scenario] = []


def scenario(
    *reasons: Reason, profile: str = "sharing", namespace: str = ""
) -> Callable[[Callable[[Site], None]], Callable[[Site], None]]:
    """Add a function to the scenarios, with the reasons that it makes jobs hear."""

    def add(plays: Callable[[Site], None]) -> Callable[[Site], None]:
        name = plays.__name__.replace("_", "-")
        SCENARIOS.append(Scenario(name, plays, reasons, profile, namespace))
        return plays

    return add


def placed(body: dict[str, Any], node: str) -> dict[str, Any]:
    """Return a workload whose pods go to one node alone."""
    spec = body["spec"].get("template", {}).get("spec", body["spec"])
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return body


def requesting(body: dict[str, Any], **resources: str) -> dict[str, Any]:
    """Return a workload whose first container asks for resources as well."""
    spec = body["spec"].get("template", {}).get("spec", body["spec"])
    asked = spec["containers"][0]["resources"]
    for part in ("requests", "limits"):
        asked[part] = {**asked.get("limits", {}), **asked.get(part, {}), **resources}
    return body


def pod(name: str, node: str = "", gpus: int = 1, **annotations: str) -> dict[str, Any]:
    """Return a pod as a user writes it; annotations have `_` for `-`."""
    given = {f"tandem.gpu/{key.replace('_', '-')}": value for key, value in annotations.items()}
    container = {"name": "train", "image": "train:1",
                 "resources": {"limits": {"tandem.gpu/gpu": gpus}}}  # fmt: skip
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": given},
            "spec": {"restartPolicy": "Never", "containers": [container]}}  # fmt: skip
    return placed(body, node)


def indexed(name: str, pods: int, node: str = "", **other: Any) -> dict[str, Any]:
    """Return an indexed Job, whose pods start together."""
    body = placed(job(name, **other), node)
    body["spec"] |= {"completionMode": "Indexed", "completions": pods, "parallelism": pods}
    return body


# --- the order ------------------------------------------------------------------------------------


@scenario(Reason.BEHIND, Reason.PLACE_FREE, profile="in-order")
def a_job_waits_behind_another(site: Site) -> None:
    """The place comes free while no scheduler leads: none is planned, and a look finds it.

    This comes first, while no other job waits.
    """
    node = site.node()
    site.job("first", node, annotations=ALONE)
    site.runs("first")
    for name in ("second", "third"):
        site.job(name, node, annotations=ALONE)
        site.hears(Reason.NEEDS_GPUS, "job-second")
    assert site.hears(Reason.BEHIND, "job-third").job == f"{site.namespace}/job-second"
    with site.without_leader():
        site.ends("first")
        site.explained(Reason.PLACE_FREE, "second")


# --- what GPUs lack -------------------------------------------------------------------------------


@scenario(Reason.NOT_OFFERED, Reason.NEEDS_GPUS, Reason.WAITING)
def no_place_is_offered(site: Site) -> None:
    node = site.node(gpu(shares=0, sharesReason="of the test"), gpu(shares=0))
    site.job("train", node, gpus=2)
    assert site.hears(Reason.NOT_OFFERED).gpus == 2
    needs = site.hears(Reason.NEEDS_GPUS)
    assert (needs.amount, needs.value) == ("2 GPUs on one node", 0)
    site.has_been("Waiting")


@scenario(Reason.CLOSED, Reason.PLACES_TAKEN, Reason.PLANNED, Reason.RUNNING, Reason.COMPLETED)
def places_are_taken_and_then_fewer(site: Site) -> None:
    node = site.node()
    for name in ("first", "second"):
        site.job(name, node, annotations=LIGHT)
        site.runs(name)
    assert site.hears(Reason.PLANNED, "job-first").gpu == f"{node}/0"
    assert site.hears(Reason.RUNNING, "job-first").pods == 1
    site.job("third", node, annotations=LIGHT)
    taken = site.hears(Reason.PLACES_TAKEN)
    assert (taken.gpus, taken.value, taken.bound) == (1, 2, 2)
    site.report(node, gpu(shares=1))
    closed = site.hears(Reason.CLOSED)
    assert (closed.gpus, closed.value, closed.bound) == (1, 2, 1)
    site.ends("first")
    assert site.hears(Reason.COMPLETED, "job-first").workload == "Job first"


@scenario(Reason.NOT_SHARED)
def a_job_has_the_gpu_alone(site: Site) -> None:
    node = site.node()
    site.job("first", node, annotations=ALONE)
    site.runs("first")
    site.job("second", node, annotations={"tandem.gpu/memory": "1Gi"})
    assert site.hears(Reason.NOT_SHARED).gpus == 1


@scenario(Reason.NEEDS_WHOLE_GPU)
def a_job_wants_a_gpu_alone(site: Site) -> None:
    node = site.node()
    site.job("first", node, annotations={"tandem.gpu/memory": "1Gi"})
    site.runs("first")
    site.job("second", node, annotations=ALONE)
    needs = site.hears(Reason.NEEDS_WHOLE_GPU)
    assert (needs.gpus, needs.value) == (1, 1)


@scenario(Reason.SLICE)
def a_job_of_two_gpus_finds_slices(site: Site) -> None:
    part = {"profile": "1g.10gb", "parent": "GPU-of-the-test"}
    node = site.node(*(gpu(shares=1, slice={**part, "number": number}) for number in range(2)))
    site.job("train", node, gpus=2)
    assert site.hears(Reason.SLICE).gpus == 2


@scenario(Reason.QUARANTINED)
def a_gpu_is_ill(site: Site) -> None:
    site.job("train", site.node(gpu(health="Quarantined", healthReason="of the test")))
    assert site.hears(Reason.QUARANTINED).gpus == 1


@scenario(Reason.NOT_MEASURED)
def an_agent_is_silent(site: Site) -> None:
    node = site.node()
    site.job("first", node, annotations={"tandem.gpu/memory": "1Gi"})
    site.runs("first")
    site.report(node, gpu(), observed_at=LONG_AGO)
    site.job("second", node, annotations={"tandem.gpu/memory": "1Gi"})
    assert site.hears(Reason.NOT_MEASURED).gpus == 1


@scenario(Reason.MEMORY, profile="default")
def a_job_leaves_too_little_memory_for_another(site: Site) -> None:
    node = site.node(gpu(**TURINGS))
    site.job("first", node, annotations=LIGHT | {"tandem.gpu/memory": "20Gi"})
    site.runs("first")
    site.job("second", node, annotations=LIGHT | {"tandem.gpu/memory": "30Gi"})
    memory = site.hears(Reason.MEMORY)
    assert (memory.value or 0) > (memory.bound or 0) > 30


@scenario(Reason.MEMORY_ALONE)
def a_gpu_is_too_small(site: Site) -> None:
    site.job("train", site.node(), annotations={"tandem.gpu/memory": "100Gi"})
    small = site.hears(Reason.MEMORY_ALONE)
    assert small.value == pytest.approx(100, rel=0.1)
    assert small.bound == pytest.approx(80, rel=0.1)
    assert "20.0 GiB too little" in sentence(small)


@scenario(Reason.MEMORY_UNKNOWN)
def a_gpu_has_no_size(site: Site) -> None:
    node = site.node(gpu(memoryBytes=0, memorySource="Unknown", shares=1))
    site.job("train", node, annotations={"tandem.gpu/memory": "1Gi"})
    assert site.hears(Reason.MEMORY_UNKNOWN).gpus == 1


@scenario(Reason.MEMORY_PEAKS)
def two_jobs_need_more_memory_than_there_is(site: Site) -> None:
    node = site.node()
    site.job("first", node, annotations=LIGHT | {"tandem.gpu/memory": "50Gi"})
    site.runs("first")
    site.job("second", node, annotations=LIGHT | {"tandem.gpu/memory": "40Gi"})
    peaks = site.hears(Reason.MEMORY_PEAKS)
    assert peaks.value == pytest.approx(90, rel=0.1)
    assert peaks.bound == pytest.approx(80, rel=0.1)


@scenario(Reason.MEMORY_COLLISION, profile="colliding")
def peaks_of_two_models_meet(site: Site) -> None:
    node = site.node(gpu(**TURINGS))
    site.push("resnet50")
    for name in ("first", "second"):
        site.job(name, node, annotations={"tandem.gpu/model": "resnet50",
                                          "tandem.gpu/batch-size": "8"})  # fmt: skip
    collide = site.hears(Reason.MEMORY_COLLISION)
    assert collide.value
    assert collide.bound == 0


@scenario(Reason.UTILISATION)
def two_jobs_ask_for_more_time_than_there_is(site: Site) -> None:
    node = site.node()
    asks = {"tandem.gpu/memory": "1Gi", "tandem.gpu/utilization": "70"}
    site.job("first", node, annotations=asks)
    site.runs("first")
    site.job("second", node, annotations=asks)
    over = site.hears(Reason.UTILISATION)
    assert (over.value, over.bound) == (140, 100)


SMALL = {"tandem.gpu/memory": "1Gi", "tandem.gpu/utilization": "10",
         "tandem.gpu/model": "squeezenet", "tandem.gpu/batch-size": "8"}  # fmt: skip


@scenario(Reason.SLOWDOWN)
def a_pair_slows_down(site: Site) -> None:
    node = site.node(gpu(**TURINGS))
    site.push("squeezenet")
    site.job("first", node, annotations=SMALL)
    site.runs("first")
    site.job("second", node, annotations=SMALL)
    slow = site.hears(Reason.SLOWDOWN)
    assert slow.value
    assert slow.bound == 0.2


@scenario(Reason.UNEQUAL_WORKERS)
def one_of_two_workers_would_be_slowed_down(site: Site) -> None:
    node = site.node(gpu(**TURINGS), gpu(**TURINGS))
    site.push("squeezenet")
    site.apply(indexed("pair", 2, node, annotations=SMALL))
    site.runs("pair")
    site.job("second", node, annotations=SMALL)
    unequal = site.hears(Reason.UNEQUAL_WORKERS)
    assert unequal.value
    assert unequal.bound == 0


# --- what nodes lack ------------------------------------------------------------------------------


@scenario(Reason.NODE_SHORT)
def two_jobs_want_the_same_cpus(site: Site) -> None:
    node = site.node(gpu(), gpu(), cpu=4)
    for name in ("first", "second"):
        site.apply(requesting(placed(job(name), node), cpu="3"))
    short = site.hears(Reason.NODE_SHORT)
    assert (short.nodes, short.resource, short.amount) == (1, "cpu", "3")


@scenario(Reason.NODE_TOO_SMALL)
def a_node_has_no_such_device(site: Site) -> None:
    node = site.node(extended={"rdma/hca": 1})
    site.apply(requesting(placed(job("train"), node), **{"rdma/hca": "2"}))
    small = site.hears(Reason.NODE_TOO_SMALL)
    assert (small.nodes, small.resource, small.amount) == (1, "rdma/hca", "2")


@scenario(Reason.NODE_HAS_FEWER)
def a_node_has_cpus_for_one_of_two_workers(site: Site) -> None:
    node = site.node(gpu(), gpu(), cpu=4)
    site.apply(*(requesting(each, cpu="3") for each in [indexed("pair", 2, node)]))
    fewer = site.hears(Reason.NODE_HAS_FEWER)
    assert (fewer.nodes, fewer.resource) == (1, "cpu")


@scenario(Reason.NODE_UNSUITABLE)
def a_node_is_tainted(site: Site) -> None:
    node = site.node(taints=("of=others:NoSchedule",))
    site.job("train", node)
    assert (site.hears(Reason.NODE_UNSUITABLE).nodes or 0) >= 1


if HAND_OVER == "environment":

    @scenario(Reason.CLAIM_MISSING)
    def a_node_hands_its_gpus_over_by_claims(site: Site) -> None:
        """The pod is from before the cluster gave pods their claims."""
        node = site.node(gpu(draShares=1))
        site.job("train", node)
        assert site.hears(Reason.CLAIM_MISSING).nodes == 1


# --- whose turn it is -----------------------------------------------------------------------------


@scenario(Reason.NODES_TOO_SMALL)
def a_pod_asks_for_more_gpus_than_its_node_has(site: Site) -> None:
    site.job("train", site.node(gpu(), gpu()), gpus=3)
    small = site.hears(Reason.NODES_TOO_SMALL)
    assert (small.value, small.bound) == (3, 2)


@scenario(Reason.CLUSTER_TOO_SMALL)
def two_roles_never_fit_together(site: Site) -> None:
    node = site.node(gpu(), gpu())
    site.apply(*(pod(f"role-{gpus}", node, gpus, gang="ring", gang_size="2", exclusive="true")
                 for gpus in (1, 2)))  # fmt: skip
    small = site.hears(Reason.CLUSTER_TOO_SMALL)
    assert (small.value, small.bound) == (3, 2)


@scenario(Reason.DOMAINS_FULL, Reason.DOMAINS_TOO_SMALL)
def a_gang_of_sixteen_must_run_in_one_zone(site: Site) -> None:
    """One zone has sixteen GPUs, two have eight: it is there or nowhere, one gang at a time."""
    own = secrets.token_hex(3)
    zone = {
        site.node(*[gpu()] * 8, labels={ZONE: f"{own}-{name}", "of": own}): name for name in "abbc"
    }

    def gang(name: str, pods: int) -> dict[str, Any]:
        body = indexed(name, pods, annotations={**ALONE, "tandem.gpu/required-topology": ZONE})
        body["spec"]["template"]["spec"]["nodeSelector"] = {"of": own}
        return body

    def run_in_one_zone(name: str) -> bool:
        pods = site.pods_of(name)
        running = [pod for pod in pods if pod["status"].get("phase") == "Running"]
        assert {zone[pod["spec"]["nodeName"]] for pod in running} <= {"b"}
        return len(running) == 16

    site.apply(gang("first", 16))
    wait_until(lambda: run_in_one_zone("first"), "sixteen pods run in one zone")
    site.apply(gang("second", 16), gang("large", 17))
    full = site.hears(Reason.DOMAINS_FULL, "job-second")
    assert (full.resource, full.value, full.bound) == (ZONE, 16, 8)
    small = site.hears(Reason.DOMAINS_TOO_SMALL, "job-large")
    assert (small.resource, small.value, small.bound) == (ZONE, 17, 16)
    site.delete("job", "first")
    wait_until(lambda: run_in_one_zone("second"), "the second gang runs where the first was")


@scenario(Reason.OWN_PODS)
def a_replacement_finds_no_gpu_but_that_of_its_own_gang(site: Site) -> None:
    """One node of two is cordoned when its pod is lost; the other one would be shared."""
    own = secrets.token_hex(3)
    nodes = [site.node(labels={"of": own}) for _ in range(2)]
    ring = indexed("ring", 2, annotations=LIGHT)
    ring["spec"]["template"]["spec"]["nodeSelector"] = {"of": own}
    site.apply(ring)

    def run() -> bool:
        return [pod["status"].get("phase") for pod in site.pods_of("ring")] == ["Running"] * 2

    wait_until(run, "both pods run")
    site.plane.kubectl("cordon", nodes[0])
    (lost,) = (p for p in site.pods_of("ring") if p["spec"]["nodeName"] == nodes[0])
    site.delete("pod", lost["metadata"]["name"])
    assert site.hears(Reason.OWN_PODS).gpus == 1
    site.plane.kubectl("uncordon", nodes[0])
    wait_until(run, "both pods run again")


@scenario(Reason.ROLES)
def two_roles_do_not_fit_together(site: Site) -> None:
    node = site.node(gpu(), gpu(), gpu())
    site.job("first", node, annotations=ALONE)
    site.runs("first")
    site.apply(*(pod(f"role-{gpus}", node, gpus, gang="ring", gang_size="2", exclusive="true")
                 for gpus in (1, 2)))  # fmt: skip
    assert site.hears(Reason.ROLES).gpus == 3
    assert site.hears(Reason.NEEDS_GPUS, where=lambda needs: needs.value is None).amount


@scenario(Reason.QUOTA, namespace="reasons-cap")
def a_namespace_has_all_it_may(site: Site) -> None:
    node = site.node(gpu(), gpu())
    site.job("first", node, annotations=ALONE)
    site.runs("first")
    site.job("second", node, annotations=ALONE)
    quota = site.hears(Reason.QUOTA)
    assert quota == Cause(Reason.QUOTA, namespace="reasons-cap", gpus=1, value=1, bound=1)


@scenario(Reason.QUOTA_TOO_SMALL, namespace="reasons-small")
def a_job_asks_for_more_than_its_namespace_may_have(site: Site) -> None:
    site.job("train", site.node(gpu(), gpu()), gpus=2)
    quota = site.hears(Reason.QUOTA_TOO_SMALL)
    assert quota == Cause(Reason.QUOTA_TOO_SMALL, namespace="reasons-small", gpus=2, bound=1)


@scenario(Reason.QUOTA_SHARE, namespace="reasons-share")
def a_namespace_may_not_borrow(site: Site) -> None:
    node = site.node(gpu(), gpu())
    site.job("first", node, annotations=ALONE)
    site.runs("first")
    site.job("second", node, annotations=ALONE)
    share = site.hears(Reason.QUOTA_SHARE)
    assert share == Cause(Reason.QUOTA_SHARE, namespace="reasons-share", gpus=1, value=1, bound=1)


@scenario(Reason.QUOTA_TIME, namespace="reasons-time")
def a_namespace_has_used_its_time(site: Site) -> None:
    node = site.node(gpu(), gpu())
    site.job("first", node, annotations=ALONE)
    site.runs("first")
    site.job("second", node, annotations=ALONE, gpus=1)
    site.ends("first")
    site.job("third", node, annotations=ALONE)
    time = site.hears(Reason.QUOTA_TIME)
    assert time.value
    assert time.value >= time.bound == 0.1


@scenario(Reason.QUOTA_ENDLESS, namespace="reasons-services")
def a_service_is_one_too_many(site: Site) -> None:
    node = site.node(gpu(), gpu())
    for name in ("first", "second"):
        template = placed(job(name, annotations=ALONE), node)["spec"]["template"]
        template["metadata"]["labels"] = {"app": name}
        template["spec"].pop("restartPolicy")
        spec = {"selector": {"matchLabels": {"app": name}}, "template": template}
        site.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
                    "spec": spec})  # fmt: skip
    quota = site.hears(Reason.QUOTA_ENDLESS)
    assert (quota.gpus, quota.value, quota.bound) == (1, 1, 1)


@scenario(Reason.HELD)
def an_administrator_holds_a_job(site: Site) -> None:
    site.job("train", site.node(gpu(shares=0)))
    site.hears(Reason.NOT_OFFERED)
    site.patch("/apis/tandem.gpu/v1alpha1/namespaces/gpujobs/job-train", {"spec": {"hold": True}})
    site.hears(Reason.HELD)


# --- what pods lack -------------------------------------------------------------------------------


@scenario(Reason.OTHER_GATES, Reason.BLOCKED)
def a_pod_has_another_gate(site: Site) -> None:
    body = pod("train", site.node())
    body["spec"]["schedulingGates"] = [{"name": "example.com/data"}]
    site.apply(body)
    gates = site.hears(Reason.OTHER_GATES)
    assert (gates.pod, gates.detail) == ("train", "example.com/data")
    site.has_been("Blocked")


@scenario(Reason.ANNOTATIONS_TOO_LARGE)
def a_pod_has_large_annotations(site: Site) -> None:
    body = pod("train", site.node())
    body["metadata"]["annotations"]["example.com/data"] = "x" * FOREIGN_ANNOTATION_BYTES
    path = f"/api/v1/namespaces/{site.namespace}/pods"
    site.plane.http.post(path, json=body).raise_for_status()  # kubectl would write it twice
    large = site.hears(Reason.ANNOTATIONS_TOO_LARGE)
    assert large.pod == "train"
    assert (large.value or 0) > (large.bound or 0) == FOREIGN_ANNOTATION_BYTES


@scenario(Reason.TOO_MANY_ROLES)
def pods_ask_in_too_many_ways(site: Site) -> None:
    node = site.node()
    site.apply(*(pod(f"p{at}", node, gang="ring", gang_size="33", memory=f"{at + 1}Gi")
                 for at in range(33)))  # fmt: skip
    many = site.hears(Reason.TOO_MANY_ROLES)
    assert (many.value, many.bound) == (33, 32)


@scenario(Reason.GROUP_MISSING)
def a_pod_names_a_group_that_is_not_created_yet(site: Site) -> None:
    site.plane.apply(POD_GROUPS)
    site.plane.await_definitions(POD_GROUPS["metadata"]["name"])
    body = pod("early", site.node())
    body["metadata"]["labels"] = {COSCHEDULING_GROUP_LABEL: "ring"}
    site.apply(body)
    assert site.hears(Reason.GROUP_MISSING).workload == "PodGroup ring"


@scenario(Reason.PODS_MISSING, Reason.GANG_INCOMPLETE, Reason.QUEUED)
def a_gang_is_incomplete(site: Site) -> None:
    """Its first status has what is predicted, since no cycle has anything to decide of it."""
    site.apply(pod("one", site.node(), gang="ring", gang_size="3"))
    missing = site.hears(Reason.PODS_MISSING)
    assert (missing.value, missing.bound) == (1, 3)
    assert site.hears(Reason.GANG_INCOMPLETE).job == "ring"
    assert site.hears(Reason.QUEUED).detail


@scenario(Reason.NO_CONTROLLER)
def a_pod_is_to_be_two(site: Site) -> None:
    site.apply(pod("lonely", site.node(), gang_size="2"))
    assert site.hears(Reason.NO_CONTROLLER).pod == "lonely"


@scenario(Reason.NOT_MADE)
def a_job_makes_fewer_pods_than_start_together(site: Site) -> None:
    site.job("train", site.node(), annotations={"tandem.gpu/gang-size": "2"})
    assert site.hears(Reason.NOT_MADE).workload == "Job train"


@scenario(Reason.CANNOT_MAKE)
def a_quota_refuses_a_pod(site: Site) -> None:
    site.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"},
                "spec": {"hard": {"pods": "1"}}})  # fmt: skip
    path = f"/api/v1/namespaces/{site.namespace}/resourcequotas/few"
    wait_until(
        lambda: (site.plane.http.get(path).json().get("status") or {}).get("hard"),
        "the quota is in force",
    )
    site.apply(indexed("train", 2, site.node()))
    refused = site.hears(Reason.CANNOT_MAKE)
    assert refused.workload == "Job train"
    assert "exceeded quota: few" in (refused.detail or "")


@scenario(Reason.ONE_BY_ONE)
def a_stateful_set_makes_one_pod_after_another(site: Site) -> None:
    template = placed(job("x", annotations={"tandem.gpu/gang-size": "2"}), site.node())["spec"][
        "template"
    ]
    template["metadata"]["labels"] = {"app": "x"}
    template["spec"].pop("restartPolicy")
    spec = {"replicas": 2, "serviceName": "x", "selector": {"matchLabels": {"app": "x"}},
            "template": template}  # fmt: skip
    site.apply({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "ring"},
                "spec": spec})  # fmt: skip
    assert site.hears(Reason.ONE_BY_ONE).workload == "StatefulSet ring"


@scenario(Reason.STARTING, Reason.NEVER_STARTED, Reason.RESTS)
def containers_never_start(site: Site) -> None:
    node = site.node()
    site.job("never", node, annotations={"kwok.tandem.gpu/never-starts": "true"})
    starting = site.hears(Reason.STARTING)
    assert (starting.value, starting.bound, starting.pods) == (0, 1, 1)
    never = site.hears(Reason.NEVER_STARTED)
    assert never.node == node
    assert (never.pod or "").startswith("never-")
    assert (never.seconds or 0) >= 60
    rests = site.hears(Reason.RESTS)
    assert rests.failed == 1


def owned(body: dict[str, Any], owner: dict[str, Any]) -> dict[str, Any]:
    """Return a pod that belongs to an Experiment."""
    body["metadata"]["ownerReferences"] = [owner]
    return body


def without_volume(body: dict[str, Any]) -> dict[str, Any]:
    """Return a pod whose volume does not exist, which kube-scheduler alone looks at."""
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "absent"}}
    body["spec"]["volumes"] = [claim]
    return body


@scenario(Reason.WORKLOAD_SUSPENDED)
def a_workload_is_suspended(site: Site) -> None:
    owner = site.experiment("paused", paused=True)
    site.apply(owned(pod("one", site.node(), gang_size="2"), owner))
    assert site.hears(Reason.WORKLOAD_SUSPENDED).workload == "Experiment paused"


@scenario(Reason.PODS_ENDED)
def pods_have_ended_and_their_workload_has_not(site: Site) -> None:
    body = owned(pod("one", site.node()), site.experiment("goes-on"))
    body["metadata"]["annotations"] |= {"kwok.tandem.gpu/run-duration": "10ms",
                                        "kwok.tandem.gpu/exit-code": "1"}  # fmt: skip
    site.apply(body)
    ended = site.hears(Reason.PODS_ENDED)
    assert (ended.workload, ended.pods, ended.failed) == ("Experiment goes-on", 1, 1)


@scenario(Reason.PODS_GONE)
def all_pods_are_gone(site: Site) -> None:
    site.apply(owned(pod("one", site.node()), site.experiment("goes-on")))
    site.pod_runs("one")
    site.hears(Reason.RUNNING)
    site.delete("pod", "one")
    site.hears(Reason.PODS_GONE)


@scenario(Reason.PART_WITHOUT_PLACE)
def one_of_two_pods_is_never_bound(site: Site) -> None:
    owner, node = site.experiment("half"), site.node(gpu(), gpu())
    bodies = [pod(name, node, gang_size="2", exclusive="true") for name in ("one", "two")]
    site.apply(owned(bodies[0], owner), owned(without_volume(bodies[1]), owner))
    part = site.hears(Reason.PART_WITHOUT_PLACE)
    assert part.seconds == 60


@scenario(Reason.PLAN_EXPIRED)
def a_pod_is_not_put_on_its_node(site: Site) -> None:
    site.apply(without_volume(pod("train", site.node())))
    site.hears(Reason.PLAN_EXPIRED)


@scenario(Reason.NEW_PODS)
def a_gang_is_made_again(site: Site) -> None:
    node = site.node()
    for name in ("first", "second"):
        body = pod(name, node, gang="ring", gang_size="1")
        if name == "first":
            body["metadata"]["annotations"]["kwok.tandem.gpu/run-duration"] = "10ms"
        site.apply(body)
        site.hears(Reason.COMPLETED if name == "first" else Reason.NEW_PODS)


@scenario(Reason.FAILED)
def a_job_fails(site: Site) -> None:
    annotations = {"kwok.tandem.gpu/run-duration": "10ms", "kwok.tandem.gpu/exit-code": "1"}
    body = placed(job("train", annotations=annotations), site.node())
    body["spec"]["backoffLimit"] = 0
    site.apply(body)
    assert site.hears(Reason.FAILED).workload == "Job train"


# --- what is better than to start now -------------------------------------------------------------


@scenario(Reason.WAITING_IS_BETTER, profile="default")
def a_place_next_to_a_busy_job_is_worth_less_than_to_wait(site: Site) -> None:
    node = site.node(gpu(**TURINGS))
    for name in ("first", "second"):
        site.job(name, node, annotations=BUSY)
        if name == "first":
            site.runs(name)
    site.hears(Reason.WAITING_IS_BETTER, "job-second")


@scenario(Reason.OVERTAKEN)
def two_jobs_want_the_same_cpus_in_one_round(site: Site) -> None:
    """Which jobs one round sees is chance: pairs of them come until a round has seen both."""
    pairs = iter(range(50))

    def has_come() -> bool:
        node, pair = site.node(gpu(), gpu(), cpu=4), next(pairs)
        names = [f"{name}-{pair}" for name in ("one", "two")]
        bodies = [requesting(pod(name, node, exclusive="true"), cpu="3") for name in names]
        site.apply(*bodies)

        def said() -> set[str]:
            causes = [
                cause for name in names for cause in site.status(f"pod-{name}").get("causes") or ()
            ]
            return {cause["reason"] for cause in causes} & {
                "TakenByJobsBefore",
                "NodeResourceTaken",
            }

        return "TakenByJobsBefore" in wait_until(said, "one of the two waits")

    wait_until(has_come, "two jobs are planned in one round", timeout_s=300)
    assert site.hears(Reason.OVERTAKEN).resource == "cpu"


@scenario(Reason.NOT_LOOKED_AT, profile="crowded")
def a_round_has_no_searches_left(site: Site) -> None:
    """Each job asks for something else, and each time that a GPU changes all are tried again."""
    node, other = site.node(gpu(shares=0)), site.node()
    jobs = [pod(f"p-{at}", node, memory=f"{1000 + at}Mi") for at in range(TRIES)]
    for at in range(0, len(jobs), 50):
        site.apply(*jobs[at : at + 50])
    wait_until(
        lambda: all(site.status(f"pod-p-{at}").get("causes") for at in range(TRIES)),
        "all of them wait",
        timeout_s=300,
    )
    late = site.another()
    with site.changing(other):
        for at in range(10):
            late.apply(pod(f"late-{at}", node, memory=f"{100 + at}Mi"))
        late.hears(Reason.NOT_LOOKED_AT)
    site.heard += late.heard


# --- who gives up GPUs ----------------------------------------------------------------------------


def shared_gpu(site: Site, node: str, **saves: bool) -> None:
    """Run two Jobs on one GPU of two, the first of them alone for a while."""
    site.job("whole", node, annotations=ALONE)
    site.runs("whole")
    for name, may_move in saves.items():
        site.job(name, node, annotations=HALF | (SAVES if may_move else {}))
        site.runs(name)
        wait_until(
            lambda: (site.status("job-suffers").get("observed") or {}).get(
                "soloUtilisationPercent"
            ),
            "it is known how fast it is alone",
            timeout_s=120,
        )
    # Before that, the other GPU would be better by what is predicted, and a job moves for that.
    wait_until(
        lambda: (site.status("job-suffers").get("observed") or {}).get("slowdown"),
        "it is known how fast it is next to the other",
        timeout_s=120,
    )


#: What Jobs get of a GPU's time, alone and next to another: no job slows another down.
EVEN = dict.fromkeys(("whole", "suffers", "disturbs", "third"), (45.0, 45.0))
SUFFERS = (45.0, 25.0)


@scenario(Reason.SLOWED_DOWN, Reason.BAD_NEIGHBOURS, profile="default")
def a_job_is_slowed_down_and_moves(site: Site) -> None:
    """All have the same command, so that none is put next to another any more."""
    gpus, percent = (gpu(**TURINGS), gpu(**TURINGS)), dict(EVEN)
    node = site.node(*gpus)
    with site.measuring(node, *gpus, percent=percent):
        shared_gpu(site, node, suffers=True, disturbs=False)
        site.ends("whole")
        percent["suffers"] = SUFFERS
        before = site.gpu_of("suffers")
        slowed = site.hears(Reason.SLOWED_DOWN, "job-suffers")
        assert slowed.value == pytest.approx(0.8)
        assert (slowed.job, slowed.detail) == (f"{site.namespace}/job-disturbs", "measured")
        assert (slowed.gpu or "").startswith(f"{node}/")
        wait_until(
            lambda: site.gpu_of("suffers") not in ("", before), "it runs elsewhere", timeout_s=120
        )
        site.job("third", node, annotations=HALF)
        assert site.hears(Reason.BAD_NEIGHBOURS, "job-third").gpus == 2


@scenario(Reason.SLOWS_DOWN, profile="default")
def a_job_slows_another_down_and_moves(site: Site) -> None:
    gpus, percent = (gpu(**TURINGS), gpu(**TURINGS)), dict(EVEN)
    node = site.node(*gpus)
    with site.measuring(node, *gpus, percent=percent):
        shared_gpu(site, node, suffers=False, disturbs=True)
        site.ends("whole")
        percent["suffers"] = SUFFERS
        slows = site.hears(Reason.SLOWS_DOWN, "job-disturbs")
        assert slows.value == pytest.approx(0.8)
        assert (slows.job, slows.detail) == (f"{site.namespace}/job-suffers", "measured")


@scenario(Reason.FASTER_ELSEWHERE, profile="moving")
def a_job_moves_to_a_gpu_that_is_free(site: Site) -> None:
    """Two that want more of a GPU than there is slow each other down a little.

    They are looked at again as long as another job waits.
    """
    full = site.node(gpu())
    site.job("holds", full, annotations=ALONE)
    site.runs("holds")
    site.job("waits", full, annotations=ALONE)
    node = site.node(gpu(**TURINGS), gpu(**TURINGS))
    site.job("whole", node, annotations=ALONE)
    site.runs("whole")
    for name in ("one", "two"):
        site.job(name, node, annotations=MORE_THAN_HALF | SAVES)
        site.runs(name)
    site.ends("whole")
    site.hears(Reason.FASTER_ELSEWHERE)


@scenario(
    Reason.MAKING_ROOM, Reason.PREEMPTING, Reason.NEEDED, Reason.PREEMPTED,
    profile="preempting",
)  # fmt: skip
def a_job_that_has_had_less_goes_first(site: Site) -> None:
    node = site.node(gpu(), gpu())
    site.job("long", node, annotations={**WHOLE, PREEMPTIONS: "15s"}, gpus=2)
    site.runs("long")
    site.job("short", node, annotations=ALONE)
    assert site.hears(Reason.MAKING_ROOM, "job-short").job == f"{site.namespace}/job-long"
    site.hears(Reason.PREEMPTING, "job-long")
    assert site.hears(Reason.NEEDED, "job-long").job == f"{site.namespace}/job-short"
    site.hears(Reason.PREEMPTED, "job-long")


@scenario(Reason.NOT_PREEMPTED, profile="preempting")
def a_disruption_budget_protects_a_job(site: Site) -> None:
    node = site.node(gpu(), gpu())
    site.apply({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
                "metadata": {"name": "keep"},
                "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"job-name": "long"}}}},
               )  # fmt: skip
    site.job("long", node, annotations=WHOLE, gpus=2)
    site.runs("long")
    site.job("short", node, annotations=ALONE)
    kept = site.hears(Reason.NOT_PREEMPTED, "job-short")
    assert (kept.resource, kept.job, kept.pods, kept.bound) == ("keep", "job-long", 1, 0)


@scenario(Reason.PREEMPTION_OVERDUE, profile="preempting")
def a_pod_does_not_go(site: Site) -> None:
    """The status is written back in time: no test waits for five minutes."""
    node = site.node(gpu(), gpu())
    body = placed(job("long", annotations={**WHOLE, "kwok.tandem.gpu/ignores-sigterm": "true"},
                      gpus=2), node)  # fmt: skip
    body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 3600
    site.apply(body)
    site.runs("long")
    site.job("short", node, annotations=ALONE)
    site.hears(Reason.PREEMPTING, "job-long")
    wait_until(lambda: site.deleted("long"), "its pod is being deleted")
    site.patch(
        "/apis/tandem.gpu/v1alpha1/namespaces/gpujobs/job-long/status",
        {"status": {"preemption": {"requestedAt": LONG_AGO}}},
    )
    overdue = site.hears(Reason.PREEMPTION_OVERDUE, "job-long")
    assert (overdue.pods, overdue.leaving, overdue.seconds) == (1, 1, 300)


@scenario(Reason.NOT_SUSPENDED, profile="preempting")
def a_workload_may_not_be_suspended(site: Site) -> None:
    """Tandem may read Experiments, and change none of this namespace."""
    node = site.node(gpu(), gpu())
    site.apply(owned(pod("long", node, 2, exclusive="true", checkpoint="true"),
                     site.experiment("long")))  # fmt: skip
    site.pod_runs("long")
    site.job("short", node, annotations=ALONE)
    evicted = site.hears(Reason.NOT_SUSPENDED)
    assert evicted.workload == "Experiment long"
    assert "forbidden" in (evicted.detail or "")


@scenario(Reason.NOT_RESUMED, profile="preempting")
def a_workload_cannot_be_resumed(site: Site) -> None:
    """Tandem loses its right to change Experiments after it has suspended one."""
    node = site.node(gpu(), gpu())
    site.apply(may_change())
    site.apply(owned(pod("long", node, 2, exclusive="true", checkpoint="true"),
                     site.experiment("long")))  # fmt: skip
    site.pod_runs("long")
    site.job("short", node, annotations=ALONE)
    path = f"/apis/ml.example.com/v1/namespaces/{site.namespace}/experiments/long"
    wait_until(lambda: site.plane.http.get(path).json()["spec"].get("paused"), "it is suspended")
    site.delete("rolebinding", "may-change")
    site.delete("pod", "long")
    wait_until(lambda: not site.pod("long"), "its pod is gone")
    site.patch(
        "/apis/tandem.gpu/v1alpha1/namespaces/gpujobs/experiment.ml.example.com-long/status",
        {"status": {"preemption": {"requestedAt": LONG_AGO}}},
    )
    assert site.hears(Reason.NOT_RESUMED).workload == "Experiment long"


RIGHTS = {"kind": "ClusterRole", "apiVersion": "rbac.authorization.k8s.io/v1",
          "metadata": {"name": "experiments-change"},
          "rules": [{"apiGroups": [KIND["group"]], "resources": [KIND["plural"]],
                     "verbs": ["patch", "update"]}]}  # fmt: skip
TANDEM = [{"kind": "ServiceAccount", "name": "tandem-scheduler", "namespace": "tandem-system"}]


def may_change() -> dict[str, Any]:
    """Return what lets Tandem suspend the Experiments of a namespace."""
    return {"kind": "RoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1",
            "metadata": {"name": "may-change"}, "subjects": TANDEM,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                        "name": "experiments-change"}}  # fmt: skip


def experiments() -> dict[str, Any]:
    """Return the definition of Experiments."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": KIND["version"], "served": True, "storage": True,
               "schema": {"openAPIV3Schema": anything}}  # fmt: skip
    spec = {"group": KIND["group"], "scope": "Namespaced", "versions": [version],
            "names": {"kind": KIND["kind"], "plural": KIND["plural"]}}  # fmt: skip
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{KIND['plural']}.{KIND['group']}"}, "spec": spec}  # fmt: skip


def may_read() -> list[dict[str, Any]]:
    """Return what lets Tandem read Experiments, as the chart does for kinds of one's own."""
    name, api = {"name": "experiments-read"}, "rbac.authorization.k8s.io/v1"
    rules = [{**RIGHTS["rules"][0], "verbs": ["get", "list", "watch"]}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", **name}
    return [
        {"kind": "ClusterRole", "apiVersion": api, "metadata": name, "rules": rules},
        {"kind": "ClusterRoleBinding", "apiVersion": api, "metadata": name, "subjects": TANDEM,
         "roleRef": role},
    ]  # fmt: skip


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """All scenarios, under way."""
    need_control_plane()
    with ControlPlane.start() as plane:
        plane.apply([experiments(), RIGHTS, *may_read()])
        plane.await_definitions(f"{KIND['plural']}.{KIND['group']}")
        cluster = ReasonsCluster(plane, tmp_path_factory.mktemp("reasons"))
        yield Played(cluster)
        cluster.said.close()


@dataclass
class Played:
    """The scenarios of one profile at a time; what each has heard, or its error."""

    cluster: ReasonsCluster
    plane: ControlPlane = field(init=False)
    profile: str = ""
    _futures: dict[str, Future[list[Cause]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plane = self.cluster.plane

    def of(self, wanted: Scenario) -> list[Cause]:
        """Return the causes that were heard in a scenario; those of its profile begin with it."""
        if wanted.profile != self.profile:
            self._begin(wanted.profile)
        return self._futures[wanted.name].result()

    def _begin(self, profile: str) -> None:
        for future in self._futures.values():
            future.exception()  # all have ended
        settings = SETTINGS[profile]
        (self.cluster.again if self.profile else self.cluster.start)(settings)
        self.profile = profile
        pool = ThreadPoolExecutor(8)
        for each in SCENARIOS:
            if each.profile == profile:
                self._futures[each.name] = pool.submit(self._play, each)
        pool.shutdown(wait=False)

    def _play(self, each: Scenario) -> list[Cause]:
        site = Site(self.cluster, each.namespace or f"reasons-{secrets.token_hex(4)}")
        each.plays(site)
        return site.heard


SCENARIOS.sort(key=lambda each: list(SETTINGS).index(each.profile))


@pytest.mark.controlplane
@pytest.mark.reasons
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_reasons_are_heard_and_their_texts_say_it(
    played: Played, subtests: pytest.Subtests
) -> None:
    """All scenarios are one test, since each worker would play all of a profile's."""
    for each in SCENARIOS:
        with subtests.test(msg=each.name):
            hears(played, each)


def hears(played: Played, each: Scenario) -> None:
    heard = played.of(each)
    for cause in heard:
        assert sentence(cause) in played.cluster.messages[cause]
        assert not unsaid(cause), (unsaid(cause), sentence(cause))
    umbrella = {Reason.WAITING, Reason.BLOCKED}  # of the status, of which causes say more
    assert set(each.reasons) - umbrella <= {cause.reason for cause in heard}


def test_each_reason_is_in_a_scenario_or_listed() -> None:
    played_reasons = {reason for each in SCENARIOS for reason in each.reasons}
    assert not played_reasons & set(NOT_HERE)
    assert played_reasons | set(NOT_HERE) == set(Reason) == set(WORDS)
    assert all(NOT_HERE.values())
