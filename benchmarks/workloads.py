"""Workloads of all shipped kinds at once, with their own controllers, on kwok's nodes.

The manifests of `deploy/examples/kinds` are submitted in turn, in ten namespaces, as fast as the
API server takes them. Pods run for a while and end by themselves; a workload that has no end of its
own is deleted once its GPUJob runs, and a CronJob once a Job of it has ended. Volcano's controller
is played. The run ends when the GPUJob of each workload has ended, or was deleted with it. It
prints how long that took, what the extender and kube-scheduler asked of the API server for each
workload, and the most memory of the extender and the processes that it starts.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.scheduler import GPUS, audited, requests_by_pod
from benchmarks.verbs import machine
from controlplane import ControlPlane, Node, operators, volcano, wait_until
from controlplane.gpus import report_gpus
from controlplane.installation import Installation
from controlplane.usage import usage
from tandem.contracts import names
from tandem.errors import TandemError

KINDS = Path(__file__).parent.parent / "deploy" / "examples" / "kinds"
#: These serve until they are deleted. A RayJob ends by what Ray says, which does not run here.
ENDLESS = ("deployment", "leaderworkerset", "raycluster", "rayjob", "rayservice", "statefulset")
#: These make workload after workload, until they are deleted.
REPEATING = ("cronjob",)
#: Kubernetes' PodGroup is behind a feature gate.
GATES = ("--feature-gates=GenericWorkload=true",)
SERVED = ("--runtime-config=scheduling.k8s.io/v1beta1=true",)
_SHARED = "TrainingRuntime"  # one for each namespace
NAMESPACES = tuple(f"bench-{index}" for index in range(10))
RUN_DURATION = "kwok.tandem.gpu/run-duration"
OVER = ("Completed", "Failed")
_PARALLEL = 8
_EXISTS = 409
Object = dict[str, Any]


@dataclass
class Progress:
    """What has become of the workloads."""

    submitted: int = 0
    ended: set[tuple[str, str]] = field(default_factory=set)  # namespace and name
    most_mib: float = 0.0


def manifests() -> list[tuple[str, list[Object]]]:
    """Return the name of each kind with its objects; the workload comes last."""
    return [
        (file.stem.replace("-", ""), list(yaml.safe_load_all(file.read_text())))
        for file in sorted(KINDS.glob("*.yaml"))
    ]


def templates(value: object) -> Iterator[Object]:
    """Yield each template of pods in an object."""
    if isinstance(value, dict):
        if "containers" in value.get("spec", {}):
            yield value
            return
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        yield from templates(each)


def lasting(value: object, runs_s: float) -> None:
    """Let the pods of all templates in a value run for `runs_s`."""
    for template in templates(value):
        notes = template.setdefault("metadata", {}).setdefault("annotations", {})
        notes[RUN_DURATION] = f"{round(runs_s * 1000)}ms"


def numbered(kind: str, objects: list[Object], index: int, runs_s: float) -> list[Object]:
    """Return copies with names of their own; pods of workloads that end run for `runs_s`."""
    copies: list[Object] = json.loads(json.dumps([o for o in objects if o["kind"] != _SHARED]))
    name = f"{kind}-{index}"
    for each in copies:
        each["metadata"] |= {"name": name, "namespace": NAMESPACES[index % len(NAMESPACES)]}
    for template in templates(copies[-1]):
        if group := template["spec"].get("schedulingGroup"):
            group["podGroupName"] = name
    if kind not in ENDLESS:
        lasting(copies[-1], runs_s)
    return copies


class Run:
    """One plane with the controllers and Tandem; workloads are submitted to it."""

    def __init__(self, plane: ControlPlane, folder: Path, nodes: int, runs_s: float) -> None:
        self.plane = plane
        self._runs_s = runs_s
        self.progress = Progress()
        self._versions = {kind: objects[-1]["apiVersion"] for kind, objects in manifests()}
        installation = Installation(plane, folder)
        operators.start(plane, [each.name for each in operators.OPERATORS])
        installation.apply_manifests()
        report_gpus(plane.http, [f"n{i}" for i in range(nodes)], GPUS)
        installation.start_predictor()
        # Nothing repeats the reports of the nodes.
        self.extender = installation.start_extender({"stale_after_s": 86_400})
        installation.start_scheduler()
        self.volcano = volcano.Controller(plane)
        self.volcano.start()
        self._namespaces()

    def _namespaces(self) -> None:
        """Make the namespaces, and what workloads of a kind share in each."""
        shared = [o for _, objects in manifests() for o in objects if o["kind"] == _SHARED]
        lasting(shared, self._runs_s)
        for namespace in NAMESPACES:
            self.plane.kubectl("create", "namespace", namespace)
            account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
            wait_until(partial(self._there, account), f"{namespace} is set up")
            for each in shared:
                self._create({**each, "metadata": {**each["metadata"], "namespace": namespace}})

    def _there(self, path: str) -> bool:
        return self.plane.http.get(path).is_success

    def _create(self, manifest: Object) -> None:
        version, plural = manifest["apiVersion"], f"{manifest['kind'].lower()}s"
        path = f"/apis/{version}/namespaces/{manifest['metadata']['namespace']}/{plural}"
        answers: list[str] = []

        def taken() -> bool:
            answer = self.plane.http.post(path, json=manifest, timeout=60)
            answers.append(answer.text)
            return answer.is_success or answer.status_code == _EXISTS

        try:
            # Until its controller's webhook is there, and has seen what it needs, it is refused.
            wait_until(taken, f"{manifest['kind']} is taken", timeout_s=120)
        except TandemError as error:
            raise TandemError(f"{error.message}: {answers[-1]}") from error

    def submit(self, number: int) -> None:
        """Submit workloads of all kinds in turn."""
        kinds = manifests()

        def create(index: int) -> None:
            for each in numbered(*kinds[index % len(kinds)], index, self._runs_s):
                self._create(each)
            self.progress.submitted += 1

        with ThreadPoolExecutor(_PARALLEL) as pool:
            for _ in pool.map(create, range(number)):
                pass

    def all_end(self, number: int, within_s: float, tell: Callable[[str], None]) -> float:
        """Submit workloads; return after how many seconds all of them have ended.

        Raises:
            TandemError: that takes longer than `within_s`; says which GPUJobs are left.
        """
        began = time.perf_counter()
        submitting = ThreadPoolExecutor(1).submit(self.submit, number)
        while True:
            if submitting.done():
                submitting.result()  # raises what went wrong
            left = self._look()
            took_s = time.perf_counter() - began
            done = len(self.progress.ended)
            tell(f"progress: {done} of {number} ended, {self.progress.submitted} submitted, "
                 f"{took_s:.0f} s, extender {self.progress.most_mib:.0f} MiB at most")  # fmt: skip
            if done >= number:
                return took_s
            if took_s > within_s:
                raise TandemError(f"not ended in {within_s:.0f} s: {', '.join(left[:20])}")
            time.sleep(5)

    def _delete(self, kind: str, namespace: str, name: str) -> None:
        version = self._versions[kind]
        path = f"/apis/{version}/namespaces/{namespace}/{kind}s/{name}"
        in_background = {"propagationPolicy": "Background"}
        self.plane.http.request("DELETE", path, json=in_background, timeout=60).raise_for_status()

    def _look(self) -> list[str]:
        """Note what has ended, delete what serves, and sample the extender's memory."""
        self.progress.most_mib = max(self.progress.most_mib, usage(self.extender).resident_mib)
        answer = self.plane.http.get(f"/apis/{names.API_VERSION}/gpujobs", timeout=120)
        left = []
        for job in answer.json()["items"] if answer.is_success else ():
            namespace, phase = job["metadata"]["namespace"], job.get("status", {}).get("phase")
            # What a workload makes on the way to its pods has its name in front.
            made_by = (job["spec"].get("suspends") or job["spec"]["workload"])["name"]
            name = "-".join(made_by.split("-")[:2])
            if (namespace, name) in self.progress.ended:
                continue
            kind = name.partition("-")[0]
            serves = kind in ENDLESS and phase == "Running"
            if serves or (kind in REPEATING and phase in OVER):
                self._delete(kind, namespace, name)
            if serves or phase in OVER:
                self.progress.ended.add((namespace, name))
            else:
                left.append(f"{namespace}/{name} {phase}")
        return left


def _audit(folder: Path) -> list[str]:
    ours = {
        "namespaces": list(NAMESPACES),
        "users": [f"system:serviceaccount:{names.NAMESPACE}:tandem-scheduler"],
    }
    return audited(folder / "audit.log", ours)


def main(tell: Callable[[str], None] = print) -> None:
    """Run, print what it took, and write the figures as JSON where that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workloads")
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--workloads", type=int, default=1000)
    parser.add_argument("--runs-s", type=float, default=20.0, help="how long a pod runs")
    parser.add_argument("--within-s", type=float, default=3600.0, help="then it has failed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    nodes = [Node(f"n{i}", cpu=64, pods=500) for i in range(options.nodes)]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        args = [*GATES, *SERVED, *_audit(folder)]
        with ControlPlane.start(
            nodes, scheduler=True, apiserver_args=args, manager_args=GATES
        ) as plane:
            run = Run(plane, folder, options.nodes, options.runs_s)
            try:
                took_s = run.all_end(options.workloads, options.within_s, tell)
            finally:
                run.volcano.stop()
        requests = requests_by_pod(folder / "audit.log", options.workloads)
    ended = Counter(name.partition("-")[0] for _, name in run.progress.ended)
    for kind in sorted(ended):
        tell(f"{ended[kind]:6}  {kind}")
    for name, count in requests.items():
        tell(f"{count:8.2f}  {name}")
    tell(f"{sum(requests.values()):8.2f}  requests in all, by workload")
    tell(f"{took_s:8.0f}  seconds; the extender took {run.progress.most_mib:.0f} MiB at most")
    if options.json:
        figures: dict[str, object] = {
            "workloads": options.workloads, "nodes": options.nodes, "seconds": round(took_s),
            "ended": ended, "requests_per_workload": requests,
            "extender_most_mib": round(run.progress.most_mib), "machine": machine(),
        }  # fmt: skip
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
