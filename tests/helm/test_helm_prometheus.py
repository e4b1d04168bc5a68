"""A real Prometheus scrapes the running services; every panel and every rule finds its series."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import onnx
import pytest
import yaml
from helm_cluster import ChartCluster
from helm_render import CHART

from controlplane import binaries, wait_until
from tandem.contracts import names
from tandem.errors import TandemError
from tandem.local.processes import free_port

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.slow,
    pytest.mark.xdist_group("helm"),
]
GRAPH = Path(onnx.__file__).parent / "backend/test/data/light/light_squeezenet.onnx"
READER = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: prometheus, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: metrics-reader}
rules: [{nonResourceURLs: [/metrics], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: metrics-reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: metrics-reader}
subjects: [{kind: ServiceAccount, name: prometheus, namespace: default}]
"""


class Prometheus:
    """Asks one Prometheus."""

    def __init__(self, port: int) -> None:
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", trust_env=False)

    def get(self, path: str, **query: str) -> Any:
        try:
            answer = self._http.get(path, params=query)
        except httpx.TransportError:
            return {}
        body = answer.json() if answer.content.startswith(b"{") else {}
        assert body.get("status", "success") == "success", body
        return body.get("data", {})

    def query(self, expression: str) -> list[dict[str, Any]]:
        return self.get("/query", query=expression).get("result", [])


def target(job: str, address: str, scheme: str = "http", **more: Any) -> dict[str, Any]:
    return {
        "job_name": job,
        "scheme": scheme,
        "static_configs": [{"targets": [address]}],
        **more,
    }


@pytest.fixture(scope="module")
def prometheus(installed: ChartCluster) -> Prometheus:
    """Prometheus with our rules, as the chart's monitors would set it up, and something to see."""
    program = binaries.find("prometheus")
    if program is None:
        pytest.skip("no prometheus on this machine: Debian's package of that name has it")
    plane, installation, folder = installed.plane, installed.installation, installed.folder
    plane.apply(READER)
    (folder / "token").write_text(plane.service_account_token("default", "prometheus"))
    secret = plane.get("secret", "tandem-webhook", "-n", names.NAMESPACE)
    (folder / "ca.crt").write_bytes(base64.b64decode(secret["data"]["ca.crt"]))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(CHART / "files" / "rules.yaml")],
        "scrape_configs": [
            target(
                "tandem-scheduler",
                installation.public_url.removeprefix("https://"),
                "https",
                tls_config={
                    "ca_file": str(folder / "ca.crt"),
                    "server_name": f"tandem-webhook.{names.NAMESPACE}.svc",
                },
            ),
            target(
                "tandem-kube-scheduler",
                plane.scheduler_url(names.SCHEDULER_NAME).removeprefix("https://"),
                "https",
                tls_config={"insecure_skip_verify": True},
                authorization={"credentials_file": str(folder / "token")},
            ),
            target("tandem-predictor", installation.predictor_url.removeprefix("http://")),
            target("tandem-agent", installation.agent_url("n0").removeprefix("http://")),
        ],
    }
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    port = free_port()
    plane.run(
        "prometheus",
        [
            program,
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
    )
    # No kubelet says so here, and the services that stand for these pods run.
    ready = json.dumps({"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    for pod in plane.get("pods", "-n", names.NAMESPACE)["items"]:
        plane.kubectl(
            "patch", "pod", pod["metadata"]["name"], "-n", names.NAMESPACE,
            "--subresource=status", "--type=merge", "-p", ready,
        )  # fmt: skip
    team = installed.team()
    pushed = httpx.post(
        f"{installation.predictor_url}/v1/models",
        params={"name": "squeezenet", "namespace": team},
        content=GRAPH.read_bytes(),
        headers={"authorization": f"Bearer {installation.predictor_token()}"},
        trust_env=False,
        timeout=60,
    )
    assert pushed.status_code == 201, pushed.text
    installed.submit(team, "seen")
    installed.keep_busy(installed.await_run(team, "seen"))
    # One counts only from its second scrape.
    found = Prometheus(port)
    wait_until(
        lambda: (
            found.query("rate(tandem_extender_bindings_total[1m]) > 0")
            or installed.submit(team, f"another-{free_port()}")
        ),
        "a binding is counted",
        timeout_s=180,
        poll_s=10,
    )
    return found


def test_every_target_is_up(prometheus: Prometheus) -> None:
    def down() -> dict[str, str]:
        targets = prometheus.get("/targets").get("activeTargets", [])
        return {t["labels"]["job"]: t["lastError"] for t in targets if t["health"] != "up"}

    wait_until(lambda: not down(), "all targets are up")
    assert len(prometheus.query("up == 1")) == 4


def substituted(query: str) -> str:
    """Return a query as Grafana sends it when nothing was chosen."""
    for name, value in (("__rate_interval", "5m"), ("node", ".*"), ("namespace", ".*")):
        query = query.replace(f"${name}", value)
    return query


@pytest.mark.parametrize("path", sorted(CHART.glob("dashboards/*.json")), ids=lambda p: p.stem)
def test_every_variable_has_values_to_choose_from(prometheus: Prometheus, path: Path) -> None:
    for variable in json.loads(path.read_text())["templating"]["list"]:
        if variable["type"] != "query" or variable["name"] == "namespace":  # of quotas: none here
            continue
        query = variable["query"]["query"].removeprefix("label_values(").removesuffix(")")
        metric, label = query.split(", ")
        assert any(label in found["metric"] for found in prometheus.query(metric)), query


@pytest.mark.parametrize("path", sorted(CHART.glob("dashboards/*.json")), ids=lambda p: p.stem)
def test_every_panel_shows_something(prometheus: Prometheus, path: Path) -> None:
    queries = [
        substituted(target["expr"])
        for panel in json.loads(path.read_text())["panels"]
        for target in panel["targets"]
    ]
    assert len(queries) >= 6

    def empty() -> list[str]:
        return [query for query in queries if not prometheus.query(query)]

    with contextlib.suppress(TandemError):  # the assertion tells which
        wait_until(lambda: not empty(), f"every query of {path.stem} returns data", poll_s=1)
    assert empty() == []


def test_every_rule_can_be_evaluated(prometheus: Prometheus) -> None:
    groups = prometheus.get("/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 15
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}
    # A machine that is busy may be late with an answer for a moment.
    firing = partial(prometheus.query, 'ALERTS{alertstate="firing"}')
    wait_until(lambda: firing() == [], "no alert fires", timeout_s=120)


def test_what_the_services_expose_is_sound_by_promtool(
    prometheus: Prometheus, cluster: ChartCluster
) -> None:
    installation = cluster.installation
    for url in (
        installation.verbs_url,
        installation.predictor_url,
        installation.agent_url("n0"),
    ):
        text = httpx.get(f"{url}/metrics", trust_env=False).content
        answer = subprocess.run(
            [binaries.require("promtool"), "check", "metrics"],
            input=text,
            capture_output=True,
            check=False,
        )
        assert answer.returncode == 0, f"{url}: {answer.stdout!r} {answer.stderr!r}"


def test_five_hundred_nodes_have_at_most_twenty_series_each(prometheus: Prometheus) -> None:
    """Counted at a node of eight GPUs; what the services have does not grow with nodes."""
    found = {
        series["metric"]["job"]: int(series["value"][1])
        for series in prometheus.query("count by (job) ({__name__=~'(tandem|process|python)_.*'})")
    }
    rules = int(prometheus.query("count({__name__=~'(cluster|verb):.*'})")[0]["value"][1])
    (queues,) = prometheus.query("count(tandem_extender_waiting_jobs)")
    nodes, replicas, predictors = 500, 2, 2
    everything = (
        nodes * found["tandem-agent"]
        + replicas * found["tandem-scheduler"]
        + predictors * found["tandem-predictor"]
        + rules
    )
    print(f"{found}, {rules} of rules: {everything / nodes:.1f} a node of {nodes}")
    assert found["tandem-agent"] <= 20
    assert everything <= 20 * nodes + 50 * int(queues["value"][1])
