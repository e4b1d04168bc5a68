"""Training runs as kwok plays them: they go on where they were when their pod had to leave."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import httpx

from controlplane import ControlPlane
from scheduler_extender.cluster.jobs import seconds

RUN_DURATION = "kwok.tandem.gpu/run-duration"


@dataclass
class Run:
    """One Job: how long it trains in all, and the times (monotonic) at which its pods ran."""

    duration_s: float
    submitted_s: float
    spans: dict[str, list[float]] = field(default_factory=dict)  # pod uid -> [first, last seen]
    ended_s: float = 0.0
    ran: dict[str, list[float]] = field(default_factory=dict)  # pod uid -> [start, end], Unix time

    def ran_s(self) -> float:
        """Return for how long its containers ran, by the API server: its grace periods too."""
        return sum(end - start for start, end in self.ran.values())

    def trained_s(self) -> float:
        return sum(last - first for first, last in self.spans.values())


class Trainer:
    """Ends each Job's pod once it has trained for its duration, over all of its pods together.

    A pod's training counts from when it is seen running until its deletion: what it does in its
    grace period is saving, not training.
    """

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._plane = plane
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self.runs: dict[str, Run] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Trainer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def expect(self, job: str, duration_s: float) -> None:
        self.runs[job] = Run(duration_s, time.monotonic())

    def all_ended(self) -> bool:
        return all(run.ended_s for run in self.runs.values())

    def jct_s(self) -> dict[str, float]:
        return {name: run.ended_s - run.submitted_s for name, run in self.runs.items()}

    def _follow(self) -> None:
        while not self._stop.wait(0.1):
            try:
                answer = self._plane.http.get(self._pods, params={"resourceVersion": "0"})
            except httpx.HTTPError:
                continue  # one question without an answer must not end the training
            now, unix_s = time.monotonic(), time.time()
            for pod in answer.json().get("items", ()):
                self._see(pod, now)
                self._see_run(pod, unix_s)

    def _see_run(self, pod: dict, unix_s: float) -> None:
        run = self.runs.get(pod["metadata"].get("labels", {}).get("job-name", ""))
        statuses = pod["status"].get("containerStatuses")
        if run is None or not statuses:
            return
        state = statuses[0]["state"]
        known = state.get("terminated") or state.get("running") or {}
        if "startedAt" in known:
            end = seconds(known["finishedAt"]) if "finishedAt" in known else unix_s
            run.ran[pod["metadata"]["uid"]] = [seconds(known["startedAt"]), end]

    def _see(self, pod: dict, now: float) -> None:
        metadata, phase = pod["metadata"], pod["status"].get("phase")
        run = self.runs.get(metadata.get("labels", {}).get("job-name", ""))
        if run is None:
            return
        if phase == "Succeeded" and not run.ended_s:
            run.ended_s = now
        if phase != "Running" or "deletionTimestamp" in metadata:
            return
        span = run.spans.setdefault(metadata["uid"], [now, now])
        span[1] = now
        due = run.trained_s() >= run.duration_s
        if due and RUN_DURATION not in metadata.get("annotations", {}):
            self._plane.http.patch(
                f"{self._pods}/{metadata['name']}",
                json={"metadata": {"annotations": {RUN_DURATION: "1ms"}}},
                headers={"Content-Type": "application/merge-patch+json"},
            )
