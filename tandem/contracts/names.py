"""Every name that users, the API server and our services share. Nothing else defines one."""

from __future__ import annotations

import re

GROUP = "tandem.gpu"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

#: Each unit is a share of a different GPU. Never advertised in node status: the ledger counts.
RESOURCE = f"{GROUP}/gpu"
#: What stock manifests ask for; ours takes its place in adopted namespaces.
NVIDIA_RESOURCE = "nvidia.com/gpu"
#: Resources by which others give out NVIDIA's GPUs or parts of them: NVIDIA's device plugin, HAMi,
#: claims in the form of a resource, and schedulers with device plugins of their own. The chart's
#: policy and webhooks have the same expression.
GPU_RESOURCES = (
    r"(nvidia[.]com|deviceclass[.]resource[.]kubernetes[.]io)/(.*gpu.*|mig[-.].*|.*[.]shared)"
    r"|(volcano|koordinator)[.]sh/v?gpu.*|(aliyun|tencent)[.]com/(gpu|vcuda).*"
)
_GPU_RESOURCES = re.compile(GPU_RESOURCES)

SCHEDULER_NAME = "tandem-scheduler"
LEASE_NAME = "tandem-scheduler"
NAMESPACE = "tandem-system"
AGENT_NAMESPACE = "tandem-agents"
#: The ConfigMap in which the extender keeps what outlives GPUJobs: history, pairs, quota usage.
HISTORY_CONFIG_MAP = "tandem-history"
#: What completed jobs had of GPUs, day by day: a ConfigMap for each day, with a number behind it.
PAST_CONFIG_MAP = "tandem-past"
#: What shadow mode has recorded, day by day: a ConfigMap for each day, with a number behind it.
SHADOW_CONFIG_MAP = "tandem-shadow"
PRIORITY_CLASS = "tandem-training"
SCHEDULING_GATE = f"{GROUP}/queue"
ADOPT_LABEL = f"{GROUP}/adopt"
#: On a Node: how its GPUs reach containers, `environment`, `dra` or `dra-queue`.
HAND_OVER_LABEL = f"{GROUP}/hand-over"
#: The DeviceClass of claims that the queue alone allocates: it selects no device for others.
QUEUE_CLASS = f"queue.{GROUP}"
#: On a ResourceClaim that a user has made: the uid of the pod that has it. Tandem alone sets it.
CLAIM_POD = f"{GROUP}/pod-uid"
GPU_TAINT = f"{GROUP}/gpu"

#: A label that users may set on the pod: for whom it runs. Reports count by it.
USER_LABEL = f"{GROUP}/user"

# Annotations that users set on the pod (or its template).
MODEL = f"{GROUP}/model"
BATCH_SIZE = f"{GROUP}/batch-size"
ITERATIONS = f"{GROUP}/iterations"
MEMORY = f"{GROUP}/memory"
UTILIZATION = f"{GROUP}/utilization"
PRECISION = f"{GROUP}/precision"
OPTIMIZER = f"{GROUP}/optimizer"
SEQUENCE_LENGTH = f"{GROUP}/sequence-length"
FRAMEWORK = f"{GROUP}/framework"
PARALLELISM = f"{GROUP}/parallelism"
GRADIENT_CHECKPOINTING = f"{GROUP}/gradient-checkpointing"
EXCLUSIVE = f"{GROUP}/exclusive"
CHECKPOINT = f"{GROUP}/checkpoint"
ACCUMULATION = f"{GROUP}/accumulation"
GANG = f"{GROUP}/gang"
GANG_SIZE = f"{GROUP}/gang-size"
REQUIRED_TOPOLOGY = f"{GROUP}/required-topology"
PREFERRED_TOPOLOGY = f"{GROUP}/preferred-topology"
USER_ANNOTATIONS = (
    MODEL,
    BATCH_SIZE,
    ITERATIONS,
    MEMORY,
    UTILIZATION,
    PRECISION,
    OPTIMIZER,
    SEQUENCE_LENGTH,
    FRAMEWORK,
    PARALLELISM,
    GRADIENT_CHECKPOINTING,
    EXCLUSIVE,
    CHECKPOINT,
    ACCUMULATION,
    GANG,
    GANG_SIZE,
    REQUIRED_TOPOLOGY,
    PREFERRED_TOPOLOGY,
)

#: Labels of nodes that say where they are, widest first: the levels where an operator names none.
#: Clouds and NVIDIA's Topograph set them; a cluster has some of them or none.
TOPOLOGY_LEVELS = (
    "topology.kubernetes.io/zone",
    "topology.k8s.aws/network-node-layer-1",
    "topology.k8s.aws/network-node-layer-2",
    "topology.k8s.aws/network-node-layer-3",
    "cloud.google.com/gce-topology-block",
    "cloud.google.com/gce-topology-subblock",
    "network.topology.nvidia.com/spine",
    "network.topology.nvidia.com/leaf",
    "kubernetes.io/hostname",
)

# Annotations that Tandem alone sets: absent at creation, guarded by admission policies.
VISIBLE_DEVICES = f"{GROUP}/visible-devices"
ACCUMULATION_STEPS = f"{GROUP}/accumulation-steps"
#: The most that a pod may take of its GPU's memory, as a fraction of all of it: `contracts.limits`.
MEMORY_FRACTION = f"{GROUP}/memory-fraction"
#: The same as PyTorch's own setting, absent where there is no limit: no text around an absent
#: fraction is a setting that PyTorch accepts.
PYTORCH_ALLOC_CONF = f"{GROUP}/pytorch-alloc-conf"
EPOCH = f"{GROUP}/epoch"
WAKE = f"{GROUP}/wake"
#: The name of the pod's GPUJob, from its admission on. Its labels and owners are not read again.
GPU_JOB = f"{GROUP}/gpu-job"
#: The figures by which the pod got its GPUs: `contracts.placement`.
PLACED_WITH = f"{GROUP}/placed-with"
OWN_ANNOTATIONS = (
    VISIBLE_DEVICES, ACCUMULATION_STEPS, MEMORY_FRACTION, PYTORCH_ALLOC_CONF, EPOCH, WAKE, GPU_JOB,
    PLACED_WITH,
)  # fmt: skip
#: On a GPUNode: which GPUs the node is known to have. Administrators take it away to agree.
INVENTORY = f"{GROUP}/inventory"
#: The API server's limit on all annotations of one object, keys and values together.
ANNOTATION_BYTES = 256 * 1024
#: What is left of it after Tandem's own annotations: an epoch, a wake-up, the UUIDs of 64 GPUs, the
#: name of the GPUJob, the figures of its placement and its limits, 3,800 bytes in all.
FOREIGN_ANNOTATION_BYTES = ANNOTATION_BYTES - 4096

VISIBLE_DEVICES_ENV = "NVIDIA_VISIBLE_DEVICES"
ACCUMULATION_STEPS_ENV = "TANDEM_ACCUMULATION_STEPS"
MEMORY_FRACTION_ENV = "TANDEM_MEMORY_FRACTION"
#: PyTorch from 2.10 on takes its limit from it; earlier versions do not read it for CUDA.
PYTORCH_ALLOC_CONF_ENV = "PYTORCH_ALLOC_CONF"

# With these a job tells its progress to the agent of its node; `tandem.progress` reads them.
AGENT_PORT = 9405
AGENT_AUDIENCE = "tandem-agent"
#: The audience of a token by which a service of ours is known to the predictor alone.
PREDICTOR_AUDIENCE = "tandem-predictor"
#: Behind this Service the read-only API is reached through the API server's proxy.
API_SERVICE = "tandem-api"
#: The audience of a token that is worth something at the read-only API alone.
API_AUDIENCE = "tandem-api"
#: What the API server says of a token that is bound to a pod, in the extra fields of its user.
NODE_OF_TOKEN = "authentication.kubernetes.io/node-name"  # noqa: S105 - a field's name
#: Its token shows all that is to be read: it is for those who may make one.
READER_ACCOUNT = "tandem-reader"
#: The same for those who push and delete models.
EDITOR_ACCOUNT = "tandem-editor"
#: What a stream through the API server's proxy is upgraded to: TLS, to the extender itself.
UPGRADE = "tandem-tls"
AGENT_URL_ENV = "TANDEM_AGENT_URL"
HOST_IP_ENV = "TANDEM_HOST_IP"
TOKEN_FOLDER = "/var/run/secrets/tandem.gpu"  # noqa: S105 - a path
TOKEN_NAME = "token"  # noqa: S105 - a file's name
#: The most that a pod with GPUs may take to end after its deletion, in seconds; can be set.
MAX_GRACE_S = 3600
#: Given to containers that ask for no GPU: CUDA images bake in "all" otherwise.
NO_DEVICES = "void"

# Labels with which other schedulers mark a gang; accepted as well as our own annotation.
COSCHEDULING_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
COSCHEDULING_LEGACY_LABEL = "pod-group.scheduling.sigs.k8s.io"
#: Kubernetes' own group is named by a field of the pod. It stands among the labels of a pod under
#: this key, which no label can have.
POD_GROUP_FIELD = "{spec.schedulingGroup.podGroupName}"
#: Set by JobSet and LeaderWorkerSet on pods whose direct controller is only a part of the workload.
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
LEADER_WORKER_SET_LABEL = "leaderworkerset.sigs.k8s.io/name"
LEADER_WORKER_SET_GROUP_LABEL = "leaderworkerset.sigs.k8s.io/group-index"
LEADER_WORKER_SET_WORKER_LABEL = "leaderworkerset.sigs.k8s.io/worker-index"
#: Set on pods by the kinds that have several roles.
REPLICATED_JOB_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"
REPLICA_TYPE_LABEL = "training.kubeflow.org/replica-type"
JOB_ROLE_LABEL = "training.kubeflow.org/job-role"
#: Set by the operators of MPIJobs on the pods of launcher and workers.
JOB_NAME_LABEL = "training.kubeflow.org/job-name"
OPERATOR_LABEL = "training.kubeflow.org/operator-name"
MPI_OPERATOR = "mpi-operator"


#: The reason of the condition `Predicted` where the predictor did not say anything.
PREDICTOR_AWAY = "PredictorAway"


def is_gpu(resource: str) -> bool:
    """Say whether a resource of others stands for NVIDIA's GPUs, or for parts of them.

    Such as `nvidia.com/gpu`, `gpu.shared` and `mig-1g.5gb`; network cards of NVIDIA are none.
    """
    return _GPU_RESOURCES.fullmatch(resource.lower()) is not None
