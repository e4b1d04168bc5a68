"""A node's GPUs as devices of a ResourceSlice: a pure function of what the agent reports.

A GPU is one device, whatever the number of claims on it: its capacities `shares` and `memory` are
what claims consume (KEP-5075). A claim that names neither takes the whole GPU, as a job does of
which nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from node_agent.dra import DRIVER
from node_agent.places import UNKNOWN_PLACE, Place
from tandem.contracts.claims import QUEUE_TAINT, device_name
from tandem.contracts.resources import GPU, GPUNodeStatus, Health

Object = dict[str, Any]

#: The taint of a GPU that takes no new work. Running pods stay: NoSchedule.
QUARANTINED = f"{DRIVER}/quarantined"
#: The API server's bound where a device has a taint; a report has no more GPUs.
MOST_DEVICES = 64
_MIB = 1 << 20
_LONGEST_TEXT = 64
_VERSION_PARTS = 3
#: Of Kubernetes, for any device on a PCI bus.
_STANDARD = "resource.kubernetes.io"


def inventory(status: GPUNodeStatus) -> dict[str, str]:
    """Return the UUIDs of the GPUs that DRA hands over, by the names of their devices."""
    found: dict[str, str] = {}
    for gpu in status.gpus:
        name = device_name(gpu.uuid)
        if gpu.dra_shares is not None and name is not None:
            found.setdefault(name, gpu.uuid)
    return found


def devices(
    status: GPUNodeStatus, places: Mapping[str, Place], taken: frozenset[str] = frozenset()
) -> list[Object]:
    """Return the devices of a report, by name.

    `places` are known by UUID. `taken` are UUIDs that another driver of the node publishes: two
    drivers that hand out one GPU would each count what the other has given away.
    """
    gpus = {gpu.uuid: gpu for gpu in status.gpus}
    return [
        _device(name, gpus[uuid], places.get(uuid, UNKNOWN_PLACE), status.driver_version)
        for name, uuid in sorted(inventory(status).items())
        if uuid not in taken and _is_offered(gpus[uuid])
    ]


def _is_offered(gpu: GPU) -> bool:
    """Return True where the GPU is published; a quarantined one is, with a taint."""
    return bool(gpu.dra_shares) or gpu.health is Health.QUARANTINED


def _device(name: str, gpu: GPU, place: Place, driver_version: str) -> Object:
    attributes: Object = {
        "uuid": {"string": gpu.uuid[:_LONGEST_TEXT]},
        "type": {"string": gpu.model[:_LONGEST_TEXT]},
        "index": {"int": gpu.index},
    }
    if gpu.slice is not None:
        attributes["parent"] = {"string": gpu.slice.parent[:_LONGEST_TEXT]}
        attributes["profile"] = {"string": gpu.slice.profile[:_LONGEST_TEXT]}
    if version := semantic_version(driver_version):
        attributes["driverVersion"] = {"version": version}
    if place.pci is not None:
        attributes[f"{_STANDARD}/pciBusID"] = {"string": place.pci}
    if place.numa_node is not None:
        attributes[f"{_STANDARD}/numaNode"] = {"int": place.numa_node}
    if place.nvlink_domain is not None:
        attributes["nvlinkDomain"] = {"int": place.nvlink_domain}
    shares = gpu.dra_shares or 1
    device: Object = {
        "name": name,
        "attributes": attributes,
        "allowMultipleAllocations": True,
        "capacity": {"shares": _capacity(shares, "")},
    }
    if mib := gpu.memory_bytes // _MIB:
        device["capacity"]["memory"] = _capacity(mib, "Mi")
    keys = [QUARANTINED] if gpu.health is Health.QUARANTINED else []
    if gpu.shares:
        keys.append(QUEUE_TAINT)  # the queue gives it, and no claim of others is to get it
    if keys:
        device["taints"] = [{"key": key, "effect": "NoSchedule"} for key in keys]
    return device


def _capacity(value: int, unit: str) -> Object:
    """Return a capacity of which claims take whole units, and all of it by default."""
    policy: Object = {"default": f"{value}{unit}", "validRange": {"min": f"1{unit}"}}
    if value > 1:
        policy["validRange"]["step"] = f"1{unit}"  # the API server refuses one that never fits
    return {"value": f"{value}{unit}", "requestPolicy": policy}


def semantic_version(text: str) -> str:
    """Return a driver's version such as `580.65.06` in the form that CEL compares, or ""."""
    parts = text.split(".")
    if not all(part.isascii() and part.isdigit() for part in parts) or len(parts) > _VERSION_PARTS:
        return ""
    numbers = [str(int(part)) for part in parts] + ["0"] * (_VERSION_PARTS - len(parts))
    return ".".join(numbers)
