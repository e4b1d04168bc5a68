"""`tandem.progress` keeps PyTorch and TensorFlow to the job's limit of GPU memory.

Neither is in a lock file: modules with the calls that the helper makes take their places. PyTorch
2.10 and TensorFlow 2.21 have these names; `_lazy_call` waits for CUDA, and PyTorch before 2.10
stays on the GPU that it limits.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem import progress
from tandem.contracts import names
from tandem.contracts.limits import limit_annotations

GIB = 1 << 30


class OldCuda:
    """`torch.cuda` before `get_per_process_memory_fraction`, in a process that sees some GPUs."""

    def __init__(self, devices: int, *, initialized: bool = False) -> None:
        self.devices = devices
        self.initialized = initialized
        self.current = 0
        self.limits: dict[int, float] = {}
        self.reserved: dict[int, int] = {}
        self.contexts: set[int] = set()
        self.waiting: list[Callable[[], None]] = []

    def is_available(self) -> bool:
        return self.devices > 0

    def device_count(self) -> int:
        return self.devices

    def current_device(self) -> int:
        self.start()
        return self.current

    def set_device(self, device: int) -> None:
        self.start()
        self.current = device
        self.contexts.add(device)

    def memory_reserved(self, device: int) -> int:
        return self.reserved.get(device, 0)

    def set_per_process_memory_fraction(self, fraction: float, device: int) -> None:
        assert self.initialized
        self.set_device(device)
        self.limits[device] = fraction

    def start(self) -> None:
        """Initialize CUDA, as the first use of a GPU does."""
        if not self.initialized:
            self.initialized = True
            for call in self.waiting:
                call()

    def use(self, device: int) -> None:
        self.start()
        self.contexts.add(device)
        self.reserved[device] = GIB

    def _lazy_call(self, call: Callable[[], None]) -> None:
        if self.initialized:
            call()
        else:
            self.waiting.append(call)


class Cuda(OldCuda):
    """`torch.cuda` of today, which says what is set."""

    def get_per_process_memory_fraction(self, device: int) -> float:
        return self.limits.get(device, 1.0)


def torch_with(monkeypatch: pytest.MonkeyPatch, cuda: OldCuda) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a job with a limit of a half that imports neither framework."""
    for name in ("torch", "tensorflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in progress._PYTORCH_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(progress.MEMORY_FRACTION, "0.5")
    monkeypatch.setattr(progress, "_limited", set())
    monkeypatch.setattr(progress, "_thread", None)
    monkeypatch.setattr(progress, "_tell", lambda: None)
    monkeypatch.setenv(progress.AGENT_URL, "http://127.0.0.1:9")


def test_the_variables_are_those_that_the_webhook_sets() -> None:
    assert progress.MEMORY_FRACTION == names.MEMORY_FRACTION_ENV
    assert names.PYTORCH_ALLOC_CONF_ENV in progress._PYTORCH_SETTINGS
    set_on_the_pod = limit_annotations(10, 80)[names.PYTORCH_ALLOC_CONF]
    assert set_on_the_pod.partition(":")[0] == progress._PYTORCH_LIMIT


@pytest.mark.parametrize("kind", [OldCuda, Cuda])
def test_a_process_with_one_gpu_is_limited_when_it_starts_to_use_it(
    monkeypatch: pytest.MonkeyPatch, kind: type[OldCuda]
) -> None:
    cuda = kind(1)
    torch_with(monkeypatch, cuda)
    progress._limit_pytorch_in_use()  # as at the import
    assert not cuda.initialized, "a launcher that imports the helper holds no GPU memory"
    cuda.start()
    assert cuda.limits == {0: 0.5}


@pytest.mark.parametrize("kind", [OldCuda, Cuda])
def test_a_rank_among_several_gpus_is_limited_on_its_own_one_alone(
    monkeypatch: pytest.MonkeyPatch, kind: type[OldCuda]
) -> None:
    """A context on each of eight GPUs would cost eight ranks 4 GiB of each."""
    cuda = kind(8)
    torch_with(monkeypatch, cuda)
    progress._limit_pytorch_in_use()
    cuda.set_device(5)
    cuda.use(5)
    assert not cuda.limits
    progress.step()
    assert cuda.limits == {5: 0.5}
    assert cuda.contexts == {5}
    assert cuda.current == 5


@pytest.mark.parametrize("kind", [OldCuda, Cuda])
def test_a_process_that_uses_several_gpus_is_limited_on_each_and_stays_where_it_is(
    monkeypatch: pytest.MonkeyPatch, kind: type[OldCuda]
) -> None:
    cuda = kind(4)
    torch_with(monkeypatch, cuda)
    cuda.use(0)
    cuda.use(2)
    cuda.set_device(1)
    assert progress.limit_memory() == 0.5
    assert cuda.limits == {0: 0.5, 1: 0.5, 2: 0.5}
    assert cuda.current == 1
    assert progress.limit_memory() == 0.5, "a second call changes nothing"


@pytest.mark.parametrize("said", [None, "", "0", "1.5", "nan", "half", "-1", "0.5x"])
def test_without_a_limit_nothing_is_set(monkeypatch: pytest.MonkeyPatch, said: str | None) -> None:
    cuda = Cuda(1)
    torch_with(monkeypatch, cuda)
    monkeypatch.delenv(progress.MEMORY_FRACTION)
    if said is not None:
        monkeypatch.setenv(progress.MEMORY_FRACTION, said)
    assert progress.limit_memory() is None
    progress.step()
    cuda.start()
    assert not cuda.limits


def test_without_pytorch_or_a_gpu_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress.limit_memory() is None
    cuda = Cuda(0)
    torch_with(monkeypatch, cuda)
    assert progress.limit_memory() is None
    progress.step()
    assert not cuda.limits
    assert not cuda.initialized


@pytest.mark.parametrize("initialized", [True, False])
def test_the_first_step_limits_a_framework_that_was_imported_after_the_helper(
    monkeypatch: pytest.MonkeyPatch, initialized: bool
) -> None:
    cuda = Cuda(1, initialized=initialized)
    torch_with(monkeypatch, cuda)
    progress.step()
    assert cuda.limits == ({0: 0.5} if initialized else {})
    cuda.start()
    assert cuda.limits == {0: 0.5}


def test_a_limit_that_the_user_sets_in_code_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (OldCuda, Cuda):
        cuda = kind(1)
        torch_with(monkeypatch, cuda)
        progress._limited.clear()
        progress._limit_pytorch_in_use()
        cuda.start()
        cuda.set_per_process_memory_fraction(0.25, 0)
        progress.step()
        assert cuda.limits == {0: 0.25}, kind
    progress._limited.clear()
    assert progress.limit_memory() is None, "PyTorch says that it has another one"


@pytest.mark.parametrize("variable", progress._PYTORCH_SETTINGS)
@pytest.mark.parametrize(
    ("setting", "limited"),
    [
        ("per_process_memory_fraction:0.9", False),
        ("expandable_segments:True,per_process_memory_fraction:1", False),
        ("expandable_segments:True", True),
        ("per_process_memory_fraction:0.5", True),  # ours: a PyTorch before 2.10 does not read it
        ("", True),
    ],
)
def test_a_limit_among_the_user_s_own_settings_is_kept(
    monkeypatch: pytest.MonkeyPatch, variable: str, setting: str, limited: bool
) -> None:
    cuda = OldCuda(1)
    torch_with(monkeypatch, cuda)
    monkeypatch.setenv(variable, setting)
    assert progress.limit_memory() == (0.5 if limited else None)
    assert cuda.limits == ({0: 0.5} if limited else {})


@given(st.floats(1e-4, 0.9999), st.integers(2 * GIB, 200 * GIB))
def test_the_limit_that_pytorch_took_from_its_environment_is_known_again(
    fraction: float, total: int
) -> None:
    """PyTorch keeps whole bytes: on an H100, 0.1 reads back as 0.09999999999529509."""
    cuda = Cuda(1, initialized=True)
    cuda.limits[0] = int(fraction * total) / total
    before = dict(cuda.limits)
    with pytest.MonkeyPatch.context() as patch:
        torch_with(patch, cuda)
        patch.setattr(progress, "_limited", set())
        patch.setenv(progress.MEMORY_FRACTION, repr(fraction))
        assert progress.limit_memory() == fraction
    assert cuda.limits == before


def test_a_pytorch_that_fails_costs_the_job_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Cuda):
        def set_per_process_memory_fraction(self, fraction: float, device: int) -> None:
            raise RuntimeError("invalid fraction")

    cuda = Broken(1)
    torch_with(monkeypatch, cuda)
    progress._limit_pytorch_in_use()
    cuda.start()
    progress.step()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    progress._limit_pytorch_in_use()


# --- TensorFlow ---------------------------------------------------------------------------------


class TensorFlowConfig:
    """`tf.config` in a process that sees some GPUs."""

    def __init__(self, gpus: int, *, started: bool = False) -> None:
        self.gpus = [f"GPU:{number}" for number in range(gpus)]
        self.started = started
        self.limits_mib: dict[str, list[int]] = {}

    def list_physical_devices(self, kind: str) -> list[str]:
        assert kind == "GPU"
        return self.gpus

    def get_logical_device_configuration(self, gpu: str) -> list[int] | None:
        return self.limits_mib.get(gpu)

    def LogicalDeviceConfiguration(self, memory_limit: int) -> int:  # noqa: N802 - TensorFlow's
        return memory_limit

    def set_logical_device_configuration(self, gpu: str, limits: list[int]) -> None:
        if self.started:
            raise RuntimeError("Virtual devices cannot be modified after being initialized")
        self.limits_mib[gpu] = limits


class Driver:
    """libcuda with GPUs of these sizes."""

    def __init__(self, *sizes_gib: int, code: int = 0) -> None:
        self.sizes = sizes_gib
        self.code = code

    def cuInit(self, _flags: int) -> int:  # noqa: N802 - the driver's
        return self.code

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.sizes)
        return 0

    def cuDeviceGet(self, device: Any, number: int) -> int:  # noqa: N802
        device._obj.value = number
        return 0

    def cuDeviceTotalMem_v2(self, size: Any, device: ctypes.c_int) -> int:  # noqa: N802
        size._obj.value = self.sizes[device.value] * GIB
        return 0


def tensorflow_with(
    monkeypatch: pytest.MonkeyPatch, config: TensorFlowConfig, driver: Driver | None
) -> None:
    def load(name: str) -> Driver:
        assert name == "libcuda.so.1"
        if driver is None:
            raise OSError("cannot open shared object file")
        return driver

    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config))
    monkeypatch.setattr(progress.ctypes, "CDLL", load)


def test_tensorflow_is_limited_in_mib_of_the_smallest_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TensorFlowConfig(2)
    tensorflow_with(monkeypatch, config, Driver(80, 40))
    assert progress.limit_memory() == 0.5
    assert config.limits_mib == {"GPU:0": [20 * 1024], "GPU:1": [20 * 1024]}


def test_a_limit_of_tensorflow_that_the_user_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TensorFlowConfig(1)
    config.limits_mib["GPU:0"] = [4096]
    tensorflow_with(monkeypatch, config, Driver(80))
    assert progress.limit_memory() is None
    assert config.limits_mib == {"GPU:0": [4096]}


@pytest.mark.parametrize(
    ("config", "driver"),
    [
        (TensorFlowConfig(0), Driver()),
        (TensorFlowConfig(1, started=True), Driver(80)),
        (TensorFlowConfig(1), None),
        (TensorFlowConfig(1), Driver(80, code=999)),
        (TensorFlowConfig(1), Driver()),
    ],
)
def test_tensorflow_without_a_gpu_a_driver_or_time_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, config: TensorFlowConfig, driver: Driver | None
) -> None:
    tensorflow_with(monkeypatch, config, driver)
    assert progress.limit_memory() is None
    assert not config.limits_mib


def test_tensorflow_is_limited_by_the_explicit_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """`set_memory_growth` afterwards is an error, and many programs call it."""
    config = TensorFlowConfig(1)
    tensorflow_with(monkeypatch, config, Driver(80))
    progress._limit_pytorch_in_use()
    progress.step()
    assert not config.limits_mib
