"""The readiness probes of kubelets, for pods whose containers are processes of this machine.

kwok plays pods and runs no probes: its containers are ready for ever. Here the probe that the pod's
specification names is made of the process that stands for the container, as often as it says, and
the pod is ready or not by the answers.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tandem.local.processes import Process

_TICK_S = 0.25


@dataclass(frozen=True)
class Container:
    """A stand-in for a container; `url` is where its probes' paths begin."""

    process: Process
    url: str


@dataclass
class _Probe:
    of: Container
    path: str
    period_s: float
    timeout_s: float
    threshold: int
    due_s: float = 0.0
    failures: int = 0
    ready: bool = True

    def tick(self, now_s: float, ask: Callable[[str, float], bool]) -> None:
        if not self.of.process.running:
            self.ready = False  # kubelet sees a container end without asking
        elif now_s >= self.due_s:
            self.due_s = now_s + self.period_s
            self.failures = 0 if ask(self.of.url + self.path, self.timeout_s) else self.failures + 1
            if self.failures == 0 or self.failures >= self.threshold:
                self.ready = self.failures == 0


class Probes:
    """Plays the probes of one pod until it is closed; `containers` are those that are processes.

    `http` speaks to the API server as administrator.
    """

    def __init__(
        self,
        http: httpx.Client,
        namespace: str,
        pod: str,
        containers: Mapping[str, Container],
    ) -> None:
        self._http = http
        self._path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
        # Self-signed certificates on loopback, and requests without a secret.
        self._ask = httpx.Client(verify=False, trust_env=False)  # noqa: S501
        spec = http.get(self._path).raise_for_status().json()["spec"]
        self._probes = {
            each["name"]: _probe(containers[each["name"]], each.get("readinessProbe") or {})
            for each in (*spec.get("initContainers", ()), *spec["containers"])
            if each["name"] in containers
        }
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"probes-{pod}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave the pod as it is."""
        self._closing.set()
        self._thread.join()
        self._ask.close()

    def _run(self) -> None:
        reported: dict[str, bool] | None = None
        while not self._closing.wait(_TICK_S):
            for probe in self._probes.values():
                probe.tick(time.monotonic(), self._answers)
            found = {name: probe.ready for name, probe in self._probes.items()}
            if found != reported:
                with contextlib.suppress(httpx.HTTPError):  # tried again: the API server is away
                    self._tell(found)
                    reported = found

    def _answers(self, url: str, timeout_s: float) -> bool:
        try:
            return self._ask.get(url, timeout=timeout_s).is_success
        except httpx.HTTPError:
            return False

    def _tell(self, ready: Mapping[str, bool]) -> None:
        """Write what a kubelet would into the pod's status."""
        status: dict[str, Any] = self._http.get(self._path).raise_for_status().json()["status"]
        for key in ("initContainerStatuses", "containerStatuses"):
            for one in status.get(key) or ():
                if one["name"] in ready:
                    one["ready"] = ready[one["name"]]
        word = "True" if all(ready.values()) else "False"
        kinds = ("Ready", "ContainersReady")
        others = [one for one in status.get("conditions") or () if one["type"] not in kinds]
        patch = {key: status[key] for key in status if key.endswith("Statuses")}
        patch["conditions"] = [*others, *({"type": kind, "status": word} for kind in kinds)]
        self._http.patch(
            f"{self._path}/status",
            json={"status": patch},
            headers={"content-type": "application/merge-patch+json"},
        ).raise_for_status()


def _probe(of: Container, probe: Mapping[str, Any]) -> _Probe:
    """Return the probe of a specification; the API server has filled in its defaults."""
    asked = probe.get("httpGet") or {}
    return _Probe(
        of,
        asked.get("path", "/healthz"),
        float(probe.get("periodSeconds", 10)),
        float(probe.get("timeoutSeconds", 1)),
        int(probe.get("failureThreshold", 3)),
    )
