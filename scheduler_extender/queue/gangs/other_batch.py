"""Predicts the load of a job at another batch size, for a what-if."""

from __future__ import annotations

from scheduler_extender.cluster.jobs import policy_job, scaled
from scheduler_extender.cluster.records import Key
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.cluster.table import GpuKind
from scheduler_extender.planning.what_if import ChangeError, OtherLoad
from scheduler_extender.predictions import HttpPredictor
from scheduler_extender.queue.gangs.load_prediction import peak_bytes, undeclared
from tandem.contracts.resources import Demand, Load, Source


class OtherBatch:
    """Asks the predictor about jobs that wait. On the event loop."""

    def __init__(self, state: ClusterState, predictor: HttpPredictor) -> None:
        self._state = state
        self._predictor = predictor

    async def load(self, key: Key, batch_size: int) -> OtherLoad:
        """Return the load of one worker of a job with `batch_size` items a GPU and iteration.

        The items of all iterations together stay as many. Where the job was declared or seen to
        need more memory than is predicted at its batch size, it needs as much more at the other.

        Raises:
            ChangeError: the job says too little of itself, or the predictor does not know it.
        """
        gang = self._state.gangs.by_key.get(key)
        if gang is None or gang.record is None:
            raise ChangeError("the job is gone")
        demand, counts = gang.record.spec.demand, gang.record.status.load
        if demand.model is None or demand.batch_size is None:
            missing = "model" if demand.model is None else "batch-size"
            raise ChangeError(
                f"the job has no annotation tandem.gpu/{missing}: without its model and its batch "
                "size, nothing is known of another batch size"
            )
        gpu = self._state.gpu_kind(next(iter(gang.pods.values()), None))
        now, now_s = await self._predicted(key[0], demand, demand.batch_size, gpu)
        then, then_s = await self._predicted(key[0], demand, batch_size, gpu)
        if counts is not None and counts.memory_source is not Source.WHOLE_GPU:
            then = scaled(then, peak_bytes(counts) / max(peak_bytes(now), 1))
        job = policy_job("/".join(key), demand, then)
        return OtherLoad(
            memory_base_gib=job.memory_base_gib,
            memory_peak_extra_gib=job.memory_peak_extra_gib,
            peak_probability=job.peak_probability,
            peak_measured=job.peak_measured,
            gpu_utilisation=job.gpu_utilisation,
            active_share=job.active_share,
            iteration_s=(now_s, then_s),
            pace=(then_s / batch_size) / (now_s / demand.batch_size),
        )

    async def _predicted(
        self, namespace: str, demand: Demand, batch_size: int, gpu: GpuKind | None
    ) -> tuple[Load, float]:
        """Return the load, and the seconds of an iteration."""
        asked = undeclared(demand).model_copy(update={"batch_size": batch_size})
        found = await self._predictor.predict(namespace, asked, gpu)
        load = found.load
        if load.memory_source is Source.WHOLE_GPU or not load.iteration_s:
            raise ChangeError(
                f"nothing is predicted of model {demand.model} at batch size {batch_size}: "
                f"{found.explanation}"
            )
        return load, load.iteration_s
