"""No regular expression of ours takes more than linear time: texts may come from an attacker.

The expressions of the code are found by reading it. Each is run, step by step, through repetitions
of its own parts. Patterns of CRDs, of the values schema and of admission policies are matched by
Go's engine, and those of pydantic by Rust's, which are linear for every pattern; they are held to
the same.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml
from expression_steps import Steps, grows

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "tandem",
    "tandem_demo",
    "scheduler_extender",
    "node_agent",
    "predictor",
    "controlplane",
)
_METHODS = ("search", "match", "fullmatch", "findall", "finditer", "split", "sub", "subn")
#: Expressions that a person passes on the command line of the process that runs them.
OF_THE_CALLER = {
    ("predictor/collect/plan.py", "pattern"),
    ("predictor/collect/__main__.py", "options.models"),
    # The patterns of our definitions, in the double alone: API servers read them by linear engines.
    ("tandem/kube/schema.py", "text[:-1] + '\\\\Z' if text.endswith('$') else text"),
}
#: A name of a Go module, escaped, within an expression that is otherwise ours.
BUILT = {"controlplane/binaries.py": r"^\s*(?:require\s+)?k8s\.io/kubernetes (v\S+)"}

Found = tuple[str, str | bytes, int, str]  # where, pattern, flags, method


def _of_package(package: str) -> Iterator[Found]:
    for file in sorted((ROOT / package).rglob("*.py")):
        yield from _of_file(file)


def _of_file(file: Path) -> Iterator[Found]:
    where = str(file.relative_to(ROOT))
    tree = ast.parse(file.read_text())
    used = {
        node.func.value.id: node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.attr in _METHODS
    }
    named = {
        id(node.value): node.targets[0].id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    module = where.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        for keyword in node.keywords:
            if keyword.arg == "pattern" and isinstance(keyword.value, ast.Constant):
                yield where, keyword.value.value, 0, "search"
        call = node.func
        if not (isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name)):
            continue
        if call.value.id != "re" or call.attr not in (*_METHODS, "compile"):
            continue
        name = named.get(id(node))
        if name is not None:
            compiled: re.Pattern[str] = getattr(importlib.import_module(module), name)
            yield where, compiled.pattern, compiled.flags, used.get(name, "search")
            continue
        method = "search" if call.attr == "compile" else call.attr
        given = node.args[0]
        if isinstance(given, ast.Constant):
            yield where, given.value, _flags(node), method
        elif (where, ast.unparse(given)) in OF_THE_CALLER:
            continue
        elif where in BUILT:
            yield where, BUILT[where], _flags(node), method
        else:
            yield from _of_a_list(where, module, given)


def _of_a_list(where: str, module: str, given: ast.expr) -> Iterator[Found]:
    """Yield the compiled expressions of a module's lists, for one that is compiled in a loop."""
    lists = [
        each for each in vars(importlib.import_module(module)).values() if isinstance(each, list)
    ]
    found = [
        part
        for each in lists
        for entry in each
        for part in (entry if isinstance(entry, tuple) else (entry,))
        if isinstance(part, re.Pattern)
    ]
    assert found, f"{where}: the expression {ast.unparse(given)} is not known here"
    for one in found:
        yield where, one.pattern, one.flags, "search"


def _flags(call: ast.Call) -> int:
    """Return the flags that a call names; its other arguments are texts."""
    found = 0
    for given in [*call.args[1:], *(keyword.value for keyword in call.keywords)]:
        for node in ast.walk(given):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "re":
                found |= getattr(re, node.attr)
    return found


def _of_definitions() -> Iterator[Found]:
    for document in yaml.safe_load_all((ROOT / "deploy/manifests/crds.yaml").read_text()):
        for pattern in _patterns(document):
            yield "deploy/manifests/crds.yaml", pattern, 0, "search"


def _patterns(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("pattern"), str):
            yield part["pattern"]
        for each in part.values():
            yield from _patterns(each)
    elif isinstance(part, list):
        for each in part:
            yield from _patterns(each)


#: A literal of JavaScript: after an operator or an opening bracket, on one line.
_LITERAL = re.compile(r"[(,=:?&|!]\s?/((?![*/])(?:[^\\/\[\n]|\\.|\[[^\]\n]*\])+)/([a-z]*)[,;.)]")


def _of_the_page() -> Iterator[Found]:
    # What is below `vendor` reads the page's own templates, never what a server has sent.
    for file in sorted((ROOT / "scheduler_extender/serving/status/page").glob("*.js")):
        for pattern, flags in _LITERAL.findall(file.read_text()):
            ignores_case = re.IGNORECASE if "i" in flags else 0
            yield str(file.relative_to(ROOT)), pattern, ignores_case, "search"


PLACES: dict[str, Callable[[], Iterator[Found]]] = {
    **{package: partial(_of_package, package) for package in PACKAGES},
    "values of the chart": lambda: _of_file(ROOT / "helm/values.py"),
    "definitions": _of_definitions,
    "page": _of_the_page,
}
#: How many there are at least; a place without any could be one that is not read any more.
AT_LEAST = {"tandem": 10, "scheduler_extender": 5, "predictor": 6, "page": 1}


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
def test_expressions_take_steps_in_proportion_to_the_text(place: str) -> None:
    found = set(PLACES[place]())
    assert len(found) >= AT_LEAST.get(place, 0)
    slow = {
        f"{where}: {pattern!r} with {attack}"
        for where, pattern, flags, method in found
        if (attack := grows(Steps(pattern, flags), method))
    }
    assert not slow


@pytest.mark.parametrize(
    "pattern",
    [
        r"\b(torch|cupy)(\.\w+)*\.OutOfMemoryError",
        r"ResourceExhaustedError: .*failed to allocate memory",
        r"(a+)+$",
        r"\s+$",
        r"x*x*y",
    ],
)
def test_an_expression_that_is_not_linear_is_found_out(pattern: str) -> None:
    assert grows(Steps(pattern), "search")


@pytest.mark.parametrize(
    "pattern", [r"abc", r"[a-z]+x?", r"a{0,20}b", r"^(\w+\.)*\w+$", r"\d+(\.\d+)?"]
)
def test_an_expression_that_is_linear_is_passed(pattern: str) -> None:
    assert not grows(Steps(pattern), "match" if pattern.startswith("^") else "fullmatch")
