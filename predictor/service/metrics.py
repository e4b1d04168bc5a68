"""The predictor's metrics for Prometheus."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from predictor.service.drift import Residuals
from tandem.contracts.resources import Load

_LATENCY_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


disable_created_metrics()  # type: ignore[no-untyped-call] # no types published; a second series for each, which has no reader


class Metrics:
    """The counters of one service; each has a registry of its own, so that tests can run many."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Histogram(
            "tandem_predictor_request_duration_seconds",
            "Time to answer a request, by route and status.",
            ["method", "route", "status"],
            buckets=_LATENCY_BUCKETS_S,
            registry=self._registry,
        )
        self._parse = Histogram(
            "tandem_predictor_graph_parse_duration_seconds",
            "Time to turn a graph into features, in the sandbox.",
            buckets=_LATENCY_BUCKETS_S,
            registry=self._registry,
        )
        self._refused = Counter(
            "tandem_predictor_graphs_refused_total",
            "Graphs that were refused, by reason.",
            ["reason"],
            registry=self._registry,
        )
        self._predictions = Counter(
            "tandem_predictor_predictions_total",
            "Predictions, by resource and by the source of the figure.",
            ["resource", "source"],
            registry=self._registry,
        )

        self._pairs = Counter(
            "tandem_predictor_pairs_priced_total",
            "Pairs of jobs whose interference was predicted, by source.",
            ["source"],
            registry=self._registry,
        )

        self._fed_back = Counter(
            "tandem_predictor_feedback_total",
            "Runs that were fed back and held against their prediction, by type of GPU.",
            ["gpu"],
            registry=self._registry,
        )
        self._memory_residual = Gauge(
            "tandem_predictor_memory_residual_ratio",
            "Memory that the latest runs took over what was predicted, less one (geometric mean).",
            ["gpu"],
            registry=self._registry,
        )
        self._utilisation_residual = Gauge(
            "tandem_predictor_utilisation_residual_ratio",
            "Utilisation of the latest runs less what was predicted, as a share of the GPU (mean).",
            ["gpu"],
            registry=self._registry,
        )
        self._under_predicted = Gauge(
            "tandem_predictor_memory_under_predicted_ratio",
            "Share of the latest runs that took more memory than their upper bound (p95).",
            ["gpu"],
            registry=self._registry,
        )

    def fed_back(self, gpu: str, residuals: Residuals) -> None:
        """Show how the latest runs on a type of GPU differ from their predictions."""
        self._fed_back.labels(gpu).inc()
        self._memory_residual.labels(gpu).set(residuals.memory_ratio)
        self._utilisation_residual.labels(gpu).set(residuals.utilisation_ratio)
        self._under_predicted.labels(gpu).set(residuals.under_predicted)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._requests.labels(method, route, str(status)).observe(seconds)

    def parsed(self, seconds: float) -> None:
        """Count one graph that was turned into features."""
        self._parse.observe(seconds)

    def refused(self, reason: str) -> None:
        """Count one graph that was refused."""
        self._refused.labels(reason).inc()

    def predicted(self, load: Load) -> None:
        """Count one prediction."""
        self._predictions.labels("memory", load.memory_source.value).inc()
        self._predictions.labels("utilisation", load.utilisation_source.value).inc()

    def priced(self, pairs: int, source: str) -> None:
        """Count the pairs of one call."""
        self._pairs.labels(source).inc(pairs)

    def render(self) -> bytes:
        """Return the text that Prometheus reads."""
        return generate_latest(self._registry)
