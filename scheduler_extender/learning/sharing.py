"""Jobs that share a GPU and their slowdowns: input of `separation`, observations for GPUJobs.

Pure, but for what was learned: what agents report now, and what earlier runs have shown.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TypeVar

import numpy as np

from scheduler_extender.cluster.attained_service import kept_run_s
from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import (
    alone_iteration_s,
    kind_of_model,
    load_now,
    rfc3339,
    seconds,
    stretch_of_steps,
)
from scheduler_extender.cluster.records import GpuJobRecord
from scheduler_extender.learning.observed import (
    CONTENDED_PERCENT,
    GpuKey,
    Neighbours,
    Rates,
    Watch,
    Watched,
)
from scheduler_extender.learning.run_history import RunHistory, in_steps_kind
from scheduler_extender.learning.separation import Resident
from tandem.contracts.learning import (
    Accrued,
    Means,
    Neighbour,
    Observed,
    ObservedSlowdown,
    Reference,
)
from tandem.contracts.resources import GPUJobStatus, Source
from tandem.policy.equations.observed import shared_out_slowdown
from tandem.policy.units import BYTES_PER_GIB

_Value = TypeVar("_Value")
#: More memory, or more of the GPU's time (percent), than was said by so much is a lie or an error.
OUTGREW_SHARE, OUTGREW_PERCENT = 0.05, 20.0
#: Neighbours that a GPUJob lists.
_NEIGHBOURS = 8


class Sharing:
    """Turns what is watched of pods into what is known of gangs."""

    def __init__(self, watch: Watch, memory: RunHistory) -> None:
        self._watch = watch
        self._memory = memory

    def watched(self, gang: Gang) -> list[Watched]:
        """Return what is known of a gang's pods on all of their GPUs."""
        return [
            each
            for pod in gang.holders()
            for each in self._watch.of_pod(
                pod.uid, tuple((pod.node_name, gpu) for gpu in pod.devices)
            )
        ]

    def slowdowns(self, gang: Gang, each: Watched) -> tuple[ObservedSlowdown | None, ...]:
        """Return a worker's slowdown as its pod tells it and as the agent measures it."""
        record = gang.job
        load = record.status.load
        kind = kind_of_model(record.spec, load)
        steps = gang.steps_of(each.uid)
        history = self._memory.alone(gang.key[0], in_steps_kind(kind, steps), each.gpu_model)
        predicted = _predicted(record.status, steps)
        return tuple(
            each.slowdown(means, history, predicted)
            for means in (Means.PROGRESS, Means.UTILISATION)
        )

    def resident(self, gang: Gang, at: GpuKey, stays: str) -> Resident:
        """Return a gang as it is on one of its GPUs.

        A gang is as slow as its slowest worker: it counts where its GPU is busiest. A pod's report
        is believed up to what the agent measures, where that shows any harm at all; else it is
        unconfirmed.
        """
        record = gang.job
        every = self.watched(gang)
        here = next((w for w in every if w.at == at), None)
        shared = [w for w in every if w.others]
        load = load_now(record.spec.demand, record.status)
        cost = gib_of(load.memory_base_bytes) * record.spec.gpus
        if here is None:
            return Resident(gang.key, None, cost_gib=cost, stays=stays)
        slowest = max(shared, key=lambda w: (w.busy_percent, w.at)) if shared else here
        slowdown, measured = 0.0, False
        if slowest is here:
            slowdown, measured = _weighed(*self.slowdowns(gang, here))
        return Resident(
            gang.key, slowdown, measured=measured, cost_gib=cost, stays=stays,
            outgrew=_outgrew(record, here),
        )  # fmt: skip

    def observed(
        self,
        gang: Gang,
        before: Observed | None,
        kinds: dict[str, str],
        now_s: float,
        predicted: Callable[[str], float],
        spread: bool | None = None,
    ) -> Observed | None:
        """Return what is observed of a gang now; `kinds` by uid names its neighbours' models.

        `predicted` gives the expected slowdown next to a neighbour, by uid: where there are several
        on a GPU, what is measured is shared out by it. `spread`: a gang of several pods runs on
        more nodes than it needs.

        What is known from before stays where nothing newer is.
        """
        record = gang.job
        every = self.watched(gang)
        if not every:
            return before
        most = max(every, key=lambda w: (w.use.memory_peak_bytes or w.use.memory_bytes or 0, w.at))
        shared = [w for w in every if w.others]
        steps = gang.steps_of(most.uid)
        known = before or Observed(at=rfc3339(now_s), accumulation_steps=steps)
        if known.accumulation_steps != steps:
            # It ran its batch in another way before: of memory and speed that says nothing now.
            known = Observed(
                at=known.at,
                accumulation_steps=steps,
                neighbours=known.neighbours,
                slowed_seconds=known.slowed_seconds,
                iterations_done=known.iterations_done,
                accrued=known.accrued,
            )
        # None once a first worker has ended: what was seen before holds. On other nodes the gang
        # has another speed.
        if spread is not None and known.spread != spread:
            known = known.model_copy(update={"spread": spread, "solo_iterations_per_second": None})
        peak = _peak(most)
        solo = {m: v for w in every for m, v in w.solo.items()}
        active, idle = next(
            (w.activity for w in every if w.activity is not None),
            (known.active_seconds, known.idle_seconds),
        )
        slowdown = None
        neighbours = known.neighbours
        if shared:
            slowest = max(shared, key=lambda w: (w.busy_percent, w.at))
            reported, measured = self.slowdowns(gang, slowest)
            slowdown = reported or measured
            now = _neighbours_of(slowest, kinds, predicted)
            if slowdown is None:
                slowest.note(now)
            elif slowest.settled:  # its averages know the time before no longer
                neighbours = _with(neighbours, now, slowdown)
        for each in every:
            for then, late in each.measured_late():
                neighbours = _with(neighbours, then, late)
        slowed_s, iterations = _progress(gang, record, known, steps, slowdown, every, now_s)
        passed_s = _passed_s(record.status, known, now_s)
        return known.model_copy(
            update={
                "at": rfc3339(now_s),
                "slowed_seconds": slowed_s,
                "iterations_done": iterations,
                "accrued": accrued_after(
                    known.accrued or Accrued(), every, slowdown, predicted, passed_s
                ),
                "kind": kind_of_model(record.spec, record.status.load),
                "gpu_model": most.gpu_model,
                "accumulation_steps": steps,
                "seconds": round(max(known.seconds, *(w.observed_s for w in every)), 1),
                "memory_base_bytes": _or(most.use.memory_base_bytes, known.memory_base_bytes),
                "memory_peak_bytes": max(
                    (b for b in (peak, known.memory_peak_bytes) if b is not None), default=None
                ),
                "peak_probability": _or(most.use.peak_probability, known.peak_probability),
                "utilisation_percent": _or(most.use.utilisation_percent, known.utilisation_percent),
                "solo_utilisation_percent": _or(
                    solo.get(Means.UTILISATION), known.solo_utilisation_percent
                ),
                "solo_iterations_per_second": _or(
                    solo.get(Means.PROGRESS), known.solo_iterations_per_second
                ),
                "active_seconds": active,
                "idle_seconds": idle,
                "slowdown": slowdown,
                "neighbours": neighbours,
                "remembered": False,
            }
        )


def gib_of(number: int) -> float:
    """Return bytes as GiB."""
    return number / BYTES_PER_GIB


def notable(before: Observed | None, after: Observed | None) -> bool:
    """Say whether two observations differ by what decides something."""
    if before is None or after is None:
        return before is not after
    one, other = before.memory_peak_bytes or 0, after.memory_peak_bytes or 0
    if other > one * (1 + OUTGREW_SHARE):
        return True
    if (before.solo_utilisation_percent is None) != (after.solo_utilisation_percent is None):
        return True
    if {each.kind for each in before.neighbours} != {each.kind for each in after.neighbours}:
        return True
    slow = [seen.slowdown.value if seen.slowdown else 0.0 for seen in (before, after)]
    return abs(slow[0] - slow[1]) >= 0.15


def _weighed(
    reported: ObservedSlowdown | None, measured: ObservedSlowdown | None
) -> tuple[float, bool]:
    """Return the slowdown that counts, and whether others are to believe it."""
    credible = measured is not None and measured.reference is not Reference.PREDICTED
    if reported is None:
        return (measured.value if measured else 0.0), credible
    if measured is not None and credible and measured.value > 0:
        agreed = min(reported.value, measured.value)
        # A report beyond that is unconfirmed, and is weighed as such.
        return (agreed, True) if agreed >= reported.value / 2 else (reported.value, False)
    return reported.value, False


def _predicted(status: GPUJobStatus, steps: int) -> Rates:
    load = status.load
    if load is None:
        return {}
    found: dict[Means, float] = {}
    if load.iteration_s:
        found[Means.PROGRESS] = 1 / (load.iteration_s * stretch_of_steps(status, steps))
    # What a model is wrong by is no neighbour's doing: only what runs have shown can be compared.
    if load.utilisation_source is Source.OBSERVED:
        found[Means.UTILISATION] = load.utilisation_percent
    return found


def _progress(
    gang: Gang,
    record: GpuJobRecord,
    known: Observed,
    steps: int,
    slowdown: ObservedSlowdown | None,
    every: list[Watched],
    now_s: float,
) -> tuple[float, float | None]:
    """Return the seconds that a gang has lost so far, and the iterations that it has done.

    A gang is as fast as its slowest worker. Iterations are None until a pod has reported its speed;
    the run before that counts by its time.
    """
    status, checkpoints = record.status, record.spec.demand.checkpoint
    since_s, known_s = _running_since_s(status, now_s), seconds(known.at)
    slowed_s, done = known.slowed_seconds, known.iterations_done
    if since_s > known_s and not checkpoints:
        slowed_s, done = 0.0, None if done is None else 0.0  # it has begun anew
    passed_s = _passed_s(status, known, now_s)
    speed = 1 / (1 + (slowdown.value if slowdown is not None else 0.0))
    speed /= stretch_of_steps(status, steps)
    slowed_s = round(slowed_s + passed_s * (1 - speed), 1)
    rate = min((w.now[Means.PROGRESS] for w in every if Means.PROGRESS in w.now), default=None)
    iteration_s = alone_iteration_s(status.model_copy(update={"observed": known}))
    by_time = speed / iteration_s if iteration_s else 0.0
    if done is not None:
        done = round(done + passed_s * (by_time if rate is None else rate), 1)
    elif rate is not None:
        ran_s = max(0.0, kept_run_s(gang, record, now_s) - slowed_s)
        done = round(ran_s / iteration_s, 1) if iteration_s else 0.0
    return slowed_s, done


def _running_since_s(status: GPUJobStatus, now_s: float) -> float:
    return seconds(status.running_since) if status.running_since is not None else now_s


def _passed_s(status: GPUJobStatus, known: Observed, now_s: float) -> float:
    """Return for how many seconds a gang has run since it was looked at."""
    return max(0.0, now_s - max(seconds(known.at), _running_since_s(status, now_s)))


def accrued_after(
    known: Accrued,
    every: list[Watched],
    slowdown: ObservedSlowdown | None,
    predicted: Callable[[str], float],
    passed_s: float,
) -> Accrued:
    """Return what a gang has had of its GPUs after `passed_s` more seconds as they are now.

    Worked: 10 s on one GPU with one neighbour, at a slowdown of 0.25: 5 GPU-seconds were the
    neighbour's, and 10 (1 - 1 / 1.25) = 2 are lost.
    """
    used = [w.use.utilisation_percent for w in every if w.use.utilisation_percent is not None]
    others = [frozenset(uid for uid in w.others if uid) for w in every]
    neighbours_had = sum(len(uids) / (1 + len(uids)) for uids in others)
    value = slowdown.value if slowdown is not None else 0.0
    shared = [w for w, uids in zip(every, others, strict=True) if uids]
    # A GPU that is not busy slows no job down: that is measured, too.
    measured = slowdown is not None or all(
        w.now and w.busy_percent < CONTENDED_PERCENT for w in shared
    )
    if not measured:
        expected = (predicted(uid) for uid in frozenset().union(*others))
        value = max((each for each in expected if each < inf), default=0.0)
    lost = len(every) * (1 - 1 / (1 + value)) if shared else 0.0
    kind = "" if measured else "predicted_"
    more = {
        "seen_gpu_seconds": len(every),
        "measured_gpu_seconds": len(used),
        "used_gpu_seconds": sum(used) / 100,
        f"{kind}beside_gpu_seconds": neighbours_had,
        f"{kind}lost_gpu_seconds": lost,
    }
    return known.model_copy(
        update={
            name: round(getattr(known, name) + passed_s * rate, 3) for name, rate in more.items()
        }
    )


def _outgrew(record: GpuJobRecord, here: Watched) -> bool:
    """Say whether a worker uses more than its user declared, or was predicted."""
    load = record.status.load
    if load is None or load.memory_source is Source.WHOLE_GPU:
        return False
    peak = _peak(here) or 0
    busy = max(here.use.utilisation_percent or 0.0, here.solo.get(Means.UTILISATION, 0.0))
    lied = load.utilisation_source is Source.DECLARED
    return peak > load.memory_p95_bytes * (1 + OUTGREW_SHARE) or (
        lied and busy > load.utilisation_percent + OUTGREW_PERCENT
    )


def _peak(watched: Watched) -> int | None:
    seen = (watched.use.memory_peak_bytes, watched.use.memory_bytes)
    return max((b for b in seen if b is not None), default=None)


def _neighbours_of(
    watched: Watched, kinds: dict[str, str], predicted: Callable[[str], float]
) -> Neighbours:
    """Return the neighbours of now whose kinds are known."""
    uids = sorted(uid for uid in watched.others if kinds.get(uid))
    expected = tuple(predicted(uid) for uid in uids) if len(uids) > 1 else (0.0,) * len(uids)
    return Neighbours(tuple(kinds[uid] for uid in uids), expected)


def _with(
    known: list[Neighbour], neighbours: Neighbours, slowdown: ObservedSlowdown
) -> list[Neighbour]:
    """Return what is known with what is observed next to these neighbours; the newest last."""
    if not neighbours.kinds:
        return known
    shares = shared_out_slowdown(np.array(neighbours.expected), slowdown.value)
    parts: dict[str, float] = {}
    for kind, part in zip(neighbours.kinds, shares, strict=True):
        parts[kind] = max(parts.get(kind, 0.0), float(part))
    new = [
        Neighbour(kind=kind, slowdown=round(part, 3), means=slowdown.means)
        for kind, part in sorted(parts.items())
    ]
    return [*(each for each in known if each.kind not in parts), *new][-_NEIGHBOURS:]


def _or(new: _Value | None, old: _Value | None) -> _Value | None:
    return old if new is None else new
