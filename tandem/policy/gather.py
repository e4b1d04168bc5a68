"""Chooses the GPUs that a gang of one-GPU workers takes together."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from tandem.policy.cluster import GpuArrays
from tandem.policy.job import Job
from tandem.policy.ports import Policy
from tandem.policy.units import Bools, Floats, Ints


def whole_pods(job: Job, node: Ints, rows: Ints) -> Ints | None:
    """Return the first of `rows` that hold all pods of `job`, each on one node; None if too few.

    `rows` come in order of preference, `node` (gpus,) names the node of each GPU. A pod is as far
    back as the last of its GPUs. Pods follow one another in the answer.
    """
    size = job.gpus_per_pod
    if len(rows) < job.gpus:
        return None
    if size == 1:
        return rows[: job.gpus]
    at = node[rows]
    by_node = np.argsort(at, kind="stable")  # on each node in order of preference still
    first = np.searchsorted(at[by_node], at[by_node], side="left")
    place = np.arange(len(rows)) - first
    last = by_node[place % size == size - 1]
    if len(last) < job.pods:
        return None
    ends = np.flatnonzero(place % size == size - 1)[np.argsort(last, kind="stable")][: job.pods]
    chosen: Ints = rows[by_node[(ends[:, None] + np.arange(1 - size, 1)).ravel()]]
    return chosen


# Paper: [Tiresias] App. D | placement by an integer linear program | test:
#   tests/simulator/test_simulator_spread.py test_what_is_not_spread_decides_as_before | live:
#   no | reason: left out: the paper itself found it slow and no better than the rule of 3.3.2
class BestScored(Policy):
    """The best scored, wherever they are; ties by row."""

    kind: Literal["best_scored"] = "best_scored"

    def __call__(self, job: Job, gpus: GpuArrays, allowed: Bools, score: Floats) -> Ints | None:
        """Return as many rows as `job` has GPUs, or None if too few are allowed."""
        rows = np.flatnonzero(allowed)
        if len(rows) < job.gpus:
            return None
        return whole_pods(job, gpus.node, rows[np.argsort(-score[rows], kind="stable")])


class InUse(Policy):
    """The best scored GPUs in use; if the gang does not fit there, the empty ones as well."""

    kind: Literal["in_use"] = "in_use"

    def __call__(self, job: Job, gpus: GpuArrays, allowed: Bools, score: Floats) -> Ints | None:
        """Return as many rows as `job` has GPUs, or None if there is no place for all."""
        for rows in (np.flatnonzero(allowed & (gpus.jobs > 0)), np.flatnonzero(allowed)):
            best = whole_pods(job, gpus.node, rows[np.argsort(-score[rows], kind="stable")])
            if best is not None:
                return best
        return None


# Paper: [Tiresias] 3.3.2; [Horus] 4.2.3 | placement: skewed gangs on the fewest machines, others
#   fill fragments; in Horus, from eight GPUs on a node or rack before cost | test:
#   tests/papers/test_papers_scenarios.py test_the_rule_decides | live: yes | deviation: racks
#   count for Tiresias as well; inside the node or rack the cheapest GPUs are taken
class FewestNodes(Policy):
    """As few nodes as possible for jobs whose model is skewed; the others fill gaps.

    The smallest sufficient node is taken; if there is none, the nodes with most room first. With
    `hard`, every job waits until it need not be spread further than its size demands, as in
    [Tiresias]' YARN-CS; without, as in Tiresias itself, it takes what there is.
    Jobs of at least `from_gpus` GPUs alone are gathered ([Horus] 4.2.3: 8, `whatever_skew`).

    One rack goes before several: nodes of the rack that holds the gang with the least room to
    spare, or those of the racks with most room.

    Source: [Tiresias] 3.3.2.
    """

    kind: Literal["fewest_nodes"] = "fewest_nodes"
    hard: bool = False
    whatever_skew: bool = False
    from_gpus: Annotated[int, Field(ge=1)] = 2

    def __call__(self, job: Job, gpus: GpuArrays, allowed: Bools, score: Floats) -> Ints | None:
        """Return as many rows as `job` has GPUs, or None if too few are allowed."""
        rows, wanted = allowed.nonzero()[0], job.gpus
        if len(rows) < wanted:
            return None
        if wanted == 1 < self.from_gpus:
            best = int(score[rows].argmax())
            return rows[best : best + 1]
        rows = rows[np.argsort(-score[rows], kind="stable")]
        together = wanted >= self.from_gpus and (self.hard or self.whatever_skew or job.skewed)
        if not together and wanted >= self.from_gpus:
            # Nodes with least room first: fragments are used up before whole nodes are broken.
            room = np.bincount(gpus.node[rows])[gpus.node[rows]]
            return whole_pods(job, gpus.node, rows[np.argsort(room, kind="stable")])
        if not together:
            return whole_pods(job, gpus.node, rows)
        node_of = gpus.node[rows]
        free = np.bincount(node_of)  # by node
        room = free - free % job.gpus_per_pod
        enough = np.flatnonzero(room >= wanted)
        if len(enough):
            chosen = enough[np.argmin(room[enough])]
            return whole_pods(job, gpus.node, rows[node_of == chosen])
        rack = np.zeros(len(free), dtype=np.int64)
        rack[node_of] = gpus.rack[rows]
        node = np.flatnonzero(free)
        place = np.empty(len(free), dtype=np.int64)
        place[node[_by_rack_then_room(rack[node], room[node], wanted)]] = np.arange(len(node))
        spread = rows[np.argsort(place[node_of], kind="stable")]
        gang = whole_pods(job, gpus.node, spread)
        if self.hard and gang is not None:
            widest = int(np.bincount(gpus.node).max())
            fewest = -(-wanted // (widest - widest % job.gpus_per_pod))
            return gang if len(np.unique(gpus.node[gang])) <= fewest else None
        return gang


def _by_rack_then_room(rack: Ints, room: Ints, wanted: int) -> Ints:
    """Return the order of nodes for a gang: (nodes,) their racks and room -> (nodes,) indices.

    The smallest rack that holds `wanted` comes first, then the racks with most room; inside a
    rack the nodes with most room.
    """
    if (rack == rack[0]).all():
        return np.argsort(-room, kind="stable")
    total = np.bincount(rack, weights=room)[rack]
    enough = total >= wanted
    return np.lexsort((-room, rack, np.where(enough, total, -total), ~enough))
