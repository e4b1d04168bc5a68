"""The ways to a GPU around the environment, in a pod of ours: told at apply, in words. Pure.

The admission policies refuse the same when a pod is created; a Job is refused before it has pods.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from scheduler_extender.admission.podshape import PodShape
from tandem.contracts.annotations import FieldError, annotation_field

_CDI = ("cdi.k8s.io", "nvidia.cdi.k8s.io")
_TOOLKIT_MOUNT = "nvidia-container-devices"
#: Devices, what hands them out, and the folders above these.
_OF_THE_NODE = re.compile(
    r"/(dev|etc|run|var|var/run|var/lib)?$"
    r"|/dev/nvidia"
    r"|/(var/)?run/(nvidia|cdi|containerd|crio)"
    r"|/etc/(cdi|nvidia-container-runtime|containerd|crio)"
    r"|/var/lib/kubelet"
)


def check_devices(pod: PodShape, prefix: str) -> Iterator[FieldError]:
    """Yield what a pod, or a template that stands at `prefix`, would take past the scheduler."""
    for name, value in pod.metadata.annotations.items():
        if name.startswith(_CDI):
            field = annotation_field(name, f"{prefix}metadata.annotations")
            yield FieldError(field, value, "GPUs are not given by CDI annotations here; remove it")
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


def _parts(path: str) -> list[str]:
    """Return the names in a path: //dev/./nvidia0 is /dev/nvidia0."""
    return [part for part in path.split("/") if part not in ("", ".")]
