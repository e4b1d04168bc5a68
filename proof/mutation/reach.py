"""Which tests may kill a mutant: those of its module, and those that reach its line."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from proof.mutation.runs import OUT, Run, answers
from proof.mutation.sources import ROOT, Mutant, digest_of, function_at, spans_of


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
            first, digest = spans_of(code)[mutant.function]
            known, by_line = functions[mutant.function]
            if digest == known:
                wanted = [line - first for line in mutant.lines]
                names = {t for line in wanted for t in by_line.get(line, ())}
            else:
                names = {t for of in by_line.values() for t in of}
        else:
            names = {t for _, by in functions.values() for of in by.values() for t in of}
        return {t: self.seconds[t] for t in sorted(names) if t not in self.failed}


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


def reach(settings: dict[str, Any], paths: Sequence[str], workers: int, until_s: float) -> Reach:
    """Return which tests reach which lines; run those whose file has changed since last time.

    Lines are kept by function, so that a change elsewhere in the file does not shift them.
    """
    store = OUT / "reach"
    store.mkdir(exist_ok=True)
    files = test_files(settings)
    key = {file: digest_of(*paths, (ROOT / file).read_text())[:16] for file in files}
    kept = {file: store / f"{Path(file).stem}-{key[file]}.json" for file in files}
    due = [file for file in files if not kept[file].exists()]
    if due:
        print(f"noting which lines the tests of {len(due)} files reach", flush=True)
        shares = [due[n::workers] for n in range(workers)]
        runs = [Run(n, {"reach": list(paths)}, share) for n, share in enumerate(shares) if share]
        seen: dict[Run, dict[str, dict[str, Any]]] = {run: {} for run in runs}
        for run, answer in answers(runs, until_s):
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
    spans = sorted((first, name, digest) for name, (first, digest) in spans_of(code).items())
    found: dict[str, tuple[str, list[int]]] = {}
    for line in lines:
        before = [span for span in spans if span[0] <= line]
        if before and function_at(code, line) == before[-1][1]:
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
