"""JSON patches (RFC 6902): the operations that the webhook answers with. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

Operation = dict[str, Any]


def add(path: str, value: object) -> Operation:
    """Return the operation that puts a value at a place."""
    return {"op": "add", "path": path, "value": value}


def replace(path: str, value: object) -> Operation:
    """Return the operation that puts a value in the place of what is there."""
    return {"op": "replace", "path": path, "value": value}


def escape(name: str) -> str:
    """Return a key as a JSON pointer writes it (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def patched(document: Mapping[str, Any], operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the document after a JSON patch (RFC 6902) of `add`, `remove` and `replace`."""
    result = copy.deepcopy(dict(document))
    for operation in operations:
        *parents, last = (
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        )
        target: Any = result
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target[part]
        if operation["op"] == "remove":
            del target[int(last) if isinstance(target, list) else last]
        elif isinstance(target, list) and operation["op"] == "add":
            target.insert(len(target) if last == "-" else int(last), operation["value"])
        elif isinstance(target, list):
            target[int(last)] = operation["value"]
        else:
            target[last] = operation["value"]
    return result
