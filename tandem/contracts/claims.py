"""ResourceClaims that a plan allocates: which pod has one, what it asks for, what it is given.

Tandem makes the claim of a pod when it plans the pod, under the name that the webhook has put into
it. What is written follows from the pod and its place alone, so that a leader that takes over
writes the same. docs/decisions/0084 has the reasons.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from tandem.contracts import names

Object = dict[str, Any]

#: The name of the claim in its pod, and the beginning of its own.
ENTRY = "tandem-gpu"
#: The claim's one request.
REQUEST = "gpu"
#: Kubernetes' own: a claim with it is there until nothing uses it.
FINALIZER = "resource.kubernetes.io/delete-protection"
#: The taint of devices that the queue alone gives: no other claim is allocated one.
QUEUE_TAINT = f"{names.GROUP}/queue"
_NODE_NAME = "metadata.name"
_DEVICE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def device_name(uuid: str) -> str | None:
    """Return the name of a GPU's device, None where its UUID makes none that Kubernetes allows.

    It follows from the UUID alone, so that it outlives restarts and changes of order.
    """
    name = uuid.lower()
    return name if _DEVICE.fullmatch(name) else None


def claim_name(review: str) -> str:
    """Return the name of a new pod's claim; `review` is the uid of the request that creates it."""
    return f"{ENTRY}-{uuid5(NAMESPACE_OID, review)}"


def entry(name: str) -> Object:
    """Return what names the claim `name` in a pod."""
    return {"name": ENTRY, "resourceClaimName": name}


def is_entry(one: Mapping[str, Any]) -> bool:
    """Say whether an entry of `spec.resourceClaims` is as the webhook writes it."""
    name = one.get("resourceClaimName")
    return isinstance(name, str) and name.startswith(f"{ENTRY}-") and dict(one) == entry(name)


def claim_of(spec: Mapping[str, Any]) -> str:
    """Return the name of the claim by which a pod gets its GPUs, '' where it has none."""
    for one in spec.get("resourceClaims") or ():
        if is_entry(one):
            return str(one["resourceClaimName"])
    return ""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The node of a claim, and its devices, each with the id of the share."""

    node: str
    devices: tuple[tuple[str, str], ...] = ()


def planned(uid: str, node: str, gpus: Sequence[str], *, by_claims: bool) -> Allocation:
    """Return what the pod `uid` is to be allocated on its planned node.

    A node that hands GPUs over by the environment has no devices: there the claim gives the node
    alone. The id of a share is a UUID that follows from pod and GPU.
    """
    if not by_claims:
        return Allocation(node)
    shares = ((device_name(gpu) or gpu, str(uuid5(NAMESPACE_OID, f"{uid}/{gpu}"))) for gpu in gpus)
    return Allocation(node, tuple(shares))


def body(name: str, namespace: str, pod: str, uid: str, gpus: int) -> Object:
    """Return the claim of a pod. It goes with the pod, as one made of a template does."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid, "controller": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "finalizers": [FINALIZER],
            "ownerReferences": [owner],
        },
        "spec": {"devices": {"requests": [_request(gpus)]}},
    }


def _request(gpus: int) -> Object:
    exactly = {
        "deviceClassName": names.QUEUE_CLASS,
        "allocationMode": "ExactCount",
        "count": gpus,
    }
    return {"name": REQUEST, "exactly": exactly}


def gpus_of(claim: Mapping[str, Any]) -> int | None:
    """Return how many GPUs a claim asks Tandem for; None where it is no claim of Tandem's making.

    The API server changes nothing of a claim's spec.
    """
    try:
        devices = claim["spec"]["devices"]
        (request,) = devices["requests"]
        count = request["exactly"].get("count")
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    if not isinstance(count, int) or request != _request(count):
        return None
    return None if devices.get("constraints") or devices.get("config") else count


def asks_us(claim: Mapping[str, Any]) -> bool:
    """Say whether a claim names the DeviceClass that the queue alone allocates."""
    devices = (claim.get("spec") or {}).get("devices") or {}
    return any(
        one.get("deviceClassName") == names.QUEUE_CLASS
        for request in devices.get("requests") or ()
        for one in (request.get("exactly") or {}, *(request.get("firstAvailable") or ()))
    )


def written(
    allocation: Allocation, capacity: Mapping[str, Mapping[str, str]], allocated_at: str
) -> Object:
    """Return `status.allocation`; `capacity` is what each device gives, by its name.

    kube-scheduler would write the time itself, and the API server refuses changes of an allocation.
    """
    results = [
        {
            "request": REQUEST,
            "driver": names.GROUP,
            "pool": allocation.node,
            "device": device,
            "shareID": share,
            "consumedCapacity": dict(capacity[device]),
        }
        for device, share in allocation.devices
    ]
    on_node = {"key": _NODE_NAME, "operator": "In", "values": [allocation.node]}
    return {
        "devices": {"results": results} if results else {},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [on_node]}]},
        "allocationTimestamp": allocated_at,
    }


def read(claim: Mapping[str, Any]) -> Allocation | None:
    """Return what a claim is allocated of our GPUs; None where it is not allocated.

    The node is '' where the selector is none that Tandem writes.
    """
    found = (claim.get("status") or {}).get("allocation")
    if not found:
        return None
    results = [
        one
        for one in (found.get("devices") or {}).get("results") or ()
        if one.get("driver") == names.GROUP
    ]
    pools = {str(one.get("pool")) for one in results}
    node = _selected(found.get("nodeSelector") or {})
    if not node and len(pools) == 1:
        (node,) = pools
    if pools - {node}:
        node = ""
    return Allocation(
        node, tuple((str(one.get("device")), str(one.get("shareID") or "")) for one in results)
    )


def _selected(selector: Mapping[str, Any]) -> str:
    """Return the one node that a selector allows, '' where it is another selector."""
    try:
        (term,) = selector["nodeSelectorTerms"]
        (field,) = term["matchFields"]
        (value,) = field["values"]
        if set(term) == {"matchFields"} and (field["key"], field["operator"]) == (_NODE_NAME, "In"):
            return str(value)
    except (KeyError, TypeError, ValueError):
        pass
    return ""
