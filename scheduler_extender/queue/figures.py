"""What the queue holds at a scrape: jobs by phase and reason, waits, quotas, what was learned."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler_extender.queue.controller import Controller
from tandem.contracts.resources import Phase
from tandem.reasons.words import KINDS, kind_of


class QueueFigures(Collector):
    """Reads a controller."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        controller = self._controller
        records = [gang.record for gang in controller.gangs.by_key.values()]
        tally = Tally(record.status.phase for record in records if record is not None)
        phases = GaugeMetricFamily("tandem_queue_jobs", "GPUJobs by phase.", labels=["phase"])
        for phase in Phase:
            phases.add_metric([phase.value], tally[phase])
        yield phases
        waiting = GaugeMetricFamily(
            "tandem_queue_waiting_jobs",
            "GPUJobs that wait, by the queue of the profile's order, 0 first.",
            labels=["queue"],
        )
        for queue, count in controller.waiting_by_queue().items():
            waiting.add_metric([str(queue)], count)
        yield waiting
        reasons = GaugeMetricFamily(
            "tandem_queue_waiting_reasons",
            "GPUJobs that wait, by the group of the reason that counts, as on the status page.",
            labels=["reason"],
        )
        why = Tally(
            kind_of(record.status.causes, record.status.reason)
            for record in records
            if record is not None and record.status.phase in (Phase.QUEUED, Phase.SUSPENDED)
        )
        for kind in KINDS:
            reasons.add_metric([kind], why[kind])
        yield reasons
        longest, starving = controller.waits()
        yield GaugeMetricFamily(
            "tandem_queue_longest_wait_seconds",
            "Time for which the job that waits longest has waited since it last ran or came.",
            value=longest,
        )
        yield GaugeMetricFamily(
            "tandem_queue_preempted_longest_wait_seconds",
            "The same among jobs that were preempted: what the promotion bounds.",
            value=starving,
        )
        yield CounterMetricFamily(
            "tandem_queue_preemptions",
            "Running jobs that were asked to give up their GPUs for others.",
            value=controller.preempter.preemptions,
        )
        yield GaugeMetricFamily(
            "tandem_queue_preemptions_overdue",
            "Jobs that were asked to give up their GPUs over five minutes ago and still hold them,"
            " or could not be put back in the queue.",
            value=controller.preempter.overdue(controller.gangs.by_key.values()),
        )
        yield GaugeMetricFamily(
            "tandem_queue_deleted_pods_holding_gpus",
            "Pods that were deleted over five minutes ago and still hold their GPUs.",
            value=sum(controller.terminations.overdue().values()),
        )
        yield GaugeMetricFamily(
            "tandem_queue_backlog",
            "Jobs whose picture has changed and who have not been looked at yet.",
            value=controller.work.pending,
        )
        yield CounterMetricFamily(
            "tandem_queue_failures",
            "Decisions and acts that were broken off by an error of ours.",
            value=controller.work.failures,
        )
        yield from _of_quotas(controller)
        yield CounterMetricFamily(
            "tandem_learning_history_failures",
            "Writes of what was learned that the API server refused or did not answer.",
            value=controller.history.failures,
        )
        yield GaugeMetricFamily(
            "tandem_learning_history_bytes",
            "Size of what was learned as it was written last, at most 921600.",
            value=controller.history.stored_bytes,
        )
        yield CounterMetricFamily(
            "tandem_report_failures",
            "Writes of what jobs have had of GPUs that were refused or not answered.",
            value=controller.past.failures,
        )
        yield GaugeMetricFamily(
            "tandem_report_day_bytes",
            "Size of a day of the report as it was written last, at most 921600.",
            value=controller.past.stored_bytes,
        )
        learning = controller.learning
        outcomes = CounterMetricFamily(
            "tandem_learning_adjustments",
            "What became of bad neighbours: one moved, kept where no job could, would be moved.",
            labels=["outcome"],
        )
        for outcome, count in learning.outcomes.items():
            outcomes.add_metric([outcome], count)
        yield outcomes
        yield GaugeMetricFamily(
            "tandem_learning_worst_interference_ratio",
            "Highest moving average of a slowdown on any shared GPU.",
            value=learning.worst,
        )
        yield GaugeMetricFamily(
            "tandem_learning_pairs",
            "Pairs of models of which running jobs have shown something.",
            value=len(learning.pairs),
        )
        yield GaugeMetricFamily(
            "tandem_learning_kinds",
            "Kinds of jobs whose interference is learned, at most 921; others are priced by"
            " their utilisation.",
            value=controller.slowdowns.kinds,
        )
        evictions = CounterMetricFamily(
            "tandem_queue_guard_evictions",
            "Evictions that agents asked for because a pod outgrew its prediction, by outcome.",
            labels=["outcome"],
        )
        for outcome, count in controller.evictions.outcomes.items():
            evictions.add_metric([outcome], count)
        yield evictions


def _of_quotas(controller: Controller) -> Iterable[Metric]:
    """Yield a series for each namespace that the configuration names, and for no other."""
    names = ["namespace"]
    held = GaugeMetricFamily(
        "tandem_queue_quota_held_gpus", "GPUs that a namespace with a quota holds.", labels=names
    )
    share = GaugeMetricFamily(
        "tandem_queue_quota_gpus",
        "Its share of GPUs while GPU-seconds last.",
        labels=names,
    )
    most = GaugeMetricFamily(
        "tandem_queue_quota_max_gpus", "The most that it may hold, where that is set.", labels=names
    )
    used = GaugeMetricFamily(
        "tandem_queue_quota_used_gpu_seconds",
        "GPU-seconds that it has had in the window, where they are limited.",
        labels=names,
    )
    limit = GaugeMetricFamily(
        "tandem_queue_quota_gpu_seconds", "Its share of GPU-seconds in the window.", labels=names
    )
    for quota, holds, used_gpu_s in controller.accounts.figures():
        of = [quota.namespace]
        held.add_metric(of, holds)
        share.add_metric(of, quota.gpus or 0)
        if quota.max_gpus is not None:
            most.add_metric(of, quota.max_gpus)
        if quota.gpu_seconds is not None:
            used.add_metric(of, used_gpu_s)
            limit.add_metric(of, quota.gpu_seconds)
    yield from (held, share, most, used, limit)
