"""The listed exceptions of continuous integration: `tests/ci_exceptions.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True)
class Unreliable:
    """A test that may fail once, until a day, for a known cause."""

    test: str
    since: date
    until: date
    cause: str


@dataclass(frozen=True)
class AllowedSkip:
    """A reason to skip that does not fail the run; the test's reason begins with `reason`."""

    reason: str
    since: date
    cause: str


@dataclass(frozen=True)
class Exceptions:
    """All that is listed."""

    unreliable: tuple[Unreliable, ...] = ()
    skipped: tuple[AllowedSkip, ...] = ()

    def excuses(self, test: str, today: date) -> Unreliable | None:
        """Return the entry that lets `test` (a node id) fail once today, or None."""
        return next((e for e in self.unreliable if e.test == test and today <= e.until), None)

    def allows_skip(self, reason: str) -> bool:
        """Tell whether a test may be skipped in continuous integration for `reason`."""
        return any(reason.startswith(entry.reason) for entry in self.skipped)


def load(file: Path = FILE) -> Exceptions:
    """Read the list; an entry without one of its fields, or with another, raises TypeError."""
    entries: dict[str, list[dict[str, Any]]] = tomllib.loads(file.read_text())
    return Exceptions(
        tuple(Unreliable(**entry) for entry in entries.pop("unreliable", [])),
        tuple(AllowedSkip(**entry) for entry in entries.pop("skipped", [])),
        **entries,
    )
