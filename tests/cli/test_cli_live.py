"""The commands on a real API server: through its proxy, and what the doctor says of it."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cli_live import Live
from click.testing import Result
from typer.testing import CliRunner

from tandem.cli.main import build_app
from tandem.contracts import names
from tandem.controlplane import wait_until
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


def test_the_proxy_proves_nothing(live: Live) -> None:
    """Even an administrator gets no answer through it without a token that the extender sees."""
    for path in ("/v1/jobs", "/mutate", "/metrics", "/tunnel"):
        with pytest.raises(TandemError, match=r"Upgrade|unable to|426|rror"):
            live.plane.kubectl("get", "--raw", PROXY + path)
    nobody = live.plane.kubeconfig("mallory", groups=["outsiders"])
    answer = run(nobody, "jobs")
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
    step("leader", "none", scheduler.terminate, scheduler.start)
    agent = plane.processes["agent-n0"]

    def silence() -> None:
        agent.terminate()
        plane.kubectl("delete", "gpunode", "n0")

    step("reports", "no report from n0", silence, agent.start)
