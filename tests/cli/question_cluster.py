"""A cluster of which the true answers to the ten questions of docs/cli.md are known."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

import httpx
import onnx
from cli_live import Live
from click.testing import Result
from typer.testing import CliRunner

from controlplane import Process, wait_until
from controlplane.installation import Installation
from controlplane.probes import Container, Probes
from tandem.cli.main import build_app
from tandem.contracts import names
from tandem.kube.client import KubeClient
from tandem.kube.tunnel import Tunnel

Object = dict[str, Any]

GRAPH = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"
TEAM, OVER = "asks", "over"  # `over` has a quota of 0 GPUs
DOES_NOT_SHARE = "On 1 GPU, a job runs that does not share its GPU."
FULL = "On 1 GPU, all places for jobs are taken (2 of 2)."
#: What the status page counts under "Needs attention" while three services are down.
DOWN = {"predictorSilent": 1, "replicaSilent": 2, "silent": 1}


class Cluster:
    """One node of two GPUs: one job alone on the first, two share the second, two wait."""

    def __init__(self, live: Live, folder: Path) -> None:
        self.live, self.plane = live, live.plane
        self.page = Tunnel(KubeClient.load(live.plane.kubeconfig()))
        self._second = Installation(live.plane, folder, values={})
        self._second._ports["predictor"] = live.installation._ports["predictor"]
        self._probes: list[Probes] = []

    def start(self) -> None:
        extender = self._second.start_extender({"leader": {"hostname": "b"}}, name="extender-b")
        processes, first = self.plane.processes, self.live.installation
        kube_scheduler = Container(
            processes[names.SCHEDULER_NAME], self.plane.scheduler_url(names.SCHEDULER_NAME)
        )
        both = [
            {"extender": Container(processes["extender"], first.probes_url),
             "kube-scheduler": kube_scheduler},
            {"extender": Container(extender, self._second.probes_url)},
        ]  # fmt: skip
        for pod, containers in zip(self._pods("scheduler"), both, strict=True):
            self._probe(pod, containers)
        predictor = Container(processes["predictor"], first.predictor_url)
        self._probe(*self._pods("predictor"), {"predictor": predictor})
        agent = Container(processes["agent-n0"], first.agent_url("n0"))
        self._probe(*self._pods("agent", names.AGENT_NAMESPACE), {"agent": agent})

    def close(self) -> None:
        for each in self._probes:
            each.close()
        self.plane.processes["extender-b"].terminate()
        for namespace in (TEAM, OVER):
            self.plane.kubectl("delete", "namespace", namespace, "--wait=false")
        for namespace in (TEAM, OVER):
            self.plane.await_gone(namespace)

    def _pods(self, component: str, namespace: str = names.NAMESPACE) -> list[Object]:
        label = f"app.kubernetes.io/component={component}"
        return self.plane.get("pods", "-n", namespace, "-l", label)["items"]

    def _probe(self, pod: Object, containers: dict[str, Container]) -> None:
        where = pod["metadata"]
        self._probes.append(Probes(self.plane.http, where["namespace"], where["name"], containers))

    def fill(self) -> None:
        for namespace in (TEAM, OVER):
            self.plane.await_gone(namespace)  # an earlier test may have had one of that name
            self.plane.kubectl("create", "namespace", namespace)
            account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
            wait_until(partial_get(self.plane.http, account), f"{namespace} is set up")
        editor = self.live.account(TEAM, "editor", "edit")
        pushed = CliRunner().invoke(
            build_app(),
            ["model", "push", str(GRAPH), "--name", "resnet50", "-n", TEAM,
             "--kubeconfig", str(editor)],
        )  # fmt: skip
        assert pushed.exit_code == 0, pushed.exception
        eight = {names.MEMORY: "8Gi"}
        shares = eight | {names.UTILIZATION: "20"}
        self.runs(TEAM, "alone", eight | {names.EXCLUSIVE: "true"})
        self.runs(TEAM, "one", shares)
        self.runs(OVER, "two", shares)
        known = {names.MODEL: "resnet50", names.BATCH_SIZE: "32", names.EXCLUSIVE: "true"}
        self.waits("waits", known)
        self.waits("unknown", eight | {names.MODEL: "gpt2"})

    def apply(self, namespace: str, name: str, annotations: dict[str, str]) -> None:
        limits = {"limits": {names.RESOURCE: 1}}
        container = {"name": "train", "image": "train:1", "resources": limits}
        spec = {"restartPolicy": "Never", "containers": [container]}
        template = {"metadata": {"annotations": annotations}, "spec": spec}
        self.plane.apply(
            {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": template},
             "metadata": {"name": name, "namespace": namespace}}
        )  # fmt: skip

    def status(self, namespace: str, name: str) -> Object:
        path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/gpujobs/job-{name}"
        answer = self.plane.http.get(path)
        return (answer.json().get("status") or {}) if answer.is_success else {}

    def runs(self, namespace: str, name: str, annotations: dict[str, str]) -> None:
        self.apply(namespace, name, annotations)
        wait_until(lambda: self.status(namespace, name).get("phase") == "Running", f"{name} runs")

    def waits(self, name: str, annotations: dict[str, str]) -> None:
        self.apply(TEAM, name, annotations)
        wait_until(lambda: self.status(TEAM, name).get("causes"), f"{name} has a reason")

    def view(self, path: str) -> Object:
        answer = self.page.get(f"/v1/status/{path}")
        assert answer.status == 200, answer.body
        return answer.json()["view"]

    def run(self, *words: str) -> Result:
        kubeconfig = str(self.plane.kubeconfig())
        return CliRunner().invoke(build_app(), [*words, "--kubeconfig", kubeconfig])

    def start_is_as_forecast(self) -> bool:
        """Compare with the GPUJob, which has no forecast before the first one is made."""
        said = flat(self.run("why", "waits", "-n", TEAM).stdout)
        known = bool(self.status(TEAM, "waits").get("expectedStart"))
        shown = self.view(f"jobs/{TEAM}/job-waits")["expectedStart"] is not None
        soon = "willstartin" in said
        return soon == known == shown and soon != ("willstartnotforecastyet" in said)

    def failures(self) -> dict[str, str]:
        said = json.loads(self.run("doctor", "--json").stdout)["checks"]
        return {each["check"]: each["says"] for each in said if each["outcome"] == "failed"}

    def attention(self) -> dict[str, int]:
        return {each["kind"]: each["count"] for each in self.view("overview")["attention"]}

    def silent(self, component: str) -> float:
        """Return the series by which the alerts go."""
        series = f'tandem_extender_silent_pods{{component="{component}"}}'
        (found,) = re.findall(rf"(?m)^{re.escape(series)} (\S+)$", self.metrics())
        return float(found)

    def metrics(self) -> str:
        url = f"{self.live.installation.verbs_url}/metrics"
        return httpx.get(url, trust_env=False).text


def partial_get(http: httpx.Client, path: str) -> Callable[[], bool]:
    return lambda: http.get(path).is_success


@contextmanager
def asked_cluster(live: Live, folder: Path) -> Iterator[Cluster]:
    """Give the cluster with its jobs, which are gone afterwards."""
    found = Cluster(live, folder)
    found.start()
    try:
        found.fill()
        yield found
    finally:
        found.close()


@contextmanager
def services_killed(cluster: Cluster) -> Iterator[list[Process]]:
    """Kill the predictor, the agent and the second extender at once; start them afterwards."""
    processes = cluster.plane.processes
    wait_until(lambda: cluster.attention() == {}, "all services answer", timeout_s=180)
    victims = [processes[name] for name in ("predictor", "agent-n0", "extender-b")]
    began = time.monotonic()
    for each in victims:
        each.kill()
    try:
        seen: dict[str, float] = {}
        parts: dict[str, Callable[[], bool]] = {
            "page": lambda: cluster.attention() == DOWN,
            "alerts": lambda: all(map(cluster.silent, ("agent", "predictor", "scheduler"))),
            "doctor": lambda: {"scheduler", "predictor", "agents"} <= cluster.failures().keys(),
        }

        def all_seen() -> bool:
            for part, holds in parts.items():
                if part not in seen and holds():
                    seen[part] = round(time.monotonic() - began, 1)
            return seen.keys() == parts.keys()

        wait_until(all_seen, "page, alerts and doctor show all three", timeout_s=180)
        print(f"after kill -9, shown in seconds: {seen}")
        yield victims
    finally:
        for each in victims:
            each.start()
        wait_until(lambda: cluster.attention() == {}, "all services answer again", timeout_s=180)
        wait_until(lambda: cluster.failures() == {}, "nothing is wrong again", timeout_s=180)


def flat(text: str) -> str:
    """Return what is said, without the places at which lines, and cells of tables, are broken."""
    lines = text.splitlines()
    # Between two columns, each line but the title has blanks.
    signs = [*zip_longest(*lines[1:], fillvalue=" ")]
    columns = (
        "".join("".join(part) for part in zip(*found, strict=True))
        for blank, found in groupby(signs, lambda sign: not "".join(sign).strip())
        if not blank
    )
    read = ["".join(lines), *columns]
    return "\n".join(re.sub(r"\s", "", each) for each in read)
