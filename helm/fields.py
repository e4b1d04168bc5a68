"""The tables of docs/security.md on every field that a tenant, a node or an agent writes.

Types and bounds follow from the contracts. Who reads a field, and the worst that it can do, is in
fields.yaml, by hand; a field that is missing there is an error.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from node_agent.progress import Steps
from tandem.contracts import annotations, crds, names
from tandem.contracts.prediction import Feedback, InterferenceRequest, PredictBatch

Schema = dict[str, Any]

PAGE = Path(__file__).parents[1] / "docs" / "security.md"
WORDS = Path(__file__).parent / "fields.yaml"
BEGIN = "<!-- Made by helm/generate.py of the contracts and helm/fields.yaml. -->\n"
END = "<!-- End of what is made. -->\n"


def fields() -> dict[str, dict[str, str]]:
    """Return what each field may hold, by the object or message that it is a part of."""
    found = {
        definition.kind: {
            path: bound
            for part, model in (("spec", definition.spec), ("status", definition.status))
            if model is not None
            for path, bound in _leaves(crds.structural_schema(model), part)
        }
        for definition in crds.DEFINITIONS
    }
    messages: dict[str, type[BaseModel]] = {
        "Progress": Steps,
        "PredictBatch": PredictBatch,
        "InterferenceRequest": InterferenceRequest,
        "Feedback": Feedback,
    }
    for title, model in messages.items():
        found[title] = dict(_leaves(crds.structural_schema(model), ""))  # type: ignore[arg-type]
    found["Annotations"] = {
        name: annotations.ALLOWED.get(name, "what Tandem writes")
        for name in (*names.USER_ANNOTATIONS, *names.OWN_ANNOTATIONS, names.INVENTORY)
    }
    return found


def missing() -> list[str]:
    """Return the fields of which fields.yaml says nothing, and the lines that name no field."""
    wrong = []
    words = yaml.safe_load(WORDS.read_text())
    for part, known in fields().items():
        rows = words.get(part, [])
        named: set[str] = set()
        for row in rows:
            matched = {f for p in row["fields"] for f in _matching(known, p)}
            wrong += [
                f"{part}: {p} names no field" for p in row["fields"] if not _matching(known, p)
            ]
            wrong += [f"{part}.{field} is named twice" for field in sorted(matched & named)]
            named |= matched
        wrong += [f"{part}.{field} is missing" for field in known if field not in named]
    return wrong + [f"{part} is no object" for part in words.keys() - fields().keys()]


def _matching(known: dict[str, str], pattern: str) -> list[str]:
    """Return the fields of a line: one, or all directly below a path that ends with `.*`."""
    if not pattern.endswith(".*"):
        return [pattern] if pattern in known else []
    depth = pattern.count(".")
    escaped = pattern[:-1].replace("[", "[[]") + "*"
    return [f for f in known if f.count(".") == depth and fnmatch.fnmatchcase(f, escaped)]


def tables() -> str:
    """Return the tables.

    Raises:
        ValueError: a field has no words.
    """
    wrong = missing()
    if wrong:
        raise ValueError(f"{WORDS.name}: " + "; ".join(wrong))
    words, lines = yaml.safe_load(WORDS.read_text()), []
    for part, known in fields().items():
        lines += [
            f"### {part}\n",
            "| fields, and what they may hold | read by | worst effect |",
            "|---|---|---|",
        ]
        for row in words[part]:
            held: dict[str, list[str]] = {}
            for field in (f for p in row["fields"] for f in _matching(known, p)):
                held.setdefault(known[field], []).append(f"`{field}`")
            said = "; ".join(f"{', '.join(each)}: {bound}" for bound, each in held.items())
            lines.append(f"| {said} | {row['read']} | {row['worst']} |".replace("\n", " "))
        lines.append("")
    return "\n".join(lines)


def page() -> str:
    """Return docs/security.md with the tables as they are to be."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return before + BEGIN + "\n" + tables() + "\n" + END + rest.partition(END)[2]


def _leaves(schema: Schema, at: str) -> Iterator[tuple[str, str]]:
    for name, inner in schema.get("properties", {}).items():
        path, among = f"{at}.{name}" if at else name, ""
        while inner["type"] == "array":
            path += "[]"
            among += f" ({inner['maxItems']:,} at most)" if "maxItems" in inner else " (no bound)"
            inner = inner["items"]
        if inner.get("properties"):
            yield from _leaves(inner, path)
        else:
            yield path, _bound(inner) + among


def _bound(schema: Schema) -> str:
    match schema["type"]:
        case "boolean":
            return "true or false"
        case "integer" | "number":
            low, high = schema.get("minimum"), schema.get("maximum")
            bounded = low is not None and high is not None
            return f"{_number(low)} to {_number(high)}" if bounded else "a number without bound"
        case "object":
            return f"{schema['maxProperties']:,} entries at most"
    if "enum" in schema:
        return "a word of ours"
    if schema.get("format") == "date-time":
        return "a time"
    if "maxLength" not in schema:
        return "a text without bound"
    kind = "characters" if "pattern" not in schema else "characters of a pattern"
    return f"{schema['maxLength']:,} {kind}"


def _number(value: float) -> str:
    if value == int(value) and abs(value) >= 2**31 and int(value).bit_count() == 1:
        return f"2^{int(value).bit_length() - 1}"
    return f"{value:,}" if 1e-3 <= abs(value) < 1e15 or not value else f"{value:g}"
