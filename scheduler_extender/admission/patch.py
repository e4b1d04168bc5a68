"""The JSON patch that the webhook applies to a pod that requests GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler_extender.admission.checks import check_pod, environment, misuses_scheduler
from scheduler_extender.admission.config import AdmissionConfig
from scheduler_extender.admission.gpu_memory import may_share, memory_variables, memory_warnings
from scheduler_extender.admission.json_patch import Operation, add, escape
from scheduler_extender.admission.podshape import Placed, PodShape, PodSpec
from scheduler_extender.admission.request import Request, gets_gpus, is_ours
from tandem.contracts import names
from tandem.contracts.annotations import FieldError
from tandem.contracts.claims import ENTRY, claim_name, entry, is_entry

NVIDIA_RUNTIME_CLASS = "nvidia"
_GATE = {"name": names.SCHEDULING_GATE}
VOLUME = "tandem-token"
_TOKEN_LIFE_S = 3600
_LAST_OUTPUT = "FallbackToLogsOnError"
_TOLERATION = {"key": names.GPU_TAINT, "operator": "Exists", "effect": "NoSchedule"}


@dataclass(slots=True)
class Verdict:
    """The review of an object: errors, warnings for its author, and the patch."""

    errors: list[FieldError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    patch: list[Operation] = field(default_factory=list)


def admit_pod(
    pod: PodShape,
    config: AdmissionConfig,
    *,
    adopt: bool = False,
    has_runtime_class: bool = False,
    review: str = "",
) -> Verdict:
    """Check a pod at its creation and say what is to be changed in it.

    `adopt`: the namespace is adopted; `has_runtime_class`: the cluster has the class `nvidia`;
    `review` is the uid of the request, of which the name of the pod's claim is made. A
    pod that is not for us is let through as it is. Admitting what came out of an admission
    changes nothing more, since the API server may ask twice.
    """
    verdict = Verdict()
    if not is_ours(pod, adopt=adopt):
        verdict.errors = misuses_scheduler(pod, config.scheduler_name)
        return verdict
    request = check_pod(pod, config, adopt=adopt)
    if request.errors:
        verdict.errors = request.errors
        return verdict

    spec, patch = pod.spec, verdict.patch
    verdict.warnings += request.warnings
    patch += _resources(pod, request)
    patch += _annotations(pod, request, verdict.warnings)
    if spec.scheduler_name != config.scheduler_name:
        patch.append(add("/spec/schedulerName", config.scheduler_name))
    if _GATE not in spec.scheduling_gates:
        patch.append(_append("/spec/schedulingGates", spec.scheduling_gates, _GATE))
    if _TOLERATION not in spec.tolerations:
        patch.append(_append("/spec/tolerations", spec.tolerations, _TOLERATION))
    wants_class = config.runtime_class == "nvidia" or (
        config.runtime_class == "auto" and has_runtime_class
    )
    if wants_class and not spec.runtime_class_name:
        patch.append(add("/spec/runtimeClassName", NVIDIA_RUNTIME_CLASS))
    patch += _priority(spec, config.priority_class, verdict.warnings)
    patch += _environments(pod, request, config.agent_port, memory_limits=config.memory_limits)
    if config.gpu_claims and review:
        patch += _claim(pod, request, review)
    verdict.warnings += memory_warnings(pod, request, limited=config.memory_limits)
    return verdict


def _resources(pod: PodShape, request: Request) -> Iterator[Operation]:
    """Put our resource in the place of others."""
    container = pod.spec.containers[request.container]
    resources, at = container.resources, f"/spec/containers/{request.container}/resources"
    for section, name in request.taken_out:
        yield {"op": "remove", "path": f"{at}/{section}/{escape(name)}"}
    if resources.of(names.RESOURCE):
        return
    amount = str(request.gpus)
    if "resources" not in container.model_fields_set:
        yield add(at, {"limits": {names.RESOURCE: amount}})
        return
    if "limits" not in resources.model_fields_set:
        yield add(f"{at}/limits", {names.RESOURCE: amount})
    for section in sorted(resources.model_fields_set & {"limits", "requests"}):
        yield add(f"{at}/{section}/{escape(names.RESOURCE)}", amount)


def _claim(pod: PodShape, request: Request, review: str) -> Iterator[Operation]:
    """Name a claim in the pod, and in the container with the GPUs; its plan makes it."""
    if not any(map(is_entry, pod.spec.resource_claims)):
        named = entry(claim_name(review))
        yield _append("/spec/resourceClaims", pod.spec.resource_claims, named)
    present = pod.spec.containers[request.container].resources.claims
    if not any(each.get("name") == ENTRY for each in present):
        # The container has resources by now: ours is among them.
        at = f"/spec/containers/{request.container}/resources/claims"
        yield _append(at, present, {"name": ENTRY})


def _annotations(pod: PodShape, request: Request, warnings: list[str]) -> Iterator[Operation]:
    """Fix the GPUJob of the pod, and state the terms on which it gets its GPUs.

    Another webhook may change its labels before the pod is admitted: the name follows them until
    then, and is fixed afterwards. The API server has not named every pod without an owner yet; the
    name of its GPUJob is written when its gate is removed.
    """
    present, wanted = pod.metadata.annotations, dict(request.annotations)
    if pod.gpujob:
        wanted[names.GPU_JOB] = pod.gpujob
    if names.GPU_JOB in present and present[names.GPU_JOB] != pod.gpujob:
        warnings.append(
            f"metadata.annotations[{names.GPU_JOB}]: {pod.gpujob} takes its place; Tandem alone"
            " sets it"
        )
    if not present and wanted:
        yield add("/metadata/annotations", wanted)
        return
    for name, value in wanted.items():
        if present.get(name) != value:
            yield add(f"/metadata/annotations/{escape(name)}", value)


def _priority(spec: PodSpec, priority_class: str, warnings: list[str]) -> Iterator[Operation]:
    """Set our class; what the API server had derived from another one goes with it."""
    present = spec.priority_class_name
    if not priority_class or present == priority_class:
        return
    if present:
        warnings.append(
            f"spec.priorityClassName: {priority_class} takes the place of {present}: "
            "the queue decides on the order of jobs with GPUs"
        )
    yield add("/spec/priorityClassName", priority_class)
    if spec.priority is not None:
        yield {"op": "remove", "path": "/spec/priority"}
    if spec.preemption_policy is not None:
        yield {"op": "remove", "path": "/spec/preemptionPolicy"}


def _environments(
    pod: PodShape, request: Request, agent_port: int, *, memory_limits: bool
) -> Iterator[Operation]:
    """Put our variables first, so that the user's own may refer to them."""
    accumulation = pod.metadata.annotations.get(names.ACCUMULATION) == "true"
    for placed in pod.containers():
        gpu = gets_gpus(placed, request.container)
        ours = environment(
            gpu=gpu, accumulation=accumulation, limited=memory_limits and may_share(pod, request)
        )
        if gpu:
            ours += memory_variables(pod, request, limited=memory_limits)
        if gpu and agent_port and _tells_progress(placed, pod.spec):
            ours += _progress_variables(agent_port)
            yield from _token(placed, pod.spec)
        if gpu and placed.body.termination_message_policy != _LAST_OUTPUT:
            # The end of its output says whether a container ran out of GPU memory.
            yield add(f"{placed.pointer}/terminationMessagePolicy", _LAST_OUTPUT)
        missing = [variable for variable in ours if variable not in placed.body.env]
        if missing and not placed.body.env:
            yield add(f"{placed.pointer}/env", missing)
        else:
            for variable in reversed(missing):
                yield add(f"{placed.pointer}/env/0", variable)


def _append(path: str, present: Sequence[object], value: object) -> Operation:
    return add(f"{path}/-", value) if present else add(path, [value])


# --- what lets a job tell its progress to the agent of its node ---------------------------------
#
# The agent's address is known from the node's own, and a token for the agent's audience alone says
# which pod speaks. Nothing of the node is mounted, so pods stay within Pod Security's `restricted`.


def _tells_progress(placed: Placed, spec: PodSpec) -> bool:
    """Tell whether a container is to be given what it takes; who has set a part of it is not."""
    own = {variable.get("name") for variable in placed.body.env}
    return (
        names.AGENT_URL_ENV not in own
        and names.HOST_IP_ENV not in own
        and all(mount.mount_path != names.TOKEN_FOLDER for mount in placed.body.volume_mounts)
        and all(volume.name != VOLUME for volume in spec.volumes)
    )


def _progress_variables(port: int) -> list[dict[str, Any]]:
    """Return the environment with which `tandem.progress` finds the agent."""
    address = {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.hostIP"}}
    return [
        {"name": names.HOST_IP_ENV, "valueFrom": address},
        {"name": names.AGENT_URL_ENV, "value": f"http://$({names.HOST_IP_ENV}):{port}"},
    ]


def _token(placed: Placed, spec: PodSpec) -> Iterator[dict[str, Any]]:
    """Yield the operations that mount a token which says which pod this is, to agents alone."""
    source = {
        "audience": names.AGENT_AUDIENCE,
        "expirationSeconds": _TOKEN_LIFE_S,
        "path": names.TOKEN_NAME,
    }
    volume = {"name": VOLUME, "projected": {"sources": [{"serviceAccountToken": source}]}}
    mount = {"name": VOLUME, "mountPath": names.TOKEN_FOLDER, "readOnly": True}
    yield _append("/spec/volumes", spec.volumes, volume)
    yield _append(f"{placed.pointer}/volumeMounts", placed.body.volume_mounts, mount)
