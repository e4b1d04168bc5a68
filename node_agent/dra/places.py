"""Where the GPUs are in their machine: asked of NVML once, and of the kernel."""

from __future__ import annotations

import logging
from pathlib import Path

from node_agent.dra.devices import Place
from node_agent.nvml import Nvml, NvmlGoneError

log = logging.getLogger(__name__)

PCI_DEVICES = Path("/sys/bus/pci/devices")


class Places:
    """The places of the node's GPUs by UUID; a GPU of which nothing can be read has none."""

    def __init__(self, pci_devices: Path = PCI_DEVICES) -> None:
        self._pci_devices = pci_devices
        self._found: dict[str, Place] = {}

    def __call__(self) -> dict[str, Place]:
        """Return the places; NVML is asked until it has answered."""
        if not self._found:
            nvml = Nvml()
            try:
                addresses = {gpu.uuid: gpu.pci_address() for gpu in nvml.open()}
            except NvmlGoneError as error:
                log.warning("places unknown error=%r", str(error))
                return {}
            finally:
                nvml.close()
            self._found = {
                uuid: Place(pci, self._numa_node(pci)) for uuid, pci in addresses.items() if pci
            }
        return self._found

    def _numa_node(self, pci: str) -> int | None:
        try:
            number = int((self._pci_devices / pci / "numa_node").read_text())
        except (OSError, ValueError):
            return None
        return number if number >= 0 else None  # -1 where the machine has one node
