"""Entries of kubeconfig files."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A cluster, a user or a context, its name, and the file that has it."""

    name: str = ""
    said: dict[str, Any] = field(default_factory=dict)
    file: Path = Path()

    def content(self, key: str) -> bytes | None:
        """Return what `KEY-data` holds, else the file that `KEY` names; None without either."""
        data = self.said.get(f"{key}-data")
        if data:
            return b64decode(data)
        named = self.said.get(key)
        return self.path(named).read_bytes() if named else None

    def path(self, named: str) -> Path:
        """Return a path as this file means it."""
        return self.file.parent / Path(named).expanduser()
