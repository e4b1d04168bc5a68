"""Public figures of GPU types, by the names that NVML gives them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tandem.contracts.prediction import Precision

GIB = 1024**3


@dataclass(frozen=True)
class GpuType:
    """What a vendor's data sheet says of one GPU (dense rates, no sparsity).

    `training_flops` is the rate at which frameworks train in their default precision: TF32 where
    tensor cores have it, otherwise FP32. `half_flops` is that of FP16 summed in FP32, where it is
    faster; `bfloat16` says whether BF16 runs at that rate too (from Ampere on).
    """

    name: str
    training_flops: float  # FLOP/s
    half_flops: float  # FLOP/s
    bfloat16: bool
    bandwidth: float  # bytes/s
    memory_bytes: int

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
    )


#: Source: the vendor's data sheets. A name that says its memory comes before one that does not.
GPU_TYPES = (
    _gpu("K80", 4.37, 4.37, 240, 12, bfloat16=False),  # one of the board's two GPUs
    _gpu("P4", 5.5, 5.5, 192, 8, bfloat16=False),
    _gpu("P40", 12.0, 12.0, 346, 24, bfloat16=False),
    _gpu("P100", 9.3, 18.7, 732, 16, bfloat16=False),
    _gpu("V100 32GB", 15.7, 125.0, 900, 32, bfloat16=False),
    _gpu("V100", 15.7, 125.0, 900, 16, bfloat16=False),
    _gpu("T4", 8.1, 65.0, 320, 16, bfloat16=False),
    _gpu("A2", 9.0, 18.0, 200, 16),
    _gpu("A10", 62.5, 125.0, 600, 24),
    _gpu("A30", 82.0, 165.0, 933, 24),
    _gpu("A40", 74.8, 149.7, 696, 48),
    _gpu("A100 80GB", 156.0, 312.0, 2039, 80),
    _gpu("A100", 156.0, 312.0, 1555, 40),
    _gpu("L4", 60.0, 121.0, 300, 24),
    _gpu("L40", 90.5, 181.0, 864, 48),
    _gpu("L40S", 183.0, 362.0, 864, 48),
    _gpu("H100 PCIE", 378.0, 756.0, 2000, 80),
    _gpu("H100", 494.0, 989.0, 3350, 80),
    _gpu("H200", 494.0, 989.0, 4800, 141),
    _gpu("B200", 1100.0, 2250.0, 8000, 180),
    _gpu("GTX 1080 TI", 11.3, 11.3, 484, 11, bfloat16=False),
    _gpu("GTX 1080", 8.9, 8.9, 320, 8, bfloat16=False),
    _gpu("RTX 2080 TI", 13.4, 53.8, 616, 11, bfloat16=False),
    _gpu("RTX 2080", 10.1, 40.3, 448, 8, bfloat16=False),
    _gpu("RTX 3090", 35.6, 71.0, 936, 24),
    _gpu("RTX 4090", 82.6, 165.2, 1008, 24),
    _gpu("RTX A6000", 77.4, 154.8, 768, 48),
)

#: Stands for a type that is not in the table: slow enough that utilisation is not understated.
UNKNOWN_GPU = _gpu("unknown", 15.7, 15.7, 900, 16, bfloat16=False)


def find_gpu(model: str | None) -> GpuType | None:
    """Return the type that an NVML product name means (`Tesla V100-SXM2-16GB`); None if unknown.

    A type matches when each word of its name is a word of the product's name.
    """
    words = set(re.split(r"[^A-Z0-9]+", (model or "").upper()))
    return next((gpu for gpu in GPU_TYPES if set(gpu.name.upper().split()) <= words), None)


def type_name(model: str | None) -> str:
    """Return the name under which measurements of a GPU's type are kept together."""
    known = find_gpu(model)
    return known.name if known is not None else (model or "").strip().upper()
