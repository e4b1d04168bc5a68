"""Variables by which JAX and TensorFlow leave a GPU's memory to its other jobs. Pure.

By default JAX takes three quarters of a GPU's memory at its start and TensorFlow nearly all of it,
whatever the job needs. The next job on that GPU then runs out of memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from scheduler_extender.admission.podshape import PodShape
from tandem.contracts import names
from tandem.contracts.annotations import MAX_ERRORS

#: variable -> the value with which the framework takes memory as it needs it, and the framework.
DEFAULTS = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": ("false", "JAX"),
    "TF_FORCE_GPU_ALLOW_GROWTH": ("true", "TensorFlow"),
}
_SHOWN = 64  # characters of a value


def may_share(pod: PodShape, *, adopt: bool) -> bool:
    """Say whether the job may ever share a GPU: not where it asks for exclusive GPUs.

    Adoption asks for them on behalf of a pod of an adopted namespace without annotations.
    """
    annotations = pod.metadata.annotations
    if names.EXCLUSIVE in annotations:
        return annotations[names.EXCLUSIVE] != "true"
    stock = adopt and any(
        each.body.resources.of(names.NVIDIA_RESOURCE) for each in pod.containers()
    )
    return not stock or any(name in annotations for name in names.USER_ANNOTATIONS)


def variables(pod: PodShape, gpu_index: int, *, adopt: bool) -> list[dict[str, str]]:
    """Return the variables for the container with the GPUs; a value of the user's own is kept."""
    if not may_share(pod, adopt=adopt):
        return []
    own = {variable.get("name") for variable in pod.spec.containers[gpu_index].env}
    return [
        {"name": name, "value": value} for name, (value, _) in DEFAULTS.items() if name not in own
    ]


def warnings(pod: PodShape, gpu_index: int, *, adopt: bool, at: str = "") -> Iterator[str]:
    """Yield what to say to a user whose own value takes the memory of the jobs on the same GPU."""
    if not may_share(pod, adopt=adopt):
        return
    prefix = f"{at}." if at else ""
    said = 0
    for position, variable in enumerate(pod.spec.containers[gpu_index].env):
        name = str(variable.get("name"))
        value, framework = DEFAULTS.get(name, ("", ""))
        if not framework or variable.get("value") == value:
            continue
        given = str(variable["value"])[:_SHOWN] if "value" in variable else "(from elsewhere)"
        yield (
            f"{prefix}spec.containers[{gpu_index}].env[{position}]: {name}={given} may let "
            f"{framework} take most of the GPU's memory at its start, so that jobs that share it "
            f"run out of memory; remove it, or set {names.EXCLUSIVE}"
        )
        said += 1
        if said == MAX_ERRORS:
            return
