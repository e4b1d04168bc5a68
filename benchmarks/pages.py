"""What pages of figures share: the options of a run, how a page was made, where it is written."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.sources import digest

FOLDER = Path(__file__).parents[1] / "docs" / "evidence" / "results"


def options(doc: str, **defaults: int) -> argparse.Namespace:
    """Read whole numbers from the command line; `command` is the command that gives the same."""
    command = f"python -m {sys.modules['__main__'].__spec__.name}"
    parser = argparse.ArgumentParser(prog=command, description=doc.splitlines()[0])
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    found = parser.parse_args()
    found.command = " ".join([command, *(f"--{name} {getattr(found, name)}" for name in defaults)])
    return found


def made_by(command: str, seeds: str) -> str:
    """Return the line that says by which command, code, seed and machine a page was written."""
    cores = os.cpu_count()
    module = re.fullmatch(r"python -m ([\w.]+).*", command)
    assert module is not None, command
    return (
        f"Written by `{command}`; {seeds}; sources {digest(module[1])}; "
        f"{platform.system()} {platform.machine()}, {cores} cores, "
        f"Python {platform.python_version()}. Simulated time does not depend on the machine."
    )


def publish(
    name: str, template: str, given: argparse.Namespace, seeds: str, /, **values: object
) -> None:
    """Write a page of results from a template, with the line that says how it was made."""
    write(name, template.format(made_by=made_by(given.command, seeds), **values))


def write(name: str, text: str) -> None:
    """Write docs/evidence/results/`name`.md, and say so."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.md"
    path.write_text(text)
    print(text)
    print(f"written: {path}")


def keep_current(doc: str, pages: Mapping[Path, str]) -> None:
    """Write pages with `--write`; without it, exit with an error where one is out of date."""
    command = f"python -m {sys.modules['__main__'].__spec__.name.removesuffix('.__main__')}"
    parser = argparse.ArgumentParser(prog=command, description=doc)
    parser.add_argument("--write", action="store_true", help="write what is out of date")
    writes = parser.parse_args().write
    for path, text in pages.items():
        if writes:
            path.write_text(text)
        elif path.read_text() != text:
            raise SystemExit(f"{path} is out of date: {command} --write")
