"""200 manifests of the kinds of workloads that people run GPUs with, and what becomes of each.

The shapes follow the public documentation of the projects; names, images and values are our own. A
manifest is a kind (how the project writes it, and which pods its controller makes) and a use (what
one container of it asks for). `python tests/webhook/field_manifests.py` writes
docs/evidence/manifests.md.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from scheduler_extender.admission.config import AdmissionConfig
from scheduler_extender.admission.webhook import answer_review
from scheduler_extender.cluster.kinds import TEMPLATES
from tandem.contracts import names

Object = dict[str, Any]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "manifests.md"
GPU, NVIDIA = names.RESOURCE, names.NVIDIA_RESOURCE


@dataclass(frozen=True)
class Use:
    """What the container with the GPUs asks for, and what else its manifest brings along."""

    says: str
    image: str
    command: str
    limits: Object = field(default_factory=dict)
    requests: Object | None = None  # where they are written as well
    notes: Object = field(default_factory=dict)
    container: Object = field(default_factory=dict)
    spec: Object = field(default_factory=dict)
    other: Object = field(default_factory=dict)  # limits of the containers without GPUs
    adopted: bool = False


def _env(**variables: str) -> Object:
    return {"env": [{"name": name, "value": value} for name, value in variables.items()]}


def _host(path: str) -> tuple[Object, Object]:
    """Return what a container and its pod need to mount a folder of the node."""
    mount = {"volumeMounts": [{"name": "host", "mountPath": "/mnt/host"}]}
    return mount, {"volumes": [{"name": "host", "hostPath": {"path": path}}]}


_HOME, _HOME_VOLUME = _host("/home/anna")
_DATA, _DATA_VOLUME = _host("/data/imagenet")
_SHM = {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}]}
USES: dict[str, Use] = {
    "whole": Use("one GPU", "reg.example/vision:3.1", "python train.py --arch resnet50", {GPU: 1}),
    "declared": Use("memory, batch size, checkpoints", "reg.example/bert:0.9",
                    "python finetune.py --seq 384", {GPU: "1", "cpu": "6"},
                    notes={names.MEMORY: "11Gi", names.BATCH_SIZE: "48", names.CHECKPOINT: "true"}),
    "model": Use("a model of the predictor, two GPUs", "reg.example/gpt:2.4",
                 "torchrun --nproc-per-node=2 pretrain.py", {GPU: 2, "memory": "96Gi"},
                 notes={names.MODEL: "gpt2-medium", names.BATCH_SIZE: "16",
                        names.PRECISION: "bf16"}),
    "exclusive": Use("four GPUs of its own", "reg.example/md:2026", "gmx mdrun -ntomp 8", {GPU: 4},
                     notes={names.EXCLUSIVE: "true"}),
    "stock": Use("`nvidia.com/gpu`, NVIDIA's taint tolerated", "nvcr.example/pytorch:26.04",
                 "python -m trainer", {NVIDIA: 4, "cpu": "32"}, {"cpu": "16"}, adopted=True,
                 spec={"tolerations": [{"key": NVIDIA, "operator": "Exists",
                                        "effect": "NoSchedule"}]}),
    "rdma": Use("eight GPUs, RDMA, huge pages, shared memory", "nvcr.example/nemo:25.11",
                "bash launch.sh", {NVIDIA: 8, "cpu": "64", "rdma/hca_a": 1, "hugepages-2Mi": "4Gi"},
                adopted=True, spec=_SHM, container={
                    **_env(NCCL_IB_HCA="mlx5_0", NCCL_DEBUG="WARN"),
                    "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                    "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}),
    "zeros": Use("0 in every container without GPUs", "reg.example/tune:1.4", "python worker.py",
                 {NVIDIA: 1}, other={NVIDIA: 0, GPU: "0"}, adopted=True),
    "none": Use("no GPU", "reg.example/etl:7", "python prepare.py", {"cpu": "4", "memory": "8Gi"}),
    "jax": Use("JAX that takes the memory at its start", "reg.example/flax:1.2",
               "python sample.py", {GPU: 1}, notes={names.MEMORY: "20Gi"},
               container=_env(XLA_PYTHON_CLIENT_PREALLOCATE="true")),
    "data": Use("a data set of the node", "reg.example/loader:5", "python bench_loader.py",
                {GPU: 1}, container=_DATA, spec=_DATA_VOLUME),
    "typed": Use("a type of GPU by its label", "reg.example/llm:6", "python serve.py", {GPU: 2},
                 spec={"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}),
    "hami": Use("HAMi: memory of a vGPU", "reg.example/detect:2", "python detect.py",
                {NVIDIA: 1, "nvidia.com/gpumem": 3000}, adopted=True),
    "hami-alone": Use("HAMi: memory without a count", "reg.example/ocr:2", "python ocr.py",
                      {"nvidia.com/gpumem": "6000"}, adopted=True,
                      notes={"nvidia.com/use-gputype": "A10,A30"}),
    "hami-cores": Use("HAMi: memory and a part of the cores", "reg.example/asr:1",
                      "python asr.py", adopted=True,
                      limits={NVIDIA: 1, "nvidia.com/gpumem": 4096, "nvidia.com/gpucores": 30}),
    "hami-percent": Use("HAMi: a percentage of the memory", "reg.example/tts:1", "python tts.py",
                        {NVIDIA: 2, "nvidia.com/gpumem-percentage": 50}, adopted=True),
    "hami-full": Use("HAMi: all of a card", "reg.example/vllm:1", "vllm serve qwen", adopted=True,
                     limits={NVIDIA: 1, "nvidia.com/gpumem-percentage": 100,
                             "nvidia.com/gpucores": 100}),
    "volcano-vgpu": Use("Volcano: a vGPU by memory", "reg.example/rec:4", "python rec.py",
                        {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 10240},
                        adopted=True),
    "volcano-gib": Use("Volcano: memory in GiB", "reg.example/rec:5", "python rec.py",
                       {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 24}, adopted=True),
    "aliyun": Use("Alibaba: memory in GiB", "reg.example/sd:1", "python launch.py --no-half",
                  {"aliyun.com/gpu-mem": 6}, adopted=True),
    "sliced": Use("time slicing", "reg.example/notebook:9", "jupyter lab",
                  {"nvidia.com/gpu.shared": 1}, adopted=True),
    "mig": Use("a MIG slice", "reg.example/infer:3", "tritonserver --model-repository=/models",
               {"nvidia.com/mig-2g.20gb": 1}, adopted=True),
    "kai": Use("KAI: memory of a shared GPU", "reg.example/lora:2", "python lora.py",
               {"cpu": "4"}, notes={"gpu-memory": "9216"}, adopted=True),
    "kai-half": Use("KAI: half a GPU", "reg.example/lora:3", "python lora.py",
                    {"cpu": "4"}, notes={"gpu-fraction": "0.5"}, adopted=True),
    "kai-scheduler": Use("KAI: its scheduler named", "reg.example/lora:4", "python lora.py", {},
                         notes={"gpu-memory": "4096"}, adopted=True,
                         spec={"schedulerName": "kai-scheduler"}),
    "runai": Use("run:ai: two devices, memory that may grow", "reg.example/quick:1",
                 "python quick.py", {"cpu": "200m"}, adopted=True,
                 notes={"gpu-memory": "40960", "gpu-fraction-num-devices": "2"},
                 container=_env(RUNAI_GPU_MEMORY_LIMIT="80G")),
    "runai-two": Use("run:ai: memory of two devices", "reg.example/quick:2", "python quick.py",
                     {"cpu": "1"}, adopted=True,
                     notes={"gpu-memory": "40960", "gpu-fraction-num-devices": "2"}),
    "privileged": Use("a privileged container", "reg.example/profile:1", "nsys profile python x.py",
                      {GPU: 1}, container={"securityContext": {"privileged": True}}),
    "home": Use("a home of the node", "reg.example/lab:1", "python lab.py", {GPU: 1},
                container=_HOME, spec=_HOME_VOLUME),
    "visible": Use("all GPUs by the environment", "reg.example/old:1", "python old.py", {GPU: 1},
                   container=_env(NVIDIA_VISIBLE_DEVICES="all")),
    "grace": Use("a day to end", "reg.example/slow:1", "python slow.py", {GPU: 1},
                 spec={"terminationGracePeriodSeconds": 86400}),
    "typo": Use("a misspelt annotation", "reg.example/typo:1", "python t.py", {GPU: 1},
                notes={"tandem.gpu/memmory": "8Gi"}),
    "gigs": Use("memory that is no quantity", "reg.example/gigs:1", "python g.py", {GPU: 1},
                notes={names.MEMORY: "12 gigs"}),
    "claims": Use("a ResourceClaim", "reg.example/dra:1", "python d.py", {GPU: 1},
                  spec={"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "one"}]}),
    "many": Use("a hundred GPUs in a pod", "reg.example/big:1", "python b.py", {GPU: 100}),
}  # fmt: skip


def container_of(use: Use, name: str, **more: Any) -> Object:
    """Return the container that the GPUs are for."""
    body: Object = {"name": name, "image": use.image, "command": ["sh", "-c", use.command]}
    resources = {"limits": dict(use.limits)} | (
        {"requests": dict(use.requests)} if use.requests is not None else {}
    )
    return copy.deepcopy(body | {"resources": resources} | use.container | more)


def plain(use: Use, name: str, command: str, **more: Any) -> Object:
    """Return a container that needs no GPU, such as a launcher; charts render its 0."""
    limits = {"cpu": "1", "memory": "2Gi"} | use.other
    return {"name": name, "image": use.image, "command": ["sh", "-c", command],
            "resources": {"limits": limits}} | more  # fmt: skip


def template(use: Use, *containers: Object, labels: Object | None = None, **spec: Any) -> Object:
    """Return a template of pods with the use's annotations and volumes."""
    metadata: Object = {"labels": labels or {"team": "vision"}}
    if use.notes:
        metadata["annotations"] = dict(use.notes)
    return copy.deepcopy(
        {"metadata": metadata, "spec": {**use.spec, "containers": list(containers), **spec}}
    )


def without(use: Use) -> Use:
    """Return the use of a role that asks for nothing of its own."""
    return Use(use.says, use.image, use.command, other=use.other, adopted=use.adopted)


def owner(api: str, kind: str, name: str, spec: Object, **metadata: Any) -> Object:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


#: The workload, and the templates of which its controller makes pods: template, labels, owner.
Made = tuple[Object, list[tuple[Object, Object, tuple[str, str, str]]]]


def pod(use: Use, name: str) -> Made:
    made = template(use, container_of(use, "main"), restartPolicy="Never")
    return owner("v1", "Pod", name, made["spec"], **made["metadata"]), [(made, {}, ("", "", ""))]


def job(use: Use, name: str, **spec: Any) -> Made:
    made = template(use, container_of(use, "train"), restartPolicy="Never")
    body = owner("batch/v1", "Job", name, {"backoffLimit": 3, "template": made, **spec})
    labels = {"batch.kubernetes.io/job-name": name, "job-name": name}
    return body, [(made, labels, ("batch/v1", "Job", name))]


def indexed(use: Use, name: str) -> Made:
    return job(use, name, completionMode="Indexed", completions=4, parallelism=4)


def cron(use: Use, name: str) -> Made:
    run, pods = job(use, f"{name}-29312")
    spec = {"schedule": "15 2 * * 6", "concurrencyPolicy": "Forbid",
            "jobTemplate": {"spec": run["spec"]}}  # fmt: skip
    return owner("batch/v1", "CronJob", name, spec), pods


def deployment(use: Use, name: str) -> Made:
    ready = {"readinessProbe": {"httpGet": {"path": "/health", "port": 8000}}}
    labels = {"app": name}
    made = template(use, container_of(use, "server", **ready),
                    plain(use, "proxy", "envoy -c /etc/envoy.yaml"), labels=labels)  # fmt: skip
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": made}
    body = owner("apps/v1", "Deployment", name, spec)
    return body, [(made, {"pod-template-hash": "6f7d"}, ("apps/v1", "ReplicaSet", f"{name}-6f7d"))]


def stateful(use: Use, name: str) -> Made:
    labels = {"app": name}
    wait = plain(use, "fetch", "python fetch_weights.py")
    made = template(use, container_of(use, "shard"), labels=labels, initContainers=[wait])
    spec = {"serviceName": name, "replicas": 3, "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels}, "template": made}  # fmt: skip
    return owner("apps/v1", "StatefulSet", name, spec), [
        (made, {"apps.kubernetes.io/pod-index": "0"}, ("apps/v1", "StatefulSet", name))
    ]


def job_set(use: Use, name: str) -> Made:
    driver = template(without(use), plain(use, "driver", "python driver.py"), restartPolicy="Never")
    worker = template(use, container_of(use, "worker"), restartPolicy="Never")
    replicated = [
        {"name": part, "replicas": 1, "template": {"spec": {
            "parallelism": pods, "completions": pods, "completionMode": "Indexed",
            "backoffLimit": 0, "template": made}}}
        for part, pods, made in (("driver", 1, driver), ("workers", 4, worker))
    ]  # fmt: skip
    spec = {"network": {"enableDNSHostnames": True}, "failurePolicy": {"maxRestarts": 3},
            "replicatedJobs": replicated}  # fmt: skip
    pods = [
        (made, {names.JOBSET_LABEL: name, names.REPLICATED_JOB_LABEL: part},
         ("batch/v1", "Job", f"{name}-{part}-0"))
        for part, made in (("driver", driver), ("workers", worker))
    ]  # fmt: skip
    return owner("jobset.x-k8s.io/v1alpha2", "JobSet", name, spec), pods


def kubeflow(
    kind: str, key: str, container: str, first: str, launches: bool = False, version: str = "v1"
) -> Callable[[Use, str], Made]:
    """Return what builds a job of the training operator or the MPI operator."""

    def build(use: Use, name: str) -> Made:
        other = without(use) if launches else use
        lead = (
            plain(use, container, "mpirun -np 8 python train.py")
            if launches
            else container_of(use, container)
        )
        roles = {
            first: (1, template(other, lead)),
            "Worker": (3, template(use, container_of(use, container))),
        }
        replicas = {
            role: {"replicas": count, "restartPolicy": "OnFailure", "template": made}
            for role, (count, made) in roles.items()
        }
        spec = {"runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 2}, key: replicas}
        if launches:
            spec["slotsPerWorker"] = 2
        api = f"kubeflow.org/{version}"
        pods = [
            (made, {"training.kubeflow.org/job-name": name,
                    names.REPLICA_TYPE_LABEL: role.lower()}, (api, kind, name))
            for role, (_, made) in roles.items()
        ]  # fmt: skip
        return owner(api, kind, name, spec), pods

    return build


def train_job(use: Use, name: str) -> Made:
    trainer = {"numNodes": 4, "image": use.image, "command": ["sh", "-c", use.command],
               "resourcesPerNode": {"limits": dict(use.limits)}}  # fmt: skip
    patch = {"metadata": {"annotations": dict(use.notes)}, "spec": dict(use.spec)}
    spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer}
    if use.notes or use.spec:
        part = {"name": "node", "template": {"spec": {"template": patch}}}
        spec["runtimePatches"] = [{"manager": "example.com/team", "trainingRuntimeSpec": {
            "template": {"spec": {"replicatedJobs": [part]}}}}]  # fmt: skip
    made = template(use, container_of(use, "node"), restartPolicy="Never")
    labels = {names.JOBSET_LABEL: name, names.REPLICATED_JOB_LABEL: "node"}
    return owner("trainer.kubeflow.org/v1alpha1", "TrainJob", name, spec), [
        (made, labels, ("batch/v1", "Job", f"{name}-node-0"))
    ]


def ray_spec(use: Use) -> tuple[Object, list[tuple[str, Object]]]:
    ports = {"ports": [{"name": "gcs", "containerPort": 6379}]}
    head = template(without(use), plain(use, "ray-head", "ray start --head", **ports))
    worker = template(use, container_of(use, "ray-worker"))
    group = {"groupName": "gpus", "replicas": 2, "minReplicas": 0, "maxReplicas": 4,
             "rayStartParams": {}, "template": worker}  # fmt: skip
    head_group = {"rayStartParams": {"dashboard-host": "::"}, "template": head}
    cluster = {"rayVersion": "2.46.0", "headGroupSpec": head_group, "workerGroupSpecs": [group]}
    return cluster, [("head", head), ("worker", worker)]


def ray(kind: str, wrap: Callable[[Object], Object]) -> Callable[[Use, str], Made]:
    """Return what builds a kind of KubeRay, whose pods belong to a RayCluster."""

    def build(use: Use, name: str) -> Made:
        cluster, roles = ray_spec(use)
        pods = [
            (made, {"ray.io/cluster": name, "ray.io/node-type": role},
             ("ray.io/v1", "RayCluster", name))
            for role, made in roles
        ]  # fmt: skip
        return owner("ray.io/v1", kind, name, wrap(cluster)), pods

    return build


def leader_worker(use: Use, name: str) -> Made:
    leader = template(use, container_of(use, "vllm-leader"), labels={"role": "leader"})
    worker = template(use, container_of(use, "vllm-worker"))
    spec = {"replicas": 2, "leaderWorkerTemplate": {
        "size": 4, "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": leader, "workerTemplate": worker}}  # fmt: skip
    pods = [
        (made, {names.LEADER_WORKER_SET_LABEL: name, names.LEADER_WORKER_SET_GROUP_LABEL: "0",
                names.LEADER_WORKER_SET_WORKER_LABEL: index},
         ("apps/v1", "StatefulSet", f"{name}-0"))
        for made, index in ((leader, "0"), (worker, "1"))
    ]  # fmt: skip
    return owner("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", name, spec), pods


def volcano(use: Use, name: str) -> Made:
    master = template(without(use), plain(use, "ps", "python ps.py"), restartPolicy="OnFailure")
    worker = template(use, container_of(use, "worker"), restartPolicy="OnFailure")
    spec = {"minAvailable": 3, "queue": "research", "plugins": {"svc": [], "env": []},
            "policies": [{"event": "PodEvicted", "action": "RestartJob"}],
            "tasks": [{"name": "ps", "replicas": 1, "template": master},
                      {"name": "worker", "replicas": 2, "template": worker}]}  # fmt: skip
    api = "batch.volcano.sh/v1alpha1"
    pods = [
        (made, {"volcano.sh/job-name": name, "volcano.sh/task-spec": task}, (api, "Job", name))
        for task, made in (("ps", master), ("worker", worker))
    ]
    return owner(api, "Job", name, spec), pods


def argo(use: Use, name: str) -> Made:
    main = container_of(use, "main")
    step = {"name": "train", "metadata": {"annotations": dict(use.notes)},
            "container": {key: value for key, value in main.items() if key != "name"},
            **{key: use.spec[key] for key in ("volumes", "tolerations", "nodeSelector")
               if key in use.spec}}  # fmt: skip
    spec = {"entrypoint": "train", "serviceAccountName": "workflow", "templates": [step]}
    # What is no field of a template goes into the pod by a patch.
    patch = {key: value for key, value in use.spec.items() if key not in step}
    if patch:
        step["podSpecPatch"] = json.dumps(patch)
    made = template(use, plain(use, "wait", "argoexec wait"), main, restartPolicy="Never",
                    initContainers=[plain(use, "init", "argoexec init")])  # fmt: skip
    api = "argoproj.io/v1alpha1"
    labels = {"workflows.argoproj.io/workflow": name}
    return owner(api, "Workflow", name, spec), [(made, labels, (api, "Workflow", name))]


def tekton(use: Use, name: str) -> Made:
    main = container_of(use, "step-train")
    step = {key: value for key, value in main.items() if key not in ("name", "resources")}
    steps = [{"name": "train", "computeResources": main["resources"], **step}]
    spec: Object = {"taskSpec": {"steps": steps}, "timeout": "6h"}
    pod_template = {key: value for key, value in use.spec.items() if key != "resourceClaims"}
    if pod_template:
        spec["podTemplate"] = pod_template
    made = template(use, main, restartPolicy="Never",
                    initContainers=[plain(use, "prepare", "entrypoint init")])  # fmt: skip
    api = "tekton.dev/v1"
    body = owner(api, "TaskRun", name, spec, annotations=dict(use.notes))
    return body, [(made, {"tekton.dev/taskRun": name}, (api, "TaskRun", name))]


def notebook(use: Use, name: str) -> Made:
    made = template(use, container_of(use, name, workingDir="/home/jovyan"),
                    serviceAccountName="default-editor")  # fmt: skip
    labels = {"notebook-name": name, "statefulset": name}
    body = owner("kubeflow.org/v1", "Notebook", name, {"template": {"spec": made["spec"]}},
                 annotations=dict(use.notes))  # fmt: skip
    return body, [(made, labels, ("apps/v1", "StatefulSet", name))]


def kserve(use: Use, name: str) -> Made:
    main = container_of(use, "kserve-container", args=["--model_name", name])
    predictor = {"minReplicas": 1, "containers": [main], **use.spec}
    made = template(use, main, plain(use, "queue-proxy", "queue"))
    spec = {"predictor": predictor}
    body = owner("serving.kserve.io/v1beta1", "InferenceService", name, spec,
                 annotations=dict(use.notes))  # fmt: skip
    labels = {"serving.kserve.io/inferenceservice": name}
    return body, [(made, labels, ("apps/v1", "ReplicaSet", f"{name}-predictor-7c"))]


_COMMON = "whole declared stock zeros"
_PYTORCH = kubeflow("PyTorchJob", "pytorchReplicaSpecs", "pytorch", "Master")
_MPI_V1 = kubeflow("MPIJob", "mpiReplicaSpecs", "mpi", "Launcher", launches=True)
_MPI = kubeflow("MPIJob", "mpiReplicaSpecs", "mpi", "Launcher", launches=True, version="v2beta1")
#: Project and kind, what builds it, and the uses of which there are manifests.
KINDS: list[tuple[str, str, Callable[[Use, str], Made], str]] = [
    ("Kubernetes", "Pod", pod, f"{_COMMON} model jax data privileged visible gigs none"),
    ("Kubernetes", "Job", job, f"{_COMMON} rdma exclusive home typo claims many none"),
    ("Kubernetes", "Job (indexed)", indexed, f"{_COMMON} model rdma grace"),
    ("Kubernetes", "CronJob", cron, f"{_COMMON} data typed gigs"),
    ("Kubernetes", "Deployment", deployment, f"{_COMMON} typed hami sliced mig privileged"),
    ("Kubernetes", "StatefulSet", stateful, f"{_COMMON} data hami-alone home"),
    ("JobSet", "JobSet", job_set, f"{_COMMON} model rdma hami mig typo grace"),
    ("Kubeflow Training Operator", "PyTorchJob", _PYTORCH,
     f"{_COMMON} model rdma hami-cores kai visible"),
    ("Kubeflow Training Operator", "TFJob",
     kubeflow("TFJob", "tfReplicaSpecs", "tensorflow", "Chief"), f"{_COMMON} data mig gigs"),
    ("Kubeflow Training Operator", "XGBoostJob",
     kubeflow("XGBoostJob", "xgbReplicaSpecs", "xgboost", "Master"), f"{_COMMON} sliced none"),
    ("Kubeflow Training Operator", "PaddleJob",
     kubeflow("PaddleJob", "paddleReplicaSpecs", "paddle", "Master"), f"{_COMMON} hami typo"),
    ("Kubeflow Training Operator", "JAXJob",
     kubeflow("JAXJob", "jaxReplicaSpecs", "jax", "Worker"), f"{_COMMON} jax kai-half"),
    ("Kubeflow Training Operator", "MPIJob (v1)", _MPI_V1, f"{_COMMON} rdma volcano-vgpu"),
    ("MPI Operator", "MPIJob (v2beta1)", _MPI, f"{_COMMON} rdma exclusive hami-percent privileged"),
    ("Kubeflow Trainer", "TrainJob", train_job, f"{_COMMON} model typed kai-half grace"),
    ("KubeRay", "RayCluster", ray("RayCluster", lambda cluster: cluster),
     f"{_COMMON} rdma hami visible"),
    ("KubeRay", "RayJob", ray("RayJob", lambda cluster: {
        "entrypoint": "python tune.py", "shutdownAfterJobFinishes": True,
        "rayClusterSpec": cluster}), f"{_COMMON} data mig claims jax"),
    ("KubeRay", "RayService", ray("RayService", lambda cluster: {
        "serveConfigV2": "applications: []", "rayClusterConfig": cluster}),
     f"{_COMMON} typed sliced"),
    ("LeaderWorkerSet", "LeaderWorkerSet", leader_worker,
     f"{_COMMON} rdma typed kai exclusive grace"),
    ("Volcano", "Job", volcano, f"{_COMMON} volcano-vgpu volcano-gib none"),
    ("Argo Workflows", "Workflow", argo, f"{_COMMON} hami-alone kai-half home none"),
    ("Tekton", "TaskRun", tekton, f"{_COMMON} aliyun many none"),
    ("Kubeflow Notebooks", "Notebook", notebook, f"{_COMMON} sliced kai home"),
    ("KServe", "InferenceService", kserve, f"{_COMMON} typed mig hami-full"),
    ("HAMi", "Pod", pod, "hami hami-alone hami-cores hami-percent hami-full"),
    ("HAMi", "Deployment", deployment, "hami-cores hami-full"),
    ("KAI Scheduler", "Pod", pod, "kai kai-half kai-scheduler"),
    ("KAI Scheduler", "Job", job, "kai kai-half"),
    ("run:ai", "Pod", pod, "runai runai-two"),
    ("run:ai", "Job", job, "runai-two"),
    ("Alibaba gpushare", "Pod", pod, "aliyun"),
]  # fmt: skip


@dataclass(frozen=True)
class Manifest:
    """One manifest, the pods that its controller makes, and the use it was made of."""

    project: str
    kind: str
    use: str
    body: Object
    pods: list[Object]

    @property
    def adopted(self) -> bool:
        """True where it is applied in an adopted namespace."""
        return USES[self.use].adopted


def manifests() -> Iterator[Manifest]:
    """Yield all of them."""
    for project, kind, build, uses in KINDS:
        for use in uses.split():
            name = f"{use}-{''.join(c for c in project + kind if c.isalnum()).lower()[:24]}"
            body, made = build(USES[use], name)
            pods = [_pod(body, *each, number) for number, each in enumerate(made)]
            yield Manifest(project, kind, use, body, pods)


def _pod(
    body: Object, made: Object, labels: Object, by: tuple[str, str, str], number: int
) -> Object:
    """Return a pod of a template as its controller makes it and the API server completes it."""
    made = copy.deepcopy(made)
    metadata, spec = made["metadata"], made["spec"]
    metadata["labels"] = metadata["labels"] | labels
    metadata["name"] = f"{body['metadata']['name']}-{number}"
    api, kind, name = by
    if kind:
        metadata["ownerReferences"] = [{"apiVersion": api, "kind": kind, "name": name,
                                        "uid": "5e1f", "controller": True}]  # fmt: skip
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("restartPolicy", "Always")
    for each in [*spec["containers"], *spec.get("initContainers", [])]:
        resources = each["resources"]
        for section in resources:
            resources[section] = {key: str(value) for key, value in resources[section].items()}
        resources["requests"] = resources.get("limits", {}) | resources.get("requests", {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@dataclass(frozen=True)
class Answer:
    """What the webhook answers about one object."""

    allowed: bool
    causes: tuple[tuple[str, str], ...]  # field and message
    warnings: tuple[str, ...]
    patch: str  # base64, '' for none


def ask(body: Object, *, adopted: bool) -> Answer:
    """Ask the webhook by the bytes that the API server sends."""
    group, _, version = body["apiVersion"].rpartition("/")
    request = {"uid": "u", "kind": {"group": group, "version": version, "kind": body["kind"]},
               "namespace": "team-a", "operation": "CREATE", "object": body}  # fmt: skip
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    sent = json.dumps(review).encode()
    status, answer = answer_review(
        AdmissionConfig(), lambda: False, lambda _: None, sent, adopt=adopted
    )
    assert status == 200, answer
    response = json.loads(answer)["response"]
    causes = response.get("status", {}).get("details", {}).get("causes", ())
    return Answer(response["allowed"], tuple((c["field"], c["message"]) for c in causes),
                  tuple(response.get("warnings", ())), response.get("patch", ""))  # fmt: skip


def is_known(body: Object) -> bool:
    """Say whether the webhook reads the templates of a workload at apply."""
    return (body["apiVersion"].rpartition("/")[0], body["kind"]) in TEMPLATES


@lru_cache(1)
def answers() -> tuple[tuple[Manifest, Answer | None, tuple[Answer, ...]], ...]:
    """Return each manifest with the answers about the workload, where it is read, and its pods."""
    return tuple(
        (
            each,
            ask(each.body, adopted=each.adopted) if is_known(each.body) else None,
            tuple(ask(made, adopted=each.adopted) for made in each.pods),
        )
        for each in manifests()
    )


def outcome(manifest: Manifest, pods: tuple[Answer, ...]) -> str:
    """Return what becomes of a manifest, in a word of the page."""
    if not all(each.allowed for each in pods):
        return "refused"
    if not any(each.patch for each in pods):
        return "no GPUs"
    own = GPU in USES[manifest.use].limits
    return "admitted" if own else "translated"


_HEAD = """# Manifests of the field

Made by `python tests/webhook/field_manifests.py`; `tests/webhook/test_webhook_manifests.py` fails
where it is not current. {count} manifests in the shapes that {projects} projects document, with
values of our own, and the pods that their controllers make of them. The webhook's own code answers
about each. Manifests in other systems' words are applied in an adopted namespace;
[coming-from.md](../coming-from.md) says what is read of them.

*Admitted*: asks for `tandem.gpu/gpu`. *Translated*: asks in other words, and its pods come out with
Tandem's. *Refused*: with the field and what to write. *No GPUs*: left as it is. *Refused at*: the
workload, when it is applied; or its pods, where the webhook does not read the templates of a kind.
The events of the controller then have the message.

| project | kind | manifests | admitted | translated | refused | no GPUs | refused at |
|---|---|---|---|---|---|---|---|
"""
_USES = """
## What they ask for

| asks for | manifests | becomes | the first message |
|---|---|---|---|
"""
_FOOT = """
## What the table does not say

An admitted pod has its turn in the queue, and starts when its plan fits. Pods that start together
and ask for different numbers of GPUs are admitted and do not start: the GPUJob has the reason
`Blocked` and names them. The pods of RayCluster, Volcano's Job, Argo's Workflow and Tekton's
TaskRun start each by itself, unless they state a gang ([jobs.md](../jobs.md)). Resources such as
`rdma/hca_a` are a matter of nodes, which the webhook does not see.
"""


def page() -> str:
    """Return docs/evidence/manifests.md."""
    found = answers()
    rows: dict[tuple[str, str], Counter[str]] = {}
    read: dict[tuple[str, str], bool] = {}
    uses: dict[str, Counter[str]] = {}
    words: dict[str, str] = {}
    for each, at_apply, pods in found:
        key, became = (each.project, each.kind), outcome(each, pods)
        rows.setdefault(key, Counter())[became] += 1
        read[key] = at_apply is not None and each.kind != "Pod"
        uses.setdefault(each.use, Counter())[became] += 1
        said = [f"`{at}`: {what}" for answer in pods for at, what in answer.causes]
        said += [one for answer in pods for one in answer.warnings]
        words.setdefault(each.use, said[0].replace("|", "\\|") if said else "")
    order = ("admitted", "translated", "refused", "no GPUs")
    text = _HEAD.format(count=len(found), projects=len({each.project for each, *_ in found}))
    for (project, kind), counts in rows.items():
        at = "the workload" if read[project, kind] else "the pod" if kind == "Pod" else "its pods"
        cells = " | ".join(str(counts[name]) for name in order)
        text += f"| {project} | {kind} | {counts.total()} | {cells} | {at} |\n"
    total = sum(rows.values(), Counter())
    text += f"| all | | {total.total()} | {' | '.join(str(total[n]) for n in order)} | |\n" + _USES
    for name, counts in uses.items():
        became = ", ".join(name for name in order if counts[name])
        text += f"| {USES[name].says} | {counts.total()} | {became} | {words[name]} |\n"
    return text + _FOOT


if __name__ == "__main__":
    PAGE.write_text(page())
