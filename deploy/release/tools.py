"""How the pipeline runs programs and says where it is."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tandem.errors import TandemError

ROOT = Path(__file__).resolve().parents[2]
_TAIL = 3000


def run(
    *command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None, hint: str = ""
) -> str:
    """Run a program; return what it prints to stdout.

    Raises:
        TandemError: the program failed, with the end of what it said.
    """
    try:
        done = subprocess.run(
            list(map(str, command)),
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise TandemError(f"there is no {command[0]} on this machine", hint) from error
    if done.returncode != 0:
        name = " ".join(map(str, command[:3]))
        raise TandemError(f"`{name} ...` failed:\n{(done.stdout + done.stderr)[-_TAIL:]}", hint)
    return done.stdout


@contextmanager
def step(what: str) -> Iterator[None]:
    """Print what begins and, at its end, how long it has taken."""
    print(f"{what} ...", flush=True)
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.0f} s", flush=True)
