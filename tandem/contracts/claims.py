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
from tandem.contracts.quantity import parse_quantity

Object = dict[str, Any]

#: The name of the claim in its pod, and the beginning of its own.
ENTRY = "tandem-gpu"
#: The one request of a claim that Tandem makes.
REQUEST = "gpu"
#: Kubernetes' own: a claim with it is there until nothing uses it.
FINALIZER = "resource.kubernetes.io/delete-protection"
#: The taint of devices that the queue alone gives: no other claim is allocated one.
QUEUE_TAINT = f"{names.GROUP}/queue"
_NODE_NAME = "metadata.name"
#: More distinct GPUs than any node has: surely a slip.
MAX_GPUS_PER_POD = 64
_CAPACITIES = ("memory", "shares")
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
    return isinstance(name, str) and bool(name) and dict(one) == entry(name)


def is_made(name: str) -> bool:
    """Say whether a claim of this name is made by Tandem, and not by a user."""
    return name.startswith(f"{ENTRY}-")


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


@dataclass(frozen=True, slots=True)
class Asked:
    """What a claim asks the queue for by its one request.

    `memory` is that of each GPU, '' where the claim says nothing of it.
    """

    request: str
    gpus: int
    memory: str = ""


def read_claim(claim: Mapping[str, Any]) -> Asked:
    """Return what a claim, or the claim of a template, asks the queue for.

    Raises:
        ValueError: it asks for what the queue does not decide on; the text says what to write.
    """
    devices = (claim.get("spec") or {}).get("devices") or {}
    requests = devices.get("requests") or []
    if len(requests) != 1 or "exactly" not in requests[0]:
        raise ValueError(f"a claim of {names.QUEUE_CLASS} has one request, under `exactly`")
    if devices.get("constraints") or devices.get("config"):
        raise ValueError("the queue takes neither `constraints` nor `config`; remove them")
    exactly = requests[0]["exactly"]
    if exactly.get("allocationMode", "ExactCount") != "ExactCount":
        raise ValueError("write allocationMode: ExactCount, and a count")
    for wrong, instead in (
        ("selectors", "select the GPU's type by spec.nodeSelector of the pod"),
        ("tolerations", "remove them: the queue decides which GPUs take jobs"),
        ("adminAccess", "remove it"),
    ):
        if exactly.get(wrong):
            raise ValueError(f"the queue does not take `{wrong}` of a claim; {instead}")
    count = exactly.get("count", 1)
    if not isinstance(count, int) or not 1 <= count <= MAX_GPUS_PER_POD:
        raise ValueError(f"its count must be from 1 to {MAX_GPUS_PER_POD}")
    capacity = (exactly.get("capacity") or {}).get("requests") or {}
    return Asked(str(requests[0].get("name")), count, _memory(capacity))


def _memory(capacity: Mapping[str, Any]) -> str:
    """Return the memory of each GPU that a request asks for; "" where it does not say."""
    if unknown := sorted(set(capacity) - set(_CAPACITIES)):
        raise ValueError(f"a GPU has the capacities memory and shares, and no {unknown[0][:64]}")
    shares = capacity.get("shares", "1")
    if parse_quantity(str(shares)) != 1:
        raise ValueError(
            "the queue gives one share, or the whole GPU to a pod with the annotation"
            f' {names.EXCLUSIVE}: "true"; remove `shares`'
        )
    return str(capacity.get("memory", ""))


def asked_of(claim: Mapping[str, Any]) -> Asked | None:
    """Return what a claim asks the queue for; None where the queue does not allocate it.

    The API server changes nothing of a claim's spec.
    """
    try:
        return read_claim(claim) if asks_us(claim) else None
    except ValueError:
        return None


def asks_us(claim: Mapping[str, Any]) -> bool:
    """Say whether a claim names the DeviceClass that the queue alone allocates."""
    devices = (claim.get("spec") or {}).get("devices") or {}
    return any(
        one.get("deviceClassName") == names.QUEUE_CLASS
        for request in devices.get("requests") or ()
        for one in (request.get("exactly") or {}, *(request.get("firstAvailable") or ()))
    )


def written(
    allocation: Allocation,
    capacity: Mapping[str, Mapping[str, str]],
    allocated_at: str,
    request: str = REQUEST,
) -> Object:
    """Return `status.allocation`; `capacity` is what each device gives, by its name.

    `request` is the name of the claim's one request.

    kube-scheduler would write the time itself, and the API server refuses changes of an allocation.
    """
    results = [
        {
            "request": request,
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
