"""docs/messages.md, its list of texts: `python -m proof.messages --write`.

Texts are found where the code hands them to people: to a terminal, an event, a condition, an answer
or an error. What stands in braces is put in at run time. The sentences of reasons have a page of
their own, docs/reasons.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from benchmarks.pages import keep_current

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "messages.md"
PACKAGES = ("tandem/cli", "tandem/kube", "tandem/errors.py", "tandem/local", "tandem_demo",
            "tandem/simulator", "tandem/contracts", "scheduler_extender", "node_agent",
            "predictor")  # fmt: skip
PAGES = "scheduler_extender/serving/status/page"
HEAD = "## All texts\n"
_INTRO = """
Written by `python -m proof.messages --write`: the texts that the code hands to people, by
file. What stands in braces is put in at run time. The sentences of reasons are in
[reasons.md](reasons.md). A test reads this list, and finds no term of the code in it.
"""
#: Functions whose texts people read: of terminals, events, checks, answers. Errors are found by
#: the end of their name.
_TELLS = frozenset(
    {
        "say", "_say", "print", "print_table", "_line", "_listed", "ok", "failed", "warning",
        "unknown", "WriteEvent", "HTTPException", "ErrorBody", "Option", "Argument", "decided",
        "without_predictor", "add_argument", "_decide", "Cause", "Obstacle",
    }
)  # fmt: skip
_LOGS = frozenset({"log", "logger", "logging"})
_WORD = re.compile(r"[A-Za-z]{2,}.*\s.*[A-Za-z]{2,}")
#: In a script of the page: texts in quotes, in templates, and between tags.
_SCRIPT = re.compile(r"\"([^\"\\\n]{8,})\"|>([^<>$`{}\n]{8,})<|`([^`<>\n]{8,})`")


@cache
def texts() -> dict[str, list[str]]:
    """Return the texts by file, in the order in which they stand there."""
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        path = ROOT / package
        files = [path] if path.suffix else sorted(path.rglob("*.py"))
        for file in files:
            of_file = list(dict.fromkeys(_of(ast.parse(file.read_text()))))
            if of_file:
                found[str(file.relative_to(ROOT))] = of_file
    for file in sorted((ROOT / PAGES).glob("*.js")):
        said = ("".join(match) for match in _SCRIPT.findall(file.read_text()))
        of_file = list(dict.fromkeys(text.strip() for text in said if _is_text(text)))
        if of_file:
            found[str(file.relative_to(ROOT))] = of_file
    return found


def _is_text(text: str) -> bool:
    return bool(_WORD.search(text)) and not re.search(r"[=;]|\$\{|=>|^\s*[./#]", text)


def _of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _tells(node.func):
            for argument in (*node.args, *(each.value for each in node.keywords)):
                yield from _words(argument)


def _tells(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute):
        of = function.value
        if isinstance(of, ast.Name) and of.id in _LOGS:
            return False
        return function.attr in _TELLS or function.attr.endswith("Error")
    return isinstance(function, ast.Name) and (
        function.id in _TELLS or function.id.endswith("Error")
    )


def _words(node: ast.expr) -> Iterator[str]:
    """Yield the texts of an expression; the texts of another function are listed with it."""
    text = _text(node)
    if text is not None:
        if _WORD.search(text):
            yield " ".join(text.split())
        return
    if not isinstance(node, ast.Call):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from _words(child)


def _text(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if not isinstance(node, ast.JoinedStr):
        return None
    parts = []
    for value in node.values:
        if isinstance(value, ast.Constant):
            parts.append(str(value.value))
        else:
            parts.append("{…}")
    return "".join(parts)


def page(before: str) -> str:
    """Return the page: what is written by hand, and the list."""
    head = before.partition(HEAD)[0].rstrip() + "\n\n"
    parts = [head, HEAD, _INTRO]
    for file, of_file in texts().items():
        parts.append(f"\n### {file}\n\n")
        parts += [f"- {_shown(text)}\n" for text in of_file]
    return "".join(parts)


def _shown(text: str) -> str:
    """Return a text as code of Markdown, whatever stands in it."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


if __name__ == "__main__":
    keep_current(__doc__, {PAGE: page(PAGE.read_text())})
