"""A plain simulator of the orderings, slow and obvious: one pool of GPUs, nothing costs."""

from __future__ import annotations

INF = float("inf")


def mean_jct(jobs: list[tuple[float, int, float]], gpus: int, policy: str, thresholds=()) -> float:
    """Jobs are (submission, GPUs, duration); policy is fifo, srtf, srsf or las."""
    left = [duration for _, _, duration in jobs]
    service = [0.0] * len(jobs)
    level = [0] * len(jobs)
    running: set[int] = set()
    queues: list[list[int]] = [[] for _ in range(len(thresholds) + 1)]
    arrivals = sorted(range(len(jobs)), key=lambda j: jobs[j][0])
    now, ended = 0.0, {}
    while len(ended) < len(jobs):
        next_s = jobs[arrivals[0]][0] if arrivals else INF
        for j in running:
            next_s = min(next_s, now + left[j])
            if policy == "las" and level[j] < len(thresholds):
                next_s = min(next_s, now + (thresholds[level[j]] - service[j]) / jobs[j][1])
        for j in running:
            left[j] -= next_s - now
            service[j] += (next_s - now) * jobs[j][1]
        now = next_s
        for j in [j for j in running if left[j] <= 1e-6]:
            ended[j] = now
            running.discard(j)
            queues[level[j]].remove(j)
        while arrivals and jobs[arrivals[0]][0] <= now:
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
            continue
        if policy != "las":
            size = {j: left[j] * (jobs[j][1] if policy == "srsf" else 1) for j in order}
            order.sort(key=lambda j: (size[j], jobs[j][0], j))
        free, running = gpus, set()
        for j in order:
            if jobs[j][1] <= free:
                free -= jobs[j][1]
                running.add(j)
        for queue in queues:
            queue.sort(key=lambda j: j not in running)
    return sum(ended[j] - jobs[j][0] for j in ended) / len(jobs)
