"""Variables by which frameworks leave a GPU's memory to its other jobs, and values in their place.

By default JAX takes three quarters of a GPU's memory at its start, TensorFlow nearly all of it,
whatever the job needs, and PyTorch whatever the job asks for. The next job on that GPU then runs
out of memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from scheduler_extender.admission.checks import from_annotation
from scheduler_extender.admission.podshape import PodShape
from scheduler_extender.admission.request import Request
from tandem.contracts import names
from tandem.contracts.annotations import MAX_ERRORS

_SHOWN = 64  # characters of a value
#: variable -> the value with which the framework takes memory as it needs it, and the framework.
_GROWTH = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": ("false", "JAX"),
    "TF_FORCE_GPU_ALLOW_GROWTH": ("true", "TensorFlow"),
}


@dataclass(frozen=True, slots=True)
class _Limit:
    """A framework's limit. It is left out next to a variable that says the same otherwise.

    JAX ends with an error where both of its names are set, and PyTorch reads the first alone that
    it knows. Empty is as good as absent: that is what a pod without a limit reads.
    """

    framework: str
    variable: dict[str, Any]
    other_names: frozenset[str]
    instead: str = ""  # what a user may do besides taking a value of the own away

    @property
    def names(self) -> frozenset[str]:
        return self.other_names | {self.variable["name"]}


_LIMITS = (
    _Limit(
        "JAX",
        {"name": "XLA_PYTHON_CLIENT_MEM_FRACTION", "value": f"$({names.MEMORY_FRACTION_ENV})"},
        frozenset({"XLA_CLIENT_MEM_FRACTION"}),
    ),
    # Not `PYTORCH_CUDA_ALLOC_CONF`: versions before 2.10 read that one, and end with an error at a
    # setting that they do not know.
    _Limit(
        "PyTorch",
        from_annotation(names.PYTORCH_ALLOC_CONF_ENV, names.PYTORCH_ALLOC_CONF),
        frozenset({"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"}),
        ", import tandem.progress",
    ),
)


def may_share(pod: PodShape, request: Request) -> bool:
    """Say whether the job may ever share a GPU: not where it asks for exclusive GPUs.

    Adoption asks for them on behalf of a pod of an adopted namespace without annotations.
    """
    stated = pod.metadata.annotations.get(names.EXCLUSIVE)
    return (stated or request.annotations.get(names.EXCLUSIVE)) != "true"


def memory_variables(pod: PodShape, request: Request, *, limited: bool) -> list[dict[str, Any]]:
    """Return the variables for the container with the GPUs; a value of the user's own is kept."""
    if not may_share(pod, request):
        return []
    own = {str(variable.get("name")) for variable in pod.spec.containers[request.container].env}
    wanted: list[dict[str, Any]] = [
        {"name": name, "value": value} for name, (value, _) in _GROWTH.items() if name not in own
    ]
    if limited:
        wanted += [limit.variable for limit in _LIMITS if own.isdisjoint(limit.names)]
    return wanted


def memory_warnings(
    pod: PodShape, request: Request, *, limited: bool, at: str = ""
) -> Iterator[str]:
    """Yield what to say to a user whose own value takes the memory of the jobs on the same GPU."""
    if not may_share(pod, request):
        return
    prefix = f"{at}." if at else ""
    said = 0
    for position, variable in enumerate(pod.spec.containers[request.container].env):
        does, instead = _effect(variable, limited=limited)
        if not does:
            continue
        given = str(variable["value"])[:_SHOWN] if "value" in variable else "(from elsewhere)"
        yield (
            f"{prefix}spec.containers[{request.container}].env[{position}]: {variable['name']}="
            f"{given} {does}; jobs that share the GPU may then run out of memory; remove it"
            f"{instead}, or set {names.EXCLUSIVE}"
        )
        said += 1
        if said == MAX_ERRORS:
            return


def _effect(variable: dict[str, Any], *, limited: bool) -> tuple[str, str]:
    """Return what a variable of the user's own does to the jobs next to it; "" where nothing."""
    name = str(variable.get("name"))
    value, framework = _GROWTH.get(name, ("", ""))
    if framework and variable.get("value") != value:
        return f"may let {framework} take most of the GPU's memory at its start", ""
    for limit in _LIMITS if limited else ():
        if name in limit.names and variable != limit.variable:
            does = (
                "takes the place of the job's own limit, so that"
                f" {limit.framework} may take more than was planned"
            )
            return does, limit.instead
    return "", ""
