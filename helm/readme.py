"""helm/tandem/README.md: what the chart installs, and a table of its values with their comments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from string import Template

import yaml

CHART = Path(__file__).parent / "tandem"
_TEMPLATE = Path(__file__).parent / "readme.template.md"


def readme() -> str:
    """Return the page."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    table = (
        f"| `{path}` | {f'`{default}`' if default else ''} | {meaning} |\n"
        for path, default, meaning in rows((CHART / "values.yaml").read_text())
    )
    return Template(_TEMPLATE.read_text()).substitute(
        description=chart["description"],
        kubernetes=chart["kubeVersion"].removeprefix(">=").removesuffix("-0") + " or later",
        values="".join(table),
    )


def rows(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, default and comment of each value, in the order of the file.

    A group has a row of its own where it has a comment. The comment of a value is what stands
    directly above it.
    """
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    yield from _rows(root, "", text.splitlines())


def _rows(group: yaml.MappingNode, above: str, lines: list[str]) -> Iterator[tuple[str, str, str]]:
    for key, value in group.value:
        path, meaning = above + key.value, _comment(lines, key.start_mark.line)
        parts = isinstance(value, yaml.MappingNode) and not value.flow_style
        if not parts:
            default = " ".join(_source(value, lines).split())
            yield path, default.replace("|", "\\|"), meaning
            continue
        if meaning:
            yield path, "", meaning
        yield from _rows(value, f"{path}.", lines)


def _source(value: yaml.Node, lines: list[str]) -> str:
    """Return a value as it stands in the file; a list of several lines in one."""
    start, end = value.start_mark, value.end_mark
    if isinstance(value, yaml.SequenceNode) and not value.flow_style:
        return "; ".join(_source(each, lines) for each in value.value)
    if start.line == end.line:
        return lines[start.line][start.column : end.column]
    middle = lines[start.line + 1 : end.line]
    return "\n".join([lines[start.line][start.column :], *middle, lines[end.line][: end.column]])


def _comment(lines: list[str], line: int) -> str:
    found: list[str] = []
    indent = len(lines[line]) - len(lines[line].lstrip())
    while line > 0 and lines[line - 1].startswith(" " * indent + "#"):
        line -= 1
        found.insert(0, lines[line].strip().lstrip("# "))
    return " ".join(found).replace("|", "\\|")
