"""Public figures of GPU types, by the names that NVML gives them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from tandem.contracts.resources import Precision
from tandem.contracts.values import MAX_GPU_BYTES

GIB = 1024**3


@dataclass(frozen=True)
class GpuType:
    """The data sheet of one GPU (dense rates, no sparsity).

    `training_flops` is the rate at which frameworks train in their default precision: TF32 where
    tensor cores have it, otherwise FP32. `half_flops` is that of FP16 summed in FP32, where it is
    faster; `bfloat16` says whether BF16 runs at that rate too (from Ampere on). `source` names the
    document of the figures; `checked` says that they were compared with a copy of it.
    """

    name: str
    training_flops: float  # FLOP/s
    half_flops: float  # FLOP/s
    bfloat16: bool
    bandwidth: float  # bytes/s
    memory_bytes: int
    multiprocessors: int
    source: str = ""
    checked: bool = False

    @property
    def speed(self) -> tuple[float, float, int]:
        """Rates and multiprocessors: cards that differ in memory size alone run equally fast."""
        return self.training_flops, self.bandwidth, self.multiprocessors

    def flops(self, precision: Precision) -> float:
        """Return the FLOP/s of a precision."""
        if precision is Precision.FP32 or (precision is Precision.BF16 and not self.bfloat16):
            return self.training_flops
        return self.half_flops


def _gpu(
    name: str,
    training_tflops: float,
    half_tflops: float,
    bandwidth_gb_s: float,
    memory_gib: float,
    multiprocessors: int,
    source: str = "",
    *,
    bfloat16: bool = True,
) -> GpuType:
    return GpuType(
        name,
        training_tflops * 1e12,
        half_tflops * 1e12,
        bfloat16,
        bandwidth_gb_s * 1e9,
        int(memory_gib * GIB),
        multiprocessors,
        source,
        name in _CHECKED,
    )


_Row = tuple[str, float, float, float, float, int, str]

#: Rows whose memory, bandwidth, multiprocessors and, where the copy had them, rates were compared
#: with a copy of the data sheet or with a table made of it (November 2026). No other row was.
_CHECKED = frozenset({
    "P4", "P40", "V100", "T4", "QUADRO RTX 4000", "QUADRO RTX 6000", "A10", "A40", "A100",
    "RTX A2000", "RTX A5500", "RTX A6000", "L4", "L40", "L40S", "RTX 2000 ADA",
    "RTX 6000 ADA", "RTX 4080", "RTX 4090", "H100 PCIE", "H100", "H200", "RTX 5090",
})  # fmt: skip

#: Cards by architecture: whether BF16 runs, then name, TFLOP/s in training precision, TFLOP/s in
#: FP16, GB/s, GiB, SMs, source. Rates are dense; GeForce cards sum FP16 products in FP32 at half
#: the rate of the data-centre cards of the same chip.
_TABLE: dict[str, tuple[bool, tuple[_Row, ...]]] = {
    "Kepler": (False, (
        ("K80", 4.37, 4.37, 240, 12, 13, "K80 data sheet"),
    )),
    "Pascal": (False, (
        ("P4", 5.5, 5.5, 192, 8, 20, "P4 data sheet"),
        ("P6", 6.2, 6.2, 192, 16, 16, "P6 data sheet"),
        ("P40", 12.0, 12.0, 346, 24, 30, "P40 data sheet"),
        ("P100 12GB", 9.3, 18.7, 549, 12, 56, "P100 12GB data sheet"),
        ("P100", 9.3, 18.7, 732, 16, 56, "P100 data sheet"),
        ("QUADRO GP100", 10.3, 20.7, 717, 16, 56, "Quadro GP100 data sheet"),
        ("QUADRO P6000", 12.6, 12.6, 432, 24, 30, "Quadro P6000 data sheet"),
        ("QUADRO P5000", 8.9, 8.9, 288, 16, 20, "Quadro P5000 data sheet"),
        ("QUADRO P4000", 5.3, 5.3, 243, 8, 14, "Quadro P4000 data sheet"),
        ("GTX 1050 TI", 2.1, 2.1, 112, 4, 6, "GeForce 10 series specifications"),
        ("GTX 1060", 4.4, 4.4, 192, 6, 10, "GeForce 10 series specifications"),
        ("GTX 1070", 6.5, 6.5, 256, 8, 15, "GeForce 10 series specifications"),
        ("GTX 1070 TI", 8.2, 8.2, 256, 8, 19, "GeForce 10 series specifications"),
        ("GTX 1080", 8.9, 8.9, 320, 8, 20, "GeForce 10 series specifications"),
        ("GTX 1080 TI", 11.3, 11.3, 484, 11, 28, "GeForce 10 series specifications"),
        ("TITAN X PASCAL", 11.0, 11.0, 480, 12, 28, "GeForce 10 series specifications"),
        ("TITAN XP", 12.1, 12.1, 548, 12, 30, "GeForce 10 series specifications"),
    )),
    "Volta": (False, (
        ("V100 32GB", 15.7, 125, 900, 32, 80, "V100 32GB data sheet"),
        ("V100", 15.7, 125, 900, 16, 80, "V100 data sheet"),
        ("V100S", 16.4, 130, 1134, 32, 80, "V100S data sheet"),
        ("TITAN V", 14.9, 110, 653, 12, 80, "TITAN V specifications"),
        ("QUADRO GV100", 14.8, 118.5, 870, 32, 80, "Quadro GV100 data sheet"),
    )),
    "Turing": (False, (
        ("T4", 8.1, 65, 320, 16, 40, "T4 data sheet"),
        ("GTX 1650", 3.0, 6.0, 128, 4, 14, "Turing TU102 whitepaper"),
        ("GTX 1660 TI", 5.4, 10.9, 288, 6, 24, "Turing TU102 whitepaper"),
        ("RTX 2060", 6.5, 25.8, 336, 6, 30, "Turing TU102 whitepaper"),
        ("RTX 2060 SUPER", 7.2, 28.7, 448, 8, 34, "Turing TU102 whitepaper"),
        ("RTX 2070", 7.5, 29.9, 448, 8, 36, "Turing TU102 whitepaper"),
        ("RTX 2070 SUPER", 9.1, 36.3, 448, 8, 40, "Turing TU102 whitepaper"),
        ("RTX 2080", 10.1, 40.3, 448, 8, 46, "Turing TU102 whitepaper"),
        ("RTX 2080 SUPER", 11.2, 44.6, 496, 8, 48, "Turing TU102 whitepaper"),
        ("RTX 2080 TI", 13.4, 53.8, 616, 11, 68, "Turing TU102 whitepaper"),
        ("TITAN RTX", 16.3, 130.5, 672, 24, 72, "Turing TU102 whitepaper"),
        ("QUADRO RTX 4000", 7.1, 57.0, 416, 8, 36, "Quadro RTX 4000 data sheet"),
        ("QUADRO RTX 5000", 11.2, 89.2, 448, 16, 48, "Quadro RTX 5000 data sheet"),
        ("QUADRO RTX 6000", 16.3, 130.5, 672, 24, 72, "Quadro RTX 6000 data sheet"),
        ("QUADRO RTX 8000", 16.3, 130.5, 672, 48, 72, "Quadro RTX 8000 data sheet"),
    )),
    "Ampere": (True, (
        ("A2", 9.0, 18.0, 200, 16, 10, "A2 data sheet"),
        ("A10", 62.5, 125, 600, 24, 72, "A10 data sheet"),
        ("A10G", 35.0, 70.0, 600, 24, 80, "A10G data sheet"),
        ("A16", 9.0, 17.9, 200, 16, 10, "A16 data sheet"),
        ("A30", 82.0, 165, 933, 24, 56, "A30 data sheet"),
        ("A40", 74.8, 149.7, 696, 48, 84, "A40 data sheet"),
        ("A100 80GB", 156, 312, 2039, 80, 108, "A100 80GB data sheet"),
        ("A100", 156, 312, 1555, 40, 108, "A100 data sheet"),
        ("A800", 156, 312, 2039, 80, 108, "A800 data sheet"),
        ("RTX A2000", 16.0, 31.9, 288, 6, 26, "RTX A2000 data sheet"),
        ("RTX A2000 12GB", 16.0, 31.9, 288, 12, 26, "RTX A2000 12GB data sheet"),
        ("RTX A4000", 38.3, 76.7, 448, 16, 48, "RTX A4000 data sheet"),
        ("RTX A4500", 47.3, 94.6, 640, 20, 56, "RTX A4500 data sheet"),
        ("RTX A5000", 55.6, 111.1, 768, 24, 64, "RTX A5000 data sheet"),
        ("RTX A5500", 68.2, 136.4, 768, 24, 80, "RTX A5500 data sheet"),
        ("RTX A6000", 77.4, 154.8, 768, 48, 84, "RTX A6000 data sheet"),
        ("RTX 3050", 9.1, 18.2, 224, 8, 20, "Ampere GA102 whitepaper"),
        ("RTX 3060", 12.7, 25.5, 360, 12, 28, "Ampere GA102 whitepaper"),
        ("RTX 3060 TI", 16.2, 32.4, 448, 8, 38, "Ampere GA102 whitepaper"),
        ("RTX 3070", 20.3, 40.6, 448, 8, 46, "Ampere GA102 whitepaper"),
        ("RTX 3070 TI", 21.7, 43.5, 608, 8, 48, "Ampere GA102 whitepaper"),
        ("RTX 3080", 29.8, 59.5, 760, 10, 68, "Ampere GA102 whitepaper"),
        ("RTX 3080 TI", 34.1, 68.2, 912, 12, 80, "Ampere GA102 whitepaper"),
        ("RTX 3090", 35.6, 71.0, 936, 24, 82, "Ampere GA102 whitepaper"),
        ("RTX 3090 TI", 40.0, 80.0, 1008, 24, 84, "Ampere GA102 whitepaper"),
    )),
    "Ada Lovelace": (True, (
        ("L4", 60.0, 121, 300, 24, 58, "L4 data sheet"),
        ("L20", 59.8, 119.5, 864, 48, 92, "L20 data sheet"),
        ("L40", 90.5, 181, 864, 48, 142, "L40 data sheet"),
        ("L40S", 183, 362, 864, 48, 142, "L40S data sheet"),
        ("RTX 2000 ADA", 24.0, 48.0, 224, 16, 22, "RTX 2000 Ada data sheet"),
        ("RTX 4000 ADA", 53.5, 106.9, 360, 20, 48, "RTX 4000 Ada data sheet"),
        ("RTX 4500 ADA", 79.2, 158.5, 432, 24, 60, "RTX 4500 Ada data sheet"),
        ("RTX 5000 ADA", 130.6, 261, 576, 32, 100, "RTX 5000 Ada data sheet"),
        ("RTX 5880 ADA", 138.6, 277, 960, 48, 110, "RTX 5880 Ada data sheet"),
        ("RTX 6000 ADA", 182, 364, 960, 48, 142, "RTX 6000 Ada data sheet"),
        ("RTX 4060", 15.1, 30.2, 272, 8, 24, "Ada AD102 whitepaper"),
        ("RTX 4060 TI", 22.1, 44.1, 288, 8, 34, "Ada AD102 whitepaper"),
        ("RTX 4070", 29.1, 58.3, 504, 12, 46, "Ada AD102 whitepaper"),
        ("RTX 4070 SUPER", 35.5, 71.0, 504, 12, 56, "Ada AD102 whitepaper"),
        ("RTX 4070 TI", 40.1, 80.2, 504, 12, 60, "Ada AD102 whitepaper"),
        ("RTX 4070 TI SUPER", 44.1, 88.2, 672, 16, 66, "Ada AD102 whitepaper"),
        ("RTX 4080", 48.7, 97.5, 717, 16, 76, "Ada AD102 whitepaper"),
        ("RTX 4080 SUPER", 52.2, 104.4, 736, 16, 80, "Ada AD102 whitepaper"),
        ("RTX 4090", 82.6, 165.2, 1008, 24, 128, "Ada AD102 whitepaper"),
    )),
    "Hopper": (True, (
        ("H20", 74.0, 148, 4000, 96, 78, "H20 data sheet"),
        ("H100 PCIE", 378, 756, 2000, 80, 114, "H100 PCIe data sheet"),
        ("H100 NVL", 417, 835, 3900, 94, 132, "H100 NVL data sheet"),
        ("H100", 494, 989, 3350, 80, 132, "H100 data sheet"),
        ("H800", 494, 989, 3350, 80, 132, "H800 data sheet"),
        ("H200 NVL", 417, 835, 4800, 141, 132, "H200 NVL data sheet"),
        ("H200", 494, 989, 4800, 141, 132, "H200 data sheet"),
        ("GH200", 494, 989, 4000, 96, 132, "GH200 data sheet"),
    )),
    "Blackwell": (True, (
        ("B200", 1100, 2250, 8000, 180, 148, "B200 data sheet"),
        ("GB200", 1250, 2500, 8000, 186, 148, "GB200 data sheet"),
        ("RTX PRO 6000 BLACKWELL", 251, 503, 1792, 96, 188, "RTX PRO 6000 Blackwell data sheet"),
        ("RTX 5060", 19.2, 38.4, 448, 8, 30, "RTX Blackwell GB202 whitepaper"),
        ("RTX 5060 TI", 23.7, 47.4, 448, 16, 36, "RTX Blackwell GB202 whitepaper"),
        ("RTX 5070", 30.9, 61.7, 672, 12, 48, "RTX Blackwell GB202 whitepaper"),
        ("RTX 5070 TI", 43.9, 87.9, 896, 16, 70, "RTX Blackwell GB202 whitepaper"),
        ("RTX 5080", 56.3, 112.6, 960, 16, 84, "RTX Blackwell GB202 whitepaper"),
        ("RTX 5090", 104.8, 209.5, 1792, 32, 170, "RTX Blackwell GB202 whitepaper"),
    )),
}  # fmt: skip

#: Every card, those with the longest names first: "RTX 4070 TI" is not an "RTX 4070".
GPU_TYPES = tuple(
    sorted(
        (_gpu(*row, bfloat16=bfloat16) for bfloat16, rows in _TABLE.values() for row in rows),
        key=lambda gpu: -len(gpu.name.split()),
    )
)

#: Stands for a type that is not in the table: slow enough that utilisation is not understated.
UNKNOWN_GPU = _gpu("unknown", 15.7, 15.7, 900, 16, 80, bfloat16=False)


#: The name of a slice of MIG at its end: `MIG 1g.10gb`, `MIG 1c.3g.40gb`. Nodes and tenants write
#: names: numbers are not zero and have few digits.
_SLICE = re.compile(
    r"\bMIG (?:([1-9][0-9]?)c\.)?([1-9][0-9]?)g\.([1-9][0-9]{0,3})gb\S*$",
    re.IGNORECASE | re.ASCII,
)
_MEMORY_NAMED = re.compile(r"\b([1-9][0-9]{0,3}) ?GB\b", re.IGNORECASE | re.ASCII)
#: Compute slices of a board, where it is not seven.
_COMPUTE_SLICES = {"A30": 4, "RTX PRO 6000 BLACKWELL": 4}
_SEVEN = 7


def find_gpu(model: str | None) -> GpuType | None:
    """Return the type that an NVML product name means (`Tesla V100-SXM2-16GB`); None if unknown.

    A type matches when each word of its name is a word of the product's name. Of a slice of MIG
    (`NVIDIA A100-SXM4-40GB MIG 1g.5gb`) it is that part of the board: compute by its compute
    slices, bandwidth by its memory.
    """
    words = set(re.split(r"[^A-Z0-9]+", (model or "").upper()))
    found = next((gpu for gpu in GPU_TYPES if set(gpu.name.upper().split()) <= words), None)
    named = _SLICE.search(model or "")
    if found is None or named is None or model is None:
        return found
    size = _MEMORY_NAMED.search(model[: named.start()])
    return _slice_of(
        found,
        int(named[1] or named[2]),
        int(named[3]),
        int(size[1]) if size is not None else round(found.memory_bytes / GIB),
        named[0][len("MIG ") :].lower(),
    )


def is_slice(model: str) -> bool:
    """Say whether a GPU of this name is a slice of MIG."""
    return _SLICE.search(model) is not None


@lru_cache(maxsize=1024)
def compute_share(model: str) -> float:
    """Return the part of its GPU's compute that a slice of this name has; 1 of a whole GPU."""
    named = _SLICE.search(model)
    if named is None:
        return 1.0
    found = find_gpu(model[: named.start()])
    return _part(found.name if found is not None else "", int(named[1] or named[2]))


def _part(gpu: str, compute: int) -> float:
    return min(1.0, compute / _COMPUTE_SLICES.get(gpu, _SEVEN))


@lru_cache(maxsize=1024)
def _slice_of(gpu: GpuType, compute: int, memory_gib: int, of_gib: int, profile: str) -> GpuType:
    """Return the type of a slice; equal slices are one object, as other types are."""
    part = _part(gpu.name, compute)
    of_memory = min(1.0, memory_gib / of_gib)
    return replace(
        gpu,
        name=f"{gpu.name} {profile}",
        training_flops=gpu.training_flops * part,
        half_flops=gpu.half_flops * part,
        bandwidth=gpu.bandwidth * of_memory,
        memory_bytes=memory_gib * GIB,
        multiprocessors=max(1, int(gpu.multiprocessors * part)),
    )


#: Cards of one name differ in memory: an RTX 4060 TI has 8 or 16 GiB.
_LARGEST_VARIANT = 2


@lru_cache(maxsize=1024)
def most_memory_bytes(model: str) -> int:
    """Return the most memory that a GPU of this name can have, as far as is known.

    Of a name that is not in the table the contract's bound holds alone.
    """
    known = find_gpu(model)
    return MAX_GPU_BYTES if known is None else _LARGEST_VARIANT * known.memory_bytes


def type_name(model: str | None) -> str:
    """Return the name under which measurements of a GPU's type are kept together."""
    known = find_gpu(model)
    return known.name if known is not None else (model or "").strip().upper()
