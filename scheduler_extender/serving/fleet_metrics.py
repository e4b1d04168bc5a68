"""Metrics of the queue and the fleet, read from the live state."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler_extender.cluster.state import ClusterState
from tandem.contracts.resources import Phase
from tandem.policy.units import BYTES_PER_GIB

#: More queues by attained service than any profile has; jobs beyond count in the last.
MAX_QUEUES = 16


class FleetCollector(Collector):
    """Gauges of jobs by what they have had, and of GPUs by what is promised of them."""

    def __init__(self, state: ClusterState, max_jobs_per_gpu: int) -> None:
        self._state = state
        self._max_jobs_per_gpu = max_jobs_per_gpu

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        yield from self._jobs()
        yield from self._gpus()

    def _jobs(self) -> Iterable[Metric]:
        queues = Counter[int]()
        attained: defaultdict[str, float] = defaultdict(float)
        for record in self._state.gpu_jobs().values():
            status = record.status
            attained[status.phase.value] += status.attained_gpu_seconds
            if status.phase is Phase.QUEUED:
                queues[min(status.queue or 0, MAX_QUEUES - 1)] += 1
        yield _family(
            "tandem_extender_attained_gpu_seconds",
            "GPU seconds that the jobs which still exist have had, by phase.",
            "phase",
            {p.value: attained[p] for p in Phase},
        )
        yield _family(
            "tandem_extender_waiting_jobs",
            "Jobs that wait, by their queue (0: least served).",
            "queue",
            {str(queue): queues[queue] for queue in range(max(queues, default=0) + 1)},
        )

    def _gpus(self) -> Iterable[Metric]:
        gpus = self._state.gpus
        held = gpus.jobs > 0
        wrong = (gpus.jobs > self._max_jobs_per_gpu) | (gpus.exclusive & (gpus.jobs > 1))
        yield GaugeMetricFamily(
            "tandem_extender_gpus_overcommitted",
            "GPUs held by more jobs than may share them; never other than 0.",
            value=int(wrong.sum()),
        )
        counts = {"none": ~held, "one": gpus.jobs == 1, "shared": gpus.jobs > 1}
        yield _family(
            "tandem_extender_gpus_by_jobs",
            "GPUs, by how many jobs hold them.",
            "jobs",
            {name: int(mask.sum()) for name, mask in counts.items()},
        )
        yield GaugeMetricFamily(
            "tandem_extender_promised_utilisation_ratio",
            "Utilisation predicted for the jobs on a GPU, up to 1, mean over the GPUs in use.",
            value=float((gpus.gpu_utilisation[held] / 100).clip(0, 1).mean()) if held.any() else 0,
        )
        promised = gpus.memory_base_gib + gpus.memory_peak_extra_gib
        yield _family(
            "tandem_extender_memory_bytes",
            "Memory of all GPUs: what may be given out, and what is predicted for the jobs there.",
            "kind",
            {
                "capacity": float(gpus.memory_capacity_gib.sum()) * BYTES_PER_GIB,
                "promised": float(promised[held].sum()) * BYTES_PER_GIB,
            },
        )


def _family(name: str, words: str, label: str, values: dict[str, float]) -> Metric:
    family = GaugeMetricFamily(name, words, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family
