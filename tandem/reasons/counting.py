"""A count with its noun; imports nothing, since the command line starts with it."""

from __future__ import annotations


def counted(count: int, what: str) -> str:
    """Return a count with its noun: `1 GPU`, `2 GPUs`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
