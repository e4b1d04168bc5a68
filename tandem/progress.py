"""Reports a training job's speed to the agent of its node: call `step()` once an iteration.

Optional, and nothing but a counter where `TANDEM_AGENT_URL` is not set. Only the standard library
is used, so that the file can be copied into an image that does not have Tandem.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import threading
import time
import urllib.request
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

#: Where the agent listens (`http://HOST_IP:9405`), and the token that says which pod we are.
AGENT_URL, TOKEN_FILE = "TANDEM_AGENT_URL", "TANDEM_TOKEN_FILE"
TOKEN_PATH = "/var/run/secrets/tandem.gpu/token"  # noqa: S105 - a path
#: The most of a GPU's memory that the job may take, as a fraction of all of it.
MEMORY_FRACTION = "TANDEM_MEMORY_FRACTION"
#: Where PyTorch reads its settings, by version, and what its limit is called among them.
_PYTORCH_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_PYTORCH_LIMIT = "per_process_memory_fraction"
_SAME = 1e-6  # PyTorch keeps a fraction as whole bytes
EVERY_S, TIMEOUT_S = 10.0, 2.0
#: Kubernetes keeps what a container writes here in the pod's status when the container ends.
TERMINATION_LOG = "/dev/termination-log"
#: How frameworks say that GPU memory ran out: PyTorch, CUDA, cuBLAS and cuDNN, XLA (JAX),
#: TensorFlow. A status of gRPC (`StatusCode.RESOURCE_EXHAUSTED`) is another matter. Without any
#: repetition, and so linear: a user who may run a pod chooses the texts that are searched.
_WORDS = re.compile(
    r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    r"|(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED|\bRESOURCE_EXHAUSTED:"
    r"|Resource exhausted: (Out of memory|Failed to allocate)|OOM when allocating tensor"
)
#: The class of PyTorch and CuPy, in a dotted name that names one of them before it.
_ERROR, _FRAMEWORKS = "OutOfMemoryError", frozenset(("torch", "cupy"))
_DOTTED = re.compile(r"[\w.]+")
#: TensorFlow's class, and its words later in the line.
_TENSORFLOW = ("ResourceExhaustedError: ", "failed to allocate memory")
_WRITTEN_BYTES = 4000  # the kubelet keeps the last 4096

_done, _thread, _lock = 0, None, threading.Lock()
listeners: list[Any] = []  # called at each step; `profile` listens here
_limited: set[int] = set()  # GPUs that PyTorch has been limited on; a later limit is the user's own
_profiles: list[Any] = []  # what is recorded, with seconds `active_s` and `idle_s` so far


def says_out_of_memory(text: str) -> bool:
    """Say whether a text says that GPU memory ran out, in time in proportion to its length."""
    return (
        _WORDS.search(text) is not None
        or (_ERROR in text and any(map(_is_error, _DOTTED.findall(text))))
        or (_TENSORFLOW[0] in text and any(map(_is_of_tensorflow, text.split("\n"))))
    )


def _is_error(name: str) -> bool:
    parts = name.split(".")
    return _ERROR in parts and not _FRAMEWORKS.isdisjoint(parts[: parts.index(_ERROR)])


def _is_of_tensorflow(line: str) -> bool:
    return _TENSORFLOW[1] in line.partition(_TENSORFLOW[0])[2]


def step(iterations: int = 1) -> None:
    """Note that `iterations` more are done; returns at once, never fails."""
    global _done, _thread
    with _lock:
        _done += iterations
        if _thread is None and os.environ.get(AGENT_URL):
            _watch_memory()  # again, for a hook that was set since the import
            _limit_pytorch_in_use()  # again, for one imported after this file, or on several GPUs
            _thread = threading.Thread(target=_tell, name="tandem", daemon=True)
            _thread.start()
    for listener in listeners:
        listener()


def _watch_memory() -> None:
    """Write to the container's termination log when the process ends for want of GPU memory."""
    before = sys.excepthook
    if getattr(before, "writes_out_of_memory", False):
        return

    def ends(kind: type[BaseException], error: BaseException, trace: Any) -> None:  # noqa: ANN401
        with suppress(Exception):  # a read-only file system, an error that cannot be printed
            said = _out_of_memory(error)
            if said:
                Path(TERMINATION_LOG).write_bytes(said.encode(errors="replace")[:_WRITTEN_BYTES])
        before(kind, error, trace)

    ends.writes_out_of_memory = True  # type: ignore[attr-defined] # found by the next call
    sys.excepthook = ends


def _out_of_memory(error: BaseException | None) -> str:
    """Return what an error, or a cause of it, says of missing GPU memory; "" where none does."""
    for _ in range(10):
        if error is None:
            break
        said = f"{type(error).__module__}.{type(error).__qualname__}: {error}"
        if says_out_of_memory(said):
            return f"CUDA out of memory: {said}"
        error = error.__cause__
    return ""


def _tell() -> None:
    reported, since, before = 0, time.monotonic(), _recorded()
    while True:
        time.sleep(EVERY_S)
        done, now, recorded = _done, time.monotonic(), _recorded()
        body = {"iterations": done - reported, "seconds": now - since}
        if recorded["iterationsRecorded"] > before["iterationsRecorded"]:
            body |= {name: recorded[name] - before[name] for name in recorded}
        with suppress(Exception):  # away, refused, no token: never the job's trouble
            _post(body)
        reported, since, before = done, now, recorded


def _recorded() -> dict[str, float]:
    """Return the iterations that `profile` has recorded so far, and their seconds."""
    return {
        "iterationsRecorded": sum(each.iterations for each in _profiles),
        "activeSeconds": sum(each.active_s for each in _profiles),
        "idleSeconds": sum(each.idle_s for each in _profiles),
    }


def _post(body: dict[str, float]) -> None:
    token = Path(os.environ.get(TOKEN_FILE, TOKEN_PATH)).read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    url = os.environ[AGENT_URL].rstrip("/") + "/v1/progress"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310 - the cluster's own
    urllib.request.urlopen(request, timeout=TIMEOUT_S).close()  # noqa: S310 - as above


def limit_memory() -> float | None:
    """Keep PyTorch and TensorFlow to the job's limit of GPU memory: beyond it, the job runs out.

    Returns the limit as a fraction of a GPU's memory; None where the job has none, brings its own,
    or neither framework is imported and sees a GPU. Call it before the model is moved to the GPU:
    with PyTorch on several GPUs after `torch.cuda.set_device`, with TensorFlow before its first
    operation and after `set_memory_growth`. JAX keeps to its limit by itself.
    """
    fraction = _fraction()
    torch, tensorflow = sys.modules.get("torch"), sys.modules.get("tensorflow")
    if fraction is None:
        return None
    limited = 0
    if torch is not None and torch.cuda.is_available():
        limited += _limit_pytorch(torch.cuda, fraction, {torch.cuda.current_device()})
    if tensorflow is not None:
        limited += _limit_tensorflow(tensorflow.config, fraction)
    return fraction if limited else None


def _fraction() -> float | None:
    try:
        fraction = float(os.environ.get(MEMORY_FRACTION, ""))
    except ValueError:
        return None
    return fraction if 0 < fraction <= 1 else None


def _limit_pytorch(cuda: Any, fraction: float, gpus: set[int]) -> int:  # noqa: ANN401
    """Limit `gpus` and those in use that have no limit yet; return how many have this one now.

    No others: before 2.10, PyTorch makes a context on each GPU that it limits, of some hundred MiB,
    and stays on that GPU. Each rank of a pod with eight GPUs sees all eight.
    """
    settings = {os.environ.get(name, "") for name in _PYTORCH_SETTINGS}
    ours = f"{_PYTORCH_LIMIT}:{os.environ.get(MEMORY_FRACTION)}"
    if any(_PYTORCH_LIMIT in each for each in settings - {ours}):
        return 0
    current = cuda.current_device()
    for gpu in range(cuda.device_count()):
        if gpu in _limited or (gpu not in gpus and not cuda.memory_reserved(gpu)):
            continue
        present = getattr(cuda, "get_per_process_memory_fraction", lambda _: 1.0)(gpu)
        if present == 1.0:
            cuda.set_per_process_memory_fraction(fraction, gpu)
        if present == 1.0 or abs(present - fraction) < _SAME:
            _limited.add(gpu)
    if cuda.current_device() != current:
        cuda.set_device(current)
    return len(_limited)


def _limit_pytorch_in_use() -> None:
    """Limit PyTorch as soon as it uses a GPU. A process that never does is not made to."""
    fraction, torch = _fraction(), sys.modules.get("torch")
    if fraction is None or torch is None:
        return

    def limit() -> None:
        with suppress(Exception):  # it would end the job's first use of a GPU
            only = {0} if torch.cuda.device_count() == 1 else set()
            _limit_pytorch(torch.cuda, fraction, only)

    with suppress(Exception):  # a PyTorch without this call, the only one that waits for CUDA
        torch.cuda._lazy_call(limit)


def _limit_tensorflow(config: Any, fraction: float) -> int:  # noqa: ANN401
    """Limit each GPU that has no limit yet; return how many. Only before the first operation."""
    limited = 0
    for gpu in config.list_physical_devices("GPU"):
        with suppress(RuntimeError, ValueError, OSError):  # it has begun; no driver to ask
            if config.get_logical_device_configuration(gpu) is None:
                memory_mib = int(fraction * _smallest_gpu_bytes()) >> 20
                limit = config.LogicalDeviceConfiguration(memory_limit=memory_mib)
                config.set_logical_device_configuration(gpu, [limit])
                limited += 1
    return limited


def _smallest_gpu_bytes() -> int:
    """Ask the driver how much memory the smallest of the process's GPUs has.

    Raises:
        OSError: There is no driver, or it does not answer.
    """
    cuda = ctypes.CDLL("libcuda.so.1")
    count, sizes = ctypes.c_int(), []
    codes = [cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count))]
    for number in range(count.value):
        device, size = ctypes.c_int(), ctypes.c_size_t()
        codes.append(cuda.cuDeviceGet(ctypes.byref(device), number))
        codes.append(cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device))
        sizes.append(size.value)
    if any(codes) or not sizes:
        raise OSError("the driver does not say how much memory its GPUs have")
    return min(sizes)


def profile() -> AbstractContextManager[Any]:
    """Record active and idle GPU time of the steps within; nothing without PyTorch and CUDA.

    Both are sent to the agent with the iterations: jobs are paired by them (docs/jobs.md).
    """
    try:
        from tandem.cuda_profile import recording
    except ImportError:  # this file alone, in an image without Tandem
        return nullcontext()
    return recording(listeners, _profiles)


if os.environ.get(AGENT_URL):
    _watch_memory()  # most jobs that lack memory end before their first step
_limit_pytorch_in_use()  # most memory is taken before the first step
