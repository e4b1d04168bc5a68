"""The pods of this node as the API server knows them: names, jobs, predictions."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from node_agent.outofmemory import unix_time
from node_agent.pods import ContainerEnd, PodInfo
from tandem.contracts import names
from tandem.contracts.gangs import gpujob_name
from tandem.contracts.quantity import parse_quantity
from tandem.contracts.resources import Source
from tandem.errors import TandemError
from tandem.kube.client import KubeClient
from tandem.kube.errors import KubeError, NotFound
from tandem.kube.reflector import EventType, Reflector, Selector
from tandem.kube.resource import GPU_JOBS, NODES, PODS

log = logging.getLogger(__name__)

Object = dict[str, Any]

#: The agent starts without names where the API server takes longer.
FIRST_LIST_S = 5.0


def trim(pod: Object, _known: Object | None = None) -> Object:
    """Keep the few fields of a pod that are used here."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    kept = ("name", "namespace", "uid", "resourceVersion", "annotations", "labels")
    owners = [one for one in metadata.get("ownerReferences") or [] if one.get("controller")]
    return {
        "metadata": {key: metadata[key] for key in kept if key in metadata}
        | {"ownerReferences": owners},
        "spec": {"schedulerName": spec.get("schedulerName", ""), "asksForGpus": _asks(spec)},
        "status": {"ended": _ended(pod), "addresses": _addresses(pod)},
    }


def _addresses(pod: Object) -> list[str]:
    """Return the addresses that the pod alone has: not the node's, and none once it has ended."""
    status = pod.get("status") or {}
    shared = (pod.get("spec") or {}).get("hostNetwork")
    if shared or status.get("phase") in ("Succeeded", "Failed"):
        return []
    return [one["ip"] for one in status.get("podIPs") or [] if one.get("ip")]


def _asks(spec: Object) -> bool:
    """Say whether a pod asks for GPUs of ours; only then was it given any."""
    limits = (
        (container.get("resources") or {}).get("limits") or {}
        for container in spec.get("containers") or []
    )
    return any(parse_quantity(limit.get(names.RESOURCE) or 0) > 0 for limit in limits)


def _ended(pod: Object) -> list[Object]:
    """Return the last end of each container of a pod; none of a pod that was told to go."""
    if "deletionTimestamp" in pod["metadata"]:
        return []
    found = []
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        states = [container.get(key) or {} for key in ("state", "lastState")]
        ended = next((state["terminated"] for state in states if state.get("terminated")), None)
        if ended and ended.get("finishedAt"):
            kept = {key: ended.get(key) for key in ("exitCode", "finishedAt", "reason")}
            found.append({"name": container["name"], **kept})
    return found


def pod_info(pod: Object, predicted_memory: int | None = None) -> PodInfo:
    """Return what is known of a trimmed pod."""
    metadata = pod["metadata"]
    owner = next(iter(metadata.get("ownerReferences") or []), None)
    annotations = metadata.get("annotations") or {}
    # A Binding of ours sets node and GPUs at once: without the annotation nothing was given.
    assigned = annotations.get(names.VISIBLE_DEVICES, "")
    return PodInfo(
        namespace=metadata["namespace"],
        name=metadata["name"],
        job=gpujob_name(
            metadata["name"],
            annotations,
            metadata.get("labels") or {},
            (owner["kind"], owner["name"]) if owner else None,
        ),
        ours=pod["spec"]["schedulerName"] == names.SCHEDULER_NAME and pod["spec"]["asksForGpus"],
        assigned=frozenset(assigned.split(",")) - {""},
        predicted_memory=predicted_memory,
        ends=tuple(
            ContainerEnd(
                one["name"], int(one["exitCode"]), unix_time(one["finishedAt"]), one["reason"] or ""
            )
            for one in pod["status"]["ended"]
        ),
    )


class KubePods:
    """Mirrors the pods that are bound to `node`, in a thread of its own.

    A pod of ours gets the prediction of its GPUJob, read when the pod appears and whenever it
    changes; where that fails it keeps the one before, and without any it is never blamed.
    """

    def __init__(self, client: KubeClient, node: str) -> None:
        self._client = client
        self._pods: dict[str, PodInfo] = {}
        self._addresses: dict[str, str] = {}
        self._reflector = Reflector(
            client, PODS, self._take, selector=Selector(fields=f"spec.nodeName={node}"), trim=trim
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

    def at(self, address: str) -> str | None:
        """Return the UID of the pod whose address this is, or None."""
        return self._addresses.get(address)

    def _take(self, kind: EventType, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        for address in [each for each, owner in self._addresses.items() if owner == uid]:
            del self._addresses[address]
        if kind is EventType.DELETED:
            self._pods.pop(uid, None)
            return
        self._addresses |= dict.fromkeys(pod["status"]["addresses"], uid)
        before = self._pods.get(uid)
        info = pod_info(pod, before.predicted_memory if before else None)
        self._pods[uid] = replace(info, predicted_memory=self._predicted(info))

    def _predicted(self, info: PodInfo) -> int | None:
        """Return the bound on a pod's memory per GPU; None for one that was given whole GPUs."""
        if not info.ours:
            return None
        try:
            job = self._client.get(GPU_JOBS, info.job, info.namespace)
        except NotFound:
            return info.predicted_memory  # a GPUJob goes with its workload, before the last pod
        except KubeError as error:
            log.warning(
                "prediction unknown pod=%s/%s job=%s error=%r",
                info.namespace,
                info.name,
                info.job,
                str(error),
            )
            return info.predicted_memory
        return predicted_memory(job)


def predicted_memory(job: Object) -> int | None:
    """Return what a GPUJob says of its memory per GPU in bytes; None where nothing is known.

    A load that stands for the whole GPU has figures that say nothing about the job's own use.
    """
    load = (job.get("status") or {}).get("load") or {}
    if load.get("memorySource") == Source.WHOLE_GPU or load.get("memoryP95Bytes") is None:
        return None
    return int(load["memoryP95Bytes"])


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
