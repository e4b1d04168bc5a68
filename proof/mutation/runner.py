"""The tests' side of `make mutants`: a pytest plugin that applies mutants one at a time.

It runs in a copy of the checkout, after pytest has collected the tests. For each mutant it forks.
The child replaces the code of the changed functions in memory and runs the tests that reach the
changed lines, until one fails. The changed file is on disk meanwhile, for processes that a test
starts. A constant of a module is replaced in memory too, by the value of its changed assignment. A
mutant of other code that runs at import (a class, a default value) needs a fresh interpreter, and
so does a mutant of a constant that survives in memory: a module may have computed from it before.

`MUTANTS_TASK` names a JSON file: `{"reach": PATHS}` to note which test reaches which line of these
files, or `{"mutants": [...]}`; `MUTANTS_ANSWERS` names the file that takes one JSON line for each
answer.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

ROOT = Path.cwd()
#: Limits of one test under a mutant, in seconds: of the processor for one that loops for ever, and
#: of the clock for one that waits for ever. The second allows for a loaded machine.
PROCESSOR_S, CLOCK_S = 10.0, 120.0
SLOW_S = 0.5
MEMORY_BYTES = 4 << 30
_OPTIMIZED = 0x1  # a function's code; a module's and a class's are without
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class NotInMemoryError(Exception):
    """The change is in code that has run already, when the modules were imported."""


def pytest_runtestloop(session: pytest.Session) -> bool:
    """Take the place of pytest's own loop over the tests."""
    if session.testsfailed:
        raise session.Interrupted("the tests were not collected")
    task = json.loads(Path(os.environ["MUTANTS_TASK"]).read_text())
    # A shell's background process ignores the signal of the keyboard.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Path(os.environ["MUTANTS_ANSWERS"]).open("a") as answers:

        def answer(value: dict[str, Any]) -> None:
            answers.write(json.dumps(value) + "\n")
            answers.flush()

        if "reach" in task:
            reach(session, task["reach"], answer)
        else:
            runner = Runner(session)
            for mutant in task["mutants"]:
                answer(runner.run(mutant))
    return True


# --- which test reaches which line ----------------------------------------------------------------


def reach(session: pytest.Session, paths: Sequence[str], answer: Callable[[dict], None]) -> None:
    """Run every test once; answer with its outcome, its duration and the lines that it reaches."""
    import coverage

    measured = coverage.Coverage(data_file=None, include=[str(ROOT / path) for path in paths])
    failed: set[str] = set()

    class Outcomes:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                failed.add(report.nodeid)

    session.config.pluginmanager.register(Outcomes())
    measured.start()
    for item, following in zip(session.items, [*session.items[1:], None], strict=True):
        begun = time.perf_counter()
        measured.switch_context(item.nodeid)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        seconds = time.perf_counter() - begun
        answer({"test": item.nodeid, "seconds": seconds, "failed": item.nodeid in failed})
        if following is None or following.path != item.path:
            file = item.nodeid.partition("::")[0]
            data = measured.get_data()
            data.set_query_contexts([f"^{re.escape(file)}::"])
            lines = {path: data.contexts_by_lineno(str(ROOT / path)) for path in paths}
            answer({"file": file, "lines": {path: of for path, of in lines.items() if of}})
    measured.stop()


# --- mutants --------------------------------------------------------------------------------------


@dataclass
class Runner:
    """Runs mutants: `{"id", "path", "source"}` each, with the tests that may kill it.

    Those are `tests`, by node id with their seconds, or else all of `files`; `killer` is the one
    that killed the mutant last, which runs first.
    """

    session: pytest.Session

    def __post_init__(self) -> None:
        self.items = {item.nodeid: item for item in self.session.items}
        self.order = {nodeid: number for number, nodeid in enumerate(self.items)}
        self.written = 1_000_000_000  # a file time for each version, so that no .pyc is stale
        self.sound: dict[str, bool] = {}  # whether a test passes without a mutant
        self.killers: dict[str, int] = {}  # test files, by the mutant that each killed last
        self.slow: set[str] = set()  # tests that have taken long; they run after the others
        self.live: dict[str, dict[tuple[str, int], list[FunctionType]]] = {}
        self.caches: list[Any] = []  # they hold what unchanged code has answered
        gc.collect()
        for found in gc.get_objects():
            if isinstance(found, functools._lru_cache_wrapper) and _is_ours(found.__wrapped__):
                self.caches.append(found)
            elif isinstance(found, FunctionType) and _is_ours(found):
                of_file = self.live.setdefault(found.__code__.co_filename, defaultdict(list))
                of_file[found.__code__.co_qualname, found.__code__.co_firstlineno].append(found)
        gc.freeze()  # a collection in a child would copy every page

    def run(self, mutant: dict[str, Any]) -> dict[str, Any]:
        """Return what became of a mutant."""
        begun = time.perf_counter()
        wanted = mutant["tests"] or [t for f in mutant["files"] for t in self._of(f)]
        files = {file: number for number, file in enumerate(mutant["files"])}
        tests = self._ordered([t for t in wanted if self.sound.get(t, True)], files)
        if mutant["killer"] in tests:
            tests.sort(key=lambda nodeid: nodeid != mutant["killer"])
        path = ROOT / mutant["path"]
        original, times = path.read_text(), path.stat()
        self.written += 1
        try:
            path.write_text(mutant["source"])
            os.utime(path, (self.written, self.written))
            try:
                changes = list(self._changes(str(path), original, mutant["source"]))
            except SyntaxError as error:
                outcome, test, how = "killed", "", str(error)
            except NotInMemoryError as why:
                outcome, test, how = self._at_import(str(path), original, mutant, tests, str(why))
            else:
                outcome, test, how = self._forked(changes, tests)
        finally:
            path.write_text(original)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        if outcome == "killed" and test:
            if not self._is_sound(test):
                print(f"fails without a mutant, and is left out: {test}", file=sys.stderr)
                return self.run(mutant)
            self.killers[test.partition("::")[0]] = self.written
        took_s = time.perf_counter() - begun
        return {"id": mutant["id"], "outcome": outcome, "test": test, "how": how,
                "seconds": took_s, "tests": len(tests)}  # fmt: skip

    def _at_import(
        self, path: str, original: str, mutant: dict[str, Any], tests: Sequence[str], why: str
    ) -> tuple[str, str, str]:
        """Run the tests of a mutant of code that runs at import."""
        constants = changed_constants(original, mutant["source"])
        module = next((m for m in list(sys.modules.values())
                       if getattr(m, "__file__", None) == path), None)  # fmt: skip
        if constants and module is not None and tests:
            outcome, test, how = self._forked([], tests, lambda: _assign(module, constants))
            if outcome == "killed":
                return outcome, test, how
        return _fresh(tests, why)

    def _of(self, file: str) -> list[str]:
        return [nodeid for nodeid in self.items if nodeid.partition("::")[0] == file]

    def _is_sound(self, test: str) -> bool:
        """Return whether a test passes without a mutant; it is tried once."""
        if test not in self.sound:
            known = test in self.items  # a failed collection has no test of its own
            self.sound[test] = not known or self._forked([], [test])[0] == "survived"
        return self.sound[test]

    def _failures(self) -> list[str]:
        """Return a list to which each failure from now on adds an entry."""
        failed: list[str] = []

        class Failures:
            def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
                if report.failed:
                    failed.append(report.nodeid)

        self.session.config.pluginmanager.register(Failures())
        return failed

    def _ordered(self, tests: Sequence[str], files: dict[str, int]) -> list[str]:
        """Order tests: slow ones last; those files that killed last first, then as `files` says."""

        def rank(nodeid: str) -> tuple[bool, int, int, int]:
            file = nodeid.partition("::")[0]
            killed = -self.killers.get(file, 0)
            return nodeid in self.slow, killed, files.get(file, 0), self.order[nodeid]

        return sorted((t for t in tests if t in self.items), key=rank)

    def _changes(
        self, path: str, original: str, mutated: str
    ) -> Iterator[tuple[list[FunctionType], CodeType]]:
        before = compile(original, path, "exec", dont_inherit=True)
        after = compile(mutated, path, "exec", dont_inherit=True)
        live = self.live.get(path)
        if live is None:
            return  # not imported yet: the child imports the changed file
        for old, new in changed(before, after):
            found = live.get((old.co_qualname, old.co_firstlineno))
            if not found and "<locals>" in old.co_qualname:
                continue  # not made yet: the function around it will make the changed one
            if not found:
                raise NotInMemoryError(f"no function {old.co_qualname}")
            if any(len(f.__code__.co_freevars) != len(new.co_freevars) for f in found):
                raise NotInMemoryError(f"another closure {old.co_qualname}")
            yield found, new

    def _forked(
        self,
        changes: Sequence[tuple[list[FunctionType], CodeType]],
        tests: Sequence[str],
        prepare: Callable[[], None] = lambda: None,
    ) -> tuple[str, str, str]:
        """Run the tests in a fork; return the outcome, the test that decided, and how.

        `prepare` makes further changes in the child.
        """
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                os.setsid()
                _alone()
                for functions, code in changes:
                    for function in functions:
                        function.__code__ = code
                prepare()
                for cache in self.caches:
                    cache.cache_clear()
                self._run(tests, writing)
            except BaseException as error:
                os.write(writing, f"error {error!r}\n".encode())
            finally:
                os._exit(0)
        os.close(writing)
        try:
            return _follow(reading, child, tests, self.slow)
        finally:
            os.close(reading)
            _end(child)

    def _run(self, tests: Sequence[str], writing: int) -> None:
        """Run the tests, in the child, until one fails; say before each which one it is."""
        failed = self._failures()
        items = [self.items[nodeid] for nodeid in tests]
        for number, item in enumerate(items):
            os.write(writing, f"test {number}\n".encode())
            following = items[number + 1] if number + 1 < len(items) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if failed:
                os.write(writing, b"failed\n")
                if following is not None:
                    self.session._setupstate.teardown_exact(None)
                return
        os.write(writing, b"passed\n")


def _fresh(tests: Sequence[str], why: str) -> tuple[str, str, str]:
    """Run the tests in a fresh interpreter."""
    if not tests:
        return "no tests", "", why
    command = [sys.executable, "-m", "pytest", "-x", "-n0", "--no-header", "--tb=no", "-rfE"]
    command += ["-p", "no:cacheprovider", *tests]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("MUTANTS_")}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env=inherited, start_new_session=True,
    )  # fmt: skip
    try:
        shown, _ = process.communicate(timeout=5 * CLOCK_S)
    except subprocess.TimeoutExpired:
        _end(process.pid, reap=False)
        process.communicate()
        return "error", "", f"no end within {5 * CLOCK_S:.0f} s in a fresh interpreter"
    failed = [line.split()[1] for line in shown.splitlines() if line[:5] in ("FAILE", "ERROR")]
    if process.returncode in (0, 5):
        return ("survived" if process.returncode == 0 else "no tests"), "", why
    return "killed", (failed or [""])[0], "in a fresh interpreter"


def changed(before: CodeType, after: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield the functions that differ, old and new: the outermost, then those within them.

    Raises:
        NotInMemoryError: code outside of functions differs.
    """
    old, new = _nested(before), _nested(after)
    if [code.co_name for code in old] != [code.co_name for code in new] or _own(before) != _own(
        after
    ):
        raise NotInMemoryError("code that runs at import")
    for one, other in zip(old, new, strict=True):
        if not one.co_flags & _OPTIMIZED:
            yield from changed(one, other)
        elif _whole(one) != _whole(other):
            yield one, other
            yield from _within(one, other)


def _within(before: CodeType, after: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield the functions that differ within one: a decorator, say, has made them at import."""
    old, new = _nested(before), _nested(after)
    if [code.co_name for code in old] == [code.co_name for code in new]:
        for one, other in zip(old, new, strict=True):
            if _whole(one) != _whole(other):
                yield one, other
                yield from _within(one, other)


def changed_constants(before: str, after: str) -> list[ast.stmt]:
    """Return the assignments that differ, where a module differs in nothing else.

    Empty where it differs in more, or where other code that runs at import reads what they assign.
    """
    old, new = ast.parse(before).body, ast.parse(after).body
    if len(old) != len(new):
        return []
    differ = [each for one, each in zip(old, new, strict=True) if ast.dump(one) != ast.dump(each)]
    names = {name for each in differ if (name := _assigned(each))}
    if len(names) != len(differ):
        return []
    read = {name for each in new for name in _read_at_import(each)}
    return [] if names & read else differ


def _assigned(statement: ast.stmt) -> str:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return ""


def _read_at_import(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement reads when it runs, without the bodies of functions."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    for field, value in ast.iter_fields(node):
        if field == "body" and isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
        ):
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST):
                yield from _read_at_import(each)


def _assign(module: ModuleType, statements: Sequence[ast.stmt]) -> None:
    """Assign a module's constants anew, in it and in those modules of ours that import them."""
    for statement in statements:
        name = _assigned(statement)
        before = getattr(module, name)
        exec(compile(ast.Module([statement], []), str(module.__file__), "exec"), vars(module))
        for other in list(sys.modules.values()):
            ours = str(getattr(other, "__file__", "")).startswith(str(ROOT))
            if ours and vars(other).get(name) is before:
                setattr(other, name, getattr(module, name))


def _nested(code: CodeType) -> list[CodeType]:
    return [const for const in code.co_consts if isinstance(const, CodeType)]


def _own(code: CodeType) -> tuple[Any, ...]:
    """Return what a code object does itself, without the functions in it and without lines."""
    consts = [repr(c) for c in code.co_consts if not isinstance(c, CodeType)]
    return (code.co_code, consts, code.co_names, code.co_varnames, code.co_freevars,
            code.co_cellvars, code.co_argcount, code.co_kwonlyargcount, code.co_flags,
            code.co_exceptiontable)  # fmt: skip


def _whole(code: CodeType) -> tuple[Any, ...]:
    return (*_own(code), *(_whole(each) for each in _nested(code)))


def _is_ours(function: object) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename.startswith(str(ROOT))


def _alone() -> None:
    """Set up the child: no output, no terminal, bounds on memory, files that end with it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _follow(reading: int, child: int, tests: Sequence[str], slow: set[str]) -> tuple[str, str, str]:
    """Wait for the child's word on each test, with limits for each; add to those that are slow."""
    if not tests:
        return "no tests", "", ""
    at, unread = 0, b""
    begun_s, used_s = time.monotonic(), 0.0
    while True:
        ready, _, _ = select.select([reading], [], [], 1.0)
        if not ready:
            if _processor_s(child) - used_s > PROCESSOR_S:
                return "killed", tests[at], f"no end after {PROCESSOR_S:.0f} s of the processor"
            if time.monotonic() - begun_s > CLOCK_S:
                return "killed", tests[at], f"no end within {CLOCK_S:.0f} s"
            continue
        got = os.read(reading, 4096)
        if not got:
            return "killed", tests[at], "the process ended"
        *lines, unread = (unread + got).split(b"\n")
        for line in lines:
            word, _, rest = line.decode().partition(" ")
            if word == "test":
                if time.monotonic() - begun_s > SLOW_S:
                    slow.add(tests[at])
                at = int(rest)
                begun_s, used_s = time.monotonic(), _processor_s(child)
            elif word == "failed":
                return "killed", tests[at], "failed"
            elif word == "passed":
                return "survived", "", ""
            else:
                return "error", tests[at], rest


def _processor_s(process: int) -> float:
    """Return the processor time of a process and of its children that have ended."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def _end(child: int, *, reap: bool = True) -> None:
    """End a child and what it started; a child that has answered may still tear down."""
    limit = time.monotonic() + 5
    while reap and time.monotonic() < limit:
        if os.waitpid(child, os.WNOHANG)[0]:
            reap = False
            break
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    if reap:
        os.waitpid(child, 0)
