"""[Horus] Horus-f: queues of alike jobs, served in proportion to their length and wait."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from tandem.policy.jobs import History, JobArrays
from tandem.policy.ordering.base import KeyOrder
from tandem.policy.units import Floats, Ints

_PASSES = 20


# Paper: [Horus] 4.2.2, Alg. 1 line 2-4 | k-means queues on tasks, utilisation, GPUs a task and
#   memory; weighted fair picks | test: tests/papers/test_papers_scenarios.py
#   test_the_rule_decides | live: yes | deviation: features are standardised and the centres are
#   medians, since the paper leaves both open; shares are rounded by largest remainder; jobs are
#   clustered anew in each round
class WeightedFair(KeyOrder):
    """k-means puts waiting jobs in queues; batches of `jobs_a_round` are picked until none is left.

    Features: tasks (pods), predicted utilisation, GPUs per task, memory, standardised, L1 distance.
    A queue weighs max(length, median wait x length) and gives its share of each batch, rounded by
    largest remainder, longest wait first. One queue: Horus. How many batches a round considers is
    for the dispatch to say (`admit`, `jobs_a_round`).

    Source: [Horus] Alg. 1.
    """

    kind: Literal["weighted_fair"] = "weighted_fair"
    queues: Annotated[int, Field(ge=1)] = 3
    jobs_a_round: Annotated[int, Field(ge=1)] = 15

    def keys(
        self, jobs: JobArrays, rows: Ints, now_s: float, history: History
    ) -> tuple[Floats | Ints, ...]:
        """Return the batch in which each job is tried, then minus the wait; running jobs first."""
        waiting = np.flatnonzero(~jobs.running[rows])
        waited = np.where(jobs.running[rows], 0.0, now_s - jobs.waiting_since_s[rows])
        batch = np.full(len(rows), -1)
        if len(waiting):
            at = rows[waiting]
            per_task = jobs.gpus_per_pod[at]
            features = (
                jobs.gpus[at] / per_task, jobs.gpu_utilisation[at], per_task, jobs.memory_gib[at],
            )  # fmt: skip
            label = _k_medians(np.stack(features, axis=1), self.queues)
            batch[waiting] = self._batches(label, waited[waiting])
        return (batch, -waited)

    def _batches(self, label: Ints, waited_s: Floats) -> Ints:
        """Return the number of the batch in which each job is picked, (jobs,), from 0."""
        longest = np.argsort(-waited_s, kind="stable")
        queues = [longest[label[longest] == q] for q in np.unique(label)]
        batch = np.empty(len(label), dtype=np.int64)
        number = 0
        while queues:
            length = np.array([len(queue) for queue in queues])
            median = np.array([float(np.median(waited_s[queue])) for queue in queues])
            picked = list(zip(queues, self._shares(length, median), strict=True))
            for queue, count in picked:
                batch[queue[:count]] = number
            queues = [queue[count:] for queue, count in picked if count < len(queue)]
            number += 1
        return batch

    def _shares(self, length: Ints, median_wait_s: Floats) -> list[int]:
        """Return how many jobs of each queue come into a batch, (queues,)."""
        weight = np.maximum(length, median_wait_s * length)
        exact = weight / weight.sum() * self.jobs_a_round
        count = np.floor(exact).astype(np.int64)
        largest_remainder = np.argsort(-(exact - count), kind="stable")
        count[largest_remainder[: self.jobs_a_round - int(count.sum())]] += 1
        shares: list[int] = count.tolist()
        return shares


def _k_medians(features: Floats, count: int) -> Ints:
    """Return the cluster of each row, (rows,): Lloyd's passes in L1, first centres far apart."""
    spread = features.std(axis=0)
    points = (features - features.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    centres = points[:1]
    while len(centres) < min(count, len(points)):
        apart = np.abs(points[:, None] - centres[None]).sum(axis=2).min(axis=1)
        centres = np.concatenate((centres, points[[int(np.argmax(apart))]]))
    label = np.zeros(len(points), dtype=np.int64)
    for _ in range(_PASSES):
        new = np.abs(points[:, None] - centres[None]).sum(axis=2).argmin(axis=1)
        if (new == label).all():
            break
        label = new
        for c in np.unique(label):
            centres[c] = np.median(points[label == c], axis=0)
    return label
