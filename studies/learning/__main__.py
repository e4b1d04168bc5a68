"""docs/evidence/results/learning.md: what wrong predictions cost, and what learning gives back.

    python -m studies.learning [--only SECTION] [--seeds 3]

Sections keep their figures under .out/learning; the page is written of what is there. Pairs are
measured ones (TANDEM_SHARED_DATA) where a section says so, otherwise drawn here, seeded.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.pages import write
from studies.learning.errors import errors, ways
from studies.learning.history import history, liars
from studies.learning.page import page
from studies.learning.repair import repair_course

KEPT = Path(__file__).parents[2] / ".out" / "learning"
SECTIONS = {
    "errors": errors,
    "ways": ways,
    "history": history,
    "liars": liars,
    "repair": repair_course,
}


def _kept(name: str) -> list[dict[str, float]]:
    path = KEPT / f"{name}.json"
    if not path.exists():
        raise SystemExit(f"no figures of {name}: python -m studies.learning --only {name}")
    found: list[dict[str, float]] = json.loads(path.read_text())
    return found


def main() -> None:
    """Run the sections asked for, all by default; write the page when all figures are there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=[*SECTIONS, "page"])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    KEPT.mkdir(parents=True, exist_ok=True)
    for name, section in SECTIONS.items():
        if arguments.only in (None, name):
            (KEPT / f"{name}.json").write_text(json.dumps(section(arguments.seeds)))
    if arguments.only in (None, "page"):
        write("learning", page(_kept))


if __name__ == "__main__":
    main()
