"""Shadow mode next to a plain kube-scheduler; the API server's audit log is the judge."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from controlplane_binaries import need_control_plane

from controlplane import ControlPlane, Node, binaries, wait_until
from controlplane.installation import CHART, RELEASE
from tandem.contracts import names
from tandem.contracts.shadow import DAY_S, SLOTS, ShadowJob, config_map_name, day_in

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("shadow"),
    pytest.mark.timeout(600),
]
ACCOUNT = f"system:serviceaccount:{names.NAMESPACE}:tandem-shadow"
#: Of the default scheduler's 4 GPUs, each job has so many for so many seconds.
JOBS = {"a": (2, 3), "b": (2, 4), "c": (1, 5), "d": (4, 3), "e": (1, 2), "f": (2, 3)}


class Site:
    """The chart in shadow mode, its recorder as a process, and a user with a kubeconfig."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.folder = folder

    def install(self) -> None:
        command = [
            str(binaries.require("helm")), "install", RELEASE, str(CHART), "--create-namespace",
            "--namespace", names.NAMESPACE, "--set", "mode=shadow",
            "--kubeconfig", str(self.plane.kubeconfig()),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        self.start()

    def start(self) -> None:
        found = self.plane.get("configmap", "tandem-shadow", "-n", names.NAMESPACE)
        settings = yaml.safe_load(found["data"]["extender.yaml"])
        account = self.plane.service_account_kubeconfig(names.NAMESPACE, "tandem-shadow")
        path = self.folder / "shadow.yaml"
        path.write_text(yaml.safe_dump({**settings, "kubeconfig": str(account)}))
        command = [sys.executable, "-m", "scheduler_extender.shadow", "--config", str(path)]
        self.plane.run("shadow", [*command, "--every", "0.5"])

    def jobs(self) -> dict[str, ShadowJob]:
        """Return what is recorded, by name."""
        found: dict[str, ShadowJob] = {}
        for number in range(SLOTS):
            path = f"/api/v1/namespaces/{names.NAMESPACE}/configmaps/{config_map_name(number)}"
            answer = self.plane.http.get(path)
            if answer.is_success:
                found |= {job.name: job for job in day_in(answer.json()).jobs.values()}
        return found

    def records_since(self) -> float:
        """Return when the record began (Unix time), infinity before it has."""
        number = int(time.time() // DAY_S)
        path = f"/api/v1/namespaces/{names.NAMESPACE}/configmaps/{config_map_name(number)}"
        answer = self.plane.http.get(path)
        return day_in(answer.json()).since_s if answer.is_success else math.inf

    def tandem(self, *words: str) -> dict[str, Any]:
        """Return what `tandem ... --json` prints for an administrator."""
        command = [str(Path(sys.executable).with_name("tandem")), *words, "--json"]
        environment = {**os.environ, "KUBECONFIG": str(self.plane.kubeconfig())}
        answer = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=300, env=environment
        )
        assert answer.returncode == 0, answer.stderr
        found: dict[str, Any] = json.loads(answer.stdout)
        return found

    def submit(self, name: str, gpus: int, seconds: int | None) -> None:
        annotations = {} if seconds is None else {"kwok.tandem.gpu/run-duration": f"{seconds}s"}
        container = {
            "name": "train",
            "image": "train:1",
            "resources": {"limits": {names.NVIDIA_RESOURCE: gpus}},
        }
        template = {
            "metadata": {"annotations": annotations},
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }
        metadata = {"name": name, "namespace": "default"}
        self.plane.apply(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": metadata,
                "spec": {"template": template},
            }
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two nodes of two GPUs that a device plugin gives out, and the cluster's own scheduler."""
    need_control_plane("helm")
    nodes = [Node(f"n{index}", extended={names.NVIDIA_RESOURCE: 2}) for index in range(2)]
    nodes.append(Node("n2", extended={names.NVIDIA_RESOURCE: 4}))
    with ControlPlane.start(nodes=nodes, scheduler=True, audit=True) as plane:
        found = Site(plane, tmp_path_factory.mktemp("shadow"))
        found.install()
        yield found


@pytest.fixture(scope="module")
def ended(site: Site) -> Site:
    """The site when a stream of jobs has come and ended, the recorder killed in between."""
    wait_until(lambda: site.records_since() < time.time() - 1, "the recorder is at work")
    for number, (name, (gpus, seconds)) in enumerate(JOBS.items()):
        site.submit(name, gpus, seconds)
        if number == 3:
            wait_until(lambda: len(site.jobs()) >= 3, "jobs are recorded")
            site.plane.processes["shadow"].kill()
            site.start()

    def all_ended() -> bool:
        jobs = site.jobs()
        return len(jobs) == len(JOBS) and all(job.ended_s is not None for job in jobs.values())

    wait_until(all_ended, "all jobs have ended in the record")
    return site


def seconds(time: str) -> float:
    return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()


def truth(site: Site) -> dict[str, tuple[float, float, float, int]]:
    """Return arrival, start, end and GPUs of each job, as its pod says."""
    found = {}
    for pod in site.plane.get("pods", "-n", "default", "-l", "job-name")["items"]:
        (status,) = pod["status"]["containerStatuses"]
        ended = status["state"]["terminated"]
        (container,) = pod["spec"]["containers"]
        found[f"job-{pod['metadata']['labels']['job-name']}"] = (
            seconds(pod["metadata"]["creationTimestamp"]),
            seconds(ended["startedAt"]),
            seconds(ended["finishedAt"]),
            int(container["resources"]["limits"][names.NVIDIA_RESOURCE]),
        )
    return found


def test_each_job_is_recorded_as_its_pod_says(ended: Site) -> None:
    found = {
        name: (job.arrived_s, job.started_s, job.ended_s, job.gpus)
        for name, job in ended.jobs().items()
    }
    assert found == truth(ended)


def test_it_writes_no_object_that_is_not_its_own(ended: Site) -> None:
    events = ended.plane.audited(ACCOUNT)
    assert events
    own = {config_map_name(number) for number in range(SLOTS)}
    others = [
        event for event in events
        if event["objectRef"].get("resource") != "configmaps"
        or event["objectRef"].get("namespace") != names.NAMESPACE
        or event["objectRef"].get("name") not in own
    ]  # fmt: skip
    assert others == []
    assert not [event for event in events if event["responseStatus"]["code"] == 403]


def test_the_log_has_what_others_write(ended: Site) -> None:
    """Without this, an empty log would prove that nothing was written."""
    bindings = [
        event for event in ended.plane.audited("system:kube-scheduler")
        if event["objectRef"].get("subresource") == "binding"
    ]  # fmt: skip
    assert len(bindings) >= len(JOBS)


def test_nothing_of_the_chart_is_asked_about_pods(ended: Site) -> None:
    for kind in (
        "mutatingwebhookconfigurations", "validatingwebhookconfigurations",
        "validatingadmissionpolicies", "priorityclasses",
    ):  # fmt: skip
        found = [each["metadata"]["name"] for each in ended.plane.get(kind)["items"]]
        assert not [name for name in found if "tandem" in name]


@pytest.mark.parametrize(
    "right",
    [
        ("create", "pods"), ("patch", "pods"), ("delete", "pods"), ("create", "pods/binding"),
        ("create", "pods/eviction"), ("patch", "pods/status"), ("patch", "nodes"),
        ("patch", "jobs.batch"), ("get", "secrets"), ("create", "events"),
    ],
)  # fmt: skip
def test_its_account_may_not(ended: Site, right: tuple[str, str]) -> None:
    verb, resource = right
    group = resource.partition(".")[2]
    name, _, part = resource.partition(".")[0].partition("/")
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": ACCOUNT,
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "resourceAttributes": {
                "verb": verb, "group": group, "resource": name, "subresource": part,
                "namespace": "default",
            },
        },
    }  # fmt: skip
    answer = ended.plane.http.post(
        "/apis/authorization.k8s.io/v1/subjectaccessreviews", json=review
    )
    assert answer.raise_for_status().json()["status"]["allowed"] is False


def test_the_report_compares_what_the_pods_say_with_the_same_trace_simulated(ended: Site) -> None:
    from tandem.policy.catalog import load_profile
    from tandem.simulator.cluster import Nodes
    from tandem.simulator.jobs import TraceJob
    from tandem.simulator.run import Setup, run_profile

    found = ended.tandem("report", "--shadow")
    jobs = truth(ended)
    assert found["compared"] == len(JOBS)
    waits = [started - came for came, started, _, _ in jobs.values()]
    (waited, _), (completed, _) = (
        found["cases"]["happened"][name] for name in ("waitSeconds", "completionSeconds")
    )
    assert waited == pytest.approx(sum(waits) / len(waits), abs=1e-3)
    lasted = [finished - came for came, _, finished, _ in jobs.values()]
    assert completed == pytest.approx(sum(lasted) / len(lasted), abs=1e-3)

    first = min(came for came, *_ in jobs.values())
    trace = sorted(
        (
            TraceJob(name, came - first, gpus, max(1.0, finished - started), gpus_per_pod=gpus)
            for name, (came, started, finished, gpus) in jobs.items()
        ),
        key=lambda job: (job.submit_s, job.id),
    )
    outcome = run_profile(
        Setup(tuple(trace), (Nodes(2, 2), Nodes(1, 4))), load_profile("tandem")
    ).outcome
    simulated = float((outcome.end_s - outcome.submit_s).mean())
    assert found["cases"]["alone"]["completionSeconds"][0] == pytest.approx(simulated, abs=1e-3)


def test_why_says_of_a_waiting_pod_what_tandem_would_do(ended: Site) -> None:
    ended.submit("long", 4, None)
    ended.submit("next", 4, None)

    def state() -> dict[str, bool]:
        return {n: j.started_s is not None for n, j in ended.jobs().items() if j.ended_s is None}

    wait_until(lambda: len(state()) == 2 and any(state().values()), "one runs and one waits")
    (waits,) = [name for name, runs in state().items() if not runs]
    pods = ended.plane.get("pods", "-n", "default", "-l", f"job-name={waits[4:]}")["items"]
    found = ended.tandem("why", "--shadow", pods[0]["metadata"]["name"], "-n", "default")
    assert found["name"] == waits
    assert found["wouldDo"] == "wait"
    assert found["freeGpus"] == 4
