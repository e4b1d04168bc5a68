"""A plain simulator of the orderings, slow and obvious: one pool of GPUs, nothing costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

INF = float("inf")
Jobs = Sequence[tuple[float, int, float]]  # (submission, GPUs, duration)


def mean_jct(jobs: Jobs, gpus: int, policy: str, thresholds: Sequence[float] = ()) -> float:
    """Return the mean completion time; `policy` is fifo, srtf, srsf, las or late."""
    ended: dict[int, float] = {}
    for now, running in rounds(jobs, gpus, policy, thresholds, ended):
        assert sum(jobs[j][1] for j in running) <= gpus, now
    return sum(ended[j] - jobs[j][0] for j in ended) / len(jobs)


def parting(
    jobs: Jobs, gpus: int, thresholds: Sequence[float]
) -> tuple[float, set[int], set[int]] | None:
    """Return when `las` and `late` first run different jobs, and who runs in the one alone."""
    late = rounds(jobs, gpus, "late", thresholds, {})
    late_now, late_running = next(late)
    following = next(late, None)
    for now, running in rounds(jobs, gpus, "las", thresholds, {}):
        while following is not None and following[0] <= now:
            late_now, late_running = following
            following = next(late, None)
        if running != late_running and (following is None or following[0] > now + 1e-6):
            return max(now, late_now), running - late_running, late_running - running
    return None


def rounds(
    jobs: Jobs, gpus: int, policy: str, thresholds: Sequence[float], ended: dict[int, float]
) -> Iterator[tuple[float, set[int]]]:
    """Yield each moment at which something happens, and who runs from then on; fill `ended`.

    With `late`, a running job's demotion is next looked for after (threshold - seconds run) / GPUs
    whole seconds, where (threshold - GPU-seconds) / GPUs is due; in between, at every other event.
    """
    left = [duration for _, _, duration in jobs]
    service = [0.0] * len(jobs)
    level = [0] * len(jobs)
    running: set[int] = set()
    queues: list[list[int]] = [[] for _ in range(len(thresholds) + 1)]
    arrivals = sorted(range(len(jobs)), key=lambda j: jobs[j][0])
    now = 0.0
    while len(ended) < len(jobs):
        next_s = jobs[arrivals[0]][0] if arrivals else INF
        for j in running:
            next_s = min(next_s, now + left[j])
            if level[j] < len(thresholds) and policy == "las":
                next_s = min(next_s, now + (thresholds[level[j]] - service[j]) / jobs[j][1])
            elif level[j] < len(thresholds) and policy == "late":
                run_s = service[j] / jobs[j][1]
                look = math.floor((thresholds[level[j]] - run_s) / jobs[j][1])
                next_s = min(next_s, now + look)
        for j in running:
            left[j] -= next_s - now
            service[j] += (next_s - now) * jobs[j][1]
        now = next_s
        for j in [j for j in running if left[j] <= 1e-6]:
            ended[j] = now
            running.discard(j)
            queues[level[j]].remove(j)
        while arrivals and jobs[arrivals[0]][0] <= now + 1e-6:
            queues[0].append(arrivals.pop(0))
        for j in sorted(running):
            if level[j] < len(thresholds) and service[j] >= thresholds[level[j]] - 1e-6:
                queues[level[j]].remove(j)
                level[j] += 1
                queues[level[j]].append(j)
        order = [j for queue in queues for j in queue]
        if policy == "fifo":
            free = gpus - sum(jobs[j][1] for j in running)
            for j in (j for j in order if j not in running):
                if jobs[j][1] > free:
                    break
                free -= jobs[j][1]
                running.add(j)
        else:
            if policy in ("srtf", "srsf"):
                size = {
                    j: round(left[j] * (jobs[j][1] if policy == "srsf" else 1), 6) for j in order
                }
                order.sort(key=lambda j: (size[j], jobs[j][0], j))
            free, running = gpus, set()
            for j in order:
                if jobs[j][1] <= free:
                    free -= jobs[j][1]
                    running.add(j)
            for queue in queues:
                queue.sort(key=lambda j: j not in running)
        yield now, set(running)
