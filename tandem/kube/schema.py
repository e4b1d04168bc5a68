"""Validates objects as an API server does by itself: names, labels, sizes, schemas of ours.

`tests/kube/test_kube_contract.py` compares it with a real one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from typing import Any

from tandem.contracts.crds import DEFINITIONS
from tandem.contracts.names import ANNOTATION_BYTES
from tandem.kube.errors import Invalid
from tandem.kube.jsontext import encoded
from tandem.kube.resource import CONFIG_MAPS, NAMESPACES, Resource

Object = Mapping[str, Any]

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LONGEST_LABEL, _LONGEST_NAME = 63, 253
#: What etcd takes in one request, and what one ConfigMap may hold.
ETCD_BYTES = 3 << 19
_CONFIG_MAP_BYTES = 1 << 20
_DATE_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", flags=re.ASCII
)
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,),
    "integer": (int, float), "number": (int, float),
}  # fmt: skip


def check(resource: Resource, item: Object, before: Object | None = None) -> None:
    """Raise what the API server answers to an object that it does not accept.

    `before` is the object that `item` takes the place of: what has not changed is not checked
    against a schema again.

    Raises:
        Invalid: it is no JSON, a name, a label, an annotation or a field is not allowed, or it is
            larger than etcd takes (to which the API server answers 500, as to a fault).
    """
    size = len(encoded(item))
    metadata = item["metadata"]
    wrong = [*_wrong_names(resource, metadata), *schema_errors(resource, item, before)]
    if resource == CONFIG_MAPS and size > _CONFIG_MAP_BYTES:
        held = sum(len(value.encode()) for value in (item.get("data") or {}).values())
        if held > _CONFIG_MAP_BYTES:
            wrong.append(f"[]: Too long: may not be more than {_CONFIG_MAP_BYTES} bytes")
    if wrong:
        words = f'{resource.kind} "{metadata.get("name", "")}" is invalid: {"; ".join(wrong[:10])}'
        raise Invalid(422, words, "Invalid")
    if size > ETCD_BYTES:
        raise Invalid(500, "etcdserver: request is too large")


def _wrong_names(resource: Resource, metadata: Object) -> Iterator[str]:
    name = metadata.get("name", "")
    label = resource == NAMESPACES
    fits = len(name) <= (_LONGEST_LABEL if label else _LONGEST_NAME)
    if not fits or not (_DNS_LABEL if label else _SUBDOMAIN).fullmatch(name):
        yield f'metadata.name: Invalid value: "{name[:300]}"'
    for key, value in (metadata.get("labels") or {}).items():
        if not _qualified(key):
            yield f'metadata.labels: Invalid value: "{key[:300]}"'
        if not _word(value, empty=True):
            yield f'metadata.labels: Invalid value: "{str(value)[:300]}"'
    annotations = metadata.get("annotations") or {}
    for key in annotations:
        if not _qualified(key.lower()):
            yield f'metadata.annotations: Invalid value: "{key[:300]}"'
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > ANNOTATION_BYTES:
        yield f"metadata.annotations: Too long: may not be more than {ANNOTATION_BYTES} bytes"


def _word(text: object, *, empty: bool = False) -> bool:
    if not isinstance(text, str) or len(text) > _LONGEST_LABEL:
        return False
    return (empty and not text) or _QUALIFIED.fullmatch(text) is not None


def _qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if slash and not (len(prefix) <= _LONGEST_NAME and _SUBDOMAIN.fullmatch(prefix)):
        return False
    return _word(name)


# --- schemas of our definitions -------------------------------------------------------------------


def schema_errors(resource: Resource, item: Object, before: Object | None = None) -> list[str]:
    """Return what the definition of a resource of ours does not allow; nothing of others."""
    schema = _schemas().get((resource.group, resource.plural))
    return [] if schema is None else list(_wrong(schema, item, before, ""))


@cache
def _schemas() -> dict[tuple[str, str], dict[str, Any]]:
    manifests = [definition.manifest()["spec"] for definition in DEFINITIONS]
    return {
        (each["group"], each["names"]["plural"]): each["versions"][0]["schema"]["openAPIV3Schema"]
        for each in manifests
    }


@cache
def _pattern(text: str) -> re.Pattern[str]:
    # In Go `$` is the end of the text; in Python it matches before a last line break as well.
    return re.compile(text[:-1] + r"\Z" if text.endswith("$") else text)


def _wrong(schema: dict[str, Any], value: Any, before: Any, at: str) -> Iterator[str]:  # noqa: ANN401 - JSON
    if before is not None and value == before:
        return
    kind = schema["type"]
    wrong_type = not isinstance(value, _TYPES[kind]) or (
        isinstance(value, bool) and kind != "boolean"
    )
    if wrong_type or (kind == "integer" and value != int(value)):
        yield f"{at}: Invalid value: must be of type {kind}"
        return
    match kind:
        case "object":
            yield from _wrong_object(schema, value, before if isinstance(before, dict) else {}, at)
        case "array":
            if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
                yield f"{at}: Invalid value: {len(value)} items"
                return
            for index, each in enumerate(value):
                yield from _wrong(schema["items"], each, None, f"{at}[{index}]")
        case "string":
            yield from _wrong_text(schema, value, at)
        case "integer" | "number":
            low, high = schema.get("minimum", value), schema.get("maximum", value)
            below = value <= low if schema.get("exclusiveMinimum") else value < low
            if below or value > high:
                yield f"{at}: Invalid value: {value}: should be from {low} to {high}"


def _wrong_object(schema: dict[str, Any], value: Any, before: Any, at: str) -> Iterator[str]:  # noqa: ANN401 - JSON
    if len(value) > schema.get("maxProperties", len(value)):
        yield f"{at}: Too many: {len(value)}"
        return
    for name in schema.get("required", ()):
        if value.get(name) is None:
            yield f"{at}.{name}: Required value"
    known, rest = schema.get("properties", {}), schema.get("additionalProperties")
    for name, each in value.items():
        inner = known.get(name, rest)
        if inner is not None and each is not None:  # null is as if it were not there
            yield from _wrong(inner, each, before.get(name), f"{at}.{name}" if at else name)


def _wrong_text(schema: dict[str, Any], value: str, at: str) -> Iterator[str]:
    if len(value) > schema.get("maxLength", len(value)):
        yield f"{at}: Too long: may not be more than {schema['maxLength']} bytes"
    if "pattern" in schema and not _pattern(schema["pattern"]).search(value):
        yield f'{at}: Invalid value: "{value[:64]}": should match {schema["pattern"]}'
    if "enum" in schema and value not in schema["enum"]:
        yield f'{at}: Unsupported value: "{value[:64]}"'
    if schema.get("format") == "date-time" and not _is_time(value):
        yield f'{at}: Invalid value: "{value[:64]}": must be of type date-time'


def _is_time(text: str) -> bool:
    if not _DATE_TIME.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
