"""Use of GPUs by earlier runs of the same model or command. Pure.

By namespace: what one namespace ran does not decide the memory of another's job of that name.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from tandem.contracts.learning import Means, Observed
from tandem.contracts.prediction import Feedback
from tandem.contracts.resources import Demand, Load, Source
from tandem.policy.votes import beyond_bound

#: Kinds of runs that are kept for one namespace, and for all.
_OF_NAMESPACE, _IN_ALL = 64, 1500
_NEWEST = 0.3  # weight of the newest run in what is averaged
#: A fingerprint is trusted after so many runs whose peaks lay so near one another.
STABLE_RUNS, STABLE_SPREAD = 2, 0.15
#: A run that was seen for less says nothing of what it needs.
LEAST_S = 60.0
_P95 = 1.1  # of the highest peak seen: a tenth more for data that differ

RunKey = tuple[str, str, str]  # namespace, kind, type of GPU


@dataclass(slots=True)
class Runs:
    """Runs of one kind, the latest counting most; peaks are the highest of all."""

    __pydantic_config__ = ConfigDict(allow_inf_nan=False)

    runs: int
    memory_base_bytes: int
    memory_peak_bytes: int
    peak_probability: float
    utilisation_percent: float
    solo_percent: float | None
    solo_rate: float | None
    spread: float  # how far the newest peak was from the one before, as a share of it
    at_s: float
    peaks_measured: bool = False  # of every run
    active_s: float | None = None  # alone, with kernels and without
    idle_s: float | None = None


#: As they are stored: namespace, kind, type of GPU, and the runs. Fields of a later version are
#: passed over.
_ROWS = TypeAdapter(list[tuple[str, str, str, Runs]])


class RunHistory:
    """Runs by namespace, kind and type of GPU."""

    def __init__(self) -> None:
        self.version = 0
        self._runs: dict[RunKey, Runs] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def enter(self, namespace: str, seen: Observed, now_s: float) -> None:
        """Take in the end of a run."""
        if not seen.kind or not seen.gpu_model or seen.seconds < LEAST_S:
            return
        base, peak = seen.memory_base_bytes, seen.memory_peak_bytes
        if peak is None:
            return
        key = (namespace, in_steps_kind(seen.kind, seen.accumulation_steps), seen.gpu_model)
        busy = seen.solo_utilisation_percent or seen.utilisation_percent or 0.0
        known = self._runs.get(key)
        if known is None:
            known = Runs(
                0, base or peak, peak, seen.peak_probability or 0.0, busy,
                seen.solo_utilisation_percent, seen.solo_iterations_per_second, 0.0, now_s,
                seen.peak_probability is not None, seen.active_seconds, seen.idle_seconds,
            )  # fmt: skip
        new = Runs(
            runs=known.runs + 1,
            memory_base_bytes=round(_mean(known.memory_base_bytes, base or peak)),
            memory_peak_bytes=max(peak, known.memory_peak_bytes),
            peak_probability=_mean(known.peak_probability, seen.peak_probability or 0.0),
            utilisation_percent=_mean(known.utilisation_percent, busy),
            solo_percent=_mean_of(known.solo_percent, seen.solo_utilisation_percent),
            solo_rate=_mean_of(known.solo_rate, seen.solo_iterations_per_second),
            spread=abs(peak / known.memory_peak_bytes - 1) if known.memory_peak_bytes else 0.0,
            at_s=now_s,
            peaks_measured=known.peaks_measured and seen.peak_probability is not None,
            active_s=_mean_of(known.active_s, seen.active_seconds),
            idle_s=_mean_of(known.idle_s, seen.idle_seconds),
        )
        self._runs[key] = new
        self._trim(namespace)
        self.version += 1

    def alone(self, namespace: str, kind: str, gpu_model: str) -> dict[Means, float]:
        """Return how fast a kind runs alone: as its own namespace saw it, in load as all did."""
        own = self._runs.get((namespace, kind, gpu_model))
        found: dict[Means, float] = {}
        if own is not None and own.solo_rate:
            found[Means.PROGRESS] = own.solo_rate
        if own is not None and own.solo_percent:
            found[Means.UTILISATION] = own.solo_percent
            return found
        others = [
            runs.solo_percent
            for (_, other, gpu), runs in self._runs.items()
            if (other, gpu) == (kind, gpu_model) and runs.solo_percent
        ]
        if others:
            found[Means.UTILISATION] = median(others)
        return found

    def load(self, namespace: str, kind: str, gpu_model: str, demand: Demand) -> Load | None:
        """Return what a stable fingerprint was seen to use; None where nothing can be said."""
        runs = self._runs.get((namespace, kind, gpu_model))
        if runs is None or runs.runs < STABLE_RUNS or runs.spread > STABLE_SPREAD:
            return None
        peak = runs.memory_peak_bytes
        base = min(runs.memory_base_bytes, peak)
        return Load(
            utilisation_percent=min(runs.utilisation_percent, 100.0),
            utilisation_p95_percent=min(runs.utilisation_percent + 10.0, 100.0),
            memory_base_bytes=base,
            memory_peak_extra_bytes=peak - base,
            peak_probability=min(runs.peak_probability, 1.0),
            memory_p95_bytes=max(round(_P95 * peak), demand.declared_memory_bytes or 0),
            utilisation_source=Source.OBSERVED,
            memory_source=Source.OBSERVED,
            peaks_measured=runs.peaks_measured,
            active_s=runs.active_s,
            idle_s=runs.idle_s,
        )

    def runs_of(self, namespace: str, kind: str, gpu_model: str) -> int:
        """Return how many runs are known."""
        known = self._runs.get((namespace, kind, gpu_model))
        return known.runs if known else 0

    def _trim(self, namespace: str) -> None:
        """Forget the kinds unseen for longest beyond what is kept, of a namespace, then in all."""
        oldest = sorted(self._runs, key=lambda key: (self._runs[key].at_s, key))
        own = [key for key in oldest if key[0] == namespace]
        self._forget(own, _OF_NAMESPACE)
        self._forget([key for key in oldest if key in self._runs], _IN_ALL)

    def _forget(self, worth_least_first: list[RunKey], most: int) -> None:
        for key in beyond_bound(((key, key[0]) for key in worth_least_first), most):
            del self._runs[key]

    def shed(self, rows: int) -> None:
        """Forget so many kinds, each of the namespace that has most.

        Those seen once only go first, then those unseen for longest.
        """
        worth = sorted(self._runs, key=lambda k: (self._runs[k].runs > 1, self._runs[k].at_s, k))
        self._forget(worth, len(worth) - rows)
        self.version += 1

    def stored(self) -> list[Any]:
        """Return all runs as JSON."""
        return [[*key, asdict(runs)] for key, runs in self._runs.items()]

    def merge(self, rows: list[Any]) -> None:
        """Take in stored runs; of two of one kind the newer count. Bounded as what is entered.

        Raises ValueError, and takes in nothing, where they are no rows of runs.
        """
        for namespace, kind, gpu_model, runs in _ROWS.validate_python(rows):
            known = self._runs.get((namespace, kind, gpu_model))
            if known is None or known.at_s < runs.at_s:
                self._runs[namespace, kind, gpu_model] = runs
        for namespace in {key[0] for key in self._runs}:
            self._trim(namespace)


def in_steps_kind(kind: str, accumulation_steps: int) -> str:
    """Return by what runs of a kind are known whose batch is split in so many micro-batches."""
    return f"{kind}/{accumulation_steps}" if kind and accumulation_steps > 1 else kind


def feedback(namespace: str, demand: Demand, seen: Observed) -> Feedback | None:
    """Return what is sent to the predictor of a run of a model; None for nothing."""
    base, peak = seen.memory_base_bytes, seen.memory_peak_bytes
    if demand.model is None or demand.batch_size is None or not seen.gpu_model:
        return None
    if demand.training_setup:
        return None  # it would answer for jobs that leave these open
    busy = seen.solo_utilisation_percent
    if peak is None or busy is None or seen.seconds < LEAST_S:
        return None
    return Feedback(
        namespace=namespace,
        model=demand.model,
        batch_size=demand.batch_size,
        accumulation_steps=seen.accumulation_steps,
        gpu_model=seen.gpu_model,
        memory_base_bytes=min(peak if base is None else base, peak),
        memory_peak_bytes=peak,
        peak_probability=seen.peak_probability or 0.0,
        peaks_measured=seen.peak_probability is not None,
        utilisation_percent=busy,
        active_seconds=seen.active_seconds,
        idle_seconds=seen.idle_seconds,
        iterations_per_second=seen.solo_iterations_per_second,
        neighbours=seen.neighbours,
    )


def _mean(before: float, newest: float) -> float:
    return before + _NEWEST * (newest - before)


def _mean_of(before: float | None, newest: float | None) -> float | None:
    if before is None or newest is None:
        return newest if before is None else before
    return _mean(before, newest)
