"""What may be changed in a file: the operators of mutmut, and the faults chosen by hand."""

from __future__ import annotations

import ast
import hashlib
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.file_mutation import MutationVisitor, deep_replace
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import IgnoredCode

ROOT = Path(__file__).resolve().parents[2]
HAND = Path(__file__).with_name("hand_mutants.toml")
_SAID = ("log", "logger", "faults")  # what is logged, and the points where tests inject a fault


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    id: str
    path: str
    function: str
    old: str  # the changed source, one line
    new: str
    source: str  # of the whole file, changed
    lines: tuple[int, ...]  # of the statement that is changed, in the unchanged file
    group: str = ""
    fault: str = ""

    @property
    def module(self) -> str:
        """The module's name."""
        return self.path.removesuffix(".py").replace("/", ".")


class Visitor(MutationVisitor):
    """Finds what mutmut changes, in decorated functions too, but not what is only said.

    Left out are the arguments of log calls, strings with a space (messages to people), and all but
    one of the changes that mutmut makes of one string.
    """

    def __init__(self) -> None:
        super().__init__(mutation_operators, IgnoredCode(set(), set(), set()))
        self.lines: list[int] = []

    def _skip_node_and_children(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.FunctionDef) and node.decorators:
            return False
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            of = node.func.value
            if isinstance(of, cst.Name) and of.value in _SAID:
                return True
        if isinstance(node, cst.SimpleString) and " " in node.value:
            return True
        return super()._skip_node_and_children(node)

    def _create_mutations(self, node: cst.CSTNode) -> None:
        before = len(self.mutations)
        super()._create_mutations(node)
        if isinstance(node, cst.SimpleString):
            del self.mutations[before + 1 :]
        line = self.get_metadata(PositionProvider, node).start.line
        self.lines += [line] * (len(self.mutations) - before)


class Source:
    """One file, and what may be changed in it, in the order of the seed."""

    def __init__(self, path: str, seed: str) -> None:
        self.path = path
        self._code = (ROOT / path).read_text()
        visitor = Visitor()
        module = MetadataWrapper(cst.parse_module(self._code)).visit(visitor)
        assert isinstance(module, cst.Module)
        self._module = module
        seen: Counter[tuple[str, str, str]] = Counter()
        owners = _owners(module)
        found = []
        for mutation, line in zip(visitor.mutations, visitor.lines, strict=True):
            within = owners.get(mutation.contained_by_top_level_function)
            if within is None:
                continue  # code that runs at import
            nodes = mutation.original_node, mutation.mutated_node
            key = within, *(" ".join(module.code_for_node(node).split()) for node in nodes)
            seen[key] += 1
            digest = digest_of(seed, path, *key, str(seen[key]))
            short = digest_of(*key, str(seen[key]))[:8]
            found.append((digest, f"{path}:{within}:{short}", within, line, mutation))
        self._found = sorted(found, key=lambda each: each[0])

    def __len__(self) -> int:
        return len(self._found)

    def mutants(self, count: int) -> list[Mutant]:
        """Return `count` of its mutants."""
        statements = _statements(self._code)
        made = []
        for _, name, within, line, mutation in self._found[:count]:
            changed = deep_replace(self._module, mutation.original_node, mutation.mutated_node)
            assert isinstance(changed, cst.Module)
            old, new = _shown(self._code, changed.code)
            lines = statements.get(line, (line,))
            made.append(Mutant(name, self.path, within, old, new, changed.code, lines))
        return made


def _owners(module: cst.Module) -> dict[cst.CSTNode | None, str]:
    """Return the names of the functions and methods, by node."""
    owners: dict[cst.CSTNode | None, str] = {}
    for each in module.body:
        if isinstance(each, cst.FunctionDef):
            owners[each] = each.name.value
        elif isinstance(each, cst.ClassDef):
            for method in each.body.body:
                if isinstance(method, cst.FunctionDef):
                    owners[method] = f"{each.name.value}.{method.name.value}"
    return owners


def _statements(code: str) -> dict[int, tuple[int, ...]]:
    """Return the lines of the innermost statement around each line; of a block only its head."""
    around: dict[int, tuple[int, ...]] = {}
    for node in ast.walk(ast.parse(code)):  # outer ones first
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            lines = tuple(range(node.lineno, max(last, node.lineno) + 1))
            around |= dict.fromkeys(lines, lines)
    return around


def _shown(before: str, after: str) -> tuple[str, str]:
    """Return the first and last changed lines, joined."""
    old, new = before.splitlines(), after.splitlines()
    while old and new and old[0] == new[0]:
        old, new = old[1:], new[1:]
    while old and new and old[-1] == new[-1]:
        old, new = old[:-1], new[:-1]
    return " ".join(" ".join(old).split()), " ".join(" ".join(new).split())


def hand_mutants(listed: Path = HAND) -> list[Mutant]:
    """Return the mutants of a list.

    Raises:
        ValueError: what a mutant replaces is not in its file exactly once.
    """
    made = []
    for entry in tomllib.loads(listed.read_text())["mutant"]:
        code = (ROOT / entry["file"]).read_text()
        if code.count(entry["old"]) != 1:
            raise ValueError(f"{code.count(entry['old'])} times in {entry['file']}: {entry['old']}")
        start = code.index(entry["old"])
        first = code[:start].count("\n") + 1
        last = first + entry["old"].rstrip("\n").count("\n")
        statements = _statements(code)
        lines = {n for line in range(first, last + 1) for n in statements.get(line, (line,))}
        changed = code.replace(entry["old"], entry["new"])
        made.append(
            Mutant(
                f"{entry['group']}: {entry['fault']}", entry["file"], function_at(code, first),
                *_shown(code, changed), changed, tuple(sorted(lines)), entry["group"],
                entry["fault"],
            )
        )  # fmt: skip
    return made


def spans_of(code: str) -> dict[str, tuple[int, str]]:
    """Return the first line of each function and method, and the hash of its source."""
    lines = code.splitlines()
    spans = {}
    for name, node in _defined(ast.parse(code).body):
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        spans[name] = first, digest_of("\n".join(lines[first - 1 : node.end_lineno]))
    return spans


def _defined(
    body: Iterable[ast.stmt],
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{each.name}", each


def function_at(code: str, line: int) -> str:
    """Return the function or method around a line, '' where there is none."""
    for name, node in _defined(ast.parse(code).body):
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        if first <= line <= (node.end_lineno or first):
            return name
    return ""


def digest_of(*parts: str) -> str:
    """Return the hash of some texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
