"""The kinds of workloads that run with their own controllers, and how each of them is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

MANIFESTS = Path(__file__).parents[2] / "deploy" / "examples" / "kinds"
Object = dict[str, Any]
GPUS = "tandem.gpu/gpu"


@dataclass(frozen=True)
class Example:
    """A kind, shown by the manifest in `file`: one role without GPUs, `gang` pods with one each.

    `operators` are those that run for it, else `controller` is what makes its pods. `suspend` is
    the owner's own field. `without` says why a cell of the table does not apply.
    `fails` has the labels of the pods of which one fails, for its controller to make it anew (none:
    those with GPUs), with `failure_status`. `renewed`: resumed, it makes what owns its pods anew,
    by another name. `last` has the labels of the pods that end for it to end, with exit status
    `exit_status` (none: all pods end), and `end` is the phase of its GPUJob then.
    Of a kind that is `alone` each of the `gang` pods starts by itself. `rests` is the plural of
    what it makes and has the field `suspend`, if that is not the workload. One that makes workload
    after workload makes no more once `halted` is merged into it. `gated`: the API server has the
    kind with a feature gate only.
    """

    kind: str
    plural: str
    file: str
    controller: str = "Kubernetes' own"
    operators: tuple[str, ...] = ()
    gang: int = 3
    suspend: tuple[str, ...] = ()
    fails: Mapping[str, str] = field(default_factory=dict)
    failure_status: int = 1
    renewed: bool = False
    last: Mapping[str, str] = field(default_factory=dict)
    exit_status: int = 0
    end: str = "Completed"
    without: Mapping[str, str] = field(default_factory=dict)
    given: tuple[Object, ...] = ()  # instead of a file
    alone: bool = False
    rests: str = ""
    halted: Object = field(default_factory=dict)
    gated: bool = False

    def objects(self) -> list[Object]:
        """Return what the manifest has, for the caller to change."""
        if self.given:
            return deepcopy(list(self.given))
        return list(yaml.safe_load_all((MANIFESTS / self.file).read_text()))

    @property
    def workload(self) -> Object:
        """The workload in the manifest, which comes last."""
        return self.objects()[-1]

    @property
    def name(self) -> str:
        """The name of the workload."""
        return str(self.workload["metadata"]["name"])

    def path(self, namespace: str) -> str:
        """Return where the API server has the workloads of the kind."""
        return f"/apis/{self.workload['apiVersion']}/namespaces/{namespace}/{self.plural}"

    def path_of_suspended(self, namespace: str) -> str:
        """Return where the API server has what rests when the workload gives way."""
        return f"{self.path(namespace).rpartition('/')[0]}/{self.rests or self.plural}"


_ALONE = "its pods start one by one"
_ENDLESS = "it has no end, and is never preempted"
_NEVER_PREEMPTED = "it is never preempted"
CHECKED = "checked at apply"
GANG = "gang right"
WAITS = "waits with a reason"
TOGETHER = "starts together"
GIVES_WAY = "gives way and resumes"
RETRIED = "fails and is retried"
ENDS = "ends"
QUOTA = "quota counted"
NO_GPUS = "roles without GPUs not counted"
CELLS = (CHECKED, GANG, WAITS, TOGETHER, GIVES_WAY, RETRIED, ENDS, QUOTA, NO_GPUS)

ONE_ROLE = "it has one role"
_LAUNCHER = {"training.kubeflow.org/job-role": "launcher"}
_FIRST_WORKER = {
    "training.kubeflow.org/replica-type": "worker",
    "training.kubeflow.org/replica-index": "0",
}
#: With `restartPolicy: ExitCode`, a status below 128 is a failure of the program, which stays.
_RETRYABLE = 137
EXAMPLES: tuple[Example, ...] = (
    Example(
        "Job",
        "jobs",
        "job.yaml",
        suspend=("spec", "suspend"),
        without={NO_GPUS: ONE_ROLE},
    ),
    Example(
        "CronJob",
        "cronjobs",
        "cronjob.yaml",
        suspend=("spec", "suspend"),
        rests="jobs",
        halted={"spec": {"suspend": True}},
        without={NO_GPUS: ONE_ROLE},
    ),
    Example(
        "PodGroup (scheduling.k8s.io)",
        "jobs",
        "podgroup.yaml",
        gated=True,
        without={NO_GPUS: ONE_ROLE, GIVES_WAY: _NEVER_PREEMPTED},
    ),
    *(
        Example(
            kind,
            f"{kind.lower()}s",
            f"{kind.lower()}.yaml",
            alone=True,
            without={
                TOGETHER: _ALONE,
                NO_GPUS: ONE_ROLE,
                **dict.fromkeys((GIVES_WAY, ENDS), _ENDLESS),
            },
        )
        for kind in ("Deployment", "StatefulSet")
    ),
    Example(
        "JobSet",
        "jobsets",
        "jobset.yaml",
        operators=("jobset",),
        suspend=("spec", "suspend"),
    ),
    Example(
        "LeaderWorkerSet",
        "leaderworkersets",
        "leaderworkerset.yaml",
        operators=("lws",),
        without=dict.fromkeys((GIVES_WAY, ENDS), _ENDLESS),
    ),
    Example(
        "RayCluster",
        "rayclusters",
        "raycluster.yaml",
        operators=("kuberay",),
        suspend=("spec", "suspend"),
        without={ENDS: "it has no end of its own"},
    ),
    # Ray says when the work of a RayJob is done, and does not run here: it ends by a failure of
    # the pod that submits the work.
    Example(
        "RayJob",
        "rayjobs",
        "rayjob.yaml",
        operators=("kuberay",),
        suspend=("spec", "suspend"),
        renewed=True,
        last={"batch.kubernetes.io/job-name": "train"},
        exit_status=1,
        end="Failed",
    ),
    Example(
        "RayService",
        "rayservices",
        "rayservice.yaml",
        operators=("kuberay",),
        without=dict.fromkeys((GIVES_WAY, ENDS), _ENDLESS),
    ),
    Example(
        "MPIJob",
        "mpijobs",
        "mpijob.yaml",
        operators=("mpi-operator",),
        suspend=("spec", "runPolicy", "suspend"),
        fails=_LAUNCHER,
        last=_LAUNCHER,
    ),
    Example(
        "PyTorchJob",
        "pytorchjobs",
        "pytorchjob.yaml",
        operators=("training-operator",),
        suspend=("spec", "runPolicy", "suspend"),
        failure_status=_RETRYABLE,
        without={NO_GPUS: "both of its roles train"},
    ),
    Example(
        "TFJob",
        "tfjobs",
        "tfjob.yaml",
        operators=("training-operator",),
        suspend=("spec", "runPolicy", "suspend"),
        failure_status=_RETRYABLE,
        last=_FIRST_WORKER,
    ),
    Example(
        "XGBoostJob",
        "xgboostjobs",
        "xgboostjob.yaml",
        operators=("training-operator",),
        suspend=("spec", "runPolicy", "suspend"),
        failure_status=_RETRYABLE,
        without={NO_GPUS: "both of its roles train"},
    ),
    Example(
        "PaddleJob",
        "paddlejobs",
        "paddlejob.yaml",
        operators=("training-operator",),
        suspend=("spec", "runPolicy", "suspend"),
        failure_status=_RETRYABLE,
    ),
    Example(
        "JAXJob",
        "jaxjobs",
        "jaxjob.yaml",
        operators=("training-operator",),
        suspend=("spec", "runPolicy", "suspend"),
        failure_status=_RETRYABLE,
        without={NO_GPUS: ONE_ROLE},
    ),
    Example(
        "TrainJob",
        "trainjobs",
        "trainjob.yaml",
        operators=("jobset", "trainer"),
        suspend=("spec", "suspend"),
    ),
    Example(
        "Job (batch.volcano.sh)",
        "jobs",
        "volcano-job.yaml",
        operators=("volcano",),
        without={GIVES_WAY: _NEVER_PREEMPTED},
    ),
)


def templates(value: object) -> Iterator[Object]:
    """Yield each template of pods in an object."""
    if isinstance(value, dict):
        if "containers" in value.get("spec", {}):
            yield value
            return
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from templates(each)


def asks(pod: Object) -> bool:
    """Say whether a pod, or a template of pods, asks for GPUs."""
    return any(
        GPUS in (container.get("resources") or {}).get("limits", {})
        for container in pod["spec"]["containers"]
    )


def at(value: Object, way: tuple[str, ...]) -> Any:
    """Return what a path leads to in an object, None where nothing stands there."""
    found: Any = value
    for step in way:
        found = (found or {}).get(step)
    return found
