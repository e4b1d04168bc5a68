"""A paper's scenario on a control plane: its predictor, its extender, its course of events."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

from e2e_cluster import DEVICES, TandemCluster, job
from e2e_physics import Physics
from paper_scenarios import Ends, Known, Look, Pass, Scenario, Seen, Slow, Submit

from controlplane import wait_until
from tandem.contracts import names
from tandem.contracts.prediction import InterferenceRequest, PredictRequest
from tandem.errors import TandemError

#: The nodes of the scenarios, by their number of GPUs.
NODES = {1: "g1", 2: "g2"}
#: No profile puts more jobs on a GPU.
SHARES = 16
QUEUE = {"min_run_s": 0, "preemption_cost_s": 0, "max_preemptions_per_hour": 100}
LEARNING = {"every_s": 1.0, "settle_s": 4.0}
HISTORY = f"/api/v1/namespaces/{names.NAMESPACE}/configmaps"
#: What passes of a time that is long in memory: two looks of an adjuster.
_LONGEST_S = 15.0
_STABLE_S = 1.5
_LOOK_TIMEOUT_S = 90.0


class SaidPredictor:
    """A predictor service that says of each kind of job what the scenario says."""

    def __init__(self) -> None:
        self.scenario: Scenario | None = None
        said = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                self._answer(said.answer(self.path, body))

            def do_GET(self) -> None:
                self._answer(None)

            def _answer(self, text: str | None) -> None:
                self.send_response(404 if text is None else 200)
                self.send_header("content-type", "application/json")
                encoded = (text or "{}").encode()
                self.send_header("content-length", str(len(encoded)))
                self.end_headers()
                self.wfile.write(encoded)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> SaidPredictor:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, body: bytes) -> str | None:
        assert self.scenario is not None
        if path == "/v1/predict":
            asked = PredictRequest.model_validate_json(body)
            said = self.scenario.load(asked.model or "", asked.accumulation_steps)
            return json.dumps(said.wire())
        if path == "/v1/interference":
            pair = InterferenceRequest.model_validate_json(body)
            return json.dumps(self.scenario.price(pair.job, list(pair.candidates)).wire())
        return "{}" if path == "/v1/feedback" else None


class LiveCourse:
    """One scenario under one profile; the cluster's own GPUs are those of its node."""

    def __init__(
        self,
        cluster: TandemCluster,
        physics: Physics,
        predictor: SaidPredictor,
        scenario: Scenario,
        profile: str,
    ) -> None:
        self._cluster, self._physics, self._predictor = cluster, physics, predictor
        self._scenario, self._profile = scenario, profile
        self._submitted: set[str] = set()  # jobs that have not ended
        self.namespace = ""

    @contextmanager
    def under_its_profile(self) -> Iterator[None]:
        """Start the extender with the profile and without a memory of other scenarios."""
        self._predictor.scenario = self._scenario
        http = self._cluster.plane.http
        http.delete(f"{HISTORY}/tandem-history")
        services = {f"h{i}": service for i, service in enumerate(self._scenario.history)}
        learned = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "tandem-history"},
            "data": {"serviceGpuSeconds": json.dumps(services)},
        }
        http.post(HISTORY, json=learned).raise_for_status()
        extender = self._cluster.installation.start_extender(
            {
                "profile": self._scenario.profile(self._profile).model_dump(mode="json"),
                "predictor_url": self._predictor.url,
                "queue": QUEUE,
                "learning": LEARNING,
            }
        )
        try:
            self.namespace = self._cluster.namespace()
            yield
        finally:
            if self.namespace:
                self._cluster.remove(self.namespace)
            extender.terminate()
            self._physics.slowdown.clear()
            self._physics.percent.clear()
            self._physics.gib.clear()

    # --- the course ------------------------------------------------------------------------------

    def run(self) -> None:
        """Go through the course: to its end, or under another profile to where that one parts."""
        other = self._profile != self._scenario.system
        for event, following in pairwise((*self._scenario.course, None)):
            match event:
                case Submit():
                    self._submit(event)
                case Ends():
                    self._submitted.remove(event.job)
                    self._cluster.let_end(self.namespace, event.job)
                case Known():
                    self._cluster.running(self.namespace, event.job)
                    self._physics.is_known_alone(self.namespace, event.job)
                case Slow():
                    self._physics.slowdown[event.job, event.neighbour] = event.slowdown
                case Pass():
                    # Where another picture is to come, that is waited for.
                    if not isinstance(following, Look) or self.seen() == following.under(other):
                        time.sleep(min(event.seconds, _LONGEST_S))
                case Look():
                    self._shows(event.under(other))
                    if other and event.instead:
                        return

    def _submit(self, asked: Submit) -> None:
        kind = self._scenario.kinds[asked.kind]
        self._physics.percent[asked.name] = round(kind.percent)
        self._physics.gib[asked.name] = 1
        made = job(asked.name, annotations=asked.annotations)
        node = {"kubernetes.io/hostname": NODES[self._scenario.gpus]}
        made["spec"]["template"]["spec"]["nodeSelector"] = node
        path = f"/apis/batch/v1/namespaces/{self.namespace}/jobs"
        self._cluster.plane.http.post(path, json=made).raise_for_status()
        self._submitted.add(asked.name)

    def _shows(self, expected: Seen) -> None:
        """Wait until GPUs and jobs are as expected, every other job waits, and it stays so."""
        since: float | None = None

        def stays() -> bool:
            nonlocal since
            if self.seen() != expected or not self._settled(expected):
                since = None
                return False
            since = since or time.monotonic()
            return time.monotonic() - since > _STABLE_S

        try:
            wait_until(stays, "the picture is stable", timeout_s=_LOOK_TIMEOUT_S, poll_s=0.2)
        except TandemError as error:
            text = f"expected {_words(expected)}, seen {_words(self.seen())}: {self._reasons()}"
            raise AssertionError(text) from error

    def _settled(self, expected: Seen) -> bool:
        running = {name for jobs in expected for name in jobs}
        statuses = self._statuses()
        return all(
            statuses.get(name, {}).get("phase") == "Running"
            if name in running
            else statuses.get(name, {}).get("reason") == "Waiting"
            for name in self._submitted
        )

    def _statuses(self) -> dict[str, dict[str, Any]]:
        return {
            each["metadata"]["name"].removeprefix("job-"): each.get("status") or {}
            for each in self._cluster.gpujobs(self.namespace)
        }

    def _reasons(self) -> str:
        return "; ".join(
            f"{name}: {status.get('phase')}, {status.get('reason')}, {status.get('message')}"
            for name, status in sorted(self._statuses().items())
        )

    def seen(self) -> Seen:
        """Return the jobs on each GPU, by the pods that run."""
        found: dict[str, set[str]] = {}
        for pod in self._cluster.pods(self.namespace):
            meta = pod["metadata"]
            gpu = (meta.get("annotations") or {}).get(DEVICES)
            running = pod["status"].get("phase") == "Running" and "deletionTimestamp" not in meta
            if gpu and running:
                found.setdefault(gpu, set()).add(meta["labels"]["job-name"])
        return frozenset(map(frozenset, found.values()))


def _words(picture: Seen) -> list[str]:
    return sorted("+".join(sorted(jobs)) for jobs in picture)
