"""What became of each mutant, kept by content."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any

from proof.mutation.runs import OUT
from proof.mutation.sources import ROOT, Mutant, digest_of, spans_of


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

    def killer(self, mutant: Mutant) -> str:
        """Return the test that killed a mutant when it was tried last, '' where none has."""
        return str(self._known.get(_key(mutant), {}).get("test", ""))

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
    around = spans_of(code).get(mutant.function, (0, digest_of(code)))[1]
    return digest_of(mutant.path, mutant.function, around, mutant.id, mutant.old, mutant.new)


@cache
def _file_digest(file: str) -> str:
    path = ROOT / file
    return digest_of(path.read_text()) if file and path.exists() else ""


def _with(tests: Iterable[str], files: Iterable[str]) -> str:
    """Return a hash of what a mutant is tried with."""
    return digest_of(*sorted(tests), *(f"{file} {_file_digest(file)}" for file in sorted(files)))
