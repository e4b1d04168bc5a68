"""The metrics of the extender itself, of the jobs and of the GPUs, read from the live state."""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler_extender.cluster.feed import Feed
from scheduler_extender.cluster.ledger import Hold
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.verbs.binding import Binder
from tandem.contracts.resources import Phase
from tandem.kube.reflector import Reflector
from tandem.policy.units import BYTES_PER_GIB

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: More queues by attained service than any profile has; jobs beyond count in the last.
MAX_QUEUES = 16
_VERB_BUCKETS_S = (
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.125, 0.25, 0.5, 1, 2, 5,
)  # fmt: skip
_SLICE_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)

disable_created_metrics()  # type: ignore[no-untyped-call] # no types published; a second series for each, which has no reader


class Metrics:
    """The counters of one service; each has a registry of its own, so that tests can run many."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.verbs = Histogram(
            "tandem_extender_verb_duration_seconds",
            "Time to answer a verb of kube-scheduler, by verb and HTTP status.",
            ["verb", "status"],
            buckets=_VERB_BUCKETS_S,
            registry=self.registry,
        )
        self.bindings = Counter(
            "tandem_extender_bindings_total",
            "Requests to bind, by outcome: bound, or refused with a reason.",
            ["outcome"],
            registry=self.registry,
        )
        self.admissions = Counter(
            "tandem_extender_admissions_total",
            "Pods and owners of pods that the webhook has judged, by outcome.",
            ["outcome"],
            registry=self.registry,
        )
        self.front_restarts = Counter(
            "tandem_extender_front_restarts_total",
            "Processes that served the public port and ended, or stood still and were replaced.",
            registry=self.registry,
        )
        self.slices = Histogram(
            "tandem_extender_event_slice_duration_seconds",
            "Time for which applying events held the event loop.",
            buckets=_SLICE_BUCKETS_S,
            registry=self.registry,
        )
        self.lag = Histogram(
            "tandem_extender_loop_lag_seconds",
            "How late the event loop came to a timer.",
            buckets=_SLICE_BUCKETS_S,
            registry=self.registry,
        )
        self.leads = Gauge(
            "tandem_extender_scheduler_up",
            "1 while a kube-scheduler renews its Lease, 0 once none has: nothing is placed.",
            registry=self.registry,
        )
        self.certificate = Gauge(
            "tandem_extender_certificate_expiry_timestamp_seconds",
            "When the certificate of the public port ends (Unix time), 0 without one.",
            registry=self.registry,
        )

    def watch(
        self,
        state: ClusterState,
        feed: Feed,
        binder: Binder,
        reflectors: Iterable[Reflector],
        max_jobs_per_gpu: int,
    ) -> None:
        """Report on these at each scrape (on the event loop)."""
        self.registry.register(_OfState(state, feed, binder, tuple(reflectors)))
        self.registry.register(FleetCollector(state, max_jobs_per_gpu))

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


@dataclass(eq=False)
class _OfState(Collector):
    """Gauges read off the live state when somebody asks."""

    _state: ClusterState
    _feed: Feed
    _binder: Binder
    _reflectors: tuple[Reflector, ...]

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        gpus = self._state.gpus
        real = gpus.shares > 0
        yield _family(
            "tandem_extender_gpus",
            "GPUs, by whether they may take new work and may be shared.",
            "state",
            {
                "shareable": int((real & gpus.healthy & gpus.fresh).sum()),
                "stale": int((real & gpus.healthy & ~gpus.fresh).sum()),
                "quarantined": int((real & ~gpus.healthy).sum()),
            },
        )
        yield CounterMetricFamily(
            "tandem_extender_reports_passed_over",
            "Reports of node agents that were not read, because their node had written too many.",
            value=self._feed.reports_passed_over,
        )
        yield GaugeMetricFamily(
            "tandem_extender_changed_nodes",
            "Nodes that report other GPUs than they had: no new job goes there until an operator"
            " agrees.",
            value=sum(bool(node.changed) for node in self._state.gpu_nodes().values()),
        )
        yield _family(
            "tandem_extender_gpu_shares",
            "Shares of all GPUs, by whether a pod holds them.",
            "state",
            {
                "held": int(gpus.jobs.sum()),
                "free": int((gpus.shares - gpus.jobs).clip(0).sum()),
            },
        )
        counts = self._state.ledger.counts()
        yield _family(
            "tandem_extender_pods_holding",
            "Pods that hold GPUs, by the reason why.",
            "hold",
            {hold.name.lower(): counts[hold] for hold in Hold},
        )
        yield GaugeMetricFamily(
            "tandem_extender_bindings_under_way",
            "Bindings whose outcome is not known yet.",
            value=self._binder.under_way,
        )
        yield GaugeMetricFamily(
            "tandem_extender_events_pending",
            "Events that wait to be applied.",
            value=self._feed.pending,
        )
        yield CounterMetricFamily(
            "tandem_extender_event_failures",
            "Events that could not be applied.",
            value=self._feed.failures,
        )
        yield from self._of_reflectors()

    def _of_reflectors(self) -> Iterable[Metric]:
        age = GaugeMetricFamily(
            "tandem_extender_watch_silence_seconds",
            "Time since the API server last sent anything of a resource.",
            labels=["resource"],
        )
        lists = CounterMetricFamily(
            "tandem_extender_lists", "Lists made of a resource.", labels=["resource"]
        )
        failures = CounterMetricFamily(
            "tandem_extender_watch_failures",
            "Lists and watches that broke, and objects that could not be read;"
            " NAMESPACE/pods are Tandem's own.",
            labels=["resource"],
        )
        for reflector in self._reflectors:
            age.add_metric([reflector.name], reflector.last_activity_age_s)
            lists.add_metric([reflector.name], reflector.lists)
            failures.add_metric([reflector.name], reflector.failures)
        yield from (age, lists, failures)


@dataclass(eq=False)
class FleetCollector(Collector):
    """Gauges of jobs by what they have had, and of GPUs by what is promised of them."""

    _state: ClusterState
    _max_jobs_per_gpu: int

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        yield from self._jobs()
        yield from self._gpus()

    def _jobs(self) -> Iterable[Metric]:
        queues = Tally[int]()
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


def _family(name: str, words: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, words, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family
