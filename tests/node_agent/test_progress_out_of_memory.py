"""A job that ends for want of GPU memory says so in its container's termination log.

Each case is a process of its own that has the file `tandem/progress.py` and the standard library,
as in an image without Tandem.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import tandem.progress
from scheduler_extender.cluster.pods import pod_info
from tandem.contracts import names

#: The errors have the names and texts that the frameworks give them.
PREAMBLE = """
import sys

import progress

progress.TERMINATION_LOG = sys.argv[1]


def error(module, name, base=RuntimeError):
    return type(name, (base,), {"__module__": module, "__qualname__": name})
"""
TORCH = """
raise error("torch", "OutOfMemoryError")(
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 15.77 GiB of"
    " which 3.12 GiB is free.")
"""
OUT_OF_MEMORY = {
    "torch": TORCH,
    "torch before 2.5": """
raise error("torch.cuda", "OutOfMemoryError")("Allocation on device 0 would exceed allowed memory")
""",
    "cublas": """
raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
""",
    "jax": """
raise error("jaxlib.xla_extension", "XlaRuntimeError")(
    "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 7406166528 bytes.")
""",
    "jax, of an allocator": """
raise error("jax.errors", "JaxRuntimeError")(
    "RESOURCE_EXHAUSTED: Failed to allocate request for 2.99GiB (3206250496B) on device ordinal 0")
""",
    "jax before 0.3": """
raise RuntimeError("Resource exhausted: Out of memory while trying to allocate 5520758552 bytes.")
""",
    "tensorflow, a graph": """
raise error("tensorflow.python.framework.errors_impl", "ResourceExhaustedError")(
    "Graph execution error:\\n\\nOOM when allocating tensor with shape[128,3,8,128] and type float"
    " on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc")
""",
    "tensorflow, an operation": """
raise error("tensorflow.python.framework.errors_impl", "ResourceExhaustedError")(
    "{{function_node __wrapped__AddV2_device_/job:localhost/replica:0/task:0/device:GPU:0}} failed"
    " to allocate memory [Op:AddV2]")
""",
    "cupy": """
raise error("cupy.cuda.memory", "OutOfMemoryError", MemoryError)(
    "Out of memory allocating 8,000,000,000 bytes (allocated so far: 4,000,000,000 bytes).")
""",
    "numba": """
raise error("numba.cuda.cudadrv.driver", "CudaAPIError")(
    "[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY")
""",
    "a cause": """
try:
    raise error("torch", "OutOfMemoryError")("CUDA out of memory. Tried to allocate 2.00 GiB.")
except RuntimeError as lacking:
    raise ValueError("epoch 3 failed") from lacking
""",
    "a long text": """
raise error("torch", "OutOfMemoryError")("CUDA out of memory. " + "\\u00e9\\udcff" * 5000)
""",
}
ANOTHER_END = {
    "a bug": "raise ValueError('the batch has no samples')",
    "memory of the host": "raise MemoryError('Unable to allocate 184. MiB for an array')",
    "memory of a JVM": "raise RuntimeError('java.lang.OutOfMemoryError: Java heap space')",
    "a message of gRPC": """
raise error("grpc._channel", "_InactiveRpcError")(
    "status = StatusCode.RESOURCE_EXHAUSTED details = 'Received message larger than max'")
""",
    "an error after one that was dealt with": """
try:
    raise error("torch", "OutOfMemoryError")("CUDA out of memory.")
except RuntimeError:
    batch = 16
raise KeyError("label")
""",
    "an exit": "raise SystemExit(3)",
    "a cycle of causes": """
one, two = ValueError("one"), ValueError("two")
one.__cause__, two.__cause__ = two, one
raise one
""",
}


@dataclass
class Ended:
    """How a process ended: what its container's status would be, and what it printed."""

    code: int
    written: str | None
    printed: str

    @property
    def counted(self) -> bool:
        """Whether the extender counts it as out of GPU memory, by the written text alone."""
        at = "2026-11-22T10:00:00Z"
        ended = {"exitCode": self.code, "message": self.written, "finishedAt": at}
        status = {"containerStatuses": [{"name": "main", "state": {"terminated": ended}}]}
        main = {"name": "main", "resources": {"limits": {names.RESOURCE: "1"}}}
        pod = {
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [main]},
            "status": status,
        }
        return pod_info(pod).out_of_memory == (("main", at),)


def run(
    folder: Path, script: str, *, first: str = "", agent: str | None = "http://192.0.2.1:9405"
) -> Ended:
    """Run a training script, `first` before its imports; `agent` is what the webhook would set."""
    shutil.copy(tandem.progress.__file__, folder / "progress.py")
    (folder / "train.py").write_text(first + PREAMBLE + script)
    log = folder / "termination-log"
    ended = subprocess.run(
        [sys.executable, "-S", "train.py", str(log)],
        cwd=folder,
        env={} if agent is None else {tandem.progress.AGENT_URL: agent},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return Ended(
        ended.returncode, log.read_bytes().decode() if log.exists() else None, ended.stderr
    )


@pytest.mark.parametrize("case", OUT_OF_MEMORY)
def test_the_end_for_want_of_gpu_memory_is_written_and_counted(tmp_path: Path, case: str) -> None:
    ended = run(tmp_path, OUT_OF_MEMORY[case])
    assert ended.written is not None, ended.printed
    assert ended.written.startswith("CUDA out of memory: ")
    assert len(ended.written.encode()) <= 4096, "the kubelet keeps the end of more"
    assert ended.counted
    assert ended.code == 1
    assert "Traceback" in ended.printed, "the error is printed as ever"


@pytest.mark.parametrize("case", ANOTHER_END)
def test_no_other_end_is_written(tmp_path: Path, case: str) -> None:
    ended = run(tmp_path, ANOTHER_END[case])
    assert ended.written is None
    assert ended.code == (3 if case == "an exit" else 1)


@pytest.mark.parametrize("case", [each for each in OUT_OF_MEMORY if each != "a long text"])
def test_without_the_import_the_last_output_is_counted(tmp_path: Path, case: str) -> None:
    """With `terminationMessagePolicy: FallbackToLogsOnError`: the last 80 lines or 2 KiB."""
    ended = run(tmp_path, OUT_OF_MEMORY[case], agent=None)
    assert ended.written is None
    ended.written = "\n".join(ended.printed.splitlines()[-80:])[-2048:]
    assert ended.counted, ended.written


def test_no_other_container_writes_it(tmp_path: Path) -> None:
    """Without the agent's address, as outside of the cluster, the import changes nothing."""
    ended = run(tmp_path, "assert sys.excepthook is sys.__excepthook__" + TORCH, agent=None)
    assert ended.written is None
    assert "OutOfMemoryError" in ended.printed


OWN = "import sys\ndef own(_, error, __): print('own hook', error, file=sys.stderr)\n"


@pytest.mark.parametrize(
    ("first", "script"),
    [
        (f"{OWN}sys.excepthook = own\n", TORCH),
        ("", f"{OWN}sys.excepthook = own\nprogress.step(){TORCH}"),
    ],
    ids=["before the import", "before the first step"],
)
def test_a_hook_of_the_users_own_runs_as_well(tmp_path: Path, first: str, script: str) -> None:
    ended = run(tmp_path, script, first=first)
    assert ended.written is not None
    assert "own hook CUDA out of memory" in ended.printed


def test_a_log_that_cannot_be_written_hides_no_error(tmp_path: Path) -> None:
    script = "progress.TERMINATION_LOG = '/nowhere/termination-log'" + TORCH
    ended = run(tmp_path, script)
    assert (ended.code, ended.written) == (1, None)
    assert "torch.OutOfMemoryError: CUDA out of memory" in ended.printed
