"""GPUs through NVIDIA's binding: nothing else in the project knows `pynvml`.

Three things can go wrong, and each is reported differently: one call fails (that reading is absent,
and the failure is counted); one GPU is lost (`GpuLostError` concerns it alone); NVML as a whole is
gone, library, driver or session (`NvmlGoneError`).
"""

from node_agent.nvml.gpu import SWITCH, Gpu
from node_agent.nvml.readings import (
    GpuLostError,
    Load,
    Memory,
    MigSlice,
    NvmlGoneError,
    Process,
    Sample,
    Sensors,
)
from node_agent.nvml.session import Nvml

__all__ = [
    "SWITCH",
    "Gpu",
    "GpuLostError",
    "Load",
    "Memory",
    "MigSlice",
    "Nvml",
    "NvmlGoneError",
    "Process",
    "Sample",
    "Sensors",
]
