"""Training on a control plane: gangs of pods that go on where they were when they had to leave.

kwok lets a pod run for as long as an annotation says; here a run is ended when its gang has trained
for its duration, over all pods that it has had. What is done in a grace period is saving, not
training. Neighbours slow one another down as the table given says.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from tandem.contracts import names

RUN_DURATION = "kwok.tandem.gpu/run-duration"
_LOOK_S = 0.1
_MERGE = {"Content-Type": "application/merge-patch+json"}

Slowdown = Callable[[str, str], float]  # of the first job next to the second


@dataclass(slots=True)
class Run:
    """One gang: its pods, how long it trains alone; times are monotonic."""

    pods: int
    duration_s: float
    submitted_s: float
    trained_s: float = 0.0
    ended_s: float = 0.0

    @property
    def completion_s(self) -> float:
        """From submission to the end of its last pod."""
        return self.ended_s - self.submitted_s


class Training:
    """Follows the Jobs of one namespace, and ends those that are due."""

    def __init__(
        self, http: httpx.Client, namespace: str, slowdown: Slowdown = lambda *_: 0.0
    ) -> None:
        self._http = http
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._slowdown = slowdown
        self.runs: dict[str, Run] = {}
        self._seen_s = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Training:
        """Begin to follow."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._stop.set()
        self._thread.join()

    def expect(self, job: str, pods: int, duration_s: float) -> None:
        """Take in a Job that is about to be submitted."""
        self.runs[job] = Run(pods, duration_s, time.monotonic())

    def all_ended(self) -> bool:
        """Say whether nothing is left to do."""
        return all(run.ended_s for run in list(self.runs.values()))

    def _follow(self) -> None:
        while not self._stop.wait(_LOOK_S):
            pods = self._pods_that(fieldSelector="status.phase=Running")
            if pods is not None:
                self._see(pods)

    def _pods_that(self, **selector: str) -> list[dict[str, Any]] | None:
        """Return the pods selected: all of a long workload are too many to look at."""
        try:
            answer = self._http.get(self._pods, params={"resourceVersion": "0", **selector})
        except httpx.HTTPError:
            return None
        return answer.json().get("items", []) if answer.is_success else None

    def _see(self, pods: list[dict[str, Any]]) -> None:
        now = time.monotonic()
        passed, self._seen_s = now - self._seen_s, now
        running: dict[str, list[dict[str, Any]]] = defaultdict(list)
        on_gpu: dict[str, list[str]] = defaultdict(list)
        for pod in pods:
            metadata = pod["metadata"]
            job = metadata.get("labels", {}).get("job-name", "")
            if "deletionTimestamp" not in metadata:
                running[job].append(pod)
                for gpu in _gpus(pod):
                    on_gpu[gpu].append(job)
        for name, run in list(self.runs.items()):
            if run.trained_s >= run.duration_s:
                # Who had to leave as it ended may come back for what was not counted: it is done.
                self._end(running[name])
                if not run.ended_s and self._all_succeeded(name, run.pods):
                    run.ended_s = time.monotonic()
            elif len(running[name]) == run.pods:
                gpus = [gpu for pod in running[name] for gpu in _gpus(pod)]
                run.trained_s += passed * self._speed(name, [on_gpu[gpu] for gpu in gpus])
                if run.trained_s >= run.duration_s:
                    self._end(running[name])

    def _all_succeeded(self, job: str, pods: int) -> bool:
        there = self._pods_that(labelSelector=f"job-name={job}") or ()
        return sum(pod["status"].get("phase") == "Succeeded" for pod in there) == pods

    def _speed(self, job: str, residents: list[list[str]]) -> float:
        """Return the speed of a gang: that of its slowest worker."""
        slowest = max(
            (sum(self._slowdown(job, o) for o in there if o != job) for there in residents),
            default=0.0,
        )
        return 1 / (1 + slowest)

    def _end(self, pods: list[dict[str, Any]]) -> None:
        for pod in pods:
            if RUN_DURATION not in pod["metadata"].get("annotations", {}):
                body = {"metadata": {"annotations": {RUN_DURATION: "1ms"}}}
                path = f"{self._pods}/{pod['metadata']['name']}"
                self._http.patch(path, json=body, headers=_MERGE)


def _gpus(pod: dict[str, Any]) -> list[str]:
    devices = pod["metadata"].get("annotations", {}).get(names.VISIBLE_DEVICES, "")
    return [gpu for gpu in devices.split(",") if gpu]
