"""Where GPUs are in their node: read from NVML when a session begins, and from the kernel."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from node_agent.nvml import SWITCH, Gpu, GpuLostError, Nvml, NvmlGoneError

log = logging.getLogger(__name__)

SYS = Path("/sys")
#: In a /sys.
PCI_DEVICES = "bus/pci/devices"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a GPU is in its node; what cannot be read is None.

    `pci` is its address on the PCI bus, `numa_node` the NUMA node next to it. GPUs that NVLink
    connects, directly, over others or by a switch, have one `nvlink_domain`, which is the lowest
    index among them; a GPU without such a peer has none.
    """

    pci: str | None = None
    numa_node: int | None = None
    nvlink_domain: int | None = None


UNKNOWN_PLACE = Place()


def find_places(gpus: Sequence[Gpu], pci_devices: Path) -> dict[str, Place]:
    """Return the places of GPUs by UUID; one of which nothing can be read has none.

    Raises:
        NvmlGoneError: the session has ended.
    """
    pci: dict[str, str] = {}
    peers: dict[str, frozenset[str]] = {}
    for gpu in gpus:
        try:
            address = gpu.pci_address()
            if address is not None:
                pci[gpu.uuid] = address
            peers[gpu.uuid] = gpu.nvlink_peers()
        except GpuLostError as error:
            # The readings of the GPU say so as well, and quarantine it.
            log.warning("place unknown uuid=%s error=%r", gpu.uuid, str(error))
    whole = {gpu.uuid: gpu.index for gpu in gpus if gpu.slice is None}
    domains = nvlink_domains(
        {index: peers.get(uuid, frozenset()) for uuid, index in whole.items()},
        {pci[uuid]: index for uuid, index in whole.items() if uuid in pci},
    )
    found = {
        gpu.uuid: Place(
            pci.get(gpu.uuid),
            _numa_node(pci_devices, pci.get(gpu.uuid)),
            domains.get(gpu.index) if gpu.uuid in whole else None,
        )
        for gpu in gpus
    }
    return {uuid: place for uuid, place in found.items() if place != UNKNOWN_PLACE}


def nvlink_domains(
    peers: Mapping[int, frozenset[str]], index_of: Mapping[str, int]
) -> dict[int, int]:
    """Return the domain of each GPU (index) that NVLink connects with another one of the node.

    `peers` has addresses on the PCI bus, and `SWITCH`; `index_of` has the GPUs by address.
    """
    first = {index: index for index in peers}

    def root(index: int) -> int:
        while first[index] != index:
            index = first[index]
        return index

    switched = [index for index, of in peers.items() if SWITCH in of]
    links = [(index, index_of[at]) for index, of in peers.items() for at in of if at in index_of]
    links += [(switched[0], index) for index in switched]
    for one, other in links:
        low, high = sorted((root(one), root(other)))
        first[high] = low
    domain = {index: root(index) for index in peers}
    sizes = list(domain.values())
    return {index: number for index, number in domain.items() if sizes.count(number) > 1}


class Places:
    """The places of the node's GPUs by UUID, for a process that has no session of its own."""

    def __init__(self, pci_devices: Path = SYS / PCI_DEVICES) -> None:
        self._pci_devices = pci_devices
        self._found: dict[str, Place] = {}

    def __call__(self) -> dict[str, Place]:
        """Return the places; NVML is asked until it has answered."""
        if not self._found:
            nvml = Nvml()
            try:
                self._found = find_places(nvml.open(), self._pci_devices)
            except NvmlGoneError as error:
                log.warning("places unknown error=%r", str(error))
                return {}
            finally:
                nvml.close()
        return self._found


def _numa_node(pci_devices: Path, pci: str | None) -> int | None:
    if pci is None:
        return None
    try:
        number = int((pci_devices / pci / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return number if number >= 0 else None  # -1 where the machine has one node
