"""Pods per second through a real kube-scheduler, with the extender against without.

A real control plane with kwok nodes. All pods are created while the scheduler stands still; the
time runs from the moment at which it goes on to the last Binding, by a watch. Three ways:

- `without`: the scheduler as it is configured for Tandem, but for the extender, and pods that ask
  for no GPU;
- `with`: the extender, and ungated pods that ask for a GPU (webhook off);
- `whole path`: as users have it, with the webhook, gates, the queue controller and the predictor.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from controlplane import ControlPlane, Node, manifests, wait_until
from controlplane.gpus import report_gpus
from controlplane.installation import Installation, plain_verbs
from tandem.contracts import names

BAR, STRETCH = 0.7, 0.9
QPS = {"qps": 1000, "burst": 2000}
GPUS = 8
_PARALLEL = 16


@dataclass(frozen=True)
class Measured:
    """One way: pods bound, and the seconds that it took from the first chance to the last one."""

    way: str
    nodes: int
    pods: int
    seconds: float

    @property
    def pods_per_s(self) -> float:
        """Return the rate."""
        return self.pods / self.seconds


def pod(name: str, scheduler: str, *, gpu: bool) -> dict[str, Any]:
    """Return a pod that takes 10 m CPU and, with `gpu`, a share of a GPU and 8 GiB of it."""
    resources: dict[str, dict[str, str]] = {"requests": {"cpu": "10m"}, "limits": {}}
    if gpu:
        resources["requests"][names.RESOURCE] = resources["limits"][names.RESOURCE] = "1"
    return {
        "metadata": {"name": name, "annotations": {names.MEMORY: "8Gi"} if gpu else {}},
        "spec": {
            "schedulerName": scheduler,
            "containers": [{"name": "train", "image": "train:1", "resources": resources}],
        },
    }


class Watched:
    """Counts the bound pods of a namespace as the API server tells of them."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._plane = plane
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._bound: set[str] = set()
        self.last_s = 0.0
        version = plane.http.get(self._path).json()["metadata"]["resourceVersion"]
        self._thread = threading.Thread(target=self._follow, args=(version,), daemon=True)
        self._thread.start()

    @property
    def bound(self) -> int:
        """Return how many pods have a node."""
        return len(self._bound)

    def _follow(self, version: str) -> None:
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "3600"}
        stream = self._plane.http.stream("GET", self._path, params=query, timeout=None)
        # At the end the API server goes away under it.
        with contextlib.suppress(httpx.HTTPError), stream as answer:
            for line in answer.iter_lines():
                found = json.loads(line)["object"]
                if found.get("spec", {}).get("nodeName"):
                    if found["metadata"]["name"] not in self._bound:
                        self.last_s = time.perf_counter()
                    self._bound.add(found["metadata"]["name"])


class Bench:
    """A plane with nodes and GPUs; each way in a namespace of its own."""

    def __init__(self, plane: ControlPlane, folder: Path, nodes: int, pods: int) -> None:
        self.plane = plane
        self.nodes, self.pods = nodes, pods
        self.installation = Installation(plane, folder)
        self.installation.apply_manifests()
        report_gpus(plane.http, [f"n{i}" for i in range(nodes)], GPUS)

    def measure(self, way: str) -> Measured:
        """Measure one way."""
        measured = {
            "without": self._without,
            "with": self._with,
            "whole path": self._whole_path,
        }[way]()
        self.plane.kubectl("delete", "namespace", _namespace(way), "--wait=false")
        path = f"/api/v1/namespaces/{_namespace(way)}/pods"
        wait_until(
            lambda: not self.plane.http.get(path, params={"limit": 1}).json()["items"],
            "the pods are gone",
            timeout_s=900,
            poll_s=2,
        )
        return measured

    def _without(self) -> Measured:
        config = _configuration()
        del config["extenders"]
        config["leaderElection"] = {"leaderElect": False}
        config["profiles"] = [{"schedulerName": "without"}]
        scheduler = self.plane.start_scheduler("without", config=config)
        try:
            return self._through("without", scheduler, pod("p", "without", gpu=False))
        finally:
            self.plane.processes.pop("without").kill()

    def _with(self) -> Measured:
        scheduler = self._services()
        saved = self._webhook_off()
        try:
            return self._through("with", scheduler, pod("p", names.SCHEDULER_NAME, gpu=True))
        finally:
            for one in saved:
                self.plane.apply(one)

    def _whole_path(self) -> Measured:
        scheduler = self._services()
        template = pod("p", names.SCHEDULER_NAME, gpu=True)
        # The gates hold the pods back; they are opened while others are being created.
        return self._through("whole path", scheduler, template, paused=False)

    def _services(self) -> Any:  # noqa: ANN401 - the process of the scheduler
        running = self.plane.processes.get(names.SCHEDULER_NAME)
        if running is not None:
            return running
        self.installation.start_predictor()
        self.installation.start_extender({"stale_after_s": 86_400})
        config = _configuration()
        plain_verbs(config, self.installation.verbs_url)
        # It stands still while the pods are created, and is to lead all the same.
        config["leaderElection"] |= {"leaseDuration": "900s", "renewDeadline": "800s"}
        account = self.plane.service_account_kubeconfig(names.NAMESPACE, "tandem-scheduler")
        return self.plane.start_scheduler(names.SCHEDULER_NAME, config=config, kubeconfig=account)

    def _webhook_off(self) -> list[Mapping[str, Any]]:
        saved = []
        for kind, name in (
            ("mutatingwebhookconfiguration", "tandem"),
            ("validatingadmissionpolicybinding", "tandem-pods"),
        ):
            one = self.plane.get(kind, name)
            one["metadata"] = {"name": name}
            saved.append(one)
            self.plane.kubectl("delete", kind, name)
        probe = pod("probe", names.SCHEDULER_NAME, gpu=True)
        path = "/api/v1/namespaces/default/pods"
        wait_until(
            lambda: self.plane.http.post(path, params={"dryRun": "All"}, json=probe).is_success,
            "both are gone",
        )
        return saved

    def _through(
        self,
        way: str,
        scheduler: Any,  # noqa: ANN401 - a process
        template: dict[str, Any],
        *,
        paused: bool = True,
    ) -> Measured:
        namespace = _namespace(way)
        plane = self.plane
        plane.kubectl("create", "namespace", namespace)
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        wait_until(lambda: plane.http.get(account).is_success, "the namespace is set up")
        watched = Watched(plane, namespace)
        if paused:
            scheduler.pause()
            try:
                self._create(namespace, template)
            finally:
                began = time.perf_counter()
                scheduler.resume()
        else:
            began = time.perf_counter()
            self._create(namespace, template)
        wait_until(
            lambda: watched.bound == self.pods, f"all are bound ({way})", timeout_s=1800, poll_s=0.2
        )
        return Measured(way, self.nodes, self.pods, watched.last_s - began)

    def _create(self, namespace: str, template: dict[str, Any]) -> None:
        path = f"/api/v1/namespaces/{namespace}/pods"

        def create(index: int) -> None:
            metadata = {**template["metadata"], "name": f"p{index}"}
            self.plane.http.post(
                path, json={**template, "metadata": metadata}, timeout=120
            ).raise_for_status()

        with ThreadPoolExecutor(_PARALLEL) as pool:
            for _ in pool.map(create, range(self.pods)):
                pass


def _namespace(way: str) -> str:
    return f"bench-{way.replace(' ', '-')}"


def _configuration() -> dict[str, Any]:
    config: dict[str, Any] = manifests.scheduler_config()
    return config | {"clientConnection": dict(QPS)}


def main(tell: Callable[[str], None] = print) -> None:
    """Measure, print a table, and write the figures as JSON where that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduler")
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--whole-path", action="store_true", help="the third way as well")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    ways = ["without", "with"] * options.rounds + ["whole path"] * options.whole_path
    cells = []
    nodes = [Node(f"n{i}", cpu=64, pods=500) for i in range(options.nodes)]
    with tempfile.TemporaryDirectory() as folder, ControlPlane.start(nodes) as plane:
        bench = Bench(plane, Path(folder), options.nodes, options.pods)
        for way in ways:
            cells.append(bench.measure(way))
            tell(f"{way:<12} {cells[-1].pods_per_s:8.1f} pods/s  ({cells[-1].seconds:.1f} s)")
    best = {
        way: max(cell.pods_per_s for cell in cells if cell.way == way)
        for way in dict.fromkeys(ways)
    }
    ratio = best["with"] / best["without"]
    tell(
        f"with / without, the best of {options.rounds}: {ratio:.2f} (bar {BAR}, stretch {STRETCH})"
    )
    if options.json:
        figures = {"ratio": ratio, "machine": platform.machine(), "cells": [*map(asdict, cells)]}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
