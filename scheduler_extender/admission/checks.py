"""Validates pods that request GPUs, and templates of such pods. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from scheduler_extender.admission.config import AdmissionConfig
from scheduler_extender.admission.podshape import Placed, PodShape
from scheduler_extender.admission.request import Request, gets_gpus, read_request
from scheduler_extender.cluster.selectors import excess
from tandem.contracts import names
from tandem.contracts.annotations import (
    MAX_ERRORS,
    AnnotationError,
    FieldError,
    annotation_field,
    check_names,
    parse_demand,
)
from tandem.contracts.claims import is_entry

#: What the API server fills in where a pod names no scheduler.
_DEFAULT_SCHEDULER = "default-scheduler"


def misuses_scheduler(pod: PodShape, scheduler_name: str, *, at: str = "") -> list[FieldError]:
    """Refuse Tandem's scheduler for a pod, or a template at the field `at`, without GPUs.

    kube-scheduler asks the extender only about pods that request the resource, so nothing in Tandem
    would count such a pod, queue it or fence its Binding.
    """
    if pod.spec.scheduler_name != scheduler_name:
        return []
    prefix = f"{at}." if at else ""
    return [
        FieldError(
            f"{prefix}spec.schedulerName",
            scheduler_name,
            f"this scheduler places only pods that request {names.RESOURCE}; remove schedulerName",
        )
    ]


def check_pod(pod: PodShape, config: AdmissionConfig, *, adopt: bool, at: str = "") -> Request:
    """Check a pod that requests GPUs, or a template of such pods at the field `at`.

    Returns what it asks for, with the first errors of all sorts, `MAX_ERRORS` at most.
    """
    prefix = f"{at}." if at else ""
    request = read_request(pod, prefix, adopt=adopt)
    errors = request.errors
    errors += islice(
        _check_grace(pod, prefix, config.max_termination_grace_s), MAX_ERRORS - len(errors)
    )
    rest = _check_rest(pod, config, prefix, request, fine=not errors)
    errors += list(islice(rest, MAX_ERRORS - len(errors)))
    return request


def _check_rest(
    pod: PodShape, config: AdmissionConfig, prefix: str, request: Request, *, fine: bool
) -> Iterator[FieldError]:
    """Yield the errors other than those of the request; `fine`: the request has none."""
    spec = pod.spec
    if fine:
        yield from _check_containers(pod, f"{prefix}spec", request.container)
    if spec.node_name:
        yield FieldError(
            f"{prefix}spec.nodeName",
            spec.node_name,
            "the scheduler chooses the node; use nodeSelector or affinity",
        )
    if spec.scheduler_name not in ("", _DEFAULT_SCHEDULER, config.scheduler_name):
        yield FieldError(
            f"{prefix}spec.schedulerName",
            spec.scheduler_name,
            f"{config.scheduler_name} schedules {names.RESOURCE}; leave it out",
        )
    yield from _check_requirements(pod, prefix)
    yield from check_devices(pod, config, prefix)
    where = f"{prefix}metadata.annotations"
    annotations = pod.metadata.annotations
    if not prefix and pod.gpujob and names.GPU_JOB in annotations:
        # Our own, of an earlier call: the API server asks again after other webhooks.
        annotations = {k: v for k, v in annotations.items() if k != names.GPU_JOB}
    yield from check_names(annotations, where=where)
    try:
        parse_demand(pod.metadata.annotations, request.gpus, where=where)
    except AnnotationError as error:
        yield from error.errors
    else:
        yield from _check_levels(annotations, config.topology_levels, where)


def _check_levels(
    annotations: Mapping[str, str], levels: Sequence[str], where: str
) -> Iterator[FieldError]:
    """Refuse a level of topology that the cluster does not have."""
    known = f"the levels of this cluster are {', '.join(levels)}" if levels else (
        "this cluster has no levels; remove it"
    )  # fmt: skip
    for name in (names.REQUIRED_TOPOLOGY, names.PREFERRED_TOPOLOGY):
        level = annotations.get(name)
        if level is not None and level not in levels:
            yield FieldError(annotation_field(name, where), level, known)


def _check_grace(pod: PodShape, prefix: str, max_grace_s: int) -> Iterator[FieldError]:
    """Refuse a time to end for which a deleted pod would keep its GPUs from all others."""
    grace_s = pod.spec.termination_grace_period_seconds
    if grace_s is not None and grace_s > max_grace_s:
        yield FieldError(
            f"{prefix}spec.terminationGracePeriodSeconds",
            str(grace_s),
            f"a pod with GPUs keeps them until it has ended; write {max_grace_s} or less",
        )


def _check_requirements(pod: PodShape, prefix: str) -> Iterator[FieldError]:
    """Refuse more requirements on nodes than the queue evaluates."""
    terms = pod.spec.affinity.node_affinity.required.node_selector_terms
    asked = [each for term in terms for each in (*term.match_expressions, *term.match_fields)]
    values = sum(len(each.values) for each in asked)
    labels, tolerations = len(pod.spec.node_selector), len(pod.spec.tolerations)
    too_many = excess(labels, len(terms), len(asked), values, tolerations)
    if too_many:
        yield FieldError(f"{prefix}spec", "its requirements on nodes", too_many)


#: Variables that Tandem alone sets.
_RESERVED = (names.VISIBLE_DEVICES_ENV, names.ACCUMULATION_STEPS_ENV, names.MEMORY_FRACTION_ENV)


def environment(*, gpu: bool, accumulation: bool, limited: bool) -> list[dict[str, Any]]:
    """Return the variables of a container: the chosen GPUs, or none of the node's.

    Images for CUDA bake in NVIDIA_VISIBLE_DEVICES=all, so that a container without the variable
    would see every GPU of its node.
    """
    if not gpu:
        return [{"name": names.VISIBLE_DEVICES_ENV, "value": names.NO_DEVICES}]
    variables = [from_annotation(names.VISIBLE_DEVICES_ENV, names.VISIBLE_DEVICES)]
    if accumulation:
        variables.append(from_annotation(names.ACCUMULATION_STEPS_ENV, names.ACCUMULATION_STEPS))
    if limited:
        variables.append(from_annotation(names.MEMORY_FRACTION_ENV, names.MEMORY_FRACTION))
    return variables


def _check_containers(pod: PodShape, spec_field: str, gpu_index: int) -> Iterator[FieldError]:
    """Refuse variables that Tandem sets, where a container brings a value of its own."""
    if not pod.spec.containers:  # as an annotation may ask for GPUs
        yield FieldError(f"{spec_field}.containers", "", "a pod has at least one container")
    for placed in pod.containers():
        ours = environment(gpu=gets_gpus(placed, gpu_index), accumulation=True, limited=True)
        for position, variable in enumerate(placed.body.env):
            name = variable.get("name")
            if name in _RESERVED and variable not in ours:
                yield FieldError(
                    f"{placed.field(spec_field)}.env[{position}]",
                    f"{name}={str(variable.get('value', ''))[:64]}",
                    "Tandem alone sets this variable; remove it",
                )


def from_annotation(variable: str, annotation: str) -> dict[str, Any]:
    """Return a variable that has the value of an annotation of the pod; empty where it has none."""
    # With the apiVersion that the API server fills in, so that ours is known again.
    reference = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{annotation}']"}
    return {"name": variable, "valueFrom": {"fieldRef": reference}}


# --- ways to a GPU around the environment, reported at apply, in words --------------------------
#
# The admission policies refuse the same when a pod is created; a Job is refused before it has pods.

#: The annotations by which container runtimes and their plugins give devices, or mounts of the
#: node, to containers: CDI, the device injectors of NRI, GKE. A suffix may name a container.
#: The chart's policy `tandem-devices` has the same expressions.
_INJECTORS = re.compile(
    r"(nvidia\.)?cdi\.k8s\.io"
    r"|(cdi|cdi-devices|devices|mounts)\.(nri\.io|noderesource\.dev)"
    r"|devices\.gke\.io"
)
#: CRI-O's annotation names devices by path, separated by commas. These are no GPUs.
_CRIO = ("io.kubernetes.cri-o.Devices", "devices.crio.io")
_HARMLESS_DEVICE = re.compile(
    r"(/dev/(fuse|kvm|net/tun|vhost-net|infiniband/[A-Za-z0-9_]+)(:[^,]*)?)?"
)
_TOOLKIT_MOUNT = "nvidia-container-devices"
#: Capabilities with which a container leaves its isolation, or changes which devices it may open.
_CAPABILITIES = frozenset(
    (
        "ALL",
        "SYS_ADMIN",
        "SYS_MODULE",
        "SYS_RAWIO",
        "DAC_READ_SEARCH",
        "BPF",
        "SYS_BOOT",
        "MAC_ADMIN",
    )
)


def check_devices(pod: PodShape, config: AdmissionConfig, prefix: str) -> Iterator[FieldError]:
    """Yield what a pod, or a template that stands at `prefix`, would take past the scheduler."""
    for name, value in pod.metadata.annotations.items():
        if _gives_devices(name, value):
            field = annotation_field(name, f"{prefix}metadata.annotations")
            yield FieldError(field, value, "devices are not given by annotations here; remove it")
    if config.resource_claims == "refuse":
        for index, claim in enumerate(pod.spec.resource_claims):
            if config.gpu_claims and is_entry(claim):
                continue  # what the webhook has written, when it is asked again
            yield FieldError(
                f"{prefix}spec.resourceClaims[{index}]",
                str(claim.get("name", "")),
                f"a pod that asks for {names.RESOURCE} takes no devices by claims; remove it",
            )
    if pod.spec.host_pid:
        yield FieldError(
            f"{prefix}spec.hostPID",
            "true",
            "a pod with GPUs does not share the processes of its node; leave it out",
        )
    for placed in pod.containers():
        yield from _check_security(placed, f"{placed.field(f'{prefix}spec')}.securityContext")
    for index, volume in enumerate(pod.spec.volumes):
        path = volume.host_path.path if volume.host_path else None
        if path is not None and not _may_mount(path, config.host_paths):
            yield FieldError(
                f"{prefix}spec.volumes[{index}].hostPath.path",
                path,
                "a pod with GPUs mounts only what an administrator has allowed of its node "
                "(admission.host_paths); write one of those folders, or use another kind of volume",
            )
    for placed in pod.containers():
        for index, mount in enumerate(placed.body.volume_mounts):
            if _TOOLKIT_MOUNT in _parts(mount.mount_path):
                yield FieldError(
                    f"{placed.field(f'{prefix}spec')}.volumeMounts[{index}].mountPath",
                    mount.mount_path,
                    "GPUs are not chosen by mounts here; remove it",
                )


def _gives_devices(annotation: str, value: str) -> bool:
    """Say whether an annotation has a runtime give a container devices of its node."""
    if annotation.startswith(_CRIO):
        return not all(_HARMLESS_DEVICE.fullmatch(one.strip(" ")) for one in value.split(","))
    return _INJECTORS.match(annotation) is not None


def _may_mount(path: str, allowed: Iterable[str]) -> bool:
    """Say whether a path of the node is allowed; `/data/*` is /data and all below it."""
    parts = _parts(path)
    place = "/" + "/".join(parts)
    return ".." not in parts and any(
        place == one.removesuffix("/*") or (one.endswith("/*") and place.startswith(one[:-1]))
        for one in allowed
    )


def _check_security(placed: Placed, at: str) -> Iterator[FieldError]:
    """Yield what lets a container of any kind leave its isolation, next to GPUs."""
    security = placed.body.security_context
    if security.privileged:
        yield FieldError(
            f"{at}.privileged",
            "true",
            "a privileged container sees every GPU of its node; leave it out",
        )
    if security.proc_mount not in ("", "Default"):
        yield FieldError(
            f"{at}.procMount",
            security.proc_mount,
            "a pod with GPUs keeps the default; leave it out",
        )
    for index, capability in enumerate(security.capabilities.add):
        if capability.upper().removeprefix("CAP_") in _CAPABILITIES:
            yield FieldError(
                f"{at}.capabilities.add[{index}]",
                capability,
                "with it a container can reach every GPU of its node; leave it out",
            )


def _parts(path: str) -> list[str]:
    """Return the names in a path: //dev/./nvidia0 is /dev/nvidia0."""
    return [part for part in path.split("/") if part not in ("", ".")]
