"""What a kubelet hands to the containers of a pod, where none runs."""

from __future__ import annotations

import re
from typing import Any

_ANNOTATION = re.compile(r"metadata\.annotations\['(.+)'\]")
_REFERENCE = re.compile(r"\$\((\w+)\)")


def resolved_environment(pod: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the variables of each container by its name: those from annotations, and `$(NAME)`.

    As a kubelet does, a variable refers to those before it, and an annotation that the pod lacks
    is empty.
    """
    spec, annotations = pod["spec"], pod["metadata"].get("annotations", {})
    found = {}
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        variables: dict[str, str] = {}
        for variable in container.get("env", ()):
            path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            annotation = _ANNOTATION.fullmatch(path)
            variables[variable["name"]] = (
                annotations.get(annotation[1], "")
                if annotation
                else _resolved(variable.get("value", ""), variables)
            )
        found[container["name"]] = variables
    return found


def _resolved(text: str, variables: dict[str, str]) -> str:
    return _REFERENCE.sub(lambda name: variables.get(name[1], name[0]), text)
