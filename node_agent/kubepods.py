"""The pods of this node as the API server knows them: names, jobs, predictions."""

from __future__ import annotations

import logging
from typing import Any

from node_agent.pods import PodInfo
from tandem.contracts import names
from tandem.contracts.gangs import gpujob_name
from tandem.errors import TandemError
from tandem.kube.client import KubeClient
from tandem.kube.errors import KubeError
from tandem.kube.reflector import EventType, Reflector
from tandem.kube.resource import GPU_JOBS, NODES, PODS

log = logging.getLogger(__name__)

Object = dict[str, Any]

#: The agent starts without names where the API server takes longer.
FIRST_LIST_S = 5.0


def trim(pod: Object) -> Object:
    """Keep the few fields of a pod that are used here."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    kept = ("name", "namespace", "uid", "resourceVersion", "annotations", "labels")
    owners = [one for one in metadata.get("ownerReferences") or [] if one.get("controller")]
    return {
        "metadata": {key: metadata[key] for key in kept if key in metadata}
        | {"ownerReferences": owners},
        "spec": {"schedulerName": spec.get("schedulerName", "")},
    }


def pod_info(pod: Object, predicted_memory: int | None = None) -> PodInfo:
    """Return what is known of a trimmed pod."""
    metadata = pod["metadata"]
    owner = next(iter(metadata.get("ownerReferences") or []), None)
    annotations = metadata.get("annotations") or {}
    assigned = annotations.get(names.VISIBLE_DEVICES)
    return PodInfo(
        namespace=metadata["namespace"],
        name=metadata["name"],
        job=gpujob_name(
            metadata["name"],
            annotations,
            metadata.get("labels") or {},
            (owner["kind"], owner["name"]) if owner else None,
        ),
        ours=pod["spec"]["schedulerName"] == names.SCHEDULER_NAME,
        assigned=None if assigned is None else frozenset(assigned.split(",")),
        predicted_memory=predicted_memory,
    )


class KubePods:
    """Mirrors the pods that are bound to `node`, in a thread of its own.

    A pod of ours gets the prediction of its GPUJob, read when the pod appears and whenever it
    changes; where that fails the pod has none until its next change, and nobody is blamed.
    """

    def __init__(self, client: KubeClient, node: str) -> None:
        self._client = client
        self._pods: dict[str, PodInfo] = {}
        self._reflector = Reflector(
            client, PODS, self._take, field_selector=f"spec.nodeName={node}", trim=trim
        )

    def start(self) -> None:
        """Begin to mirror; wait a moment for the first list, so that the first report has names."""
        self._reflector.start()
        self._reflector.synced.wait(FIRST_LIST_S)

    def stop(self) -> None:
        """End."""
        self._reflector.stop()

    def find(self, uid: str) -> PodInfo | None:
        """Return the pod, or None while it is unknown."""
        return self._pods.get(uid)

    def _take(self, kind: EventType, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if kind is EventType.DELETED:
            self._pods.pop(uid, None)
            return
        before = self._pods.get(uid)
        info = pod_info(pod, before.predicted_memory if before else None)
        if info.ours:
            info = pod_info(pod, self._predicted(info) or info.predicted_memory)
        self._pods[uid] = info

    def _predicted(self, info: PodInfo) -> int | None:
        try:
            job = self._client.get(GPU_JOBS, info.job, info.namespace)
        except KubeError as error:
            log.warning(
                "prediction unknown pod=%s/%s job=%s error=%r",
                info.namespace,
                info.name,
                info.job,
                str(error),
            )
            return None
        load = (job.get("status") or {}).get("load") or {}
        predicted = load.get("memoryP95Bytes")
        return None if predicted is None else int(predicted)


def refuse_beside_device_plugin(client: KubeClient, node: str) -> None:
    """Raise TandemError where a device plugin hands out the GPUs of `node` as well.

    Two that hand out the same GPUs would each count what the other has given away. A node that
    cannot be read is taken for one without: the agent must come up while the API server is away.
    """
    try:
        capacity = (client.get(NODES, node).get("status") or {}).get("capacity") or {}
    except KubeError as error:
        log.warning("node unknown node=%s error=%r", node, str(error))
        return
    handed_out = int(capacity.get(names.NVIDIA_RESOURCE, 0))
    if handed_out:
        raise TandemError(
            f"Node {node} hands out {handed_out} {names.NVIDIA_RESOURCE} through a device plugin.",
            "Turn it off on this node: with the GPU operator by the label"
            " nvidia.com/gpu.deploy.device-plugin=false, else by the plugin's node selector.",
        )
