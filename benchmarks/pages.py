"""What pages of figures share: the line that says how a page was made, and where it is written."""

from __future__ import annotations

import os
import platform
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "results"


def made_by(command: str, seeds: str) -> str:
    """Return the line that says by which command, seed and machine a page was written."""
    cores = os.cpu_count()
    return (
        f"Written by `{command}`; {seeds}; "
        f"{platform.system()} {platform.machine()}, {cores} cores, "
        f"Python {platform.python_version()}. Simulated time does not depend on the machine."
    )


def write(name: str, text: str) -> None:
    """Write docs/results/`name`.md, and say so."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.md"
    path.write_text(text)
    print(text)
    print(f"written: {path}")
