"""Predicts the load of a new gang, and asks again where the predictor did not know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.jobs import kind_of_model, policy_job, rfc3339, scaled_steps
from scheduler_extender.cluster.records import Key
from scheduler_extender.cluster.table import GpuKind
from scheduler_extender.predictions import HttpPredictor, Pricing
from scheduler_extender.queue.shared import Shared
from scheduler_extender.queue.steps import lifecycle
from scheduler_extender.queue.steps.effects import Effect, KeepStatus, WriteStatus
from scheduler_extender.queue.workqueue import ExternalWork
from tandem.contracts.prediction import Prediction
from tandem.contracts.resources import (
    Demand,
    GPUJobSpec,
    Load,
    Phase,
    Source,
    SubBatch,
)
from tandem.policy.equations.accumulation import fitted_compute, ring_bytes, stretch_in
from tandem.policy.job import Iteration

PREDICT_AGAIN_S = 30.0
#: Jobs for which the predictor is asked again at the same time. They take no places from decisions,
#: and what is asked for new jobs does not wait behind them.
_AGAIN_AT_ONCE = 4
#: [SJF-BSBF] Eq. (4): a byte on the paper's network of 10 Gb/s. No cluster measures its own.
BYTE_S = 8e-10


class LoadPrediction:
    """Predicted loads of gangs. All methods run on the event loop."""

    def __init__(
        self,
        shared: Shared,
        predictor: HttpPredictor,
        pricing: Pricing,
        earlier: Callable[[Gang, Prediction], Prediction],
    ) -> None:
        self._executor = shared.executor
        self._predictor = predictor
        self._pricing = pricing
        self._state = shared.state
        self._gangs = shared.gangs
        self._clock = shared.clock
        self._work = shared.work
        self._earlier = earlier  # what earlier runs have shown, where that is more
        self._predicted_at: dict[Key, float] = {}
        self._asking_again = 0
        self._to_ask_again: dict[Key, None] = {}

    def forget(self, key: Key) -> None:
        """Forget a gang that is gone."""
        self._predicted_at.pop(key, None)
        self._to_ask_again.pop(key, None)

    async def enqueue(self, gang: Gang) -> None:
        """Predict the load of a new GPUJob and put it in the queue, unless it is gone by then."""
        if gang.record is None:
            return
        status, now = gang.record.status, rfc3339(self._clock())
        created = min((p.created_at for p in gang.pods.values() if p.created_at), default=now)
        prediction, sub_batches = await self._priced(gang, gang.record.spec)
        if gang.record is None:
            return
        status = lifecycle.queued(status, prediction, sub_batches, created, now, self._clock())
        before, after = "enqueue-before", "enqueue-after"
        # A cycle is about to find it a place or a reason, and writes this with that.
        queued: Effect = KeepStatus(status, before, after)
        others = self._gangs.of_maker(gang.record.spec.suspends, gang.key)
        if (earlier := lifecycle.earlier_of(others)) is not None:
            # The earlier GPUJob is deleted by this one, which has its service from then on.
            carried_on = lifecycle.carried_on(status, earlier, self._clock())
            queued = WriteStatus(carried_on, before, after)
        await self._executor.carry_out(gang, (queued,))

    async def _predict(self, gang: Gang, spec: GPUJobSpec, kind: GpuKind | None) -> Prediction:
        self._predicted_at[gang.key] = self._clock()
        prediction = await self._predictor.predict(gang.key[0], spec.demand, kind)
        prediction = self._earlier(gang, prediction)
        if kind is not None:
            load = prediction.load.model_copy(update={"gpu_model": kind.model})
            prediction = prediction.model_copy(update={"load": load})
        # Its effect on others is asked before it is planned next to them.
        known_by = kind_of_model(spec, prediction.load)
        job = policy_job("/".join(gang.key), spec.demand, prediction.load, kind=known_by)
        self._state.slowdowns.of(job, prediction.load)
        await self._pricing.ask()
        return prediction

    async def _price(self, gang: Gang, load: Load, parts: list[SubBatch]) -> None:
        """Ask what sub-batches do to others, too, before the job is planned next to them."""
        if not parts or gang.record is None:
            return
        spec = gang.record.spec
        job = policy_job(
            "/".join(gang.key),
            spec.demand,
            load,
            sub_batches=parts,
            kind=kind_of_model(spec, load),
        )
        self._state.slowdowns.of(job, load)
        await self._pricing.ask()

    def _kind_for(self, gang: Gang) -> GpuKind | None:
        """Return the type of GPU that a gang is most likely to get: what it needs depends on it."""
        return self._state.gpu_kind(next(iter(gang.pods.values()), None))

    async def _sub_batches(
        self, namespace: str, demand: Demand, load: Load, gpu: GpuKind | None
    ) -> list[SubBatch]:
        """Ask what the job would use with its batch halved once, twice and so on, down to one item.

        Source: [SJF-BSBF] Alg. 2. The time of an iteration is that of Eq. (3), (4) and (7): compute
        as the predictor says of the micro-batches, and the exchange of gradients among a gang once
        an iteration, which does not grow with the steps.
        """
        if not demand.accumulation or demand.batch_size is None or load.iteration_s is None:
            return []
        said: dict[int, Load] = {1: load}
        while demand.batch_size % (steps := 2 * max(said)) == 0:
            part = await self._predictor.predict(namespace, undeclared(demand), gpu, steps)
            if part.load.iteration_s is None:
                break
            said[steps] = part.load
        factor = await self._raised_by(namespace, demand, load, gpu)
        return _shared(demand, said, factor)

    async def _raised_by(
        self, namespace: str, demand: Demand, load: Load, gpu: GpuKind | None
    ) -> float:
        """Return by how much the need of the whole batch was raised by what its user declared."""
        if demand.declared_memory_bytes is None:
            return 1.0
        plain = await self._predictor.predict(namespace, undeclared(demand), gpu)
        if plain.load.memory_source is Source.WHOLE_GPU:
            return 1.0
        return max(1.0, peak_bytes(load) / max(peak_bytes(plain.load), 1))

    def is_due(self, gang: Gang, now: float) -> bool:
        """Return True where a model was named but nothing was known of it when asked last."""
        status, demand = gang.job.status, gang.job.spec.demand
        if (
            status.phase is not Phase.QUEUED
            or demand.model is None
            or demand.exclusive
            or status.load is None
            or status.load.memory_source not in (Source.WHOLE_GPU, Source.DECLARED)
        ):
            return False
        due = self._predicted_at.get(gang.key, 0.0) + PREDICT_AGAIN_S
        self._work.later(gang.key, due if now < due else now + PREDICT_AGAIN_S)
        if now >= due and self._asking_again >= _AGAIN_AT_ONCE:
            self._to_ask_again[gang.key] = None
            return False
        return now >= due

    def again(self, gang: Gang) -> ExternalWork:
        """Ask the predictor once more, and write down what it says now."""
        self._asking_again += 1
        self._to_ask_again.pop(gang.key, None)
        return ExternalWork(self._again(gang))

    async def _again(self, gang: Gang) -> None:
        try:
            await self._ask_again(gang)
        finally:
            self._asking_again -= 1
            if self._to_ask_again:
                key = next(iter(self._to_ask_again))
                del self._to_ask_again[key]
                self._work.add(key)

    async def _priced(self, gang: Gang, spec: GPUJobSpec) -> tuple[Prediction, list[SubBatch]]:
        """Predict the load of a gang and of the ways to split its batch, and have them priced."""
        kind = self._kind_for(gang)  # a look at all nodes
        prediction = await self._predict(gang, spec, kind)
        sub_batches = await self._sub_batches(gang.key[0], spec.demand, prediction.load, kind)
        await self._price(gang, prediction.load, sub_batches)
        return prediction, sub_batches

    async def _ask_again(self, gang: Gang) -> None:
        if gang.record is None:
            return
        prediction, sub_batches = await self._priced(gang, gang.record.spec)
        if gang.record is None:
            return
        status = gang.record.status
        seen = status.load is not None and status.load.memory_source is Source.OBSERVED
        if seen or prediction.load == status.load:
            return  # what was seen meanwhile, by the memory guard, counts for more
        conditions = lifecycle.predicted(status, prediction, self._clock())
        changes = {
            "load": prediction.load,
            "conditions": conditions,
            "sub_batches": sub_batches,
        }
        written = WriteStatus(status.model_copy(update=changes))
        await self._executor.carry_out(gang, (written,))


def _shared(demand: Demand, said: Mapping[int, Load], factor: float) -> list[SubBatch]:
    """Return the ways to split the batch from what is said of each number of steps, 1 included."""
    assert demand.batch_size is not None
    workers, message = demand.gang_size * demand.gpus_per_pod, said[1].message_bytes or 0
    fixed_s, item_s = fitted_compute(
        np.array([demand.batch_size / steps for steps in said]),
        np.array([each.iteration_s for each in said.values()], dtype=np.float64),
    )
    iteration = Iteration(
        batch=demand.batch_size,
        compute_fixed_s=fixed_s,
        compute_per_item_s=item_s,
        message_bytes=ring_bytes(message, workers),
        communication_per_byte_s=BYTE_S,
    )
    found: list[SubBatch] = []
    for steps, load in said.items():
        if steps == 1:
            continue
        part = SubBatch(
            steps=steps,
            memory_base_bytes=load.memory_base_bytes,
            memory_peak_bytes=peak_bytes(load),
            stretch=max(1.0, stretch_in(iteration, steps)),
            utilisation_percent=load.utilisation_percent,
            iteration_s=load.iteration_s,
            compute_share=load.compute_share,
            bandwidth_share=load.bandwidth_share,
        )
        # What was measured of the very way to run it stands for itself.
        seen = load.memory_source is Source.OBSERVED
        found.append(part if seen else scaled_steps(part, factor))
    return found


def undeclared(demand: Demand) -> Demand:
    """Return a demand of which only the predictor says how much memory it takes."""
    return demand.model_copy(update={"declared_memory_bytes": None})


def peak_bytes(load: Load) -> int:
    """Return the upper estimate of a load's memory in its peak."""
    return max(load.memory_base_bytes + load.memory_peak_extra_bytes, load.memory_p95_bytes)
