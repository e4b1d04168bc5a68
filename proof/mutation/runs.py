"""Runs of pytest that try mutants (`runner.py`), each in a copy of the checkout."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from proof.mutation.sources import ROOT

OUT = ROOT / ".out" / "mutants"
FAST = "not slow and not controlplane and not real"


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
        command = [sys.executable, "-m", "pytest", "-p", "proof.mutation.runner", "-n0", "-m"]
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

    def stop(self) -> None:
        """End pytest, and the test that it runs."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()

    def new(self) -> list[dict[str, Any]]:
        """Return the answers since the last call."""
        self._unread += self._stream.read()
        *lines, self._unread = self._unread.split("\n")
        return [json.loads(line) for line in lines]


def answers(runs: Sequence[Run], until_s: float) -> Iterator[tuple[Run, dict[str, Any]]]:
    """Yield the answers of all runs as they come, until all have ended.

    Raises:
        TimeoutError: it is later than `until_s` (monotonic); the runs have been stopped.
    """
    left = list(runs)
    while left:
        ended = [run for run in left if run.ended()]
        for run in left:
            yield from ((run, answer) for answer in run.new())
        left = [run for run in left if run not in ended]
        if time.monotonic() > until_s:
            for run in left:
                run.stop()
                yield from ((run, answer) for answer in run.new())
            raise TimeoutError("the time is up; the next run goes on from here")
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
