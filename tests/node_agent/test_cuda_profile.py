"""The hook for PyTorch, on a GPU whose clock the test moves: PyTorch itself is not installed."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from tandem import progress
from tandem.contracts.annotations import parse_demand
from tandem.contracts.prediction import Framework


class Gpu:
    """A stream that is busy until `free_ms`; what is submitted runs after what came before."""

    def __init__(self):
        self.cpu_ms = self.free_ms = 0.0
        self.synchronized = False

    def kernels(self, ms):
        self.free_ms = max(self.free_ms, self.cpu_ms) + ms

    def event(self, enable_timing):
        assert enable_timing
        gpu = self

        class Event:
            def record(self):
                self.at = max(gpu.free_ms, gpu.cpu_ms)

            def query(self):
                return gpu.synchronized or self.at <= gpu.cpu_ms

            def elapsed_time(self, other):
                return other.at - self.at

        return Event()

    def synchronize(self):
        self.synchronized = True


@pytest.fixture
def gpu(monkeypatch):
    """A module that stands for `torch`, with one GPU and one hook for forward passes."""
    gpu, torch = Gpu(), ModuleType("torch")
    gpu.hooks = []

    def register(hook):
        gpu.hooks.append(hook)
        return SimpleNamespace(remove=lambda: gpu.hooks.remove(hook))

    torch.cuda = SimpleNamespace(
        is_available=lambda: True,
        Event=gpu.event,
        reset_peak_memory_stats=lambda: None,
        max_memory_reserved=lambda: 5 << 30,
        synchronize=gpu.synchronize,
    )
    module = SimpleNamespace(register_module_forward_pre_hook=register)
    torch.nn = SimpleNamespace(modules=SimpleNamespace(module=module))
    monkeypatch.setitem(sys.modules, "torch", torch)
    return gpu


def train(gpu, iterations, load_ms, kernel_ms):
    for _ in range(iterations):
        gpu.cpu_ms += load_ms
        for hook in (*gpu.hooks, *gpu.hooks):  # a module has parts, and each has its hook called
            hook(None, None)
        gpu.kernels(kernel_ms)
        progress.step()


def test_active_and_idle_time_of_iterations_that_wait_for_data(gpu):
    with progress.profile() as profile:
        train(gpu, 11, load_ms=300, kernel_ms=100)
    assert profile.iterations == 10
    assert profile.active_s == pytest.approx(1.0)
    assert profile.idle_s == pytest.approx(2.0)
    assert profile.peak_memory_bytes == 5 << 30
    assert (gpu.hooks, progress.listeners) == ([], [])


def test_a_profile_says_what_to_annotate(gpu, caplog):
    caplog.set_level("INFO")
    with progress.profile() as profile:
        assert profile.annotations() == {}
        train(gpu, 11, load_ms=300, kernel_ms=100)
    said = profile.annotations()
    demand = parse_demand(said, gpus_per_pod=1)
    assert demand.declared_memory_bytes == 6 << 30
    assert demand.declared_utilisation_percent == 33
    assert demand.framework is Framework.PYTORCH
    assert json.dumps(said) in caplog.text


def test_gpu_that_is_behind_is_never_idle(gpu):
    with progress.profile() as profile:
        train(gpu, 5, load_ms=10, kernel_ms=100)
        assert profile.iterations == 0, "the CPU does not wait for the GPU"
    assert (profile.iterations, profile.idle_s) == (4, 0)
    assert profile.active_s == pytest.approx(0.4)


@pytest.mark.parametrize("torch", [None, "without CUDA"])
def test_nothing_without_pytorch_or_cuda(monkeypatch, torch):
    if torch:
        torch = ModuleType("torch")
        torch.cuda = SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    with progress.profile() as profile:
        progress.step()
    assert profile.iterations == 0


def test_nothing_in_an_image_that_has_the_helper_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "tandem.cuda_profile", None)
    with progress.profile():
        progress.step()
