"""Selectors of labels and of nodes, as Kubernetes means them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Say whether a metav1.LabelSelector matches; None matches nothing, an empty one everything."""
    if selector is None:
        return False
    wanted = (selector.get("matchLabels") or {}).items()
    return all(labels.get(key) == value for key, value in wanted) and all(
        holds(each, labels.get(each["key"])) for each in selector.get("matchExpressions") or ()
    )


def holds(expression: Mapping[str, Any], value: str | None) -> bool:
    """Say whether an expression holds for the value of its key, None where that is absent.

    `Gt` and `Lt` are for node selectors alone.
    """
    values = expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            try:
                left, right = int(value or ""), int(next(iter(values), ""))
            except ValueError:
                return False
            return left > right if operator == "Gt" else left < right
        case _:
            return False  # an operator of a later Kubernetes: leave it to the plugins' own time
