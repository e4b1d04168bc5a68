"""The commands on a real API server: through its proxy, and what the doctor says of it."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import onnx
import pytest
from cli_live import Forwarder, Live
from click.testing import Result
from question_table import commands, named, table
from typer.testing import CliRunner

from controlplane import binaries, wait_until
from tandem.cli.main import build_app
from tandem.cli.page import PageServer
from tandem.contracts import names
from tandem.errors import TandemError
from tandem.kube.client import KubeClient
from tandem.kube.tunnel import Tunnel

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("cli"),
]
NUMBERS = itertools.count()  # of namespaces: an earlier one may still be on its way out
PROXY = f"/api/v1/namespaces/{names.NAMESPACE}/services/{names.API_SERVICE}/proxy"


def run(kubeconfig: Path, *args: str) -> Result:
    return CliRunner().invoke(build_app(), [*args, "--kubeconfig", str(kubeconfig)])


@pytest.fixture
def team(live: Live) -> Iterator[str]:
    """A tenant's namespace with a job of one GPU."""
    name = f"team-{next(NUMBERS)}"
    live.plane.kubectl("create", "namespace", name)
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    wait_until(lambda: live.plane.http.get(account).is_success, f"{name} is set up")
    live.plane.apply(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "train", "namespace": name},
            "spec": {
                "template": {
                    "metadata": {"annotations": {names.MEMORY: "8Gi"}},
                    "spec": {
                        "restartPolicy": "Never",
                        "containers": [
                            {
                                "name": "train",
                                "image": "train:1",
                                "resources": {"limits": {names.RESOURCE: 1}},
                            }
                        ],
                    },
                }
            },
        }
    )
    running = ("get", "gpujobs", "-n", name, "-o", "jsonpath={.items[*].status.phase}")
    wait_until(lambda: live.plane.kubectl(*running) == "Running", "the job runs")
    yield name
    live.plane.kubectl("delete", "namespace", name, "--wait=false")


def test_people_read_through_the_api_servers_proxy_with_their_own_rights(
    live: Live, team: str
) -> None:
    plane = live.plane
    # An administrator, by a certificate: a token of tandem-reader is made on the way.
    answer = run(plane.kubeconfig(), "gpus", "--json")
    assert answer.exit_code == 0, answer.exception
    assert {gpu["gpu"] for gpu in json.loads(answer.stdout)["gpus"]} == {"GPU-n0-0", "GPU-n0-1"}
    # A tenant, by a token: the jobs of the own namespace and no other, and no GPUs.
    tenant = live.account(team, "ci")
    answer = run(tenant, "jobs", "-n", team, "--json")
    assert [job["name"] for job in json.loads(answer.stdout)["jobs"]] == ["job-train"]
    for refused in (("jobs", "-n", "default"), ("jobs",), ("gpus",)):
        answer = run(tenant, *refused)
        assert answer.exit_code == 1
        assert isinstance(answer.exception, TandemError)
        assert "you may not list" in answer.exception.message
    pod = plane.get("pods", "-n", team)["items"][0]["metadata"]["name"]
    assert "runs on n0" in run(tenant, "explain", f"{team}/{pod}").stdout
    # A tenant, by a certificate: what to do is said; with an account of the own namespace it works.
    plane.kubectl("create", "rolebinding", "ada", "-n", team, "--clusterrole=edit", "--user=ada")
    ada = plane.kubeconfig("ada", groups=["system:authenticated"])
    answer = run(ada, "jobs", "-n", team)
    assert isinstance(answer.exception, TandemError)
    assert "certificate and no token" in answer.exception.message
    assert "--account" in answer.exception.hint
    answer = run(ada, "jobs", "-n", team, "--account", f"{team}/ci", "--json")
    assert [job["name"] for job in json.loads(answer.stdout)["jobs"]] == ["job-train"]


def test_the_page_comes_through_the_api_servers_proxy(live: Live, team: str) -> None:
    def read(address: str) -> bytes:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return answer.read()

    def page(kubeconfig: Path, namespace: str = "") -> tuple[bytes, Any]:
        with PageServer(Tunnel(KubeClient.load(kubeconfig)), namespace=namespace) as server:
            server.start()
            views = server.address.replace("/status/", "/v1/status/")
            return read(server.address), json.loads(read(f"{views}jobs"))["view"]

    # A tenant sees the own namespace, by a token; an administrator all, by a certificate.
    for found, view in (page(live.account(team, "ci"), team), page(live.plane.kubeconfig())):
        assert b"<title>Tandem</title>" in found
        assert (team, "job-train") in {(row["namespace"], row["name"]) for row in view["rows"]}


def test_tokens_for_the_read_only_api_alone_show_the_events_of_a_job(live: Live, team: str) -> None:
    live.account(team, "ci")
    client = KubeClient.load(live.plane.kubeconfig())
    # A tenant's account, and `tandem-reader`, of which an administrator makes a token.
    for account in ((team, "ci"), None):
        tunnel = Tunnel(client, account=account)

        def reasons(tunnel: Tunnel = tunnel) -> set[str]:
            answer = tunnel.get(f"/v1/status/jobs/{team}/job-train/events")
            assert answer.status == 200, answer.body
            return {event["reason"] for event in answer.json()["events"]}

        wait_until(lambda: "SuccessfulCreate" in reasons(), "the Job's event is there")
    other = Tunnel(client, account=("default", "default"))
    assert other.get(f"/v1/status/jobs/{team}/job-train/events").status == 403


def test_models_are_pushed_and_asked_about_with_the_kubeconfig_alone(
    live: Live, team: str, tmp_path: Path
) -> None:
    """The commands of the README, as a tenant that may edit one namespace."""
    graph = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"
    file = tmp_path / "resnet50.onnx"
    file.write_bytes(graph.read_bytes())
    tenant = live.account(team, "editor", "edit")

    def done(*args: str) -> str:
        answer = run(tenant, *args)
        assert answer.exit_code == 0, answer.exception
        return answer.stdout

    pushed = json.loads(done("model", "push", str(file), "-n", team, "--json"))
    assert (pushed["namespace"], pushed["name"]) == (team, "resnet50")
    assert 25e6 < pushed["features"]["parameters"] < 26e6
    stored = live.plane.get("modelprofiles", "resnet50", "-n", team)
    assert stored["spec"]["fileBytes"] == pushed["fileBytes"]
    assert "resnet50" in done("model", "list", "-n", team)
    asked = json.loads(done("model", "show", "resnet50", "-n", team, "--json"))
    assert asked["features"] == pushed["features"]
    options = ("--batch-size", "32", "--gpu", "Tesla V100-SXM2-16GB", "--json")
    there = json.loads(done("predict", "--model", "resnet50", "-n", team, *options))
    here = json.loads(done("predict", str(file), *options))
    assert there["load"] == here["load"]
    # Another namespace's models are none of the tenant's; one that may view changes none.
    for refused in (
        ("model", "push", str(file), "-n", "default"),
        ("model", "show", "resnet50", "-n", "default"),
        ("predict", "--model", "resnet50", "-n", "default"),
    ):
        answer = run(tenant, *refused)
        assert isinstance(answer.exception, TandemError)
        assert "in default" in answer.exception.message
        assert "role" in answer.exception.hint
    viewer = live.account(team, "viewer")
    assert "resnet50" in run(viewer, "model", "list", "-n", team).stdout
    answer = run(viewer, "model", "delete", "resnet50", "-n", team)
    assert isinstance(answer.exception, TandemError)
    assert "you may not delete modelprofiles" in answer.exception.message
    done("model", "delete", "resnet50", "-n", team)
    answer = run(tenant, "model", "show", "resnet50", "-n", team)
    assert isinstance(answer.exception, TandemError)
    assert "no model 'resnet50'" in answer.exception.message
    # An administrator with a certificate does it by an account of Tandem's, or of the namespace.
    for account in ((), ("--account", f"{team}/editor")):
        for what in (("push", str(file)), ("delete", "resnet50")):
            answer = run(live.plane.kubeconfig(), "model", *what, "-n", team, *account)
            assert answer.exit_code == 0, answer.exception


@pytest.fixture
def metrics(live: Live) -> Iterator[None]:
    """Let the webhook's Service lead to the extender, as it does in a cluster."""
    public = urlsplit(live.installation.public_url).port
    assert public is not None
    ports = [{"port": 443}]
    metadata = {"name": "tandem-webhook", "namespace": names.NAMESPACE}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata}
    if not live.plane.kubectl("get", "service", "tandem-webhook", "-n", names.NAMESPACE,
                              "--ignore-not-found"):  # fmt: skip
        live.plane.apply(service | {"spec": {"ports": ports}})
    forwarder = Forwarder(public)
    live.lead_to(forwarder.port, "tandem-webhook", 443)
    yield
    forwarder.close()


@pytest.mark.usefixtures("metrics")
def test_kubectl_alone_answers_the_questions_of_the_page(live: Live) -> None:
    """A job runs in a namespace whose quota is 0 GPUs; another one wants more than there is."""
    plane = live.plane
    plane.kubectl("create", "namespace", "over")
    account = "/api/v1/namespaces/over/serviceaccounts/default"
    wait_until(lambda: plane.http.get(account).is_success, "the namespace is set up")
    for name, gpus, model in (("train", 1, {}), ("huge", 3, {names.MODEL: "gpt2"})):
        limits = {"limits": {names.RESOURCE: gpus}}
        container = {"name": "train", "image": "train:1", "resources": limits}
        template = {
            "metadata": {"annotations": {names.MEMORY: "8Gi", **model}},
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }
        plane.apply({"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": template},
                     "metadata": {"name": name, "namespace": "over"}})  # fmt: skip

    listed = ("get", "gpujobs", "-n", "over", "-o", "name")
    wait_until(lambda: plane.kubectl(*listed).count("job-") == 2, "both have a GPUJob")

    def asked(question: str, **placeholders: str) -> str:
        cell = table()[question][2]
        placed = {key.replace("_", "-"): name for key, name in placeholders.items()}
        said = []
        for command in commands(cell, "kubectl"):
            words = shlex.split(named(command, placed))[1:]
            scoped = "-A" in words or "--raw" in words or "gpunode" in " ".join(words)
            said.append(plane.kubectl(*words, *(() if scoped else ("-n", "over"))))
        return "\n".join(said)

    def holds(question: str, *words: str, **placeholders: str) -> None:
        wait_until(
            lambda: all(each in asked(question, **placeholders) for each in words),
            f"{question} is answered by {words}",
        )

    try:
        holds("Why does my job wait?", "It needs 3 GPUs on one node", job_NAME="job-huge")
        holds("When will it start?", "EXPECTED", "EXPECTED-BY", "job-huge", "Queued")
        holds("What slows it down?", "SLOWDOWN", "FIRST-NODE", " n0 ", "GPU-n0-0", NODE="n0")
        holds("Which GPUs are idle?", "IDLE", "Uuid:", "GPU-n0-1", NODE="n0")
        holds("Did sharing pay?", "SLOWDOWN", "job-train")
        holds("Why was it stopped?", "Decisions:", "Placed", job_NAME="job-train")
        holds("What load was predicted?", "Load:", "8589934592",
              job_NAME="job-train")  # fmt: skip
        holds("Is my model known?", "MODEL", "gpt2")
        holds("Which namespace is over quota?",
              'tandem_queue_quota_held_gpus{namespace="over"} 1.0',
              'tandem_queue_quota_gpus{namespace="over"} 0.0')  # fmt: skip
        holds("What is broken?", "HEALTHY", "REPORTED", "tandem-predictor")
    finally:
        plane.kubectl("delete", "namespace", "over", "--wait=false")


def test_the_next_three_steps_of_the_notes_do_what_they_say(live: Live, team: str) -> None:
    """Each command of the notes of `helm install`, as it stands there, in a shell."""
    plane = live.plane
    steps = live.installation.helm("get", "notes", "tandem").partition("The next three steps:")[2]
    commands = re.findall(r"(?m)^ {5}(\S.*)$", steps)
    assert len(commands) == 6
    programs = [Path(sys.executable).parent, binaries.require("kubectl").parent]
    environment = {
        **os.environ,
        "PATH": ":".join([*map(str, programs), os.environ["PATH"]]),
        "KUBECONFIG": str(plane.kubeconfig()),
    }

    def typed(command: str) -> str:
        command = command.replace("NODE", "n1").replace("NAMESPACE", team)
        answer = subprocess.run(
            ["bash", "-c", command], env=environment, capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, (command, answer.stdout, answer.stderr)
        return answer.stdout

    try:
        ready, doctor, nodes, taint, adopt, top = map(typed, commands)
    finally:
        plane.kubectl("taint", "nodes", "n1", f"{names.GPU_TAINT}:NoSchedule-")
    assert ready.count("successfully rolled out") == 2
    assert "failed" not in doctor
    assert "n0" in nodes
    assert "tainted" in taint
    assert "labeled" in adopt
    assert f"{team}/job-train" in top


def test_the_proxy_proves_nothing(live: Live) -> None:
    """Even an administrator gets no answer through it without a token that the extender sees."""
    for path in ("/v1/jobs", "/mutate", "/metrics", "/tunnel"):
        with pytest.raises(TandemError, match=r"Upgrade|unable to|426|rror"):
            live.plane.kubectl("get", "--raw", PROXY + path)
    outsider = live.plane.kubeconfig("mallory", groups=["outsiders"])
    answer = run(outsider, "jobs")
    assert isinstance(answer.exception, TandemError)


def test_a_service_in_the_extenders_place_is_sent_nothing(live: Live) -> None:
    """Whatever answers there: without the webhook's certificate it gets no token to see."""
    seen: list[str] = []

    class Impostor(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.extend(f"{name}: {value}" for name, value in self.headers.items())
            self.send_response(101)
            self.send_header("Connection", "Upgrade")
            self.send_header("Upgrade", names.UPGRADE)
            self.end_headers()
            seen.append(self.connection.recv(65536).decode("latin-1"))

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("0.0.0.0", 0), Impostor)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    kubeconfig = live.plane.service_account_kubeconfig(names.NAMESPACE, "tandem-reader")
    token = live.plane.service_account_token(names.NAMESPACE, "tandem-reader")
    live.lead_to(server.server_port)
    try:

        def reached() -> bool:
            answer = run(kubeconfig, "jobs", "--token", token)
            assert answer.exit_code == 1
            return bool(seen)

        wait_until(reached, "the proxy leads to the impostor")
    finally:
        server.shutdown()
        live.lead_to(live.port)
    # The API server keeps the Authorization header to itself, and TLS never came to a token.
    assert not any(line.lower().startswith("authorization") for line in seen)
    assert token not in "".join(seen)
    wait_until(lambda: run(kubeconfig, "jobs").exit_code == 0, "the extender is reached again")


def failures(live: Live) -> dict[str, str]:
    answer = run(live.plane.kubeconfig(), "doctor", "--json")
    assert answer.exception is None or isinstance(answer.exception, SystemExit), answer.exception
    said: dict[str, Any] = json.loads(answer.stdout)
    failed = {c["check"]: c["says"] for c in said["checks"] if c["outcome"] == "failed"}
    assert answer.exit_code == (1 if failed else 0)
    assert said["healthy"] is not bool(failed)
    return failed


def test_the_doctor_names_what_is_broken_in_turn(live: Live) -> None:
    plane = live.plane
    wait_until(lambda: failures(live) == {}, "nothing is wrong", timeout_s=60)
    node = plane.get("node", "n0")

    def step(
        check: str, words: str, break_it: Callable[[], object], mend: Callable[[], object]
    ) -> None:
        break_it()
        try:
            wait_until(lambda: check in failures(live), f"{check} fails", timeout_s=60)
            found = failures(live)
            assert set(found) == {check}
            assert words in found[check]
        finally:
            mend()
        wait_until(lambda: failures(live) == {}, f"{check} is mended", timeout_s=60)

    def kept(kind: str, name: str, *where: str) -> Callable[[], object]:
        found = plane.get(kind, name, *where)
        for field in ("resourceVersion", "uid", "creationTimestamp", "managedFields"):
            found["metadata"].pop(field, None)
        return lambda: plane.apply(found)

    def capacity(value: object) -> None:
        patch = {"status": {"capacity": {"nvidia.com/gpu": value}}}
        plane.kubectl(
            "patch", "node", "n0", "--subresource=status", "--type=merge", "-p", json.dumps(patch)
        )

    def label(value: str) -> None:
        plane.kubectl(
            "label", "namespace", names.AGENT_NAMESPACE, "--overwrite",
            f"pod-security.kubernetes.io/enforce={value}",
        )  # fmt: skip

    def delete(kind: str, name: str) -> Callable[[], object]:
        return lambda: plane.kubectl("delete", kind, name)

    assert node["metadata"]["labels"]["nvidia.com/gpu.present"] == "true"
    step("runtime class", "no runtime class nvidia", delete("runtimeclass", "nvidia"),
         kept("runtimeclass", "nvidia"))  # fmt: skip
    step("device plugin", "n0: 2 nvidia.com/gpu", lambda: capacity("2"), lambda: capacity(None))
    binding = "validatingadmissionpolicybinding"
    step("policies", "tandem-pods", delete(binding, "tandem-pods"), kept(binding, "tandem-pods"))
    step("accounts", "tandem-agent may not", delete("clusterrolebinding", "tandem-agent"),
         kept("clusterrolebinding", "tandem-agent"))  # fmt: skip
    step("priority class", "tandem-training", delete("priorityclass", "tandem-training"),
         kept("priorityclass", "tandem-training"))  # fmt: skip
    step("agents", "Pod Security restricted", lambda: label("restricted"),
         lambda: label("privileged"))  # fmt: skip
    scheduler = plane.processes[names.SCHEDULER_NAME]
    step("leader", "no scheduler leads", scheduler.terminate, scheduler.start)
    agent = plane.processes["agent-n0"]

    def silence() -> None:
        agent.terminate()
        plane.kubectl("delete", "gpunode", "n0")

    step("reports", "no report from n0", silence, agent.start)
