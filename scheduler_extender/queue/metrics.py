"""Counters and timings of the queue, for Prometheus. `figures.py` has what it holds at a scrape."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.registry import Collector

_BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_FORECAST_BUCKETS_S = (1, 2, 5, 10, 20, 60, 120)


class QueueMetrics:
    """Counters of one controller, in the registry of its service."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._registry = registry or CollectorRegistry()
        self.planning = Histogram(
            "tandem_queue_cycle_duration_seconds",
            "Time to plan one cycle of admission, in a thread of its own.",
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        self.promotions = Counter(
            "tandem_queue_promotions_total",
            "Jobs that had starved and were put back into the first queue.",
            registry=self._registry,
        )

        self._forecasts = Histogram(
            "tandem_queue_forecast_duration_seconds",
            "Time to forecast when waiting jobs will start, in a process of its own.",
            buckets=_FORECAST_BUCKETS_S,
            registry=self._registry,
        )
        self._forecast_failures = Counter(
            "tandem_queue_forecast_failures_total",
            "Forecasts of starts that failed or took too long.",
            registry=self._registry,
        )

    def forecast(self, seconds: float | None) -> None:
        """Count one forecast; None: it failed."""
        if seconds is None:
            self._forecast_failures.inc()
        else:
            self._forecasts.observe(seconds)

    def watch(self, figures: Collector) -> None:
        """Collect `figures` at each scrape, on the event loop."""
        self._registry.register(figures)
