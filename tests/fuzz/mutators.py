"""Inputs that somebody might send: sound ones, and what is left of them after a few changes."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

#: Values of every type of JSON, at the bounds of what readers take them for.
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    63,
    65,
    2**31,
    2**53 + 1,
    2**63,
    -(2**63),
    10**30,
    10**400,
    0.5,
    -0.0,
    1e-9,
    1e300,
    float("nan"),
    float("inf"),
    "",
    " ",
    "0",
    "1",
    "-1",
    "1e3",
    "0x10",
    "1_000",
    "1 ",
    " 1",
    "+1",
    "01",
    "١٢",
    "1Gi",
    "1E",
    "NaN",
    "inf",
    "true",
    "no",
    "9" * 400,
    "a" * 300,
    "\x00",
    "a\nb",
    "\udc80",
    "\u2028",
    "é",
    "a/b",
    "..",
    "null",
    "[red]",
    [],
    {},
    [[]],
    [None],
    {"a": None},
    {"": ""},
    [{}] * 3,
)
_BYTES = (
    b'"',
    b"'",
    b"\x00",
    b"\xff",
    b"[",
    b"{",
    b"}",
    b"\n",
    b"\r",
    b",",
    b":",
    b"-1",
    b"0",
    b"9" * 400,
    b"1e999",
    b"NaN",
    b"null",
    b"true",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\xe2\x80\xa8",
    b"\xc3\xa9",
    b"\\ud800",
    b" ",
    b"\t",
    b"- ",
    b"&a ",
    b"*a",
    b"!!python/object:os.system",
    b"1_0",
    b"\xd9\xa1",
    b"%",
    b"../",
    b"=",
    b"&",
    b"?",
)


def changed_bytes(content: bytes, rng: random.Random) -> bytes:
    """Return the content with a few bytes changed, removed, doubled or put in."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[at : at + rng.randint(1, 20)]
            case 2:
                data[at:at] = data[at : at + 30]
            case 3:
                del data[at:]
            case _:
                data[at:at] = rng.choice(_BYTES)
    return bytes(data)


def changed(document: Any, rng: random.Random, odd: Sequence[Any] = ODD, most: int = 4) -> Any:
    """Return a copy of a list or an object in which up to `most` places are others."""
    root = copy.deepcopy(document)
    for _ in range(rng.randint(1, most)):
        places = list(_places(root))
        if not places:
            break
        holder, key = rng.choice(places)
        match rng.randrange(7):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.insert(key, copy.deepcopy(holder[key]))
            case 2 if isinstance(holder, dict):
                holder[_renamed(key, rng)] = holder.pop(key)
            case 3 if isinstance(holder, dict):
                holder[_renamed(rng.choice(list(holder)), rng)] = copy.deepcopy(rng.choice(odd))
            case 4:
                other, place = rng.choice(places)
                holder[key] = copy.deepcopy(other[place])
            case 5:
                holder[key] = rng.choice(([holder[key]], {"x": holder[key]}, str(holder[key])))
            case _:
                holder[key] = copy.deepcopy(rng.choice(odd))
    return root


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key) of everything in a document."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in list(entries):
        yield value, key
        if isinstance(each, dict | list):
            yield from _places(each)


def _renamed(name: str, rng: random.Random) -> str:
    return rng.choice((name.upper(), name + "s", name[:-1], f"{name} ", name[::-1], f"x{name}"))


def some(rng: random.Random, options: dict[str, Sequence[Any]], most: int = 4) -> dict[str, Any]:
    """Return some of the keys, each with one of its values."""
    names = rng.sample(sorted(options), rng.randint(0, min(most, len(options))))
    return {name: copy.deepcopy(rng.choice(options[name])) for name in names}


def from_schema(schema: dict[str, Any], rng: random.Random, depth: int = 0) -> Any:
    """Return a value that an OpenAPI schema of Kubernetes admits, often at its bounds."""
    if "enum" in schema:
        return rng.choice(schema["enum"])
    match schema["type"]:
        case "object":
            return _object(schema, rng, depth)
        case "array":
            most = min(schema.get("maxItems", 3), 3)
            count = rng.randint(schema.get("minItems", 0), max(most, schema.get("minItems", 0)))
            return [from_schema(schema["items"], rng, depth + 1) for _ in range(count)]
        case "boolean":
            return rng.random() < 0.5
        case "integer":
            low, high = int(schema.get("minimum", 0)), int(schema.get("maximum", 2**62))
            return rng.choice(
                (
                    low,
                    high,
                    min(low + 1, high),
                    max(low, high - 1),
                    rng.randint(low, high),
                    min(high, max(low, 2 ** rng.randrange(62))),
                )
            )
        case "number":
            low, high = schema.get("minimum", 0.0), schema.get("maximum", 1e30)
            return rng.choice(
                (
                    low,
                    high,
                    int(low) if low == int(low) else low,
                    rng.uniform(low, high),
                    min(high, low + 1e-12),
                )
            )
        case _:
            return _text(schema, rng)


def _object(schema: dict[str, Any], rng: random.Random, depth: int) -> dict[str, Any]:
    found = {
        name: from_schema(each, rng, depth + 1)
        for name, each in schema.get("properties", {}).items()
        if name in schema.get("required", ()) or rng.random() < (0.7 if depth < 2 else 0.4)
    }
    if "additionalProperties" in schema:
        for _ in range(rng.randint(0, 3)):
            found[_text({}, rng)] = from_schema(schema["additionalProperties"], rng, depth + 1)
    if rng.random() < 0.1:  # a field of a later version
        found["fieldOfLater"] = rng.choice((1, "x", [], {"a": 1}))
    return found


def _text(schema: dict[str, Any], rng: random.Random) -> str:
    if schema.get("format") == "date-time":
        return rng.choice(
            (
                "2026-11-25T15:00:00Z",
                "2026-11-25T15:00:00.123456Z",
                "1000-01-01T00:00:00Z",
                "9999-12-31T23:59:59Z",
                "1000-01-01T00:00:00+14:00",
                "9999-12-31T23:59:59-12:00",
                "2024-02-29T23:59:59.999999999+05:45",
            )
        )
    pattern, longest = schema.get("pattern", ""), schema.get("maxLength", 300)
    texts = ["a", "n0", "GPU-a", "0", "1e5", "a" * min(longest, 300)]
    texts += ["NVIDIA A100-SXM4-80GB", "Tesla T4", "é" * 9, "١", "[red]x", "<b>", "", " "]
    texts += ["a\nb", "\x00", "\u2028", "\x1b[2J"]
    return rng.choice([text for text in texts if re.search(pattern, text)] or ["a"])
