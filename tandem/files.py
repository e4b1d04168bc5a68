"""Files that people hand in: the same on every machine, with errors that say what to do.

What programs read in different ways is refused: a key that is there twice, NaN in JSON.

Text is UTF-8, with or without a byte-order mark, or UTF-16 with one (as spreadsheets write it). No
content raises anything but UsageError, with the file, the line where there is one, and a hint.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tandem.errors import UsageError

#: Characters of one field of a CSV file; more is a quote that was never closed.
_FIELD_CHARACTERS = 1 << 20
_SHOWN = 64  # characters of a name
_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def read_text(path: Path, hint: str = "") -> str:
    """Return the text of a file, without a byte-order mark."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint) from error
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return content.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UsageError(
            f"{path}, line {line} is not text in UTF-8",
            "Is the file compressed, or in another encoding? Unpack it, or save it as UTF-8.",
        ) from error


def read_json(path: Path, hint: str = "") -> Any:  # noqa: ANN401 - whatever the file holds
    """Return what a JSON file holds."""
    text = read_text(path, hint)
    try:
        return json.loads(text, object_pairs_hook=_once_each, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}, line {error.lineno} is not JSON: {error.msg}", hint) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON that can be read: {error}", hint) from error


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:_SHOWN]!r} is there twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")


def read_yaml(path: Path, hint: str = "") -> Any:  # noqa: ANN401 - whatever the file holds
    """Return what a YAML file holds; None for an empty one."""
    return parse_yaml(read_text(path, hint), str(path), hint)


def parse_yaml(text: str, where: str, hint: str = "") -> Any:  # noqa: ANN401 - whatever it holds
    """Return what a YAML text holds; `where` it stands begins the error."""
    import yaml

    from tandem.yamlkeys import Loader

    try:
        return yaml.load(text, Loader)  # noqa: S506 - a safe one
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError(f"{where}{line} is not YAML: {error.problem}", hint) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not YAML that can be read: {error}", hint) from error


def read_csv(path: Path, hint: str = "") -> Iterator[tuple[int, list[str]]]:
    """Yield each row that is not empty, with the line on which it ends.

    Fields are separated by commas, in quotes where they contain one.
    """
    text = io.StringIO(read_text(path, hint), newline="")
    limit = csv.field_size_limit(_FIELD_CHARACTERS)
    begun = 1
    try:
        reader = csv.reader(text, strict=True)
        while True:
            begun = reader.line_num + 1
            row = next(reader, None)
            if row is None:
                return
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise UsageError(
            f"{path}, line {begun}: {error}",
            'Is a quote (") opened and not closed? A field with a comma or a quote is in quotes.',
        ) from error
    finally:
        csv.field_size_limit(limit)


def read_table(path: Path, hint: str = "") -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each row as a dict by the names of the first one.

    The first pair that is yielded has the names themselves; a row of another length has the field
    "" with what is wrong.
    """
    rows = read_csv(path, hint)
    line, names = next(rows, (1, []))
    names = [name.strip() for name in names]
    if len(names) == 1:
        for delimiter, plural in _DELIMITERS.items():
            if delimiter in names[0]:
                raise UsageError(
                    f"{path}, line {line}: the fields are separated by {plural}",
                    "Save the file with commas between the fields.",
                )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{path}, line {line}: column {twice[0]!r} is there twice", hint)
    yield line, dict.fromkeys(names, "")
    for line, fields in rows:
        if len(fields) == len(names):
            yield line, dict(zip(names, fields, strict=True))
        else:
            yield (
                line,
                {
                    "": "the number of fields differs from the header: "
                    f"{len(fields)} and {len(names)}"
                },
            )
