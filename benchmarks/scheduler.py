"""Pods per second through a real kube-scheduler, with the extender against without.

A real control plane with kwok nodes. All pods are created while the scheduler is paused; the
time runs from the moment at which it goes on until the API server lists no pod without a node.
Five ways:

- `without`: the scheduler as it is configured for Tandem, but for the extender, and pods that ask
  for no GPU;
- `nominated`: the extender, and ungated pods that ask for a GPU (webhook off), all of which are
  planned and nominated before the time begins: what kube-scheduler and the verbs cost;
- `with`: the same pods, whose GPUJobs, plans and nominations the queue controller writes meanwhile;
- `plain path`: as `without`, but the time runs from the first creation, as users have it;
- `whole path`: as users have it, with the webhook, gates, the queue controller and the predictor;
  the time runs from the first creation. Then single pods on the idle cluster, one after another.

`whole path` is compared with `without`, which is its bar, and with `plain path`, which creates its
pods in the same time.

With `--requests` the API server's audit log says who asked it for what on the whole path, by pod;
writing it takes time, so that rates are measured without it.

With `--claims` the GPUs of all nodes are handed over by ResourceClaims, which the plans allocate:
each node has a ResourceSlice, as its agent publishes it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import yaml
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.verbs import ROOT, cpu_s, machine
from controlplane import ControlPlane, Node, manifests, wait_until
from controlplane.gpus import report_gpus
from controlplane.installation import Installation, plain_verbs
from node_agent.dra import DRIVER
from node_agent.dra.devices import devices
from tandem.contracts import names
from tandem.contracts.resources import GPUNodeStatus
from tandem.errors import TandemError

BAR, STRETCH = 1.0, 1.5
WHOLE_PATH_BAR, WHOLE_PATH_STRETCH = 0.5, 0.9
PATHS = ("plain path", "whole path")
WAYS = ("without", "nominated", "with")
QPS = {"qps": 1000, "burst": 2000}
GPUS = 8
PLAN_LIFE_S = 900
ALONE = 40  # single pods on the idle cluster
_PARALLEL = 16
_SHOWN_MS = 0.5  # of a pod's CPU time
_SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@dataclass(frozen=True)
class Measured:
    """One way: pods bound, and the seconds that it took from the first chance to the last one.

    `cpu_ms` is the CPU time of each process in that time, in milliseconds a pod: other work on the
    machine changes it less than it changes the rate. `lag_ms` are the bounds of the buckets in
    which half and 99 % of the delays of the extender's event loop are.
    """

    way: str
    nodes: int
    pods: int
    seconds: float
    planned: int = 0  # pods on the node that is planned for them
    alone_ms: tuple[float, ...] = field(default=())  # each of single pods, from its creation
    cpu_ms: Mapping[str, float] = field(default_factory=dict)
    lag_ms: tuple[float, ...] = field(default=())

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


class Waiting:
    """The pods of a namespace that have no node, as the API server lists them."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._http = plane.http
        self._path = f"/api/v1/namespaces/{namespace}/pods"

    def until_none(self, what: str, timeout_s: float = 1800.0) -> float:
        """Return when there are none any more (`time.perf_counter`), to about 0.1 s.

        A watch would say when to the millisecond, and may end without a word.

        Raises:
            TandemError: that takes longer than `timeout_s`; says how many are left.
        """
        until_s = time.perf_counter() + timeout_s
        while left := self._count():
            if time.perf_counter() > until_s:
                raise TandemError(f"not in {timeout_s:.0f} s: {what}; {left} pods have no node")
            time.sleep(0.1 + left / 1000)  # a list of many takes the API server's time
        return time.perf_counter()

    def _count(self) -> int:
        metadata = {"Accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}
        answer = self._http.get(
            self._path, params={"fieldSelector": "spec.nodeName="}, headers=metadata
        )
        return len(answer.raise_for_status().json()["items"] or ())  # null: none


class Bench:
    """A plane with nodes and GPUs; each way in a namespace of its own.

    `source` is the checkout whose services are measured, ours by default. `claims`: whether GPUs
    are handed over by ResourceClaims.
    """

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        nodes: int,
        pods: int,
        source: Path | None = None,
        *,
        claims: bool = False,
    ) -> None:
        self.plane = plane
        self.nodes, self.pods = nodes, pods
        checkout = {"source": source} if source is not None else {}
        config = {"admission": {"gpu_claims": True}} if claims else {}
        values = {"scheduler": {"extender": {"config": config}}}
        self.installation = Installation(plane, folder, values=values, **checkout)
        self.installation.apply_manifests()
        names_of_nodes = [f"n{i}" for i in range(nodes)]
        report_gpus(plane.http, names_of_nodes, GPUS, noted=True, claims=claims)
        #: Objects and bytes of JSON that say what may be claimed.
        self.slices = publish_slices(plane, names_of_nodes) if claims else (0, 0)

    def measure(self, way: str) -> Measured:
        """Measure one way."""
        measured = {
            "without": self._without,
            "plain path": partial(self._without, "plain path", paused=False),
            "nominated": partial(self._with, "nominated"),
            "with": partial(self._with, "with"),
            "whole path": self._whole_path,
        }[way]()
        self.plane.kubectl("delete", "namespace", _namespace(way), "--wait=false")
        self.plane.await_gone(_namespace(way), timeout_s=900)
        return measured

    def _without(self, way: str = "without", *, paused: bool = True) -> Measured:
        config = _configuration()
        del config["extenders"]
        config["leaderElection"] = {"leaderElect": False}
        config["profiles"] = [{"schedulerName": "without"}]
        scheduler = self.plane.start_scheduler("without", config=config)
        try:
            template = pod("p", "without", gpu=False)
            return self._through(way, scheduler, template, paused=paused)
        finally:
            self.plane.processes.pop("without").kill()

    def _with(self, way: str) -> Measured:
        scheduler = self._services()
        saved = self._webhook_off()
        try:
            return self._through(way, scheduler, pod("p", names.SCHEDULER_NAME, gpu=True))
        finally:
            for one in saved:
                self.plane.apply(one)

    def _whole_path(self) -> Measured:
        scheduler = self._services()
        template = pod("p", names.SCHEDULER_NAME, gpu=True)
        # The gates hold the pods back; they are opened while others are being created.
        measured = self._through("whole path", scheduler, template, paused=False)
        jobs = f"/apis/{names.API_VERSION}/namespaces/{_namespace('whole path')}/gpujobs"

        def all_run() -> bool:
            return all(
                (job.get("status") or {}).get("phase") == "Running" for job in self._listed(jobs)
            )

        # The cluster is idle once the last status of the burst is written, after its Bindings.
        wait_until(all_run, "all jobs of the burst run", timeout_s=300, poll_s=1)
        return replace(measured, alone_ms=self._alone(template))

    def _alone(self, template: dict[str, Any]) -> tuple[float, ...]:
        """Return how long each of single pods takes from its creation to its Binding, in ms."""
        path = f"/api/v1/namespaces/{_namespace('whole path')}/pods"
        found = []
        for index in range(ALONE):
            name = f"alone-{index}"
            began = time.perf_counter()
            body = {**template, "metadata": {**template["metadata"], "name": name}}
            self.plane.http.post(path, json=body).raise_for_status()
            while not self.plane.http.get(f"{path}/{name}").json()["spec"].get("nodeName"):
                time.sleep(0.005)
            found.append(round((time.perf_counter() - began) * 1e3, 1))
        return tuple(found)

    def _services(self) -> Any:  # noqa: ANN401 - the process of the scheduler
        running = self.plane.processes.get(names.SCHEDULER_NAME)
        if running is not None:
            return running
        self.installation.start_predictor()
        # No plan is to end before kube-scheduler goes on.
        self.installation.start_extender(
            {"stale_after_s": 86_400, "queue": {"plan_life_s": PLAN_LIFE_S}}
        )
        config = _configuration()
        plain_verbs(config, self.installation.verbs_url)
        # It is paused while the pods are created, and is to lead all the same.
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
        waiting = Waiting(plane, namespace)
        before: Mapping[str, float]
        lags = self._lags()
        if paused:
            scheduler.pause()
            try:
                self._create(namespace, template)
                if way == "nominated":
                    wait_until(
                        partial(self._all_nominated, namespace),
                        "all pods are nominated",
                        timeout_s=PLAN_LIFE_S,
                        poll_s=1,
                    )
            finally:
                before, began = self._cpu_s(), time.perf_counter()
                scheduler.resume()
        else:
            before, began = self._cpu_s(), time.perf_counter()
            self._create(namespace, template)
        ended = waiting.until_none(f"all are bound ({way})")
        after = self._cpu_s()
        cpu_ms = {
            name: round((after[name] - used) * 1e3 / self.pods, 2) for name, used in before.items()
        }
        planned = 0 if way in ("without", "plain path") else self._on_plan(namespace)
        lag_ms = quantile_bounds_ms(self._lags() - lags)
        return Measured(
            way, self.nodes, self.pods, ended - began, planned, cpu_ms=cpu_ms, lag_ms=lag_ms
        )

    def _lags(self) -> Counter[float]:
        """Return how often the extender's event loop was late by no more than each bound in s."""
        if "extender" not in self.plane.processes:
            return Counter()
        text = httpx.get(f"{self.installation.verbs_url}/metrics", timeout=30).text
        return Counter(
            {
                float(sample.labels["le"]): int(sample.value)
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                if sample.name == "tandem_extender_loop_lag_seconds_bucket"
            }
        )

    def _cpu_s(self) -> dict[str, float]:
        """Return the CPU time of each process so far, ours as `benchmark`, in seconds."""
        used = {name: cpu_s(process.pid) for name, process in self.plane.processes.items()}
        if "extender" in used:
            pid = self.plane.processes["extender"].pid
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            used["extender's front"] = sum(cpu_s(int(child)) for child in children)
        return used | {"benchmark": time.process_time()}

    def _all_nominated(self, namespace: str) -> bool:
        pods = self._listed(f"/api/v1/namespaces/{namespace}/pods")
        return all(pod["status"].get("nominatedNodeName") for pod in pods)

    def _on_plan(self, namespace: str) -> int:
        """Count the pods on the nodes that their GPUJobs' plans name."""
        jobs = self._listed(f"/apis/{names.API_VERSION}/namespaces/{namespace}/gpujobs")
        planned = {
            place["uid"]: place["node"]
            for job in jobs
            for place in ((job.get("status") or {}).get("plan") or {}).get("pods", ())
        }
        return sum(
            planned.get(pod["metadata"]["uid"]) == pod["spec"]["nodeName"]
            for pod in self._listed(f"/api/v1/namespaces/{namespace}/pods")
        )

    def _listed(self, path: str) -> list[dict[str, Any]]:
        """Return a list, however busy the API server is (429)."""

        def found() -> dict[str, Any]:
            answer = self.plane.http.get(path, timeout=60)
            return answer.json() if answer.is_success else {}

        items: list[dict[str, Any]] = wait_until(found, f"the API server lists {path}")["items"]
        return items

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


def quantile_bounds_ms(counts: Mapping[float, int]) -> tuple[float, ...]:
    """Return the bounds of median and 99th percentile, in ms, of a histogram in s; () if empty.

    `counts` are cumulative, by the upper bound of each bucket; the last bound is infinite.
    """
    total = max(counts.values(), default=0)
    return tuple(
        min(bound for bound, count in counts.items() if count >= share * total) * 1e3
        for share in (0.5, 0.99)
        if total
    )


def publish_slices(plane: ControlPlane, nodes: Sequence[str]) -> tuple[int, int]:
    """Create the ResourceSlice of each node by its GPUNode; return their number and their bytes."""

    def publish(node: str) -> int:
        found = plane.http.get(f"/apis/{names.API_VERSION}/gpunodes/{node}").json()
        report = GPUNodeStatus.model_validate(found["status"])
        spec = {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": devices(report, {}),
        }
        body = {"metadata": {"name": f"{node}-{DRIVER}"}, "spec": spec}
        answer = plane.http.post(_SLICES, json=body)
        if answer.is_error:
            raise TandemError(f"the slice of {node} was refused: {answer.json()['message']}")
        return len(answer.content)

    with ThreadPoolExecutor(_PARALLEL) as pool:
        return len(nodes), sum(pool.map(publish, nodes))


def _namespace(way: str) -> str:
    return f"bench-{way.replace(' ', '-')}"


def _configuration() -> dict[str, Any]:
    config: dict[str, Any] = manifests.scheduler_config()
    return config | {"clientConnection": dict(QPS)}


def requests_by_pod(audit_log: Path, pods: int) -> dict[str, float]:
    """Return how often each account asked the API server for what on the whole path, by pod."""
    found: Counter[str] = Counter()
    for line in audit_log.read_text().splitlines():
        event = json.loads(line)
        target = event["objectRef"]
        what = "/".join(filter(None, (target["resource"], target.get("subresource"))))
        who = event["user"]["username"].rpartition(":")[2]
        # kube-scheduler and extender share their account.
        agent = event.get("userAgent", "").partition("/")[0]
        if agent == "python-httpx":
            continue  # our own: a creation for each pod, and looks at it
        found[f"{who} ({agent}) {event['verb']} {what}"] += 1
    # What is asked once for the whole namespace is no pod's.
    return {name: round(n / pods, 2) for name, n in found.most_common() if n > pods / 20}


def main(tell: Callable[[str], None] = print) -> None:
    """Measure, print a table, and write the figures as JSON where that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduler")
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="of each round")
    parser.add_argument("--whole-path", action="store_true", help="both paths as well")
    parser.add_argument("--requests", action="store_true", help="whole path, and who asks what")
    parser.add_argument("--claims", action="store_true", help="GPUs by ResourceClaims")
    parser.add_argument("--source", type=Path, help="measure the services of this checkout")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    ways = ([*options.ways] + [*PATHS] * options.whole_path) * options.rounds
    ways = ["whole path"] if options.requests else ways
    about = machine(options.source or ROOT)
    tell(", ".join(f"{key} {value}" for key, value in about.items()))
    cells: list[Measured] = []
    nodes = [Node(f"n{i}", cpu=64, pods=500) for i in range(options.nodes)]
    with tempfile.TemporaryDirectory() as folder:
        audit_log = Path(folder, "audit.log")
        with ControlPlane.start(nodes, apiserver_args=_audit(options, audit_log)) as plane:
            bench = Bench(
                plane, Path(folder), options.nodes, options.pods, options.source,
                claims=options.claims,
            )  # fmt: skip
            if options.claims:
                count, size = bench.slices
                tell(f"{count} ResourceSlices of {GPUS} GPUs: {size / 1e6:.1f} MB as JSON")
            for way in ways:
                cells.append(bench.measure(way))
                tell(_line(cells[-1]))
        if options.requests:
            pods = options.pods + ALONE
            requests = requests_by_pod(audit_log, pods)
            for name, count in requests.items():
                tell(f"{count:8.2f}  {name}")
            tell(f"{sum(requests.values()):8.2f}  in all, by pod")
            return
    best = {
        way: max(cell.pods_per_s for cell in cells if cell.way == way)
        for way in dict.fromkeys(ways)
    }
    for way, rate in best.items():
        if way != "without" and "without" in best:
            tell(f"{way} / without, the best of each: {rate / best['without']:.2f}")
    tell(f"nominated and with / without: bar {BAR}, stretch {STRETCH}")
    if options.whole_path:
        ratio = best["whole path"] / best["plain path"]
        tell(f"whole path / plain path, the best of each: {ratio:.2f}")
        tell(f"whole path / without: bar {WHOLE_PATH_BAR}, stretch {WHOLE_PATH_STRETCH}")
    if options.json:
        figures = {"best": best, "machine": about, "cells": [*map(asdict, cells)]}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def audited(log: Path, whose: Mapping[str, Any]) -> list[str]:
    """Return arguments of an API server that logs who asked for what: of a rule, the requests.

    Watches and their lists are left out: they are of programs, not of pods.
    """
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [
            {"level": "None", "verbs": ["list", "watch"]},
            {"level": "None", "resources": [{"group": "coordination.k8s.io"}]},
            {"level": "Metadata", **whose},
            {"level": "None"},
        ],
    }
    file = log.with_name("audit.yaml")
    file.write_text(yaml.safe_dump(policy))
    return [f"--audit-policy-file={file}", f"--audit-log-path={log}"]


def _audit(options: argparse.Namespace, log: Path) -> list[str]:
    if not options.requests:
        return []
    return audited(log, {"namespaces": ["bench-whole-path"]})


def _line(cell: Measured) -> str:
    line = f"{cell.way:<12} {cell.pods_per_s:8.1f} pods/s  ({cell.seconds:.1f} s)"
    if cell.way == "whole path":
        line += f"  {cell.planned} of {cell.pods} on the planned node"
    spent = ", ".join(f"{name} {ms:.1f}" for name, ms in cell.cpu_ms.items() if ms >= _SHOWN_MS)
    line += f"; CPU {sum(cell.cpu_ms.values()):.1f} ms a pod: {spent}"
    if cell.lag_ms:
        line += "; loop lag p50 <= {:g} ms, p99 <= {:g} ms".format(*cell.lag_ms)
    if cell.alone_ms:
        p50, p99 = np.percentile(cell.alone_ms, (50, 99))
        line += f"; a pod alone {p50:.0f} ms, p99 {p99:.0f} ms"
    return line


if __name__ == "__main__":
    main()
