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
from tandem.policy.topology import Topology

#: The level of topology of a simulated cluster.
RACK = "rack"

#: Memory of the GPU types that may be named, GiB.
MEMORY_GIB = {"V100": 16.0, "P100": 16.0, "RTX2080TI": 11.0, "GTX1080": 8.0, "RTX2080": 8.0,
              "T4": 16.0, "K80": 12.0, "A100": 40.0, "H100": 80.0, "H200": 141.0}  # fmt: skip
_SPEC = re.compile(
    r"([0-9]{1,7})x([0-9]{1,7})(?::([A-Za-z0-9-]{1,32}?)"
    r"(?:-([0-9]{1,6})GB?|-MIG-([1-9]g\.([0-9]{1,3})gb))?)?(?:/([0-9]{1,7}))?"
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
    nodes_per_rack: int | None = None  # that follow one another; None: in no rack


def parse_cluster(spec: str) -> Nodes:
    """Read `8x8:V100`, `4x8` (V100s), `2x4:A100-80G` or `2x7:A100-MIG-1g.5gb` (slices).

    A number behind a slash, as in `8x8:V100/4`, is that of the nodes of a rack. Raises UsageError.
    """
    match = _SPEC.fullmatch(spec.strip())
    if not match or int(match[1]) < 1 or int(match[2]) < 1:
        raise UsageError(
            f"--cluster {spec[:_SHOWN]!r} is not NODESxGPUS:TYPE",
            "For example 8x8:V100, 2x4:A100-80G, or 8x8:V100/4 with racks of four nodes.",
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
    if match[7] is not None and int(match[7]) < 1:
        raise UsageError(f"--cluster {spec!r} has racks without nodes", "For example 8x8:V100/4.")
    in_rack = None if match[7] is None else int(match[7])
    return Nodes(int(match[1]), int(match[2]), kind, memory, match[5] or "", in_rack)


def gpu_types(nodes: Sequence[Nodes]) -> tuple[str, ...]:
    """Return the GPU types of a cluster: `gpu_type` of its rows is an index of this."""
    return tuple(dict.fromkeys(n.gpu_type for n in nodes))


def racks(nodes: Sequence[Nodes]) -> Topology | None:
    """Return the racks of a cluster, its one level of topology; None where it has none.

    Nodes of one rack follow one another and are of one group.
    """
    domain: list[int] = []
    first = 0
    for group in nodes:
        if group.nodes_per_rack is None:
            domain += [-1] * group.count
            continue
        domain += [first + at // group.nodes_per_rack for at in range(group.count)]
        first += -(-group.count // group.nodes_per_rack)
    return Topology((RACK,), np.array(domain, dtype=np.int64)[:, None]) if first else None


def gpu_arrays(
    nodes: Sequence[Nodes], *, shares: int = 2, nodes_per_rack: int | None = None
) -> GpuArrays:
    """Return empty GPUs, node by node; `shares` jobs may be on one GPU.

    `nodes_per_rack` nodes that follow one another are one rack; None: the racks of the groups, and
    one for all nodes that are in none.
    """
    known = racks(nodes)
    node: list[int] = []
    memory: list[float] = []
    kinds: list[int] = []
    rack: list[int] = []
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
            own = 0 if known is None else int(known.domain[at, 0]) + 1
            rack += [at // nodes_per_rack if nodes_per_rack else own] * group.gpus
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
        rack=np.array(rack, dtype=np.int64),
        gpu_type=np.array(kinds, dtype=np.int64),
        over_commit=np.array([over_commit_curve(kind) for kind in types])[kinds],
    )
