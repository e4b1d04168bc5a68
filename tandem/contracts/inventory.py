"""Which GPUs a node is known to have: an annotation of its GPUNode, which no agent may write.

The scheduler writes it with the first whole report of a GPUNode. Other GPUs later, or more memory,
mean that an operator has changed the node, or that somebody makes GPUs up. Until an operator
agrees, by taking the annotation away, nothing new runs on the node.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from tandem.contracts.names import INVENTORY
from tandem.contracts.resources import GPU

#: Of each GPU its model and its memory in bytes.
Inventory = Mapping[str, tuple[str, int]]

#: Memory varies with the driver, and by a sixteenth with ECC.
_MORE = 1 / 8
_NAMED = 4


def inventory_of(gpus: Iterable[GPU]) -> Inventory:
    """Return what a report says."""
    return {gpu.uuid: (gpu.model, gpu.memory_bytes) for gpu in gpus}


def format_inventory(inventory: Inventory) -> str:
    """Return the text of the annotation."""
    return json.dumps(dict(sorted(inventory.items())), separators=(",", ":"))


@lru_cache(maxsize=16_384)
def parse_inventory(text: str) -> Inventory:
    """Return what the annotation says; no GPUs where it cannot be read."""
    try:
        return {
            str(uuid): (str(model), int(memory))
            for uuid, (model, memory) in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}


def changes(known: Inventory, reported: Inventory) -> Iterator[tuple[str, str]]:
    """Yield the UUID of each GPU that is not as it is known, and how it differs.

    A GPU that is missing is none of them: it was lost, and may come back. One whose size was not
    known may have any.
    """
    for uuid, (model, memory) in reported.items():
        if uuid not in known:
            yield uuid, "is new"
        elif known[uuid][0] != model:
            yield uuid, f"is {model!r} and was {known[uuid][0]!r}"
        elif known[uuid][1] and memory > known[uuid][1] * (1 + _MORE):
            yield uuid, f"has {memory >> 20:,} MiB and had {known[uuid][1] >> 20:,}"


def change_in_words(changed: Iterable[tuple[str, str]]) -> str:
    """Return the changes as a part of a sentence, the first few of them."""
    said = [f"{uuid} {how}" for uuid, how in changed]
    more = f", and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
    return ", ".join(said[:_NAMED]) + more


def how_to_agree(node: str) -> str:
    """Return the command by which an operator agrees to what a node reports."""
    return f"kubectl annotate gpunode {node} {INVENTORY}-"
