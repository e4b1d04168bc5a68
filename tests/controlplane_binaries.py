"""The programs of a control plane; a test for which this machine lacks one is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest


def need_control_plane(*others: str) -> None:
    """Skip the test where a program of the control plane, or one of `others`, is missing."""
    # Imported here and not by every test run: it takes half a second.
    from controlplane import binaries

    _need([*binaries.missing(), *(name for name in others if binaries.find(name) is None)])


def program(name: str) -> Path:
    """Return where a program is; skip the test where it is missing."""
    from controlplane import binaries

    found = binaries.find(name)
    _need([name] if found is None else [])
    assert found is not None
    return found


def _need(absent: list[str]) -> None:
    from controlplane import binaries

    if absent:
        pytest.skip(f"no {', '.join(absent)} on this machine. {binaries.how_to_get()}")
