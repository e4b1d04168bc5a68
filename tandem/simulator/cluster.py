"""The simulated cluster: typed GPUs in nodes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tandem.errors import UsageError
from tandem.gpu_types import compute_share
from tandem.policy.cluster import GpuArrays
from tandem.policy.equations.horus import over_commit_curve

#: Memory of the GPU types that may be named, GiB.
MEMORY_GIB = {"V100": 16.0, "P100": 16.0, "RTX2080TI": 11.0, "GTX1080": 8.0, "RTX2080": 8.0,
              "T4": 16.0, "K80": 12.0, "A100": 40.0, "H100": 80.0, "H200": 141.0}  # fmt: skip
_SPEC = re.compile(
    r"([0-9]{1,7})x([0-9]{1,7})(?::([A-Za-z0-9-]{1,32}?)"
    r"(?:-([0-9]{1,6})GB?|-MIG-([1-9]g\.([0-9]{1,3})gb))?)?"
)
#: Of one --cluster: ten times those of the largest clusters.
_MOST_GPUS = 1_000_000
_SHOWN = 64  # characters of what is no cluster


@dataclass(frozen=True, slots=True)
class Nodes:
    """`count` nodes of `gpus` GPUs of one type each; with `profile` each is a slice (MIG)."""

    count: int
    gpus: int
    gpu_type: str = "V100"
    memory_gib: float = 16.0
    profile: str = ""


def parse_cluster(spec: str) -> Nodes:
    """Read `8x8:V100`, `4x8` (V100s), `2x4:A100-80G` or `2x7:A100-MIG-1g.5gb` (slices).

    Raises UsageError.
    """
    match = _SPEC.fullmatch(spec.strip())
    if not match or int(match[1]) < 1 or int(match[2]) < 1:
        raise UsageError(
            f"--cluster {spec[:_SHOWN]!r} is not NODESxGPUS:TYPE",
            "For example 8x8:V100 or 2x4:A100-80G.",
        )
    if int(match[1]) * int(match[2]) > _MOST_GPUS:
        raise UsageError(
            f"--cluster {spec!r} has more than {_MOST_GPUS:,} GPUs", "Simulate a smaller cluster."
        )
    kind = (match[3] or "V100").upper()
    if match[4] or match[6]:
        memory = float(match[4] or match[6])
    elif kind in MEMORY_GIB:
        memory = MEMORY_GIB[kind]
    else:
        known = ", ".join(MEMORY_GIB)
        raise UsageError(
            f"--cluster {spec!r}: the memory of a {match[3]} is not known",
            f"Add it, as in {kind}-24G, or use one of {known}.",
        )
    return Nodes(int(match[1]), int(match[2]), kind, memory, match[5] or "")


def gpu_types(nodes: Sequence[Nodes]) -> tuple[str, ...]:
    """Return the GPU types of a cluster: `gpu_type` of its rows is an index of this."""
    return tuple(dict.fromkeys(n.gpu_type for n in nodes))


def gpu_arrays(
    nodes: Sequence[Nodes], *, shares: int = 2, nodes_per_rack: int | None = None
) -> GpuArrays:
    """Return empty GPUs, node by node; `shares` jobs may be on one GPU.

    `nodes_per_rack` nodes that follow one another are one rack; None: one rack for all.
    """
    node: list[int] = []
    memory: list[float] = []
    kinds: list[int] = []
    racks: list[int] = []
    profiles: list[str] = []
    types = {kind: i for i, kind in enumerate(gpu_types(nodes))}
    at = 0
    for group in nodes:
        for _ in range(group.count):
            node += [at] * group.gpus
            memory += [group.memory_gib] * group.gpus
            kinds += [types[group.gpu_type]] * group.gpus
            profiles += [
                f"{group.gpu_type} MIG {group.profile}" if group.profile else ""
            ] * group.gpus
            racks += [at // nodes_per_rack if nodes_per_rack else 0] * group.gpus
            at += 1
    empty = GpuArrays.empty(np.array(node), np.array(memory), shares=shares, slots=shares)
    sliced = np.array([bool(profile) for profile in profiles])
    return GpuArrays(
        **{
            name: getattr(empty, name)
            for name in empty.__slots__
            if name not in ("gpu_type", "over_commit", "rack", "sliced", "compute", "shares")
        },
        sliced=sliced,
        compute=np.array([compute_share(profile) for profile in profiles]),
        shares=np.where(sliced, 1, shares),
        rack=np.array(racks, dtype=np.int64),
        gpu_type=np.array(kinds, dtype=np.int64),
        over_commit=np.array([over_commit_curve(kind) for kind in types])[kinds],
    )
