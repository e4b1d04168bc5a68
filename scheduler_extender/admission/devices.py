"""The ways to a GPU around the environment, in a pod of ours: told at apply, in words. Pure.

The admission policies refuse the same when a pod is created; a Job is refused before it has pods.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from scheduler_extender.admission.podshape import Placed, PodShape
from tandem.contracts.annotations import FieldError, annotation_field

_CDI = ("cdi.k8s.io", "nvidia.cdi.k8s.io")
_TOOLKIT_MOUNT = "nvidia-container-devices"
#: Devices, the services that give them to containers, the files that configure these services, and
#: the folders above. A pod that can write one of them can get every GPU of its node. The chart's
#: policy `tandem-pods` has the same expression.
_OF_THE_NODE = re.compile(
    r"/(dev|etc|run|var|var/run|var/lib|usr|boot|root)?$"
    r"|/(proc|sys)(/|$)"
    r"|/dev/(nvidia|char|block|dri|vfio|mem|kmem|port)"
    r"|/(var/)?run/(nvidia|cdi|containerd|crio|docker|k3s|cri-dockerd|systemd|dbus)"
    r"|/etc/(cdi|nvidia|containerd|crio|docker|kubernetes|systemd|cron|ld\.so)"
    r"|/var/lib/(kubelet|containerd|containers|docker|rancher)"
)
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


def check_devices(pod: PodShape, prefix: str) -> Iterator[FieldError]:
    """Yield what a pod, or a template that stands at `prefix`, would take past the scheduler."""
    for name, value in pod.metadata.annotations.items():
        if name.startswith(_CDI):
            field = annotation_field(name, f"{prefix}metadata.annotations")
            yield FieldError(field, value, "GPUs are not given by CDI annotations here; remove it")
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
        if path is not None and _OF_THE_NODE.match("/" + "/".join(_parts(path))):
            yield FieldError(
                f"{prefix}spec.volumes[{index}].hostPath.path",
                path,
                "a pod with GPUs mounts neither devices of its node nor what hands them out",
            )
    for placed in pod.containers():
        for index, mount in enumerate(placed.body.volume_mounts):
            if _TOOLKIT_MOUNT in _parts(mount.mount_path):
                yield FieldError(
                    f"{placed.field(f'{prefix}spec')}.volumeMounts[{index}].mountPath",
                    mount.mount_path,
                    "GPUs are not chosen by mounts here; remove it",
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
