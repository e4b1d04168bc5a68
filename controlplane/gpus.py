"""GPUs of many nodes without an agent for each: GPUNodes as agents would have written them."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import httpx

from tandem.contracts import names
from tandem.contracts.inventory import format_inventory
from tandem.errors import TandemError

_PATH = f"/apis/{names.API_VERSION}/gpunodes"
_MODEL, _MEMORY_BYTES = "NVIDIA A100-SXM4-80GB", 80 << 30
_PARALLEL_REQUESTS = 8


def report_gpus(
    http: httpx.Client,
    nodes: Iterable[str],
    gpus: int,
    shares: int = 2,
    *,
    noted: bool = False,
    claims: bool = False,
) -> None:
    """Create a GPUNode with `gpus` healthy 80 GiB GPUs for each node, by an administrator's client.

    Nothing repeats the reports: give the extender a `stale_after_s` that is longer than the test.
    With `noted`, the nodes have been there before: the extender has noted which GPUs they have.
    With `claims`, the GPUs reach containers by ResourceClaims.
    """
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")

    def report(node: str) -> None:
        status = {
            "observedAt": now,
            "gpus": [
                {
                    "uuid": f"GPU-{node}-{index}",
                    "index": index,
                    "model": _MODEL,
                    "memoryBytes": _MEMORY_BYTES,
                    "shares": shares,
                    "health": "Healthy",
                    **({"draShares": shares} if claims else {}),
                }
                for index in range(gpus)
            ],
        }
        metadata: dict[str, object] = {"name": node}
        if noted:
            inventory = {f"GPU-{node}-{index}": (_MODEL, _MEMORY_BYTES) for index in range(gpus)}
            metadata["annotations"] = {names.INVENTORY: format_inventory(inventory)}
        head = {"apiVersion": names.API_VERSION, "kind": "GPUNode", "metadata": metadata}
        patch = {"Content-Type": "application/merge-patch+json"}
        for answer in (
            http.post(_PATH, json={**head, "spec": {}}),
            http.patch(f"{_PATH}/{node}/status", json={"status": status}, headers=patch),
        ):
            if answer.is_error:
                raise TandemError(f"GPUNode {node} was refused: {answer.json()['message']}")

    with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
        for _ in pool.map(report, nodes):
            pass  # asking for a result raises what went wrong
