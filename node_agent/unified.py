"""The memory size of a GPU for which NVML has none, because it uses the system's memory.

NVML answers "not supported" where a GPU has no memory of its own (GB10, Thor, Orin), and where the
kernel has the GPU's memory as a NUMA node (GH200 and GB200, unless the driver manages it alone).
"""

from __future__ import annotations

import re
from pathlib import Path

#: Words in the names of GPUs that have all of the system's memory and none of their own.
_INTEGRATED = {"GB10", "THOR", "ORIN"}
_TOTAL = re.compile(r"MemTotal:\s+(\d+) kB")
NODES = Path("/sys/devices/system/node")


def system_bytes(model: str, numa_node: int | None, proc: Path, nodes: Path = NODES) -> int | None:
    """Return the bytes of the system's memory that are the GPU's; None where that is not known.

    `numa_node` is the GPU's own NUMA node, `proc` the host's /proc, `nodes` the folder of the
    system's NUMA nodes.
    """
    if numa_node is not None and numa_node >= 0:
        return _total(nodes / f"node{numa_node}" / "meminfo")
    if _INTEGRATED & set(re.split(r"[^A-Z0-9]+", model.upper())):
        return _total(proc / "meminfo")
    return None


def _total(file: Path) -> int | None:
    try:
        found = _TOTAL.search(file.read_text())
    except (OSError, ValueError):
        return None
    return int(found[1]) * 1024 if found and int(found[1]) else None
