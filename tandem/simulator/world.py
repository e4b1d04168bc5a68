"""One simulated world: the trace, what is true of its jobs, and what the policies believe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tandem.policy.cluster import GpuArrays
from tandem.policy.job import EMPTY_SLOT, UNKNOWN, Job
from tandem.policy.units import Floats, Ints
from tandem.simulator.belief import cross_fitted, noisy
from tandem.simulator.gavel import PairMatrix, draw_memory, draw_utilisation
from tandem.simulator.jobs import TraceJob
from tandem.simulator.spread import SpreadTable, spread_slowdowns, stem
from tandem.simulator.truth import MemoryCourse, Truth, no_truth

#: The policies believe this much more memory than is true, as an upper estimate says.
_MEMORY_MARGIN = 0.05
_KNOWN = 2  # classes before the first model: empty slot, unknown


@dataclass(frozen=True, slots=True)
class World:
    """Truth and belief about one trace."""

    trace: Sequence[TraceJob]
    truth: Truth
    believed: Sequence[Job]
    prediction_error: float | None = None  # mean relative, of the time next to a neighbour


def plain_world(trace: Sequence[TraceJob], gpus: GpuArrays) -> World:
    """Return `--truth none`: orderings alone, GPUs whose sharing harms no job."""
    return World(
        trace,
        no_truth(len(trace), len(gpus)),
        [
            Job(
                id=job.id,
                pods=job.gpus // job.gpus_per_pod,
                gpus_per_pod=job.gpus_per_pod,
                queued_at_s=job.submit_s,
                remaining_s=job.duration_s,
                checkpointable=True,
                required_topology=job.required_topology or "",
                preferred_topology=job.preferred_topology or "",
            )
            for job in trace
        ],
    )


def measured_world(
    trace: Sequence[TraceJob],
    gpus: GpuArrays,
    matrix: PairMatrix,
    *,
    seed: int,
    preemption_cost_s: float = 60.0,
    belief_error: float | None = None,
    by_type: Sequence[PairMatrix] = (),
    spread: SpreadTable | None = None,
) -> World:
    """Return a world in which pairs slow each other down as measured.

    Models are drawn from the matrix with `seed` unless the trace names one of it; memory and
    utilisation are synthetic, drawn with the same seed where the trace has none. The policies
    believe slowdowns by a model trained without the pair concerned, or the truth with a mean
    relative error of `belief_error`, and memory with a margin of 5 % on top, as an upper estimate
    has.

    `by_type` has the matrix of each GPU type where the cluster has several, with the models of
    `matrix`: slowdowns are then those of the GPU. The policies see the predictions of `matrix`.
    With `spread`, gangs on more nodes than they need are slowed down as measured, and the policies
    see what other batch sizes of the model say; without, it costs nothing where a gang is.
    """
    rng = np.random.default_rng(seed)
    names = {name: i for i, name in enumerate(matrix.names)}
    drawn = rng.integers(len(names), size=len(trace))
    model = np.array(
        [names.get(job.model or "", int(d)) for job, d in zip(trace, drawn, strict=True)]
    )
    courses = draw_memory(matrix, float(gpus.memory_capacity_gib.min()), rng)
    utilisation = draw_utilisation(matrix, rng)
    memory = [
        MemoryCourse(
            job.memory_base_gib,
            max((job.memory_peak_gib or job.memory_base_gib) - job.memory_base_gib, 0.0),
            job.peak_probability if job.peak_probability is not None else 0.0,
        )
        if job.memory_base_gib is not None
        else courses[model[i]]
        for i, job in enumerate(trace)
    ]
    busy = np.array(
        [
            utilisation[model[i]] if job.gpu_utilisation is None else job.gpu_utilisation
            for i, job in enumerate(trace)
        ]
    )
    if belief_error is None:
        prediction = cross_fitted(matrix.slowdown, _families(matrix.names), seed=seed)
    else:
        prediction = noisy(matrix.slowdown, belief_error, rng)
    true_spread = predicted_spread = np.zeros(len(trace))
    if spread is not None:
        true_spread, predicted_spread = spread_slowdowns(
            spread, [matrix.names[of] for of in model], [job.gpus for job in trace]
        )
    predicted = with_reserved_classes(prediction.slowdown, unknown=np.inf)
    truth = Truth(
        slowdown=with_reserved_classes(matrix.slowdown, unknown=0.0),
        slowdown_by_type=np.stack(
            [with_reserved_classes(one.slowdown, unknown=0.0) for one in by_type]
        )
        if by_type
        else None,
        gpu_type=gpus.gpu_type,
        spread_slowdown=None if spread is None else true_spread,
        job_class=model + _KNOWN,
        memory=memory,
        memory_gib=np.array(gpus.memory_capacity_gib),
        gpu_utilisation=busy,
        preemption_cost_s=preemption_cost_s,
    )
    believed = [
        Job(
            id=job.id,
            pods=job.gpus // job.gpus_per_pod,
            gpus_per_pod=job.gpus_per_pod,
            memory_base_gib=memory[i].base_gib * (1 + _MEMORY_MARGIN),
            memory_peak_extra_gib=memory[i].peak_extra_gib * (1 + _MEMORY_MARGIN),
            peak_probability=memory[i].peak_probability,
            gpu_utilisation=float(busy[i]),
            checkpointable=True,
            queued_at_s=job.submit_s,
            spread_slowdown=float(predicted_spread[i]),
            model=matrix.names[model[i]],
            remaining_s=job.duration_s,
            interference_class=int(model[i]) + _KNOWN,
            own_slowdown=predicted[model[i] + _KNOWN],
            caused_slowdown=predicted[:, model[i] + _KNOWN],
            required_topology=job.required_topology or "",
            preferred_topology=job.preferred_topology or "",
        )
        for i, job in enumerate(trace)
    ]
    return World(trace, truth, believed, prediction.mean_relative_error)


def with_reserved_classes(slowdown: Floats, *, unknown: float) -> Floats:
    """Return the matrix with the classes of an empty slot (slowdown 0) and unknown in front."""
    count = len(slowdown) + _KNOWN
    out = np.full((count, count), unknown)
    out[_KNOWN:, _KNOWN:] = slowdown
    out[:, EMPTY_SLOT] = 0.0
    out[EMPTY_SLOT, :] = 0.0
    assert out[UNKNOWN, EMPTY_SLOT] == 0.0
    return out


def _families(names: Sequence[str]) -> Ints:
    """Return an index for each name without its batch size: ResNet-50 (batch size 16) and (32)."""
    stems = [stem(name) for name in names]
    index = {stem: i for i, stem in enumerate(dict.fromkeys(stems))}
    return np.array([index[stem] for stem in stems], dtype=np.int64)
