"""The agent's series for Prometheus, made from its latest report when they are asked for.

`UUID` is spelled as dcgm-exporter spells it, so that series join on it. No label grows with pods:
figures of pods are summed by job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from node_agent.monitor import Monitor
from node_agent.pods import PodDirectory
from node_agent.publish import Publisher
from tandem.contracts.resources import GPU, GPUNodeStatus, Health, PodUse

Reading = Callable[[GPU], float | None]
Uses = dict[tuple[str, str, str], list[PodUse]]

_GPU_GAUGES: tuple[tuple[str, str, Reading], ...] = (
    ("memory_bytes", "Memory of the GPU.", lambda g: g.memory_bytes),
    (
        "memory_reserved_bytes",
        "Memory that the driver keeps for itself.",
        lambda g: g.memory_reserved_bytes,
    ),
    ("memory_used_bytes", "Memory in use by processes.", lambda g: g.memory_used_bytes),
    (
        "memory_foreign_bytes",
        "Memory in use by processes that are not ours.",
        lambda g: g.memory_foreign_bytes,
    ),
    (
        "memory_unlisted_bytes",
        "Memory in use by no process that the driver lists, and explained by no pod of ours.",
        lambda g: g.memory_unlisted_bytes,
    ),
    (
        "memory_activity_ratio",
        "Share of the memory's bandwidth in use (GPM).",
        lambda g: _ratio(g.memory_activity_percent),
    ),
    ("temperature_celsius", "Temperature of the GPU.", lambda g: g.temperature_celsius),
    ("power_watts", "Power that the GPU draws.", lambda g: g.power_watts),
    ("shares", "Shares that are offered; 0 where nothing new may come.", lambda g: g.shares),
    (
        "healthy",
        "1 where new work may come as far as health goes, 0 in quarantine.",
        lambda g: g.health is Health.HEALTHY,
    ),
)

_JOB_GAUGES: tuple[tuple[str, str, Callable[[PodUse], float | None]], ...] = (
    ("memory_bytes", "Memory that the job's processes hold on the GPU.", lambda u: u.memory_bytes),
    (
        "memory_peak_bytes",
        "Most memory that the job's pods held at once on the GPU.",
        lambda u: u.memory_peak_bytes,
    ),
    (
        "utilisation_ratio",
        "Share of time in which the job's processes used the GPU.",
        lambda u: _ratio(u.utilisation_percent),
    ),
    ("iterations_per_second", "Progress that the job tells.", lambda u: u.iterations_per_second),
)


@dataclass(frozen=True, eq=False)  # a registry keeps collectors by identity
class AgentCollector(Collector):
    """Collects from the latest report (`latest()`, None before the first one).

    With `detail`, there are series for each GPU and for each job on it, besides those of the node.
    """

    node: str
    latest: Callable[[], GPUNodeStatus | None]
    monitor: Monitor
    publisher: Publisher
    pods: PodDirectory | None = None

    detail: bool = False

    def collect(self) -> Iterator[Metric]:
        """Yield every family, each with its help even where it has no series."""
        status = self.latest()
        gpus = status.gpus if status else []
        uses = self._uses(gpus)
        yield from self._node(gpus, uses)
        if self.detail:
            yield from self._gpus(gpus)
            yield from self._jobs(uses)
        yield from self._troubles(gpus)
        yield from self._agent(status)

    def _uses(self, gpus: Iterable[GPU]) -> Uses:
        """Return what pods of ours use, by GPU, namespace and job."""
        uses: Uses = defaultdict(list)
        for gpu in gpus:
            for use in gpu.pods:
                info = self.pods.find(use.uid) if self.pods else None
                if info is not None and info.ours:
                    uses[gpu.uuid, info.namespace, info.job].append(use)
        return uses

    def _node(self, gpus: Iterable[GPU], uses: Uses) -> Iterator[Metric]:
        """Yield sums over the node: so many series, whatever the number of GPUs and jobs."""
        held = {uuid for uuid, _, _ in uses}
        busy = {
            g.uuid: g.utilisation_percent / 100 for g in gpus if g.utilisation_percent is not None
        }
        states = {"in_use": held & busy.keys(), "idle": {g.uuid for g in gpus} - held}
        if unread := held - busy.keys():
            states["unread"] = unread
        yield self._by(
            "gpus",
            "GPUs, by whether jobs of ours run there (unread: they do, and the load is not known).",
            "state",
            {state: len(found) for state, found in states.items()},
        )
        on_node = [use for of_job in uses.values() for use in of_job]
        yield self._by(
            "memory_bytes",
            "Memory of the node's GPUs in use: in all, by jobs of ours, by processes of others.",
            "kind",
            {
                "used": _sum(g.memory_used_bytes for g in gpus),
                "jobs": _sum(use.memory_bytes for use in on_node),
                "foreign": _sum(g.memory_foreign_bytes for g in gpus),
            },
        )
        in_use = [busy[uuid] for uuid in states["in_use"]]
        temperatures = [g.temperature_celsius for g in gpus if g.temperature_celsius is not None]
        for name, text, values in (
            ("busy_gpus", "Utilisation summed over the GPUs in use.", [sum(in_use)]),
            (
                "utilisation_ratio",
                "Utilisation of the node's GPUs, mean over all of them.",
                [sum(busy.values()) / len(busy)] if busy else [],
            ),
            (
                "temperature_celsius",
                "Temperature of the node's hottest GPU.",
                [max(temperatures)] if temperatures else [],
            ),
            (
                "power_watts",
                "Power that the node's GPUs draw.",
                [_sum(g.power_watts for g in gpus)],
            ),
        ):
            family = GaugeMetricFamily(f"tandem_node_{name}", text, labels=["node"])
            for value in values:
                family.add_metric([self.node], value)
            yield family

    def _by(self, name: str, text: str, label: str, values: dict[str, float]) -> Metric:
        family = GaugeMetricFamily(f"tandem_node_{name}", text, labels=["node", label])
        for key, value in values.items():
            family.add_metric([self.node, key], value)
        return family

    def _gpus(self, gpus: Iterable[GPU]) -> Iterator[Metric]:
        for name, text, read in _GPU_GAUGES:
            family = GaugeMetricFamily(f"tandem_gpu_{name}", text, labels=["node", "UUID"])
            for gpu in gpus:
                value = read(gpu)
                if value is not None:
                    family.add_metric([self.node, gpu.uuid], value)
            yield family
        busy = GaugeMetricFamily(
            "tandem_gpu_utilisation_ratio",
            "Share of SMs busy (source gpm) or of time with a kernel running (samples, rates).",
            labels=["node", "UUID", "source"],
        )
        for gpu in gpus:
            if gpu.utilisation_percent is not None and gpu.utilisation_source is not None:
                labels = [self.node, gpu.uuid, gpu.utilisation_source]
                busy.add_metric(labels, gpu.utilisation_percent / 100)
        yield busy

    def _jobs(self, uses: Uses) -> Iterator[Metric]:
        for name, text, read in _JOB_GAUGES:
            family = GaugeMetricFamily(
                f"tandem_job_{name}", text, labels=["node", "UUID", "namespace", "job"]
            )
            for labels, of_job in uses.items():
                values = [value for use in of_job if (value := read(use)) is not None]
                if values:
                    family.add_metric([self.node, *labels], sum(values))
            yield family

    def _troubles(self, gpus: Iterable[GPU]) -> Iterator[Metric]:
        """Yield what has series only where something went wrong."""
        xids = CounterMetricFamily(
            "tandem_gpu_xids", "Xid errors since the agent started.", labels=["node", "UUID", "xid"]
        )
        for uuid, board in list(self.monitor.boards.items()):
            for code, count in list(board.xids.items()):
                xids.add_metric([self.node, uuid, str(code)], count)
        yield xids
        ecc = CounterMetricFamily(
            "tandem_gpu_ecc_uncorrected_errors",
            "Errors of the GPU's memory that ECC could not correct, since the driver was loaded.",
            labels=["node", "UUID"],
        )
        for gpu in gpus:
            if gpu.ecc_uncorrected_errors:
                ecc.add_metric([self.node, gpu.uuid], gpu.ecc_uncorrected_errors)
        yield ecc
        errors = CounterMetricFamily(
            "tandem_agent_nvml_errors", "Calls of NVML that failed.", labels=["call", "code"]
        )
        for (call, code), count in list(self.monitor.nvml.binding.errors.items()):
            errors.add_metric([call, str(code)], count)
        yield errors

    def _agent(self, status: GPUNodeStatus | None) -> Iterator[Metric]:
        reports = CounterMetricFamily(
            "tandem_agent_reports",
            "Attempts to write the GPUNode, at the start to read it.",
            labels=["outcome"],
        )
        reports.add_metric(["written"], self.publisher.written)
        reports.add_metric(["failed"], self.publisher.failed)
        yield reports
        if self.detail:
            yield GaugeMetricFamily(
                "tandem_agent_last_report_timestamp_seconds",
                "When the GPUNode was last written (Unix time), 0 before the first time.",
                value=self.publisher.last_written_s,
            )
        full = CounterMetricFamily(
            "tandem_agent_nearly_full",
            "Times that a shared GPU became nearly full, by whether a pod had outgrown its"
            " prediction.",
            labels=["blame"],
        )
        for blame in ("outgrown", "nobody"):
            full.add_metric([blame], self.monitor.nearly_full[blame])
        yield full
        failed = CounterMetricFamily(
            "tandem_agent_out_of_memory",
            "Containers that seem to have run out of GPU memory, by whether a pod had outgrown its"
            " prediction.",
            labels=["blame"],
        )
        for blame in ("outgrown", "nobody"):
            failed.add_metric([blame], self.monitor.out_of_memory.counts[blame])
        yield failed
        yield GaugeMetricFamily(
            "tandem_agent_eviction_requests",
            "Pods whose eviction is asked for now.",
            value=len(status.eviction_requests) if status else 0,
        )


class ProcessFigures(Collector):
    """Processor time and memory of the agent itself, of all that prometheus_client could tell."""

    def __init__(self) -> None:
        self._all = ProcessCollector(registry=None)

    def collect(self) -> Iterator[Metric]:
        """Yield the two."""
        for family in self._all.collect():
            if family.name in ("process_cpu_seconds", "process_resident_memory_bytes"):
                yield family


def _sum(values: Iterable[float | None]) -> float:
    return sum(value for value in values if value is not None)


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / 100
