"""[Tiresias] the Gittins index of a job's attained service, on an empirical distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from tandem.policy.units import Floats, Ints


@dataclass(frozen=True, slots=True)
class GittinsIndex:
    """The index for any attained service, after one pass over the samples.

    index(a) = sup over quantum of P(S - a <= quantum | S > a) / E[min(S - a, quantum) | S > a],
    S the total service of a job. Between samples only quanta that end at a sample can be best.
    With samples x_1 <= ... <= x_n that count w_m each, W_i = sum_{m <= i} w_m and
    Q_i = sum_{m <= i} w_m x_m + (W_n - W_i) x_i, the quotient for a quantum ending at x_i is the
    slope of the chord from (sum_{m <= k} w_m x_m + (W_n - W_k) a, W_k), where k samples are <= a,
    to (Q_i, W_i). The steepest chord ends on the concave hull of the points beyond k; `successor`
    holds all of these hulls at once, since that of a suffix extends the next.

    Shapes: attained service (jobs,) in GPU-seconds -> (jobs,), completions per GPU-second.

    Worked: samples 4, 8, 12: 3/24 for a new job (all run to the end), 2/12 after 4, 1/4 after 8.

    Source: [Tiresias] 3.2.2. Differs: beyond the largest sample the index is 0, and it grows
    without bound just below a sample, as the empirical distribution says.
    """

    samples: Floats  # (n,) ascending
    count: Floats  # (n + 1,) W_k: how many the first k samples count for
    total_before: Floats  # (n + 1,) sums of the first k samples
    reach: Floats  # (n + 1,) Q_i; Q_0 = 0
    successor: Ints  # (n + 1,) next vertex on the hull of the points from i on; n where last

    @classmethod
    def of(cls, samples: Floats, votes: Floats | None = None) -> Self:
        """Learn from total services (n,), n >= 1, in any order, in GPU-seconds.

        `votes` (n,) is how much each of them counts; None: each for one.
        """
        samples = np.asarray(samples, dtype=np.float64)
        n = len(samples)
        order = np.argsort(samples, kind="stable")
        x, weight = samples[order], np.ones(n) if votes is None else votes[order]
        count = np.concatenate(([0.0], np.cumsum(weight)))
        total = np.concatenate(([0.0], np.cumsum(weight * x)))
        reach = np.concatenate(([0.0], total[1:] + (count[n] - count[1:]) * x))
        points, counts = reach.tolist(), count.tolist()
        successor = [n] * (n + 1)
        for i in range(n - 1, 0, -1):
            best = i + 1
            while best < n and _steeper(points, counts, i, successor[best], best):
                best = successor[best]
            successor[i] = best
        return cls(x, count, total, reach, np.array(successor, dtype=np.int64))

    def __call__(self, attained: Floats) -> Floats:
        """Return the index, (jobs,), in completions per GPU-second."""
        a = np.asarray(attained, dtype=np.float64)
        n = len(self.samples)
        k = np.searchsorted(self.samples, a, side="right")
        from_x = self.total_before[k] + (self.count[n] - self.count[k]) * a
        best = np.minimum(k + 1, n)
        slope = self._slope(from_x, k, best)
        while True:
            further = self.successor[best]
            steeper = self._slope(from_x, k, further)
            climb = (further > best) & (steeper >= slope)
            if not climb.any():
                return np.where(k >= n, 0.0, slope)
            best = np.where(climb, further, best)
            slope = np.where(climb, steeper, slope)

    def _slope(self, from_x: Floats, k: Ints, i: Ints) -> Floats:
        # Rounding may make the run of a chord to the very next sample slightly negative.
        run = np.maximum(self.reach[i] - from_x, 1e-9)
        slope: Floats = (self.count[i] - self.count[k]) / run
        return slope


# Paper: [Tiresias] 3.2.3 | discretised 2D-Gittins: the quantum is the upper bound of the queue
#   | test: tests/simulator/test_simulator_orderings.py
#   test_three_jobs_by_two_queues_with_their_boundary_at_4 | live: yes
def fixed_quantum_index(
    samples: Floats, attained: Floats, quantum: Floats, votes: Floats | None = None
) -> Floats:
    """Return the index with a given quantum, no supremum: P(S - a <= q) / E[min(S - a, q)].

    Shapes: samples (n,) ascending, attained and quantum (jobs,) in GPU-seconds; (jobs,) in
    completions per GPU-second; 0 beyond the largest sample. `votes` (n,) is how much each sample
    counts; None: each for one.

    Worked: samples 4, 8 and 12, attained 4, quantum 6: one of two ends, for 4 + 6 GPU-seconds: 0.1.

    Source: [Tiresias] 3.2.3: in the discretised policy a queue's quantum is its upper bound.
    """
    n = len(samples)
    weight = np.ones(n) if votes is None else votes
    count = np.concatenate(([0.0], np.cumsum(weight)))
    total = np.concatenate(([0.0], np.cumsum(weight * samples)))
    k = np.searchsorted(samples, attained, side="right")
    end = attained + quantum
    i = np.searchsorted(samples, end, side="right")
    beyond = np.where(i < n, (count[n] - count[i]) * quantum, 0.0)  # keeps inf * 0 out
    ended = count[i] - count[k]
    spent = total[i] - total[k] - ended * attained + beyond
    return np.where(k >= n, 0.0, ended / np.maximum(spent, 1e-9))


def _steeper(
    points: list[float], counts: list[float], origin: int, candidate: int, than: int
) -> bool:
    """Say whether the chord from `origin` to `candidate` is at least as steep as to `than`."""
    rise_c, run_c = counts[candidate] - counts[origin], points[candidate] - points[origin]
    rise_t, run_t = counts[than] - counts[origin], points[than] - points[origin]
    return rise_c * run_t >= rise_t * run_c
