"""Mutation tests of the code that decides about safety: docs/mutants.md.

A mutant is the code with one small change, made by the operators of mutmut. The fast tests that
reach the changed line run until one fails (`mutant_runner.py`). Of each module a sample is tried,
drawn by a seed: the same one as long as the module does not change. The faults of
`hand_mutants.toml` are all tried.

Everything that was learned is kept in `.out/mutants`: which test reaches which line, by the content
of the test's file, and what became of each mutant, by the content of its function and of the tests.
A run that was stopped goes on where it was.

    python -m benchmarks.mutants --only guard --only ledger
    python -m benchmarks.mutants --only hand
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.file_mutation import MutationVisitor, deep_replace
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import IgnoredCode

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = Path(__file__).with_suffix(".toml")
HAND = Path(__file__).with_name("hand_mutants.toml")
OUT = ROOT / ".out" / "mutants"
FAST = "not slow and not controlplane and not real"
#: Mutants of at least so many of a module are tried, whatever its size.
AT_LEAST = 8
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


# --- making mutants -------------------------------------------------------------------------------


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
            digest = _digest(seed, path, *key, str(seen[key]))
            short = _digest(*key, str(seen[key]))[:8]
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


def hand_mutants() -> list[Mutant]:
    """Return the mutants of the list.

    Raises:
        ValueError: what a mutant replaces is not in its file exactly once.
    """
    made = []
    for entry in tomllib.loads(HAND.read_text())["mutant"]:
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
                f"{entry['group']}: {entry['fault']}", entry["file"], _function(code, first),
                *_shown(code, changed), changed, tuple(sorted(lines)), entry["group"],
                entry["fault"],
            )
        )  # fmt: skip
    return made


# --- which tests reach a line ---------------------------------------------------------------------


@dataclass
class Reach:
    """Which test reaches which line; each test's duration in seconds."""

    seconds: dict[str, float]
    failed: set[str]
    #: By file, then function: the hash of its source, and the tests by line of the function.
    functions: dict[str, dict[str, tuple[str, dict[int, list[str]]]]]

    def files(self, mutant: Mutant) -> list[str]:
        """Return the files of these tests."""
        return sorted({test.partition("::")[0] for test in self.tests(mutant)})

    def tests(self, mutant: Mutant) -> dict[str, float]:
        """Return the tests that reach a mutant, with their durations.

        Where the function has changed since: all that reach it; where it is new, or its code runs
        at import: all that reach its file.
        """
        functions = self.functions.get(mutant.path, {})
        code = (ROOT / mutant.path).read_text()
        names: set[str] = set()
        if mutant.function and mutant.function in functions:
            first, digest = _spans(code)[mutant.function]
            known, by_line = functions[mutant.function]
            if digest == known:
                wanted = [line - first for line in mutant.lines]
                names = {t for line in wanted for t in by_line.get(line, ())}
            else:
                names = {t for of in by_line.values() for t in of}
        else:
            names = {t for _, by in functions.values() for of in by.values() for t in of}
        return {t: self.seconds[t] for t in sorted(names) if t not in self.failed}


def _spans(code: str) -> dict[str, tuple[int, str]]:
    """Return the first line of each function and method, and the hash of its source."""
    lines = code.splitlines()
    spans = {}
    for name, node in _defined(ast.parse(code).body):
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        spans[name] = first, _digest("\n".join(lines[first - 1 : node.end_lineno]))
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


def _function(code: str, line: int) -> str:
    """Return the function or method around a line, '' where there is none."""
    for name, node in _defined(ast.parse(code).body):
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        if first <= line <= (node.end_lineno or first):
            return name
    return ""


class Near:
    """All tests of the files that are about a mutant's module; they are run first."""

    def __init__(self, files: dict[str, list[str]]) -> None:
        self._files = files

    def tests(self, mutant: Mutant) -> dict[str, float]:
        """Return nothing: which tests the files have is known once they are collected."""
        return {}

    def files(self, mutant: Mutant) -> list[str]:
        """Return the files of a mutant's module."""
        return self._files[mutant.id]


def near_files(settings: dict[str, Any], path: str) -> list[str]:
    """Return the files of the tests that are about a module."""
    found = [f"tests/{name}.py" for of, f in settings["near"].items() if of in path for name in f]
    return list(dict.fromkeys(found))


def reach(settings: dict[str, Any], paths: Sequence[str], workers: int) -> Reach:
    """Return which tests reach which lines; run those whose file has changed since last time.

    Lines are kept by function, so that a change elsewhere in the file does not shift them.
    """
    store = OUT / "reach"
    store.mkdir(exist_ok=True)
    files = test_files(settings)
    key = {file: _digest(*paths, (ROOT / file).read_text())[:16] for file in files}
    kept = {file: store / f"{Path(file).stem}-{key[file]}.json" for file in files}
    due = [file for file in files if not kept[file].exists()]
    if due:
        print(f"noting which lines the tests of {len(due)} files reach", flush=True)
        shares = [due[n::workers] for n in range(workers)]
        runs = [Run(n, {"reach": list(paths)}, share) for n, share in enumerate(shares) if share]
        seen: dict[Run, dict[str, dict[str, Any]]] = {run: {} for run in runs}
        for run, answer in answers(runs):
            tests = seen[run]
            if "test" in answer:
                tests[answer["test"]] = answer | {"lines": {}}
                continue
            for path, by_line in answer["lines"].items():
                lines: dict[str, list[int]] = defaultdict(list)
                for line, names in by_line.items():
                    for nodeid in names:
                        lines[nodeid].append(int(line))
                for nodeid, of in lines.items():
                    tests[nodeid]["lines"][path] = _relative(path, of)
            kept[answer["file"]].write_text(json.dumps(tests))
            print(f"  {answer['file']}: {len(tests)} tests", flush=True)
            seen[run] = {}
        for run in runs:
            for file in run.files:  # those without a fast test
                if not kept[file].exists():
                    kept[file].write_text("{}")
    tests = {}
    for file in files:
        tests |= json.loads(kept[file].read_text())
    functions: dict[str, dict[str, tuple[str, dict[int, list[str]]]]] = defaultdict(dict)
    for nodeid, of in tests.items():
        for path, by_function in of["lines"].items():
            for name, (digest, lines) in by_function.items():
                known_digest, by_line = functions[path].setdefault(name, (digest, {}))
                if known_digest != digest:
                    # Noted at different contents: neither lines are known to be today's.
                    functions[path][name] = ("", by_line)
                for line in lines:
                    by_line.setdefault(line, []).append(nodeid)
    failed = {nodeid for nodeid, of in tests.items() if of["failed"]}
    for nodeid in sorted(failed):
        print(f"fails without any mutant, and is left out: {nodeid}", flush=True)
    return Reach({n: of["seconds"] for n, of in tests.items()}, failed, functions)


def _relative(path: str, lines: Sequence[int]) -> dict[str, tuple[str, list[int]]]:
    code = _text(path)
    spans = sorted((first, name, digest) for name, (first, digest) in _spans(code).items())
    found: dict[str, tuple[str, list[int]]] = {}
    for line in lines:
        before = [span for span in spans if span[0] <= line]
        if before and _function(code, line) == before[-1][1]:
            first, name, digest = before[-1]
            found.setdefault(name, (digest, []))[1].append(line - first)
    return found


@cache
def _text(path: str) -> str:
    return (ROOT / path).read_text()


def test_files(settings: dict[str, Any]) -> list[str]:
    """Return the files of the tests that may kill a mutant."""
    found = [f for pattern in settings["tests"] for f in sorted(ROOT.glob(pattern))]
    return [str(f.relative_to(ROOT)) for f in found]


# --- running --------------------------------------------------------------------------------------


class Run:
    """A pytest with the plugin, in a copy of the checkout of its own."""

    def __init__(self, number: int, task: dict[str, Any], files: Sequence[str]) -> None:
        self.files = files
        self.tree = OUT / f"tree-{number}"
        copy_tree(self.tree)
        self._task = OUT / f"task-{number}.json"
        self._task.write_text(json.dumps(task))
        self._answers = OUT / f"answers-{number}.jsonl"
        self._answers.write_text("")
        self._stream, self._unread = self._answers.open(), ""
        self._log = (OUT / f"log-{number}.txt").open("w")
        command = [sys.executable, "-m", "pytest", "-p", "benchmarks.mutant_runner", "-n0", "-m"]
        command += [FAST, "-p", "no:cacheprovider", "--capture=sys", "--tb=no"]
        command += ["--continue-on-collection-errors", f"--basetemp={OUT / f'tmp-{number}'}"]
        environment = os.environ | {
            "MUTANTS_TASK": str(self._task),
            "MUTANTS_ANSWERS": str(self._answers),
            "TANDEM_SEED": "1",  # the same random input for every mutant
            "OPENBLAS_NUM_THREADS": "1",  # a process with threads cannot be forked
            "HYPOTHESIS_STORAGE_DIRECTORY": str(OUT / f"hypothesis-{number}"),
            "PYTHONPATH": str(self.tree),
        }
        self._process = subprocess.Popen(
            [*command, *files], cwd=self.tree, env=environment, stdin=subprocess.DEVNULL,
            stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def ended(self) -> bool:
        """Return whether pytest has ended; exit where it could not run."""
        code = self._process.poll()
        if code not in (None, 0, 1, 5):
            sys.exit(f"pytest failed: {self._log.name}")
        return code is not None

    def new(self) -> list[dict[str, Any]]:
        """Return the answers since the last call."""
        self._unread += self._stream.read()
        *lines, self._unread = self._unread.split("\n")
        return [json.loads(line) for line in lines]


def answers(runs: Sequence[Run]) -> Iterator[tuple[Run, dict[str, Any]]]:
    """Yield the answers of all runs as they come, until all have ended."""
    left = list(runs)
    while left:
        ended = [run for run in left if run.ended()]
        for run in left:
            yield from ((run, answer) for answer in run.new())
        left = [run for run in left if run not in ended]
        if left:
            time.sleep(0.5)


def copy_tree(tree: Path) -> None:
    """Make a folder the same as the checkout: what git tracks or would."""
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True
    ).stdout.decode()
    wanted = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    there = {str(f.relative_to(tree)) for f in tree.rglob("*") if f.is_file()}
    for name in there - wanted:
        if "__pycache__" not in name:
            (tree / name).unlink()
    for name in wanted:
        source, target = ROOT / name, tree / name
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


class Results:
    """What became of each mutant, by content."""

    def __init__(self) -> None:
        self._file = OUT / "results.json"
        self._known = json.loads(self._file.read_text()) if self._file.exists() else {}

    def get(
        self, mutant: Mutant, tests: Iterable[str], files: Iterable[str]
    ) -> dict[str, Any] | None:
        """Return what is known of a mutant, None where it or its tests have changed since."""
        found = self._known.get(_key(mutant))
        if found is None:
            return None
        if found["outcome"] == "killed" and (file := found["test"].partition("::")[0]):
            return found if found["file"] == _file_digest(file) else None
        return found if _with(tests, files) in found["with"] else None

    def last(self, mutant: Mutant) -> dict[str, Any] | None:
        """Return what became of a mutant when it was tried last, with the tests of that time.

        None where the test that killed it has changed since.
        """
        found = self._known.get(_key(mutant))
        if found is not None and found["outcome"] == "killed" and found["test"]:
            file = found["test"].partition("::")[0]
            return found if found["file"] == _file_digest(file) else None
        return found

    def put(
        self, mutant: Mutant, tests: Iterable[str], files: Iterable[str], answer: dict[str, Any]
    ) -> None:
        """Keep what became of a mutant; an error is tried again."""
        if answer["outcome"] == "error":
            return
        before = self._known.get(_key(mutant), {"with": []})["with"]
        kept = {
            "file": _file_digest(answer["test"].partition("::")[0]),
            "with": [*before[-3:], _with(tests, files)],
        }
        self._known[_key(mutant)] = answer | kept
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(self._known, indent=0))
        new.replace(self._file)


def _key(mutant: Mutant) -> str:
    """Return a hash of the change, with the function around it."""
    code = (ROOT / mutant.path).read_text()
    around = _spans(code).get(mutant.function, (0, _digest(code)))[1]
    return _digest(mutant.path, mutant.function, around, mutant.id, mutant.old, mutant.new)


@cache
def _file_digest(file: str) -> str:
    path = ROOT / file
    return _digest(path.read_text()) if file and path.exists() else ""


def _with(tests: Iterable[str], files: Iterable[str]) -> str:
    """Return a hash of what a mutant is tried with."""
    return _digest(*sorted(tests), *(f"{file} {_file_digest(file)}" for file in sorted(files)))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def sample(settings: dict[str, Any], count: int, seed: str, only: Sequence[str]) -> dict:
    """Return the sampled mutants of each module, and how many it has: {path: (all, mutants)}."""
    store = OUT / "sample.json"
    known = json.loads(store.read_text()) if store.exists() else {}
    paths = module_paths(settings)
    keys = {path: _digest(seed, (ROOT / path).read_text()) for path in paths}
    sources = {p: Source(p, seed) for p in paths if known.get(p, {}).get("key") != keys[p]}
    for path, source in sources.items():
        known[path] = {"key": keys[path], "total": len(source), "drawn": []}
    whole = sum(known[path]["total"] for path in paths)
    found = {}
    for path in paths:
        total, drawn = known[path]["total"], known[path]["drawn"]
        share = min(total, max(AT_LEAST, round(count * total / whole)))
        if len(drawn) < share:
            source = sources.get(path) or Source(path, seed)
            drawn = known[path]["drawn"] = [asdict(m) for m in source.mutants(share)]
        found[path] = total, [Mutant(**m | {"lines": tuple(m["lines"])}) for m in drawn[:share]]
    store.write_text(json.dumps(known))
    return {p: of for p, of in found.items() if not only or any(word in p for word in only)}


def module_paths(settings: dict[str, Any]) -> list[str]:
    """Return the files of the modules that are listed."""
    found = [str(f.relative_to(ROOT)) for g in settings["modules"] for f in sorted(ROOT.glob(g))]
    return [f for f in found if not f.endswith("__init__.py")]


def try_all(
    mutants: Sequence[Mutant], tests: Near | Reach, results: Results, workers: int
) -> dict[str, dict[str, Any]]:
    """Try the mutants of which nothing is known; return what became of each, by id."""
    chosen = {m.id: (tests.tests(m), tests.files(m)) for m in mutants}
    known = {m.id: results.get(m, *chosen[m.id]) for m in mutants}
    due = [m for m in mutants if known[m.id] is None]
    print(f"{len(mutants)} mutants, {len(mutants) - len(due)} known", flush=True)
    for mutant in due:
        if not chosen[mutant.id][1]:
            answer = {"id": mutant.id, "outcome": "no tests", "test": "", "how": "", "seconds": 0}
            results.put(mutant, {}, (), answer)
            known[mutant.id] = answer
    # In an order that no module leads, so that a run that is cut short is a sample as well.
    due = sorted((m for m in due if chosen[m.id][1]), key=lambda m: _digest(m.id))
    by_id = {m.id: m for m in due}
    shares = [due[n::workers] for n in range(workers)]
    runs = []
    for number, share in enumerate(each for each in shares if each):
        files = sorted({file for m in share for file in chosen[m.id][1]})
        task = [
            {"id": m.id, "path": m.path, "source": m.source}
            | {"tests": list(chosen[m.id][0]), "files": chosen[m.id][1]}
            for m in share
        ]
        runs.append(Run(number, {"mutants": task}, files))
    for done, (_, answer) in enumerate(answers(runs), 1):
        mutant = by_id[answer["id"]]
        results.put(mutant, *chosen[mutant.id], answer)
        known[mutant.id] = answer
        print(f"{done}/{len(due)} {answer['outcome']:8} {answer['seconds']:5.1f} s "
                  f"{mutant.id} {answer['test'] or answer['how']}", flush=True)  # fmt: skip
    return {name: value for name, value in known.items() if value is not None}


# --- the page -------------------------------------------------------------------------------------


def page(
    sampled: dict[str, tuple[int, list[Mutant]]],
    hand: Sequence[Mutant],
    outcomes: dict[str, dict[str, Any]],
    reasons: dict[str, str],
    heading: str,
) -> str:
    """Return docs/mutants.md."""
    lines = [
        "# Mutants",
        "",
        "`make mutants` changes one expression at a time in the code that decides about safety,",
        "and runs the fast tests of the module, then those that reach the changed line. A mutant",
        "that no test notices survives.",
        "",
        "The changes are those of [mutmut](https://mutmut.readthedocs.io/), except for log calls",
        "and for the text of messages. A sample of each module is tried, in proportion to its",
        "mutants. A test kills a mutant where it fails, or does not end within ten seconds of the",
        "processor.",
        "",
        heading,
        "",
        "| module | mutants | tried | killed | survived | score |",
        "|---|---|---|---|---|---|",
    ]
    total: Counter[str] = Counter()
    for path, (every, mutants) in sampled.items():
        count = Counter(_word(outcomes, m) for m in mutants)
        lines.append(_row(f"`{path}`", every, count))
        total += count
    lines.append(_row("**all**", sum(every for every, _ in sampled.values()), total))
    lines += [
        "",
        "## Faults chosen by hand",
        "",
        "Each is a small bug that was once inserted without any test failing, or a relative of one",
        "(`benchmarks/hand_mutants.toml`).",
        "",
        "| group | faults | killed |",
        "|---|---|---|",
    ]
    for group in dict.fromkeys(m.group for m in hand):
        of = [_word(outcomes, m) for m in hand if m.group == group]
        lines.append(f"| {group} | {len(of)} | {of.count('killed')} |")
    sampled_all = [m for _, mutants in sampled.values() for m in mutants]
    survivors = [
        m for m in (*sampled_all, *hand) if _word(outcomes, m) not in ("killed", "untried")
    ]
    lines += ["", "## Survivors", ""] if survivors else []
    for mutant in survivors:
        said = reasons.get(mutant.id, "**open**")
        lines += [f"`{mutant.id}`: {said}", "", "```diff"]
        lines += [f"- {mutant.old}", f"+ {mutant.new}", "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def _word(outcomes: dict[str, dict[str, Any]], mutant: Mutant) -> str:
    return str(outcomes[mutant.id]["outcome"]) if mutant.id in outcomes else "untried"


def _row(name: str, mutants: int, count: Counter[str]) -> str:
    tried, killed = count.total() - count["untried"], count["killed"]
    score = f"{100 * killed / tried:.0f} %" if tried else "-"
    return f"| {name} | {mutants} | {tried} | {killed} | {tried - killed} | {score} |"


def main() -> None:
    """Try what is not known yet; print the score, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=500, help="mutants of the sample, about")
    parser.add_argument("--seed", default="1", help="of the sample")
    parser.add_argument(
        "--only", action="append", default=[], metavar="WORD",
        help="modules whose path contains this; `hand`: those chosen by hand",
    )  # fmt: skip
    parser.add_argument(
        "--near", action="store_true", help="run only the tests of the module's own test files"
    )
    parser.add_argument(
        "--report", action="store_true", help="run nothing: tell what is known of the sample"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes that run tests")
    parser.add_argument("--page", type=Path, help="write the score and the survivors there")
    args = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    settings = tomllib.loads(SETTINGS.read_text())
    hand = [] if args.only and "hand" not in args.only else hand_mutants()
    words = [word for word in args.only if word != "hand"]
    sampled = {} if args.only == ["hand"] else sample(settings, args.count, args.seed, words)
    paths = sorted({*module_paths(settings), *(m.path for m in hand_mutants())})
    mutants = [*hand, *(m for _, found in sampled.values() for m in found)]
    near = {m.id: near_files(settings, m.path) for m in mutants}
    results = Results()
    if args.report:
        outcomes = {m.id: last for m in mutants if (last := results.last(m))}
    else:
        outcomes = try_all(mutants, Near(near), results, args.workers)
    if not args.near and not args.report:
        left = [m for m in mutants if _word(outcomes, m) != "killed"]
        reached = reach(settings, paths, args.workers) if left else None
        if reached:
            outcomes |= try_all(left, reached, results, args.workers)
    count = Counter(_word(outcomes, m) for m in mutants)
    for mutant in mutants:
        if _word(outcomes, mutant) not in ("killed", "untried"):
            print(f"{_word(outcomes, mutant)}: {mutant.id}\n  - {mutant.old}\n  + {mutant.new}")
    print(f"{count.total()} mutants: {dict(count)}")
    if args.page:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True, capture_output=True
        ).stdout.decode().strip()  # fmt: skip
        heading = (
            f"Commit `{commit}`, seed `{args.seed}`, {len(mutants) - len(hand)} mutants of the"
            f" sample, {len(hand)} faults chosen by hand."
        )
        args.page.write_text(page(sampled, hand, outcomes, settings.get("equivalent", {}), heading))


if __name__ == "__main__":
    main()
