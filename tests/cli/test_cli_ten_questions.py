"""The ten questions of docs/cli.md on a real control plane whose true answers are known.

By the command, into a pipe and on a terminal of 80 columns, and by the page; and once more after
the predictor, the agent and one of two extenders were killed.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import httpx
import onnx
import pytest
from cli_live import Live
from click.testing import Result
from question_table import table
from typer.testing import CliRunner

from controlplane import Process, wait_until
from controlplane.installation import Installation
from controlplane.probes import Container, Probes
from tandem.cli.main import build_app
from tandem.cli.output import out
from tandem.contracts import names
from tandem.kube.client import KubeClient
from tandem.kube.tunnel import Tunnel

pytestmark = [pytest.mark.controlplane, pytest.mark.slow, pytest.mark.xdist_group("cli")]

Object = dict[str, Any]

GRAPH = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"
TEAM, OVER = "asks", "over"  # `over` has a quota of 0 GPUs
COLUMNS = 80
DOES_NOT_SHARE = "On 1 GPU, a job runs that does not share its GPU."
FULL = "On 1 GPU, all places for jobs are taken (2 of 2)."


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
        told = "willstartin" in said
        return told == known == shown and told != ("willstartnotforecastyet" in said)

    def failures(self) -> dict[str, str]:
        said = json.loads(self.run("doctor", "--json").stdout)["checks"]
        return {each["check"]: each["says"] for each in said if each["outcome"] == "failed"}

    def attention(self) -> dict[str, int]:
        return {each["kind"]: each["count"] for each in self.view("overview")["attention"]}

    def silent(self, component: str) -> float:
        """Return the series by which the alerts go."""
        url = f"{self.live.installation.verbs_url}/metrics"
        text = httpx.get(url, trust_env=False).text
        series = f'tandem_extender_silent_pods{{component="{component}"}}'
        (found,) = re.findall(rf"(?m)^{re.escape(series)} (\S+)$", text)
        return float(found)


def partial_get(http: httpx.Client, path: str) -> Callable[[], bool]:
    return lambda: http.get(path).is_success


@pytest.fixture(scope="module")
def cluster(live: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster(live, tmp_path_factory.mktemp("second"))
    found.start()
    try:
        found.fill()
        yield found
    finally:
        found.close()


@dataclass(frozen=True)
class Asked:
    """What is typed, words of the answer, words that would be wrong, and what the page must hold.

    `page` has for each view what is true of it.
    """

    command: tuple[str, ...]
    says: tuple[str, ...]
    page: tuple[tuple[str, Callable[[Object], bool]], ...]
    never: tuple[str, ...] = ()


def job(name: str) -> tuple[str, ...]:
    return ("why", name, "-n", TEAM)


def in_words(*words: str) -> Callable[[Object], bool]:
    return lambda view: all(each in json.dumps(view) for each in words)


def over_quota(view: Object) -> bool:
    rows = view["namespaces"]["rows"]
    return [row["namespace"] for row in rows if row["overQuota"]] == [OVER]


TRUE: dict[str, tuple[Asked, ...]] = {
    "Why does my job wait?": (
        Asked(
            job("waits"),
            ("It needs 1 GPU (0 of 2 GPUs can take it now).", FULL, DOES_NOT_SHARE),
            ((f"jobs/{TEAM}/job-waits", in_words(FULL, DOES_NOT_SHARE)),),
        ),
    ),
    "When will it start?": (
        Asked(("queue",), ("job-waits", "job-unknown"),
              (("jobs?phase=Waiting&sort=queue", in_words("job-waits", "job-unknown")),)),
    ),
    "What slows it down?": (
        Asked(
            job("one"),
            ("predicted, none measured", f"shares with {OVER}/job-two"),
            ((f"jobs/{TEAM}/job-one",
              lambda view: [each["name"] for each in view["neighbours"]] == ["job-two"]
              and not (view.get("observed") or {}).get("slowdown")),),
        ),
    ),
    "Which GPUs are idle?": (
        Asked(("gpus", "--idle"), (),
              (("overview", lambda view: view["gpus"]["byState"]["idle"] == 0),), never=("n0/",)),
        Asked(("gpus",), (f"{TEAM}/job-alone", f"{TEAM}/job-one,{OVER}/job-two"),
              (("gpus", in_words("job-alone", "job-one", "job-two")),)),
    ),
    "Did sharing pay?": (
        Asked(
            ("sharing",),
            ("1 GPU by 2 jobs", "It is expected to pay (predicted)"),
            (("overview", lambda view: view["sharing"]["gpus"] == 1
              and view["sharing"]["jobs"] == 2 and view["sharing"]["jobsMeasured"] == 0),),
            never=("(measured)",),
        ),
    ),
    "Why was it stopped?": (
        Asked(job("one"), ("Running",),
              ((f"jobs/{TEAM}/job-one", lambda view: not view["preemption"]),),
              never=("stopped",)),
    ),
    "What load was predicted?": (
        Asked(
            job("one"),
            ("8.0 GiB at most (declared), 20 % utilisation (declared)",),
            ((f"jobs/{TEAM}/job-one",
              lambda view: view["load"]["memoryP95Bytes"] == 8 << 30
              and view["load"]["memorySource"] == "declared"),),
        ),
    ),
    "Is my model known?": (
        Asked(job("waits"), ("resnet50 is known",), (("models", in_words("resnet50")),)),
        Asked(job("unknown"), ("gpt2 was not known when the job came: tandem model push FILE",),
              ((f"jobs/{TEAM}/job-unknown",
               lambda view: view["load"]["utilisationSource"] == "whole-gpu"),),
              never=("did not answer",)),
    ),
    "Which namespace is over quota?": (
        Asked(("quotas",), ("over quota",), (("overview", over_quota),)),
    ),
}  # fmt: skip


def flat(text: str) -> str:
    """Return what is said, without the places at which lines, and cells of tables, are broken."""
    lines = text.splitlines()
    cells = zip_longest(*(re.split("[│┃]", line) for line in lines), fillvalue="")
    read = ["".join(lines), *("".join(column) for column in cells)]
    return "\n".join(re.sub(r"\s", "", each) for each in read)


@pytest.fixture(params=["pipe", "terminal"])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("COLUMNS", raising=False)
    if request.param == "terminal":
        monkeypatch.setattr(out, "_force_terminal", True)
        monkeypatch.setattr(out, "_color_system", None)
        monkeypatch.setattr(out, "_width", COLUMNS)
        monkeypatch.setattr(out, "_height", 50)
    return str(request.param)


def check(cluster: Cluster, screen: str) -> None:
    """Ask all but the last question, which each test answers by itself."""
    assert [*TRUE, "What is broken?"] == list(table())
    wait_until(cluster.start_is_as_forecast, "command and page tell the forecast", timeout_s=120)
    for question, all_asked in TRUE.items():
        for asked in all_asked:
            answer = cluster.run(*asked.command)
            assert answer.exit_code == 0, (question, answer.exception)
            said = flat(answer.stdout)
            for words in asked.says:
                assert flat(words).splitlines()[0] in said, (question, words, answer.stdout)
            for words in asked.never:
                assert flat(words).splitlines()[0] not in said, (question, answer.stdout)
            if screen == "terminal":
                assert max(map(len, answer.stdout.splitlines())) <= COLUMNS, question
            else:
                assert not set("│┃─━") & set(answer.stdout), "no boxes in a pipe"
            for path, holds in asked.page:
                view = cluster.view(path)
                assert holds(view), (question, path, view)


def test_all_answers_are_right(cluster: Cluster, screen: str) -> None:
    wait_until(lambda: cluster.attention() == {}, "all services answer", timeout_s=180)
    check(cluster, screen)
    assert cluster.failures() == {}
    assert cluster.page.get("/status/").body.count(b"<title>Tandem</title>") == 1


@pytest.fixture(scope="module")
def killed(cluster: Cluster) -> Iterator[list[Process]]:
    """The predictor, the agent and the second extender, all killed at once."""
    processes = cluster.plane.processes
    wait_until(lambda: cluster.attention() == {}, "all services answer", timeout_s=180)
    victims = [processes[name] for name in ("predictor", "agent-n0", "extender-b")]
    began = time.monotonic()
    for each in victims:
        each.kill()
    try:
        shown = {"predictorSilent": 1, "replicaSilent": 2, "silent": 1}
        seen: dict[str, float] = {}
        parts: dict[str, Callable[[], bool]] = {
            "page": lambda: cluster.attention() == shown,
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


@pytest.mark.usefixtures("killed")
def test_what_is_broken_is_said(cluster: Cluster, screen: str) -> None:
    said = flat(cluster.run("doctor").stdout)
    for words in ("1of2replicasavailable", "0of1replicaavailable", "0of1agentready"):
        assert words in said

    def silent() -> list[str]:
        rows = cluster.view("overview")["attention"]
        return next((sorted(row["names"]) for row in rows if row["kind"] == "replicaSilent"), [])

    # On a busy machine, another one may be late with an answer for a moment.
    wait_until(lambda: len(silent()) == 2, "two pods of services are silent", timeout_s=120)
    first, second = silent()
    assert first.startswith("tandem-predictor-")
    assert first.endswith(" (predictor)")
    assert second.startswith("tandem-scheduler-")
    assert second.endswith(" (extender)")
    (node,) = cluster.view("nodes?state=silent")["rows"]
    assert node["node"] == "n0"
    assert flat(cluster.run("gpus").stdout).count("silentagent") >= 2
    if screen == "pipe":
        alone = {names.MODEL: "resnet50", names.EXCLUSIVE: "true", names.MEMORY: "8Gi"}
        cluster.waits("late", alone)
        # The Service may lead to the extender that was killed until its endpoints are written anew.
        late = wait_until(lambda: cluster.run(*job("late")).stdout, "the other one answers")
        assert "the predictor did not answer when the job came" in late
        assert "was not known" not in late


@pytest.mark.usefixtures("killed")
def test_all_answers_are_right_while_services_are_down(cluster: Cluster, screen: str) -> None:
    check(cluster, screen)
