"""`tandem.progress` keeps PyTorch to the job's limit of GPU memory.

PyTorch itself is in no lock file: a module with its three calls takes its place, which is what the
helper calls where a GPU is there.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tandem import progress
from tandem.contracts import names


class Cuda:
    """The calls of `torch.cuda` that the helper makes."""

    def __init__(self, devices: int, *, initialized: bool = True) -> None:
        self.devices = devices
        self.initialized = initialized
        self.limits: dict[int, float] = {}

    def is_available(self) -> bool:
        return self.devices > 0

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        return self.devices

    def set_per_process_memory_fraction(self, fraction: float, device: int) -> None:
        self.limits[device] = fraction


def torch_with(monkeypatch: pytest.MonkeyPatch, cuda: Cuda) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


def test_the_variable_is_the_one_that_the_webhook_sets() -> None:
    assert progress.MEMORY_FRACTION == names.MEMORY_FRACTION_ENV


def test_every_gpu_of_the_process_gets_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(2)
    torch_with(monkeypatch, cuda)
    monkeypatch.setenv(progress.MEMORY_FRACTION, "0.1375")
    assert progress.limit_memory() == 0.1375
    assert cuda.limits == {0: 0.1375, 1: 0.1375}


@pytest.mark.parametrize("said", [None, "", "0", "1.5", "nan", "half"])
def test_without_a_limit_nothing_is_set(monkeypatch: pytest.MonkeyPatch, said: str | None) -> None:
    cuda = Cuda(1)
    torch_with(monkeypatch, cuda)
    monkeypatch.delenv(progress.MEMORY_FRACTION, raising=False)
    if said is not None:
        monkeypatch.setenv(progress.MEMORY_FRACTION, said)
    assert progress.limit_memory() is None
    assert not cuda.limits


def test_without_pytorch_or_a_gpu_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(progress.MEMORY_FRACTION, "0.5")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert progress.limit_memory() is None
    cuda = Cuda(0)
    torch_with(monkeypatch, cuda)
    assert progress.limit_memory() is None
    assert not cuda.limits


@pytest.mark.parametrize("initialized", [True, False])
def test_the_first_step_sets_it_where_the_gpu_is_in_use_by_then(
    monkeypatch: pytest.MonkeyPatch, initialized: bool
) -> None:
    cuda = Cuda(1, initialized=initialized)
    torch_with(monkeypatch, cuda)
    monkeypatch.setenv(progress.MEMORY_FRACTION, "0.5")
    monkeypatch.setenv(progress.AGENT_URL, "http://127.0.0.1:9")
    monkeypatch.setattr(progress, "_thread", None)
    monkeypatch.setattr(progress, "_tell", lambda: None)
    progress.step()
    assert cuda.limits == ({0: 0.5} if initialized else {})
    cuda.limits.clear()
    progress.step()
    assert not cuda.limits
