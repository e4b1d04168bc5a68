"""Messages about moves, which do not name jobs of other namespaces. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_extender.cluster.records import Key
from scheduler_extender.learning.adjusting import Move, Obstacle
from scheduler_extender.planning.explaining import named


def told_of_move(move: Move) -> str:
    """Say to its owner why a gang moves."""
    suffers = "it is" if move.sufferer == move.key else f"{_named(move.sufferer, move.key)} is"
    beside = ", ".join(_named(key, move.key) for key in move.beside)
    beside = beside if move.sufferer == move.key else "next to it"
    where = f"next to {beside}" if move.sufferer == move.key else beside
    how = "measured" if move.measured else "reported by its pods"
    return f"leaves {move.at[1]}: {suffers} slowed down by {move.slowdown:.0%} {where} ({how})"


def told_of_obstacles(obstacles: Sequence[Obstacle], reader: Key | None = None) -> str:
    """Say why nobody leaves a GPU, what keeps each; to an operator where no `reader` is given."""
    return "; ".join(
        each.why if each.key is None else f"{_named(each.key, reader)} stays: {each.why}"
        for each in obstacles
    )


def _named(key: Key, reader: Key | None) -> str:
    """Return what may be said of a job to the owner of another; all, to an operator."""
    return "/".join(key) if reader is None else named([key], reader)
