"""What no tenant may do, tried on a real API server without our webhook: the policies stand
alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from controlplane_binaries import need_control_plane

from tandem.contracts import names
from tandem.contracts.gangs import gpujob_name, qualified_kind
from tandem.contracts.resources import (
    Demand,
    GPUJobSpec,
    GPUJobStatus,
    GPUNodeStatus,
    GraphFeatures,
    ModelProfileSpec,
    WorkloadRef,
)
from tandem.kube.client import KubeClient
from tandem.kube.errors import KubeError

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("policies"),
]

Object = dict[str, Any]

PODS = "/api/v1/namespaces/tenant/pods"
BINDINGS = "/api/v1/namespaces/tenant/bindings"
CUSTOM = "/apis/tandem.gpu/v1alpha1"
JOBS = f"{CUSTOM}/namespaces/tenant/gpujobs"
PROFILES = f"{CUSTOM}/namespaces/tenant/modelprofiles"
NODES = f"{CUSTOM}/gpunodes"

JOBS_OF_BATCH = "/apis/batch/v1/namespaces/tenant/jobs"

ASSIGNMENTS, WRITES, SHAPE, NAME, DEVICES, RESOURCES, OWN_NODE = (
    "tandem-assignments",
    "tandem-scheduler-writes",
    "tandem-pods",
    "tandem-scheduler-name",
    "tandem-devices",
    "tandem-resources",
    "tandem-agent-own-node",
)
VARIABLE = "NVIDIA_VISIBLE_DEVICES"
CHOSEN = {
    "name": VARIABLE,
    "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['tandem.gpu/visible-devices']"}},
}
VOID = {"name": VARIABLE, "value": "void"}
ALL = {"name": VARIABLE, "value": "all"}
CLAIMS = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]

#: Everything that a careless administrator might grant, short of every verb.
RIGHTS = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: careless}
rules:
  - apiGroups: [""]
    resources: [pods, pods/status, pods/binding, bindings, pods/ephemeralcontainers, pods/resize]
    verbs: &most [get, list, watch, create, update, patch, delete]
  - {apiGroups: [batch], resources: [jobs], verbs: *most}
  - {apiGroups: [tandem.gpu], resources: ["*"], verbs: *most}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: careless}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: careless}
subjects:
  - {apiGroup: rbac.authorization.k8s.io, kind: User, name: tenant}
  - {kind: ServiceAccount, namespace: tandem-system, name: tandem-predictor}
  - {kind: ServiceAccount, namespace: tandem-system, name: tandem-scheduler}
  - {kind: ServiceAccount, namespace: tandem-agents, name: tandem-agent}
"""


@dataclass(frozen=True)
class Attempt:
    """A request, who makes it, and the policy that refuses it ('' where it is to succeed)."""

    words: str
    policy: str
    method: str
    path: str
    body: object
    who: str = "tenant"
    patch: str = "merge"

    def refusal(self, client: KubeClient) -> str:
        """Make the request, without effect; return the API server's words if it refuses."""
        kinds = {"PATCH": f"application/{self.patch}-patch+json"}
        try:
            client.request(
                self.method,
                self.path,
                {"dryRun": "All"},
                self.body,
                kinds.get(self.method, "application/json"),
            )
        except KubeError as error:
            return error.message
        return ""


def admitted(change: Callable[[Object], object] = lambda pod: None) -> Object:
    """Return a pod as our webhook leaves it, with a `change`."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "job",
            "annotations": {"tandem.gpu/memory": "8Gi", "example.com/note": "mine"},
        },
        "spec": {
            "schedulerName": names.SCHEDULER_NAME,
            "schedulingGates": [{"name": names.SCHEDULING_GATE}, {"name": "example.com/data"}],
            "priorityClassName": names.PRIORITY_CLASS,
            "initContainers": [{"name": "fetch", "image": "fetch:1", "env": [VOID]}],
            "containers": [
                {
                    "name": "train",
                    "image": "train:1",
                    "env": [CHOSEN, {"name": "EPOCHS", "value": "3"}],
                    "resources": {"limits": {names.RESOURCE: "1"}},
                },
                {"name": "logs", "image": "logs:1", "env": [VOID]},
            ],
            "volumes": [
                {"name": "shm", "hostPath": {"path": "/dev/shm"}},
                {"name": "data", "hostPath": {"path": "/data/sets/a"}},
            ],
        },
    }
    change(pod)
    return pod


def plain(**spec: object) -> Object:
    """Return a pod that asks for no GPU of ours."""
    container = {"name": "web", "image": "web:1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "plain"},
        "spec": {"containers": [container], **spec},
    }


def creates(words: str, policy: str, change: Callable[[Object], object]) -> Attempt:
    return Attempt(words, policy, "POST", PODS, admitted(change))


def in_gpujob(
    words: str,
    *,
    owner: tuple[str, str] | None = None,
    api_version: str = "batch/v1",
    **labels: str,
) -> Attempt:
    """Return the creation of a pod as the webhook leaves it, with the name of its GPUJob."""

    def change(pod: Object) -> None:
        pod["metadata"]["labels"] = labels
        if owner is not None:
            reference = {"apiVersion": api_version, "kind": owner[0], "name": owner[1], "uid": "u"}
            pod["metadata"]["ownerReferences"] = [reference | {"controller": True}]
        qualified = owner and (qualified_kind(api_version, owner[0]), owner[1])
        name = gpujob_name("job", {}, labels, qualified)
        pod["metadata"]["annotations"][names.GPU_JOB] = name

    return creates(words, "", change)


def annotates(words: str, policy: str, pod: str, annotations: Object, sub: str = "") -> Attempt:
    body = {"metadata": {"annotations": annotations}}
    return Attempt(words, policy, "PATCH", f"{PODS}/{pod}{sub}", body)


def binds(words: str, policy: str, annotations: Object, path: str) -> Attempt:
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "open", "namespace": "tenant", "annotations": annotations},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    return Attempt(words, policy, "POST", path, body)


def debugs(words: str, policy: str, pod: str, **container: object) -> Attempt:
    added = {"name": "debug", "image": "debug:1", **container}
    path = f"{PODS}/{pod}/ephemeralcontainers"
    return Attempt(words, policy, "PATCH", path, {"spec": {"ephemeralContainers": [added]}})


def host_path(*paths: str) -> Callable[[Object], object]:
    return lambda pod: pod["spec"]["volumes"].extend(
        {"name": f"x{i}", "hostPath": {"path": path}} for i, path in enumerate(paths)
    )


def schedules(words: str, path: str, body: Object, policy: str = WRITES) -> Attempt:
    """Return a change by our scheduler's own account."""
    return Attempt(words, policy, "PATCH", path, body, "scheduler")


def spec_of(**spec: object) -> Object:
    return {"spec": spec}


def annotated(**annotations: str | None) -> Object:
    names_ = {f"tandem.gpu/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return {"metadata": {"annotations": names_}}


def asks(index: int, **amounts: str) -> Callable[[Object], object]:
    """Give a container of a pod (0: the one with GPUs, 1: a sidecar) limits of its own."""
    limits = {f"nvidia.com/{name.replace('_', '.')}": value for name, value in amounts.items()}

    def change(pod: Object) -> None:
        resources = pod["spec"]["containers"][index].setdefault("resources", {})
        resources.setdefault("limits", {}).update(limits)

    return change


def gates(*left: str) -> Object:
    return {"spec": {"schedulingGates": [{"name": name} for name in left] or None}}


def gpu_job(name: str) -> Object:
    workload = WorkloadRef(api_version="batch/v1", kind="Job", name="j", uid="u")
    return {
        "apiVersion": names.API_VERSION,
        "kind": "GPUJob",
        "metadata": {"name": name, "namespace": "tenant"},
        "spec": GPUJobSpec(workload=workload, demand=Demand(gpus_per_pod=1)).wire(),
    }


def gpu_node(name: str) -> Object:
    return {"apiVersion": names.API_VERSION, "kind": "GPUNode", "metadata": {"name": name}}


def model_profile(name: str) -> Object:
    features = GraphFeatures(
        flops=1, parameters=1, parameter_bytes=4, activation_bytes=4, largest_tensor_bytes=4,
        tensor_skew=0, nodes=1, depth=1, op_counts={}, opset=17,
    )  # fmt: skip
    spec = ModelProfileSpec(features=features, feature_hash="0", file_sha256="0", file_bytes=1)
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ModelProfile",
        "metadata": {"name": name, "namespace": "tenant"},
        "spec": spec.wire(),
    }


STATUS = {"status": GPUNodeStatus(observed_at="2026-01-02T03:04:05Z").wire()}
ATTAINED = {"status": GPUJobStatus(attained_gpu_seconds=0, phase="Queued").wire()}
MINE = {"tandem.gpu/visible-devices": "GPU-n0-0"}


def nominates(node: str | None) -> Object:
    return {"status": {"nominatedNodeName": node}}


def train(pod: Object) -> Object:
    return pod["spec"]["containers"][0]


FORGERIES = [
    # An assignment of one's own.
    creates("assignment at creation", ASSIGNMENTS,
            lambda p: p["metadata"]["annotations"].update(MINE)),
    creates("epoch at creation", ASSIGNMENTS,
            lambda p: p["metadata"]["annotations"].update({"tandem.gpu/epoch": "9"})),
    creates("accumulation steps at creation", ASSIGNMENTS,
            lambda p: p["metadata"]["annotations"].update({"tandem.gpu/accumulation-steps": "1"})),
    creates("a limit of memory at creation", ASSIGNMENTS,
            lambda p: p["metadata"]["annotations"].update({"tandem.gpu/memory-fraction": "1"})),
    creates("a limit of PyTorch at creation", ASSIGNMENTS,
            lambda p: p["metadata"]["annotations"].update({"tandem.gpu/pytorch-alloc-conf": ""})),
    creates("the GPUJob of others at creation", ASSIGNMENTS,
            lambda p: p["metadata"]["annotations"].update({"tandem.gpu/gpu-job": "job-theirs"})),
    creates("the GPUJob of a group without its label", ASSIGNMENTS,
            lambda p: p["metadata"]["annotations"].update({"tandem.gpu/gpu-job": "group-g"})),
    creates("a GPUJob with a hash without a reason", ASSIGNMENTS,
            lambda p: p["metadata"]["annotations"].update(
                {"tandem.gpu/gpu-job": "group-my-group-0123456789abcdef"})),
    creates("figures of one's own at creation", ASSIGNMENTS,
            lambda p: p["metadata"]["annotations"].update({"tandem.gpu/placed-with": "{}"})),
    annotates("another GPUJob for a running pod", ASSIGNMENTS, "bound",
              {"tandem.gpu/gpu-job": "pod-other"}),
    annotates("another GPUJob for a waiting pod", ASSIGNMENTS, "gated",
              {"tandem.gpu/gpu-job": "pod-other"}),
    annotates("another GPUJob through the status", ASSIGNMENTS, "bound",
              {"tandem.gpu/gpu-job": "pod-other"}, "/status"),
    annotates("less memory than it was placed with", ASSIGNMENTS, "bound",
              {"tandem.gpu/placed-with": '{"gpuJob":"pod-bound","memoryBaseBytes":1}'}),
    binds("another GPUJob by a binding", ASSIGNMENTS,
          {"tandem.gpu/gpu-job": "pod-other"}, f"{PODS}/open/binding"),
    annotates("assignment on a waiting pod", ASSIGNMENTS, "gated", MINE),
    annotates("another GPU after the binding", ASSIGNMENTS, "bound",
              {"tandem.gpu/visible-devices": "GPU-n0-0,GPU-n0-1"}),
    annotates("no GPU any more, so that it looks free", ASSIGNMENTS, "bound",
              {"tandem.gpu/visible-devices": None}),
    annotates("another GPU through the status", ASSIGNMENTS, "bound",
              {"tandem.gpu/visible-devices": "GPU-n0-1"}, "/status"),
    annotates("a wake of one's own", ASSIGNMENTS, "gated", {"tandem.gpu/wake": "now"}),
    binds("assignment by the pod's binding", ASSIGNMENTS, MINE, f"{PODS}/open/binding"),
    binds("assignment by a binding", ASSIGNMENTS, MINE, BINDINGS),
    Attempt("assignment by an agent", ASSIGNMENTS, "PATCH", f"{PODS}/gated",
            {"metadata": {"annotations": MINE}}, "agent"),
    # Another demand than was admitted.
    annotates("less memory after admission", ASSIGNMENTS, "bound", {"tandem.gpu/memory": "1Gi"}),
    annotates("into another's gang", ASSIGNMENTS, "gated",
              {"tandem.gpu/gang": "theirs", "tandem.gpu/gang-size": "1"}),
    # Past the queue.
    Attempt("gate removed", ASSIGNMENTS, "PATCH", f"{PODS}/gated", gates("example.com/data")),
    Attempt("gate removed by an administrator", ASSIGNMENTS, "PATCH", f"{PODS}/gated", gates(),
            "admin"),
    Attempt("a node of one's choice nominated", ASSIGNMENTS, "PATCH", f"{PODS}/gated/status",
            nominates("n0")),
    Attempt("a node nominated by an administrator", ASSIGNMENTS, "PATCH", f"{PODS}/open/status",
            nominates("n0"), "admin"),
    creates("without the gate", SHAPE, lambda p: p["spec"].update(schedulingGates=[])),
    creates("by another scheduler", SHAPE,
            lambda p: p["spec"].update(schedulerName="default-scheduler")),
    creates("onto a node of one's choice", SHAPE,
            lambda p: p["spec"].update(nodeName="n0", schedulingGates=[])),
    creates("with a higher priority", SHAPE,
            lambda p: p["spec"].update(priorityClassName="system-cluster-critical")),
    # Another environment.
    creates("without the variable", SHAPE, lambda p: train(p).update(env=[])),
    creates("with all GPUs", SHAPE, lambda p: train(p).update(env=[ALL])),
    creates("with all GPUs, said last", SHAPE, lambda p: train(p)["env"].append(ALL)),
    creates("from another annotation", SHAPE, lambda p: train(p).update(env=[{
        "name": VARIABLE,
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['example.com/note']"}},
    }])),
    creates("with GPUs for a sidecar", SHAPE,
            lambda p: p["spec"]["containers"][1].update(env=[CHOSEN])),
    creates("with an init container that sees what its image bakes in", SHAPE,
            lambda p: p["spec"]["initContainers"][0].update(env=[])),
    creates("with GPUs for an init container", SHAPE,
            lambda p: p["spec"]["initContainers"][0].update(
                resources={"limits": {names.RESOURCE: "1"}}, env=[CHOSEN])),
    # Around the environment.
    creates("privileged", SHAPE, lambda p: train(p).update(securityContext={"privileged": True})),
    creates("privileged sidecar", SHAPE, lambda p: p["spec"]["containers"][1].update(
        securityContext={"privileged": True})),
    creates("privileged init container", SHAPE, lambda p: p["spec"]["initContainers"][0].update(
        securityContext={"privileged": True})),
    creates("sidecar with a capability of administrators", SHAPE,
            lambda p: p["spec"]["containers"][1].update(
                securityContext={"capabilities": {"add": ["SYS_ADMIN"]}})),
    creates("init container with all capabilities", SHAPE,
            lambda p: p["spec"]["initContainers"][0].update(
                securityContext={"capabilities": {"add": ["cap_all"]}})),
    creates("unmasked proc", SHAPE, lambda p: (
        train(p).update(securityContext={"procMount": "Unmasked"}),
        p["spec"].update(hostUsers=False))),
    creates("processes of the node", SHAPE, lambda p: p["spec"].update(hostPID=True)),
    creates("days to end after its deletion", SHAPE,
            lambda p: p["spec"].update(terminationGracePeriodSeconds=2**31 - 1)),
    creates("cgroups of the node", SHAPE, host_path("/sys/fs/cgroup")),
    creates("15,000 terms of node affinity", SHAPE, lambda p: p["spec"].update(affinity={
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "a", "operator": "Exists"}]}] * 15_000}}})),
    Attempt("our scheduler without GPUs", NAME, "POST", PODS,
            plain(schedulerName=names.SCHEDULER_NAME)),
    creates("our scheduler with no GPU of ours", NAME,
            lambda p: train(p).update(resources={"limits": {names.RESOURCE: "0"}})),
    creates("device of the node", SHAPE, host_path("/dev/nvidia0")),
    creates("device of the node by a detour", SHAPE, host_path("//dev/./nvidia-uvm")),
    creates("all devices of the node", SHAPE, host_path("/dev/")),
    creates("the whole node", SHAPE, host_path("/")),
    creates("the toolkit's socket", SHAPE, host_path("/var/run/nvidia-persistenced/socket")),
    creates("the container runtime's socket", SHAPE, host_path("/run/containerd/containerd.sock")),
    creates("the driver's files", SHAPE, host_path("/usr/local/nvidia")),
    creates("NRI's socket", SHAPE, host_path("/run/nri/nri.sock")),
    creates("a folder of programs that the runtime starts", SHAPE, host_path("/opt/cni/bin")),
    creates("a folder whose name begins as an allowed one", SHAPE, host_path("/database")),
    creates("devices by a claim", SHAPE, lambda p: p["spec"].update(resourceClaims=CLAIMS)),
    creates("a GPU of the device plugin", SHAPE, asks(1, gpu="1")),
    creates("a shared GPU of the device plugin", SHAPE, asks(1, gpu_shared="1k")),
    creates("a part of a GPU", SHAPE, asks(0, **{"mig-1g_5gb": "1"})),
    creates("a GPU of the DRA driver", SHAPE, lambda p: p["spec"]["containers"][1].update(
        resources={"limits": {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1"}})),
    *(
        Attempt(f"{name} annotation", DEVICES, "POST", PODS, plain() | {"metadata": {
            "name": "plain", "annotations": {name: "- {path: /dev/nvidia0, type: c}"}}})
        for name in ("devices.nri.io/container.web", "mounts.nri.io/pod", "cdi-devices.nri.io",
                     "devices.noderesource.dev/pod", "devices.gke.io/container.web",
                     "io.kubernetes.cri-o.Devices", "io.kubernetes.cri-o.Devices/web",
                     "devices.crio.io/web")
    ),
    annotates("devices of CRI-O on a waiting pod", DEVICES, "gated",
              {"io.kubernetes.cri-o.Devices": "/dev/fuse,/dev/nvidia0:/dev/fuse:rwm"}),
    annotates("devices of NRI on a pod of others", DEVICES, "web",
              {"devices.nri.io": "- {path: /dev/nvidia0, type: c, major: 195, minor: 0}"}),
    binds("devices of NRI by a binding", DEVICES, {"cdi-devices.nri.io/pod": "- nvidia.com/gpu=0"},
          BINDINGS),
    Attempt("mount that names GPUs", DEVICES, "POST", PODS, plain(
        containers=[{"name": "web", "image": "web:1", "volumeMounts": [
            {"name": "null", "mountPath": "/var/run//nvidia-container-devices/all"}]}],
        volumes=[{"name": "null", "emptyDir": {}}])),
    Attempt("CDI annotation", DEVICES, "POST", PODS, plain() | {"metadata": {
        "name": "plain", "annotations": {"cdi.k8s.io/gpu": "nvidia.com/gpu=all"}}}),
    annotates("CDI annotation on a waiting pod", DEVICES, "gated",
              {"nvidia.cdi.k8s.io/container.train": "nvidia.com/gpu=all"}),
    binds("CDI annotation by a binding", DEVICES,
          {"cdi.k8s.io/gpu": "nvidia.com/gpu=all"}, f"{PODS}/open/binding"),
    debugs("debug container with all GPUs", DEVICES, "bound", env=[ALL]),
    debugs("debug container with all GPUs in a pod of others", DEVICES, "web", env=[ALL]),
    debugs("debug container that sees what its image bakes in", DEVICES, "bound"),
    debugs("privileged debug container", DEVICES, "bound", env=[VOID],
           securityContext={"privileged": True}),
    debugs("debug container with a capability of administrators", DEVICES, "bound", env=[VOID],
           securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}),
    # A stolen token of our scheduler.
    schedules("a user's annotation by the scheduler", f"{PODS}/gated", annotated(memory="1Gi")),
    schedules("a user's annotation removed by it", f"{PODS}/gated", annotated(memory=None)),
    schedules("an annotation of others by it", f"{PODS}/gated",
              {"metadata": {"annotations": {"example.com/note": "x"}}}),
    schedules("a label by it", f"{PODS}/gated", {"metadata": {"labels": {"app": "theirs"}}}),
    schedules("a finalizer by it", f"{PODS}/gated",
              {"metadata": {"finalizers": ["example.com/keep"]}}),
    schedules("an owner by it", f"{PODS}/gated", {"metadata": {"ownerReferences": [
        {"apiVersion": "v1", "kind": "Node", "name": "n0", "uid": "u"}]}}),
    schedules("a gate of others removed by it", f"{PODS}/gated", gates()),
    Attempt("an image by it", WRITES, "PATCH", f"{PODS}/web",
            spec_of(containers=[{"name": "web", "image": "other:1"}]), "scheduler",
            "strategic-merge"),
    schedules("a node selector by it", f"{PODS}/gated", spec_of(nodeSelector={"a": "b"})),
    schedules("a toleration by it", f"{PODS}/gated", spec_of(tolerations=[
        *({"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute",
           "tolerationSeconds": 300} for key in ("not-ready", "unreachable")),
        {"key": "theirs", "operator": "Exists"}])),
    schedules("a deadline by it", f"{PODS}/web", spec_of(activeDeadlineSeconds=1)),
    schedules("an annotation through the status by it", f"{PODS}/bound/status",
              {"metadata": {"annotations": {"example.com/note": "x"}}}),
    schedules("a debug container by it", f"{PODS}/web/ephemeralcontainers", spec_of(
        ephemeralContainers=[{"name": "debug", "image": "debug:1"}])),
    Attempt("a pod by it", WRITES, "POST", PODS, admitted(), "scheduler"),
    Attempt("an annotation of others with a binding by it", WRITES, "POST", BINDINGS, {
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": "open", "namespace": "tenant",
                     "annotations": {"example.com/note": "x"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"}}, "scheduler"),
    schedules("a Job's size by it", f"{JOBS_OF_BATCH}/steps", spec_of(parallelism=5)),
    schedules("a Job's image by it", f"{JOBS_OF_BATCH}/steps", spec_of(template={
        "metadata": {"labels": {"app": "x"}}})),
    schedules("a Job's annotation by it", f"{JOBS_OF_BATCH}/steps", annotated(memory="1Gi")),
    # Our records.
    Attempt("GPUJob of one's own", RESOURCES, "POST", JOBS, gpu_job("mine")),
    Attempt("attained service forgotten", RESOURCES, "PATCH", f"{JOBS}/known/status", ATTAINED),
    Attempt("GPUJob deleted", RESOURCES, "DELETE", f"{JOBS}/known", None),
    Attempt("GPUJob by the predictor", RESOURCES, "POST", JOBS, gpu_job("mine"), "predictor"),
    Attempt("profile of one's own", RESOURCES, "POST", PROFILES, model_profile("mine")),
    Attempt("GPUs invented", RESOURCES, "PATCH", f"{NODES}/n0/status", STATUS),
    Attempt("GPUs of another node invented", OWN_NODE, "PATCH", f"{NODES}/n1/status", STATUS,
            "agent"),
    Attempt("another node's GPUNode", OWN_NODE, "POST", NODES, gpu_node("n2"), "agent"),
    Attempt("the inventory of one's own node", OWN_NODE, "PATCH", f"{NODES}/n0",
            {"metadata": {"annotations": {names.INVENTORY: "{}"}}}, "agent"),
    Attempt("GPUNode by a token of no node", OWN_NODE, "PATCH", f"{NODES}/n0/status", STATUS,
            "stolen"),
]  # fmt: skip

RIGHTFUL = [
    Attempt("a planned node nominated", "", "PATCH", f"{PODS}/gated/status", nominates("n0"),
            "scheduler"),
    Attempt("no nomination any more", "", "PATCH", f"{PODS}/gated/status", nominates(None)),
    Attempt("a nomination of others' pods", "", "PATCH", f"{PODS}/unbound/status",
            nominates("n0")),
    creates("a pod as admitted", "", lambda p: None),
    in_gpujob("a bare pod"),
    in_gpujob("a pod of a Job", owner=("Job", "train.v1")),
    in_gpujob("a pod of an owner with a long name", owner=("ReplicaSet", "n" * 253)),
    in_gpujob("a pod of a group", owner=("Job", "a"), **{names.COSCHEDULING_GROUP_LABEL: "G"}),
    in_gpujob("a pod of a group that is no name", **{names.COSCHEDULING_GROUP_LABEL: "My_Group"}),
    in_gpujob("a pod of an owner that is no name", owner=("x.Y", "a/b c")),
    in_gpujob("a pod of another group's Job", owner=("Job", "train"),
              api_version="batch.volcano.sh/v1alpha1"),
    in_gpujob("a pod of a TFJob", owner=("TFJob", "train"), api_version="kubeflow.org/v1"),
    in_gpujob("a pod of a core kind", owner=("ReplicationController", "a"), api_version="v1"),
    in_gpujob("a step of a workflow", owner=("Workflow", "w"), api_version="argoproj.io/v1alpha1"),
    in_gpujob("the launcher of an MPIJob", owner=("Job", "mpi-launcher"), **{
        names.OPERATOR_LABEL: names.MPI_OPERATOR, names.JOB_NAME_LABEL: "mpi"}),
    in_gpujob("who only says that it launches", owner=("Job", "mpi"), **{
        names.OPERATOR_LABEL: names.MPI_OPERATOR, names.JOB_NAME_LABEL: "mpi"}),
    in_gpujob("a pod of a JobSet", owner=("Job", "a"), **{names.JOBSET_LABEL: "set"}),
    in_gpujob("a pod of a LeaderWorkerSet", owner=("StatefulSet", "a"), **{
        names.LEADER_WORKER_SET_LABEL: "serve", names.LEADER_WORKER_SET_GROUP_LABEL: "3"}),
    Attempt("a pod that asks for nothing of ours", "", "POST", PODS, plain(
        containers=[{"name": "web", "image": "web:1", "securityContext": {"privileged": True}}],
        nodeName="n0", volumes=[{"name": "dev", "hostPath": {"path": "/dev"}}])),
    creates("zeros in a sidecar, and next to our GPUs", "", lambda p: (
        asks(0, gpu="0", gpu_shared="0")(p),
        p["spec"]["containers"][1].update(resources={
            "limits": {names.RESOURCE: "0", "nvidia.com/gpu": "0"},
            "requests": {names.RESOURCE: "0"}}),
        p["spec"]["initContainers"][0].update(resources={"limits": {names.RESOURCE: "0k"}}))),
    Attempt("a launcher that renders zeros", "", "POST", PODS, plain(containers=[{
        "name": "launcher", "image": "mpi:1",
        "resources": {"limits": {names.RESOURCE: "0", "nvidia.com/gpu": 0}}}])),
    Attempt("claims of a pod of others", "", "POST", PODS, plain(resourceClaims=CLAIMS)),
    Attempt("a device of CRI-O that is no GPU", "", "POST", PODS, plain() | {"metadata": {
        "name": "plain", "annotations": {"io.kubernetes.cri-o.Devices": "/dev/fuse, /dev/kvm"}}}),
    creates("folders of data", "", host_path("/mnt/data", "//srv/./a/", "/etc/localtime")),
    creates("many folders of data", "", host_path(*(f"/data/{i}" for i in range(200)))),
    annotates("an annotation of the owner's", "", "gated", {"example.com/note": "changed"}),
    Attempt("a gate of others removed", "", "PATCH", f"{PODS}/gated", gates(names.SCHEDULING_GATE)),
    debugs("a debug container", "", "bound", env=[VOID]),
    debugs("a debug container in a pod of others", "", "web"),
    binds("a binding with annotations of others", "", {"example.com/note": "b"}, BINDINGS),
    Attempt("a status by kubelet", "", "PATCH", f"{PODS}/bound/status",
            {"status": {"phase": "Running"}}, "admin"),
    Attempt("a gate removed by the queue", "", "PATCH", f"{PODS}/gated",
            gates("example.com/data") | {"metadata": {"annotations": {"tandem.gpu/wake": "1"}}},
            "scheduler"),
    schedules("an epoch, by label and annotation", f"{PODS}/gated",
              {"metadata": {"labels": {"tandem.gpu/epoch": "e"},
                            "annotations": {"tandem.gpu/epoch": "e"}}}, ""),
    schedules("a condition by kube-scheduler", f"{PODS}/open/status", {"status": {"conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}}, ""),
    schedules("a Job suspended", f"{JOBS_OF_BATCH}/steps", spec_of(suspend=False), ""),
    Attempt("a binding by the queue", "", "POST", f"{PODS}/open/binding", {
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": "open", "namespace": "tenant",
                     "annotations": MINE | {"tandem.gpu/placed-with": "{}"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"}}, "scheduler"),
    Attempt("a GPUJob by the queue", "", "POST", JOBS, gpu_job("new"), "scheduler"),
    Attempt("a GPUJob's status by the queue", "", "PATCH", f"{JOBS}/known/status", ATTAINED,
            "scheduler"),
    Attempt("a profile by the predictor", "", "POST", PROFILES, model_profile("new"), "predictor"),
    Attempt("a report by its agent", "", "PATCH", f"{NODES}/n0/status", STATUS, "agent"),
    Attempt("an inventory by the scheduler", "", "PATCH", f"{NODES}/n0",
            {"metadata": {"annotations": {names.INVENTORY: "{}"}}}, "scheduler"),
    Attempt("a label by its agent", "", "PATCH", f"{NODES}/n0",
            {"metadata": {"labels": {"example.com/a": "b"}}}, "agent"),
    Attempt("a repair by an administrator", "", "PATCH", f"{JOBS}/known/status", ATTAINED, "admin"),
    Attempt("a GPUNode removed by an administrator", "", "DELETE", f"{NODES}/n0", None, "admin"),
]  # fmt: skip


@pytest.fixture(scope="module", params=["manifests", "chart"])
def callers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, KubeClient]]:
    """Clients by who they are, on a plane with our manifests or our chart, without our services."""
    from controlplane import ControlPlane, Node, wait_until
    from controlplane.installation import Installation

    need_control_plane()
    folder: Path = tmp_path_factory.mktemp("policies")
    with ControlPlane.start(nodes=[Node("n0"), Node("n1")]) as plane:
        values = {} if request.param == "chart" else None
        installation = Installation(plane, folder, values=values)
        installation.apply_manifests()
        # No webhook is behind it here: the policies hold alone.
        plane.kubectl("delete", "mutatingwebhookconfiguration", "tandem", "--ignore-not-found")
        plane.kubectl("create", "namespace", "tenant")
        plane.apply(RIGHTS)
        agents = names.AGENT_NAMESPACE
        agent = installation.agent_account("n0")
        files = {
            "admin": plane.kubeconfig(),
            "tenant": plane.kubeconfig("tenant"),
            "scheduler": plane.service_account_kubeconfig(names.NAMESPACE, "tandem-scheduler"),
            "predictor": plane.service_account_kubeconfig(names.NAMESPACE, "tandem-predictor"),
            "agent": agent,
            "stolen": plane.service_account_kubeconfig(agents, "tandem-agent"),
        }
        clients = {who: KubeClient.load(path) for who, path in files.items()}
        account = "/api/v1/namespaces/tenant/serviceaccounts/default"
        wait_until(lambda: plane.http.get(account).is_success, "the namespace is set up")
        _populate(clients)
        for policy in (ASSIGNMENTS, WRITES, SHAPE, NAME, DEVICES, RESOURCES, OWN_NODE):
            first = next(each for each in FORGERIES if each.policy == policy)
            wait_until(lambda a=first: a.refusal(clients[a.who]), f"{policy} is in force")
        yield clients
        for client in clients.values():
            client.close()


def _populate(clients: dict[str, KubeClient]) -> None:
    """Create what is there already: pods on their way, and our records, each by its writer."""
    admin, scheduler = clients["admin"], clients["scheduler"]
    for name in ("gated", "open", "bound"):
        body = admitted()
        body["metadata"]["name"] = name
        if name != "gated":
            body["spec"]["schedulingGates"] = [{"name": names.SCHEDULING_GATE}]
        admin.request("POST", PODS, body=body)
    for name in ("open", "bound"):
        kind = "application/merge-patch+json"
        scheduler.request("PATCH", f"{PODS}/{name}", None, gates(), kind)
    uid = admin.request("GET", f"{PODS}/bound")["metadata"]["uid"]
    scheduler.bind("tenant", "bound", "n0", uid=uid, annotations=MINE)
    web = plain(nodeName="n0")
    web["metadata"] = {"name": "web"}
    admin.request("POST", PODS, body=web)
    unbound = plain(schedulerName="none")
    unbound["metadata"] = {"name": "unbound"}
    admin.request("POST", PODS, body=unbound)
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "c:1"}]}}
    steps = {"metadata": {"name": "steps"}, "spec": {"suspend": True, "template": template}}
    admin.request("POST", JOBS_OF_BATCH, body={"apiVersion": "batch/v1", "kind": "Job", **steps})
    scheduler.request("POST", JOBS, body=gpu_job("known"))
    clients["predictor"].request("POST", PROFILES, body=model_profile("known"))
    clients["agent"].request("POST", NODES, body=gpu_node("n0"))
    admin.request("POST", NODES, body=gpu_node("n1"))


@pytest.mark.parametrize("attempt", FORGERIES, ids=lambda attempt: attempt.words)
def test_forgery_is_refused(callers: dict[str, KubeClient], attempt: Attempt) -> None:
    refusal = attempt.refusal(callers[attempt.who])
    if attempt.policy == RESOURCES and attempt.method != "DELETE":
        assert 'the verb "repair" on them exempts administrators' in refusal
    else:
        assert f"ValidatingAdmissionPolicy '{attempt.policy}'" in refusal


#: Thousands of faults each: the API server would compare each one with all others.
FAULTY = (
    Attempt("shapes of a tenant", RESOURCES, "POST", PROFILES, {
        **model_profile("mine"),
        "spec": {"features": {"inputShapes": {str(i): ["x"] * 9 for i in range(999)}}},
    }),
    Attempt("counts of a tenant", RESOURCES, "PATCH", f"{PROFILES}/known", {
        "spec": {"features": {"opCounts": {str(i): "x" for i in range(9999)}}},
    }),
    Attempt("plans of a tenant", RESOURCES, "POST", JOBS, {
        **gpu_job("mine"), "status": {"plan": {"pods": [{}] * 9999}},
    }),
    Attempt("GPUs of an agent", RESOURCES, "PATCH", f"{NODES}/n0/status", {
        "status": {"gpus": [{"memoryBytes": 2**60}] * 9999},
    }, "agent"),
    Attempt("pods of an agent", RESOURCES, "PATCH", f"{NODES}/n0/status", {
        "status": {"gpus": [{"pods": [{}] * 64}] * 64},
    }, "agent"),
    Attempt("no list of GPUs", RESOURCES, "PATCH", f"{NODES}/n0/status", {
        "status": {"gpus": 3},
    }, "agent"),
)  # fmt: skip


@pytest.mark.parametrize("attempt", FAULTY, ids=lambda attempt: attempt.words)
def test_an_object_with_thousands_of_faults_is_refused_before_they_are_counted(
    callers: dict[str, KubeClient], attempt: Attempt
) -> None:
    refusal = attempt.refusal(callers[attempt.who])
    assert refusal
    assert "in body" not in refusal, refusal[:500]
    assert len(refusal) < 2000


@pytest.mark.parametrize("attempt", RIGHTFUL, ids=lambda attempt: attempt.words)
def test_rightful_request_is_let_through(callers: dict[str, KubeClient], attempt: Attempt) -> None:
    assert attempt.refusal(callers[attempt.who]) == ""


def test_a_write_of_the_status_changes_annotations_too(callers: dict[str, KubeClient]) -> None:
    """That is why the policies look at pods/status; our scheduler is exempt from the first."""
    written = callers["scheduler"].request(
        "PATCH",
        f"{PODS}/gated/status",
        {"dryRun": "All"},
        {"metadata": {"annotations": {"tandem.gpu/wake": "1"}}},
        "application/merge-patch+json",
    )
    assert written["metadata"]["annotations"]["tandem.gpu/wake"] == "1"


def test_policies_are_sound(callers: dict[str, KubeClient]) -> None:
    """The API server itself finds no fault with their expressions."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    found = callers["admin"].request("GET", path)["items"]
    assert {policy["metadata"]["name"] for policy in found} >= {
        attempt.policy for attempt in FORGERIES
    }
    assert [policy["status"]["typeChecking"] for policy in found] == [{}] * len(found)
