"""Label selectors as Kubernetes means them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Say whether a metav1.LabelSelector matches; None matches nothing, an empty one everything."""
    if selector is None:
        return False
    wanted = (selector.get("matchLabels") or {}).items()
    return all(labels.get(key) == value for key, value in wanted) and all(
        _holds(expression, labels) for expression in selector.get("matchExpressions") or ()
    )


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case _:  # DoesNotExist: there is no other
            return value is None
