"""A device plugin on the same node would give out the same GPUs."""

from __future__ import annotations

import logging

from tandem.contracts import names
from tandem.errors import TandemError
from tandem.kube.client import KubeClient
from tandem.kube.errors import KubeError
from tandem.kube.resource import NODES

log = logging.getLogger(__name__)


def refuse_with_device_plugin(client: KubeClient, node: str) -> None:
    """Raise TandemError where a device plugin hands out the GPUs of `node` as well.

    Two that hand out the same GPUs would each count what the other has given away. A node that
    cannot be read is taken for one without: the agent must come up while the API server is away.
    """
    try:
        capacity = (client.get(NODES, node).get("status") or {}).get("capacity") or {}
    except KubeError as error:
        log.warning("node unknown node=%s error=%r", node, str(error))
        return
    handed_out = sorted(
        f"{amount} {resource}"
        for resource, amount in capacity.items()
        # The API server writes 0 as "0", and large amounts as "1k".
        if names.is_gpu(resource) and str(amount) != "0"
    )
    if handed_out:
        raise TandemError(
            f"Node {node} hands out {', '.join(handed_out)} through a device plugin.",
            "Turn it off on this node: with the GPU operator by the label"
            " nvidia.com/gpu.deploy.device-plugin=false, else by the plugin's node selector.",
        )
