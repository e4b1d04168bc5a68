"""Measures how much memory a framework gets: `python -m node_agent.check_memory NAME FIRST SECOND`.

Asks for FIRST bytes, and for SECOND bytes more, and says after each step what it has, a line of
JSON each. Only the standard library is used besides the framework, so that its own interpreter can
run this. A NAME with `+progress` is limited by `tandem.progress`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tandem import progress

#: What a framework is called, what it says of its own limit, and how it takes so many bytes.
Framework = tuple[str, object, Callable[[int], object]]


def pytorch() -> Framework:
    """Use the first GPU through PyTorch's caching allocator."""
    torch: Any = import_module("torch")
    says = getattr(torch.cuda, "get_per_process_memory_fraction", lambda: "nothing")()
    return (
        f"PyTorch {torch.__version__}",
        f"fraction {says}",
        lambda size: torch.empty(size, dtype=torch.uint8, device="cuda"),
    )


def jax() -> Framework:
    """Use the first GPU through XLA's allocator."""
    found: Any = import_module("jax")
    numpy: Any = import_module("jax.numpy")
    says = found.devices("gpu")[0].memory_stats()["bytes_limit"]
    return (
        f"JAX {found.__version__}",
        f"bytes_limit {says}",
        lambda size: numpy.zeros((size,), dtype=numpy.uint8).block_until_ready(),
    )


def tensorflow() -> Framework:
    """Use the first GPU through TensorFlow's allocator."""
    found: Any = import_module("tensorflow")
    gpu = found.config.list_physical_devices("GPU")[0]
    limits = found.config.get_logical_device_configuration(gpu)

    def take(size: int) -> object:
        with found.device("GPU:0"):
            return found.zeros([size // 4], found.float32)

    says = f"memory_limit {limits[0].memory_limit} MiB" if limits else "no limit"
    return f"TensorFlow {found.__version__}", says, take


FRAMEWORKS = {"torch": pytorch, "jax": jax, "tensorflow": tensorflow}


def main(name: str, *sizes: str) -> None:
    """Take what is asked for; a framework that has no more memory ends this with its own error."""
    module, _, helper = name.partition("+")
    try:
        import_module(module)
    except ModuleNotFoundError:
        print(json.dumps({"absent": module}), flush=True)
        return
    if helper:
        progress.limit_memory()
    framework, says, take = FRAMEWORKS[module]()
    print(json.dumps({"framework": framework, "says": says}), flush=True)
    held = []
    for size in sizes:
        held.append(take(int(size)))
        print(json.dumps({"given": int(size)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
