"""What real frameworks read of a job's limit of GPU memory, on a machine without a GPU.

    python -m proof.frameworks [--python INTERPRETER]

A container gets the variables that the webhook names, resolved as a kubelet does, for a worker of
10 GiB on a GPU of 80 GiB. Each framework that INTERPRETER has then prints its own configuration:

- JAX: the options with which it opens its GPU plugin;
- PyTorch: the settings of its allocator, as it has parsed them;
- TensorFlow: the `gpu_options` that it hands to its runtime. It has no variable for a limit, so
  that `tandem.progress.limit_memory()` sets it; TensorFlow lists no GPU here, so that one is named
  to its context, and the driver is one with a GPU of 80 GiB.

What a GPU then refuses is measured by `python -m node_agent.check --limits`. Exit code 1: a
framework did not read the limit, or none is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.tables import markdown
from controlplane.containers import resolved_environment
from scheduler_extender.admission.checks import environment
from scheduler_extender.admission.gpu_memory import memory_variables
from scheduler_extender.admission.podshape import ContainerShape, PodShape, PodSpec
from scheduler_extender.admission.request import Request
from tandem import progress
from tandem.contracts.limits import limit_annotations

WORKER_GIB, GPU_GIB = 10, 80
_TIME_LIMIT_S = 300

#: Each prints its version, what it read as text, and the limit as a fraction of the GPU's memory.
SCRIPTS = {
    "JAX": """
import jax
from jaxlib import xla_client
options = xla_client.generate_pjrt_gpu_plugin_options()
read = {name: options[name] for name in ("memory_fraction", "preallocate")}
tell(jax.__version__, read, options["memory_fraction"])
""",
    "PyTorch": """
import torch
text = torch._C._accelerator_getAllocatorSettings()
settings = dict(setting.split(":", 1) for setting in text.split(",") if setting)
tell(torch.__version__, text, float(settings.get("per_process_memory_fraction", 1)))
""",
    "TensorFlow": """
import ctypes
import tensorflow
from tensorflow.python.eager import context
from tandem import progress

class Driver:
    cuInit = staticmethod(lambda flags: 0)
    def cuDeviceGetCount(self, count): count._obj.value = 1; return 0
    def cuDeviceGet(self, device, number): device._obj.value = number; return 0
    def cuDeviceTotalMem_v2(self, size, device): size._obj.value = GPU_BYTES; return 0

ctypes.CDLL = lambda name: Driver()
found = context.context()
found._initialize_physical_devices()
gpu = context.PhysicalDevice("/physical_device:GPU:0", "GPU")
found._physical_device_to_index[gpu] = len(found._physical_devices)
found._physical_devices.append(gpu)
found._visible_device_list.append(gpu)
found._memory_growth_map[gpu] = None
progress.limit_memory()
options = found.config.gpu_options
limits = [device.memory_limit_mb[0] for device in options.experimental.virtual_devices]
text = " ".join(str(options).split())
tell(tensorflow.__version__, text, limits[0] * 2**20 / GPU_BYTES if limits else 1)
""",
}
_HEAD = """
import json
GPU_BYTES = {gpu_bytes}
def tell(version, read, fraction):
    print(json.dumps({{"version": version, "read": str(read), "fraction": fraction}}))
"""


def container_environment() -> dict[str, str]:
    """Return what a container of the worker reads: the webhook's variables, resolved."""
    shape = PodShape(spec=PodSpec(containers=[ContainerShape(name="train")]))
    variables = environment(gpu=True, accumulation=False, limited=True)
    variables += memory_variables(shape, Request(), limited=True)
    pod = {
        "metadata": {"annotations": limit_annotations(WORKER_GIB, GPU_GIB)},
        "spec": {"containers": [{"name": "train", "env": variables}]},
    }
    return resolved_environment(pod)["train"]


def ask(python: str, framework: str, container: dict[str, str]) -> dict[str, Any] | None:
    """Return what a framework says; None where it is not installed.

    Raises:
        RuntimeError: It ended otherwise, with its last words.
    """
    # `tandem.progress` is one file of the standard library alone: a job takes it by itself.
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "tandem")
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "progress.py").write_bytes(Path(progress.__file__).read_bytes())
        answer = subprocess.run(
            [python, "-c", _HEAD.format(gpu_bytes=GPU_GIB << 30) + SCRIPTS[framework]],
            env={**os.environ, **container, "PYTHONPATH": folder, "TF_CPP_MIN_LOG_LEVEL": "3"},
            cwd=folder, text=True, capture_output=True, timeout=_TIME_LIMIT_S, check=False,
        )  # fmt: skip
    if answer.returncode == 0:
        found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
        return found
    missing = f"No module named '{framework.lower().replace('pytorch', 'torch')}'"
    if missing in answer.stderr:
        return None
    raise RuntimeError(f"{framework}: {answer.stderr[-600:]}")


def main() -> int:
    """Ask each framework, and print a table; return 1 where one did not read the limit."""
    parser = argparse.ArgumentParser(prog="python -m proof.frameworks", description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has them")
    given = parser.parse_args()
    container = container_environment()
    for name, value in container.items():
        print(f"{name}={value}")
    limit = float(container[progress.MEMORY_FRACTION])
    rows, wrong = [], 0
    for framework in SCRIPTS:
        said = ask(given.python, framework, container)
        if said is None:
            rows.append((framework, "not installed", ""))
            continue
        # TensorFlow's limit is in whole MiB.
        holds = abs(said["fraction"] - limit) < 1 / (GPU_GIB << 10)
        wrong += not holds
        rows.append((f"{framework} {said['version']}", said["read"], "yes" if holds else "no"))
    print(markdown(("framework", "its configuration", f"limit {limit}"), rows))
    return 1 if wrong or all(row[1] == "not installed" for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
