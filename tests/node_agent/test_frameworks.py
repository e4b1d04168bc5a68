"""`python -m proof.frameworks` passes only where a framework has read the limit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from proof import frameworks

TORCH = """
import os
from types import SimpleNamespace
__version__ = "2.99"
_C = SimpleNamespace(_accelerator_getAllocatorSettings=lambda: {said})
"""
READS = 'os.environ.get("PYTORCH_ALLOC_CONF", "")'


def interpreter(folder: Path, **modules: str) -> str:
    """Return an interpreter that has these modules besides its own."""
    installed = folder / "installed"
    installed.mkdir()
    for name, text in modules.items():
        (installed / f"{name}.py").write_text(text)
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{installed}" exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    return str(python)


def run(monkeypatch: pytest.MonkeyPatch, python: str) -> int:
    monkeypatch.setattr(sys, "argv", ["frameworks", "--python", python])
    return frameworks.main()


def test_a_container_reads_the_limit_by_the_variable_of_each_framework() -> None:
    found = frameworks.container_environment()
    # 10 GiB and a tenth, of 80 GiB.
    assert found["TANDEM_MEMORY_FRACTION"] == "0.1375"
    assert found["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.1375"
    assert found["PYTORCH_ALLOC_CONF"] == "per_process_memory_fraction:0.1375"
    assert found["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (READS, 0),
        ('""', 1),
        ('"per_process_memory_fraction:0.9"', 1),
        ('"expandable_segments:True," + ' + READS, 0),
    ],
)
def test_a_framework_that_has_not_read_the_limit_fails(
    said: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    python = interpreter(tmp_path, torch=TORCH.format(said=said))
    assert run(monkeypatch, python) == code
    printed = capsys.readouterr().out
    assert "| PyTorch 2.99 |" in printed
    assert ("| yes |" in printed) == (code == 0)
    assert printed.count("not installed") == 2


def test_a_framework_that_does_not_start_is_not_missing(tmp_path: Path) -> None:
    python = interpreter(tmp_path, jax="import a_library_of_its_own")
    with pytest.raises(RuntimeError, match=r"(?s)JAX: .*a_library_of_its_own"):
        frameworks.ask(python, "JAX", {})


def test_no_framework_at_all_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, interpreter(tmp_path)) == 1
