"""Notifications as their owners get them: GPUJobs on a real API server, kube-state-metrics with the
chart's account and settings, a real Prometheus with the chart's rules, and a real Alertmanager with
the configuration of deploy/monitoring, which sends to the receivers of two teams.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from helm_render import CHART, NOTIFICATIONS, ROOT, render

from controlplane import ControlPlane, binaries, monitoringtools, wait_until
from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.queue.steps import lifecycle
from tandem.contracts import crds, names
from tandem.contracts.learning import Means, Observed, ObservedSlowdown, Reference
from tandem.contracts.resources import (
    Demand,
    GPUJobSpec,
    GPUJobStatus,
    Phase,
    WorkloadRef,
)
from tandem.local.processes import free_port
from tandem.reasons.causes import Cause, Reason

pytestmark = [pytest.mark.controlplane, pytest.mark.slow]

#: The times of the shipped files that a test would have to wait for, and what it waits for instead.
FASTER = {
    "interval: 15s": "interval: 1s",
    "keep_firing_for: 2m": "keep_firing_for: 20s",
    "for: 5m": "for: 1s",
    "group_wait: 5s": "group_wait: 1s",
    "group_interval: 1m": "group_interval: 1s",
}
LONG_AGO_S = 3600.0 * 2


class Notification(NamedTuple):
    """What a receiver of a team has got."""

    status: str
    summary: str
    description: str


class Receivers:
    """Takes what Alertmanager posts, by the last part of the path: a team, or the operators."""

    def __init__(self) -> None:
        self.got: dict[str, list[Any]] = {}
        receivers = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receivers.got.setdefault(self.path.rpartition("/")[2], []).append(json.loads(body))
                self.send_response(200)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def slack(self, team: str) -> list[Notification]:
        """Return what a channel shows."""
        shown = [post["attachments"][0] for post in self.got.get(team, [])]
        return [
            Notification(
                "resolved" if each["title"].endswith(" (over)") else "firing",
                each["title"].removesuffix(" (over)"),
                each["text"],
            )
            for each in shown
        ]

    def webhook(self, team: str) -> list[Notification]:
        """Return what came as Alertmanager's own JSON."""
        alerts = [alert for post in self.got.get(team, []) for alert in post["alerts"]]
        return [
            Notification(
                alert["status"],
                alert["annotations"]["summary"],
                alert["annotations"]["description"],
            )
            for alert in alerts
        ]


class Teams:
    """Two namespaces, and the GPUJobs that the extender would have written there."""

    def __init__(self, plane: ControlPlane, receivers: Receivers) -> None:
        self.plane, self.receivers = plane, receivers
        self.a, self.b = (f"{team}-{secrets.token_hex(3)}" for team in ("team-a", "team-b"))

    def submit(self, team: str, name: str, status: GPUJobStatus) -> None:
        workload = WorkloadRef(api_version="batch/v1", kind="Job", name=name, uid=name)
        spec = GPUJobSpec(workload=workload, demand=Demand(gpus_per_pod=1))
        metadata = {"name": f"job-{name}", "namespace": team}
        self.plane.apply(
            {
                "apiVersion": names.API_VERSION,
                "kind": "GPUJob",
                "metadata": metadata,
                "spec": spec.wire(),
            }
        )
        self.write(team, name, status)

    def write(self, team: str, name: str, status: GPUJobStatus) -> None:
        path = f"/apis/{names.API_VERSION}/namespaces/{team}/gpujobs/job-{name}"
        found = self.plane.http.get(path).json()
        answer = self.plane.http.put(f"{path}/status", json={**found, "status": status.wire()})
        assert answer.is_success, answer.text


def running(since_s: float, **more: Any) -> GPUJobStatus:
    cause, since = Cause(Reason.RUNNING, pods=1), rfc3339(since_s)
    return lifecycle.with_reason(
        GPUJobStatus(**more), Reason.RUNNING, [cause], since_s,
        scheduled=True, phase=Phase.RUNNING, started_at=since, running_since=since,
    )  # fmt: skip


def waiting(since_s: float) -> GPUJobStatus:
    status = GPUJobStatus(waiting_since=rfc3339(since_s))
    cause = Cause(Reason.PLACES_TAKEN, gpus=8, value=2, bound=2)
    return lifecycle.waiting(status, Reason.PLACES_TAKEN, [cause], 0, since_s)


def slowed(by: float, since_s: float) -> GPUJobStatus:
    slowdown = ObservedSlowdown(value=by, means=Means.PROGRESS, reference=Reference.SOLO)
    return running(since_s, observed=Observed(at=rfc3339(since_s), slowdown=slowdown))


def scaled(text: str) -> str:
    """Return one of the shipped files with shorter times."""
    for shipped, here in FASTER.items():
        text = re.sub(rf"(?<!\w){re.escape(shipped)}(?!\w)", here, text)
    return text


def tool(name: str) -> Path:
    found = monitoringtools.find(name)
    if found is None:
        pytest.skip(f"no {name} on this machine. {monitoringtools.HOW_TO_GET}")
    return found


@pytest.fixture
def teams(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Teams]:
    """Everything between a GPUJob and the receivers of its owners."""
    programs = [tool("kube-state-metrics"), tool("alertmanager")]
    prometheus = binaries.find("prometheus")
    if prometheus is None:
        pytest.skip("no prometheus on this machine: Debian's package of that name has it")
    plane, found = control_plane, Teams(control_plane, Receivers())
    for definition in crds.DEFINITIONS:
        plane.apply(definition.manifest())
        plane.await_definitions(definition.manifest()["metadata"]["name"])
    release = f"notifying-{secrets.token_hex(3)}"
    for namespace in (release, found.a, found.b):
        plane.kubectl("create", "namespace", namespace)
    made = [
        each
        for each in render("--namespace", release, *NOTIFICATIONS)
        if each["metadata"]["name"] == "tandem-notifications"
    ]
    deployment = one(made, "Deployment")
    plane.apply([o for o in made if o["kind"] in ("ServiceAccount", *RIGHTS)])
    ports = {name: free_port() for name in ("metrics", "probes", "prometheus", "alerts")}
    started = [
        plane.run(
            "kube-state-metrics", command(programs[0], deployment, made, plane, tmp_path, ports)
        ),
        plane.run("alertmanager", alertmanager(programs[1], found, tmp_path, ports)),
        plane.run("prometheus", scraper(prometheus, tmp_path, ports)),
    ]
    yield found
    for process in started:
        process.terminate()
    found.receivers.server.shutdown()
    for namespace in (release, found.a, found.b):
        plane.kubectl("delete", "namespace", namespace, "--wait=false")
    for kind in RIGHTS:
        plane.kubectl("delete", kind, "tandem-notifications")


RIGHTS = ("ClusterRole", "ClusterRoleBinding")


def one(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


def command(
    program: Path,
    deployment: dict[str, Any],
    made: list[dict[str, Any]],
    plane: ControlPlane,
    folder: Path,
    ports: dict[str, int],
) -> list[str]:
    """Return how the pod of the chart runs, with its account and its files."""
    pod = deployment["spec"]["template"]["spec"]
    namespace = deployment["metadata"]["namespace"]
    (container,) = pod["containers"]
    (mount,) = container["volumeMounts"]
    for name, text in one(made, "ConfigMap")["data"].items():
        (folder / name).write_text(text)
    kubeconfig = plane.service_account_kubeconfig(namespace, pod["serviceAccountName"])
    args = [
        arg.replace(mount["mountPath"], str(folder))
        .replace("--port=8080", f"--port={ports['metrics']}")
        .replace("--telemetry-port=8081", f"--telemetry-port={ports['probes']}")
        for arg in container["args"]
    ]
    return [str(program), *args, "--host=127.0.0.1", "--telemetry-host=127.0.0.1",
            f"--kubeconfig={kubeconfig}"]  # fmt: skip


def alertmanager(program: Path, teams: Teams, folder: Path, ports: dict[str, int]) -> list[str]:
    text = scaled((ROOT / "deploy" / "monitoring" / "alertmanager.yaml").read_text())
    here = f"http://127.0.0.1:{teams.receivers.server.server_port}"
    text = re.sub(r"http://[a-z.]+example\.com", here, text)
    text = text.replace("team-a", teams.a).replace("team-b", teams.b)
    (folder / "alertmanager.yaml").write_text(text)
    return [str(program), f"--config.file={folder / 'alertmanager.yaml'}",
            f"--storage.path={folder / 'alerts'}", "--cluster.listen-address=",
            f"--web.listen-address=127.0.0.1:{ports['alerts']}"]  # fmt: skip


def scraper(program: Path, folder: Path, ports: dict[str, int]) -> list[str]:
    rules = yaml.safe_load(scaled((CHART / "files" / "notifications.yaml").read_text()))
    # One of the operators', which has to go where theirs go.
    operators = {"alert": "OfTheOperators", "expr": "vector(1)", "labels": {"severity": "critical"}}
    rules["groups"].append({"name": "operators", "rules": [operators]})
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    local = {"targets": [f"127.0.0.1:{ports['metrics']}"]}
    config = {
        # A scrape may take some seconds on a machine that is busy.
        "global": {"scrape_interval": "5s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": [
            {"job_name": "tandem-notifications", "honor_labels": True, "static_configs": [local]}
        ],
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{ports['alerts']}"]}]}]
        },
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    return [str(program), f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{ports['prometheus']}"]  # fmt: skip


def expected(team: str) -> dict[str, tuple[str, str]]:
    """Return summary and description of what the jobs of a team give rise to, by the job."""

    def why(job: str) -> str:
        return f"`tandem why {team}/job-{job}`"

    return {
        "new": (
            f"Job new in {team} has started",
            "It has its GPUs and runs. There is nothing to do. "
            f"{why('new')} shows where it runs, and what slows it down.",
        ),
        "patient": (
            rf"Job patient in {team} has waited for GPUs for 2h \d+m \d+s",
            f"{why('patient')} says what it waits for and when it is expected to start. `tandem "
            f"what-if {team}/job-patient --gpus N` says whether it would start sooner with fewer "
            "GPUs.",
        ),
        "polite": (
            f"Job polite in {team} was preempted",
            "It gives up its GPUs for other jobs, stays in the queue and starts again by itself, "
            f"from the state that it has saved. {why('polite')} says why, and when it is expected "
            "to run again.",
        ),
        "large": (
            f"Job large in {team} ran out of GPU memory",
            "Its next run is placed where more memory is free. If it fails again, use a smaller "
            "batch, or declare more with the annotation tandem.gpu/memory. "
            f"{why('large')} says how much it held.",
        ),
        "slow": (
            f"Job slow in {team} takes 60% longer than alone",
            "Other jobs on its GPUs slow it down. Tandem moves one of them where another place is "
            'free. With the annotation tandem.gpu/exclusive: "true" the job would have GPUs for '
            f"itself, and might wait longer for them. {why('slow')} says how much time it has "
            "lost.",
        ),
    }


def test_each_team_gets_what_happens_to_its_own_jobs_once_and_when_it_is_over(
    teams: Teams,
) -> None:
    now, before = time.time(), time.time() - LONG_AGO_S
    other = Cause(Reason.MAKING_ROOM, job=f"{teams.b}/job-new")
    preempting = lifecycle.preempting(running(before), other, "suspend", now - 600)
    full = lifecycle.decided(running(before), "OutOfMemory", "ran out of GPU memory on n0/0", now)
    teams.submit(teams.a, "new", running(now))
    teams.submit(teams.a, "patient", waiting(before))
    teams.submit(teams.a, "polite", preempting)
    teams.submit(teams.a, "large", full)
    teams.submit(teams.a, "slow", slowed(0.6, before))
    teams.submit(teams.b, "new", running(now))
    # Nothing that is worth a notification.
    teams.submit(teams.b, "calm", slowed(0.1, before))
    teams.submit(teams.b, "next", waiting(now))

    receivers = teams.receivers
    wait_until(
        lambda: (
            len(receivers.slack(teams.a)) >= 5
            and receivers.webhook(teams.b)
            and receivers.got.get("operators")
        ),
        "each team has its notifications",
        timeout_s=240,
    )
    texts = expected(teams.a)
    shown = sorted(receivers.slack(teams.a), key=lambda each: each.summary)
    for (summary, description), each in zip(sorted(texts.values()), shown, strict=True):
        assert each.status == "firing"
        assert re.fullmatch(summary, each.summary), each
        assert each.description == description

    teams.write(teams.a, "new", running(now).model_copy(update={"phase": Phase.COMPLETED}))
    teams.write(teams.a, "patient", running(before))
    teams.write(teams.a, "polite", running(before))
    teams.plane.kubectl("delete", "gpujob", "job-large", "-n", teams.a)
    teams.write(teams.a, "slow", slowed(0.1, before))

    def over() -> set[str]:
        return {each.summary for each in receivers.slack(teams.a) if each.status == "resolved"}

    wait_until(lambda: len(over()) == 5, "each of them is over", timeout_s=240)
    got = receivers.slack(teams.a)
    assert len(got) == 10, got
    firing = {each.summary for each in got if each.status == "firing"}
    assert {text.split(" has waited")[0] for text in firing} == {
        text.split(" has waited")[0] for text in over()
    }

    # The other team has heard of its own job alone, and the operators of none.
    (only,) = receivers.webhook(teams.b)
    assert (only.status, only.summary) == ("firing", f"Job new in {teams.b} has started")
    (alert,) = [alert for post in receivers.got[teams.b] for alert in post["alerts"]]
    assert (alert["labels"]["namespace"], alert["labels"]["workload"]) == (teams.b, "new")
    assert receivers.got.keys() == {teams.a, teams.b, "operators"}
    assert teams.b not in json.dumps(receivers.got[teams.a])
    assert teams.a not in json.dumps(receivers.got[teams.b])
    summaries = {
        alert["labels"]["alertname"]
        for post in receivers.got["operators"]
        for alert in post["alerts"]
    }
    assert summaries == {"OfTheOperators"}
