"""The check of frameworks' limits, with frameworks that keep to them, and some that do not.

Real child processes import them from a folder in place of the real ones. They count what they give,
read the variables that the real ones read, and end with the real ones' words. What a real framework
does on a real GPU only a run on one says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node_agent import check, check_limits
from node_agent.stub import StubGpu

GIB = 1 << 30
TOTAL = 80 * GIB
TORCH = f"""
import os
from types import SimpleNamespace as Names
__version__ = VERSION
uint8 = "uint8"
TOTAL = {TOTAL}
class OutOfMemoryError(RuntimeError): ...
OutOfMemoryError.__module__ = "torch"
def settings():
    names = ("PYTORCH_CUDA_ALLOC_CONF", *(("PYTORCH_ALLOC_CONF",) if NEW else ()))
    text = next((os.environ[name] for name in names if name in os.environ), "")
    found = dict(each.split(":") for each in text.split(",") if each)
    if not NEW and "per_process_memory_fraction" in found:
        raise RuntimeError("Unrecognized CachingAllocator option: per_process_memory_fraction")
    return float(found.get("per_process_memory_fraction", 1))
state = Names(limit=settings(), held=0)
def set_limit(fraction, device):
    state.limit = fraction
cuda = Names(
    is_available=lambda: True, device_count=lambda: 1, current_device=lambda: 0,
    memory_reserved=lambda device: state.held, set_device=lambda device: None,
    set_per_process_memory_fraction=set_limit, _lazy_call=lambda call: call(),
)
if NEW:
    cuda.get_per_process_memory_fraction = lambda device=0: state.limit
def empty(size, dtype, device):
    assert (dtype, device) == ("uint8", "cuda")
    if KEEPS and state.held + size > state.limit * TOTAL:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate")
    state.held += size
"""
JAX = f"""
import os
from types import SimpleNamespace as Names
__version__ = "0.11.2"
LIMIT = float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION") or 0.75) * {TOTAL}
def devices(kind):
    assert kind == "gpu"
    return [Names(memory_stats=lambda: {{"bytes_limit": int(LIMIT)}})]
"""
JAX_NUMPY = """
import jax
from types import SimpleNamespace as Names
uint8 = "uint8"
held = 0
class JaxRuntimeError(RuntimeError): ...
def zeros(shape, dtype):
    global held
    held += shape[0]
    if held > jax.LIMIT:
        raise JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate")
    return Names(block_until_ready=lambda: None)
"""


@pytest.fixture
def frameworks(driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder from which children import; there is one GPU of 80 GiB."""
    driver.state.gpus = [StubGpu("GPU-a")]
    driver.apply()
    folder = tmp_path / "frameworks"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    for name in check_limits._CLEARED:  # what the shell has set is not to count
        monkeypatch.setenv(
            name, "per_process_memory_fraction:0.01" if "PYTORCH" in name else "0.01"
        )
    return folder


def torch(folder: Path, version: str = "2.11.0", *, new: bool = True, keeps: bool = True) -> None:
    values = f"VERSION, NEW, KEEPS = {version!r}, {new}, {keeps}"
    (folder / "torch.py").write_text(values + TORCH)


def jax(folder: Path) -> None:
    (folder / "jax").mkdir()
    (folder / "jax" / "__init__.py").write_text(JAX)
    (folder / "jax" / "numpy.py").write_text(JAX_NUMPY)


def checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, dict[str, Any]]:
    out = folder.parent / "out"
    monkeypatch.setattr("sys.argv", ["check", "--limits", "--out", str(out)])
    code = check.main()
    assert "| held |" in (out / "limits-check.md").read_text()
    report: dict[str, Any] = json.loads((out / "limits-check.json").read_text())
    return code, report


def test_frameworks_that_keep_to_their_limit(
    frameworks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch(frameworks)
    jax(frameworks)
    code, report = checked(frameworks, monkeypatch)
    assert code == 0, report
    seen = {each["what"]: each["seen"] for each in report["findings"]}
    assert seen["PyTorch 2.11.0: no limit"].startswith("4.0 GiB given, 8.0 GiB more given")
    for means in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "tandem.progress"):
        said = seen[f"PyTorch 2.11.0: {means}"]
        assert said.startswith("4.0 GiB given, 8.0 GiB more refused"), means
    for means in ("", ", no preallocation"):
        said = seen[f"JAX 0.11.2: XLA_PYTHON_CLIENT_MEM_FRACTION{means}"]
        assert said.startswith(
            "4.0 GiB given, 8.0 GiB more refused; it says bytes_limit 8589934592"
        )
    assert seen["frameworks that are installed"] == "6"
    assert report["not installed"] == ["tensorflow"]


def test_a_pytorch_that_does_not_know_the_setting_is_limited_by_the_helper_alone(
    frameworks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch(frameworks, "2.9.1", new=False)
    code, report = checked(frameworks, monkeypatch)
    held = {each["what"]: each["held"] for each in report["findings"]}
    assert code == 1
    assert held["PyTorch 2.9.1: tandem.progress"]
    assert not held["PyTorch 2.9.1: PYTORCH_ALLOC_CONF"], "it does not read it"
    (error,) = [each for each in report["findings"] if "CUDA_ALLOC" in each["what"]]
    assert not error["held"]
    assert "Unrecognized CachingAllocator option" in error["seen"], "it is no lack of memory"


def test_a_framework_that_goes_beyond_its_limit_is_found(
    frameworks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch(frameworks, keeps=False)
    code, report = checked(frameworks, monkeypatch)
    missed = [each["what"] for each in report["findings"] if not each["held"]]
    assert code == 1
    assert len(missed) == 3
    assert all(each.startswith("PyTorch 2.11.0: ") for each in missed)


def test_without_a_framework_or_a_gpu_nothing_is_said_to_hold(
    frameworks: Path, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, report = checked(frameworks, monkeypatch)
    assert code == 1
    assert report["not installed"] == ["torch", "jax", "tensorflow"]
    driver.state.gpus = []
    driver.apply()
    code, report = checked(frameworks, monkeypatch)
    assert code == 1
    (finding,) = report["findings"]
    assert finding["what"] == "a GPU is found"
