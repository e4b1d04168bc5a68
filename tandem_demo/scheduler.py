"""The part of kube-scheduler: takes pods one at a time through the extender's verbs.

As the real one does: gated pods are not looked at; a refused pod goes back with the reason and is
tried again after a backoff, or at once when it has been changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import httpx

from tandem.contracts import names
from tandem.errors import TandemError
from tandem.kube.client import Object

#: kube-scheduler's own defaults: podInitialBackoffSeconds, podMaxBackoffSeconds, httpTimeout.
INITIAL_BACKOFF_S = 1.0
MAX_BACKOFF_S = 10.0
TIMEOUT_S = 5.0


@dataclass(slots=True)
class _Refused:
    attempts: int
    retry_at_s: float
    resource_version: str


class RefusedError(Exception):
    """No node takes the pod now; the text says why."""


@dataclass(slots=True)
class Scheduler:
    """Schedules the pods it is shown, by way of the extender that `client` speaks to."""

    client: httpx.Client
    reasons: dict[str, str] = field(default_factory=dict)  # pod uid -> why it was refused last
    bound: int = 0
    refused: int = 0
    _waiting: dict[str, _Refused] = field(default_factory=dict)

    @classmethod
    def of(cls, url: str) -> Scheduler:
        """Return a scheduler whose extender is at `url`."""
        return cls(httpx.Client(base_url=url, timeout=TIMEOUT_S))

    def close(self) -> None:
        """Drop the connection."""
        self.client.close()

    def step(self, pods: list[Object], nodes: list[str], now_s: float) -> None:
        """Try each pod that is due, once, in the order of creation."""
        for pod in sorted(pods, key=lambda pod: int(pod["metadata"]["resourceVersion"])):
            uid = pod["metadata"]["uid"]
            if not _schedulable(pod) or not self._due(pod, now_s):
                continue
            try:
                self._schedule(pod, nodes)
            except RefusedError as refusal:
                self._put_back(pod, str(refusal), now_s)
            else:
                self.bound += 1
                self.reasons.pop(uid, None)
                self._waiting.pop(uid, None)

    def _schedule(self, pod: Object, nodes: list[str]) -> None:
        """Run one scheduling cycle: filter, prioritize, bind."""
        fitting = self._filter(pod, nodes)
        node = fitting[0] if len(fitting) == 1 else self._best(pod, fitting)
        metadata = pod["metadata"]
        self._post(
            "bind",
            {
                "PodName": metadata["name"],
                "PodNamespace": metadata["namespace"],
                "PodUID": metadata["uid"],
                "Node": node,
            },
        )

    def _filter(self, pod: Object, nodes: list[str]) -> list[str]:
        answer = self._post("filter", {"Pod": pod, "Nodes": None, "NodeNames": nodes})
        fitting: list[str] = answer.get("NodeNames") or []
        if fitting:
            return fitting
        failed = (answer.get("FailedNodes") or {}) | (
            answer.get("FailedAndUnresolvableNodes") or {}
        )
        reasons = "; ".join(f"{node}: {reason}" for node, reason in sorted(failed.items()))
        raise RefusedError(f"0/{len(nodes)} nodes are available: {reasons}")

    def _best(self, pod: Object, nodes: list[str]) -> str:
        scores = self._ask("prioritize", {"Pod": pod, "Nodes": None, "NodeNames": nodes}).json()
        score = {each["Host"]: int(each["Score"]) for each in scores}
        return max(sorted(nodes), key=lambda node: score.get(node, 0))

    def _post(self, verb: str, body: Object) -> Object:
        answer: Object = self._ask(verb, body).json()
        if answer.get("Error"):
            raise RefusedError(answer["Error"])
        return answer

    def _ask(self, verb: str, body: Object) -> httpx.Response:
        try:
            answer = self.client.post(f"/{verb}", json=body)
        except httpx.HTTPError as error:
            raise TandemError(f"The extender did not answer {verb}: {error!r}") from None
        if answer.is_error:
            raise RefusedError(f"the extender answered {verb} with status {answer.status_code}")
        return answer

    def _due(self, pod: Object, now_s: float) -> bool:
        metadata = pod["metadata"]
        known = self._waiting.get(metadata["uid"])
        return (
            known is None
            or now_s >= known.retry_at_s
            or metadata["resourceVersion"] != known.resource_version
        )

    def _put_back(self, pod: Object, reason: str, now_s: float) -> None:
        metadata = pod["metadata"]
        known = self._waiting.get(metadata["uid"])
        attempts = known.attempts + 1 if known else 1
        backoff_s = min(INITIAL_BACKOFF_S * 2 ** (attempts - 1), MAX_BACKOFF_S)
        self._waiting[metadata["uid"]] = _Refused(
            attempts, now_s + backoff_s, metadata["resourceVersion"]
        )
        self.reasons[metadata["uid"]] = reason
        self.refused += 1


def _schedulable(pod: Object) -> bool:
    spec = pod["spec"]
    return (
        spec.get("schedulerName") == names.SCHEDULER_NAME
        and not spec.get("schedulingGates")
        and not spec.get("nodeName")
        and (pod.get("status") or {}).get("phase", "Pending") == "Pending"
    )
