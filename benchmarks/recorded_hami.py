"""The recorded cluster in the words of HAMi: the same GPUs, pods and demands, for its extender.

HAMi's device plugin writes a node's GPUs, and its extender a pod's place, as annotations; a pod
asks by extended resources. Names and formats are those of HAMi's `pkg/device`.
"""

from __future__ import annotations

import json
from typing import Any

Object = dict[str, Any]
_SHARES = 10  # of a GPU, as HAMi's chart has it
_MIB, _CORES = 80 * 1024, 40  # a GPU's memory; percent of a GPU that each pod asks for


def register(node: Object, uuids: list[str]) -> None:
    """Write GPUs on a node, as HAMi's device plugin does."""
    gpus = [
        {"id": uuid, "index": index, "count": _SHARES, "devmem": _MIB, "devcore": 100,
         "type": "NVIDIA-NVIDIA A100-SXM4-80GB", "numa": 0, "mode": "hami-core", "health": True}
        for index, uuid in enumerate(uuids)
    ]  # fmt: skip
    node["metadata"]["annotations"] = {"hami.io/node-nvidia-register": json.dumps(gpus)}
    node["status"]["allocatable"]["nvidia.com/gpu"] = str(_SHARES * len(uuids))


def place(pod: Object, node: str, uuid: str, mib: int) -> None:
    """Write on a pod that it runs on a GPU, as HAMi's extender does."""
    ask(pod, mib)
    pod["metadata"]["annotations"] |= {
        "hami.io/vgpu-node": node,
        "hami.io/vgpu-devices-allocated": f"{uuid},NVIDIA,{mib},{_CORES}:;",
        "hami.io/vgpu-devices-to-allocate": ";",
    }


def ask(pod: Object, mib: int) -> None:
    """Let a pod ask HAMi for a part of one GPU, in place of Tandem's resource."""
    asked = {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpumem": str(mib),
        "nvidia.com/gpucores": str(_CORES),
    }
    for container in pod["spec"]["containers"]:
        for amounts in container["resources"].values():
            amounts.pop("tandem.gpu/gpu", None)
            amounts |= asked
