"""The errors that are meant for people: what is wrong, and what to do about it."""

from __future__ import annotations


class TandemError(Exception):
    """Something that the user can mend. `hint` says how; the CLI exits with 1."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(TandemError):
    """The command was called with arguments that make no sense; the CLI exits with 2."""
