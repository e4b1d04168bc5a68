"""The reference pages of docs/ that follow from code and chart: rights, metrics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector, CollectorRegistry

from node_agent.config import AgentSettings
from node_agent.metrics import AgentCollector, ProcessFigures
from node_agent.monitor import Monitor
from predictor.service.metrics import Metrics as PredictorMetrics
from scheduler_extender.cluster.kinds import shipped
from scheduler_extender.config import ExtenderConfig
from scheduler_extender.serving.service import running

_RIGHTS = Path(__file__).parent / "tandem" / "files" / "rights.yaml"
_ACCOUNTS = {
    "scheduler": "`tandem-scheduler` in the namespace of the release",
    "agent": "`tandem-agent` in `tandem-agents`",
    "dra": "`tandem-dra` in `tandem-agents`, with `dra.enabled`",
    "predictor": "`tandem-predictor` in the namespace of the release",
    "notifications": "`tandem-notifications` in the namespace of the release,"
    " with `monitoring.notifications.enabled`",
    "shadow": "`tandem-shadow` in the namespace of the release, alone, with `mode: shadow`",
}
_UNLESS = {
    "": "",
    "certManager": "; not with cert-manager",
    "attach": "; not with a scheduler of yours",
    "noClaims": "; only with `admission.gpu_claims`",
    "noKueue": "; only with `admission.topology_from`",
}
_TOGETHER = {
    "indexed-job": "with `completionMode: Indexed` all, else each alone",
    "job-set": "all that `dependsOn` and `startupPolicy` let exist",
    "replica-specs": "all",
    "leader-worker-set": "each group; with `LeaderReady` the leader first",
}
_WORKLOADS = Path(__file__).parent / "workloads.template.md"
_ROOT = Path(__file__).resolve().parents[1]
_OUTCOMES = _ROOT / "docs" / "workloads.json"
_SHOWN = {"passed": "yes", "failed": "no", "not run": ""}
_METRICS_HEAD = """# Metrics

Made of the code by `python helm/generate.py`. Base units; no label grows with the number of pods.
`UUID` is spelt as dcgm-exporter spells it, so that series join on it. Rules and alerts are in
`helm/tandem/files/rules.yaml`; what to do about each alert is in [operations.md](operations.md).
A histogram has the series `_bucket`, `_sum` and `_count`.

## How many series

A cluster has at most 20 series for each node and 50 for each queue by attained service. All that
Tandem exposes is counted, the figures of the processes themselves included; what Prometheus adds to
each target (`up` and four more) and kube-scheduler's own series are not.

- An agent has 18, whatever the number of its node's GPUs and jobs, and one more for each kind of
  Xid or failed call of NVML. With `agent.config.metrics.detail: gpu` come about 10 for each GPU and
  4 for each job on one: for clusters without dcgm-exporter, or while something is looked into.
- Each replica of the extender has about 220, whatever the number of nodes, pods and jobs, one of
  them for each queue; the predictor has as many.
"""
_RIGHTS_HEAD = """# Who may do what

Made of `helm/tandem/files/rights.yaml`, from which the chart makes its roles, by
`python helm/generate.py`. There is one account for each kind of pod, and no wildcard. What RBAC
cannot say, admission policies do: an agent writes the GPUNode of its own node only, custom
resources are written by the account whose they are, and assignments and gates by Tandem alone.
"""
_TENANTS = """
## Tenants

The ClusterRole `tandem-view` (get, list and watch of `gpujobs`, `gpunodes`, `modelprofiles` and
`events`) is joined to Kubernetes' own `view`, `edit` and `admin`: a user who may view a namespace
sees its jobs and models. The ClusterRole `tandem-edit` (create, update and delete of
`modelprofiles`) is joined to `edit` and `admin`: a user who may edit a namespace pushes and deletes
its models through the predictor, which asks the API server for these rights. An admission policy
refuses every other write of the three kinds.

The group `system:authenticated` (`access.groups`) gets the roles `tandem-api`: `get` of
`services/proxy` of the Service `tandem-api`, and `get` of the MutatingWebhookConfiguration
`tandem`. They open a connection to the read-only API and tell by which authority the extender is
known. What a caller sees there is decided by the caller's own rights on `gpujobs`, `gpunodes` and
`events`. The account `tandem-reader` has the role `tandem-view` in the whole cluster and no pod:
its tokens are for those who may make one (`create` of `serviceaccounts/token`), such as
administrators. The account `tandem-editor` has the role `tandem-edit` in the same way: by it, an
administrator whose kubeconfig has a certificate pushes and deletes models. A user who may make
its tokens may make those of scheduler and predictor as well, which have more rights.
"""


def rights() -> str:
    """Return the page on the accounts' rights."""
    lines = [_RIGHTS_HEAD]
    for component, given in yaml.safe_load(_RIGHTS.read_text()).items():
        lines += [
            f"\n## {_ACCOUNTS[component]}\n",
            "| where | what | verbs | why |",
            "|---|---|---|---|",
        ]
        for where, words in (("cluster", "everywhere"), ("namespace", "its namespace")):
            lines += [_right(words, rule) for rule in given.get(where, ())]
            if (component, where) == ("scheduler", "cluster"):
                lines += [_right(words, rule) for rule in _of_kinds()]
        lines += [
            f"| everywhere | the role `{bound['role']}` | | {_why(bound)} |"
            for bound in given.get("bound", ())
        ]
    return "\n".join(lines) + "\n" + _TENANTS


def _of_kinds() -> Iterator[dict[str, Any]]:
    """Yield the rights on kinds of workloads, as templates/rbac.yaml makes them."""
    for kind in shipped():
        if kind.plural and kind.read and kind.group != "batch":
            why = "how many pods of it start together"
            suspends = "; suspends one while others have its GPUs" if kind.suspend else ""
            scales = (
                "; gives an elastic one fewer pods before others are stopped" if kind.scale else ""
            )
            yield {
                "apiGroups": [kind.group],
                "resources": [kind.plural],
                "verbs": ["get", "patch"] if kind.suspend or kind.scale else ["get"],
                "why": why + suspends + scales,
            }


def workloads() -> str:
    """Return the page on kinds of workloads."""
    lines = []
    for kind in shipped():
        least = f"`{'.'.join(kind.minimum)}` of them" if kind.minimum else ""
        together = (
            f"{_TOGETHER[kind.reader]}, or {least} where it says so"
            if kind.reader and least
            else _TOGETHER[kind.reader]
            if kind.reader
            else "as those of its Jobs"
            if kind.kind == "CronJob"
            else "each alone"
            if not (kind.roles or kind.minimum)
            else least or "all"
        )
        gives_up = (
            f"`{'.'.join(kind.suspend)}`"
            + (", an elastic one first by `replicas`" * bool(kind.scale))
            if kind.suspend
            else "as its Jobs do"
            if kind.kind == "CronJob"
            else "its pods are evicted"
            if kind.restarts
            else "never"
        )
        checked = ", ".join(f"`{'.'.join(way)}`" for way in kind.templates) or "with the pods"
        lines.append(
            f"| {kind.kind} | {kind.group or 'core'} | {checked} | {together} | {gives_up} |"
        )
    page = _WORKLOADS.read_text().replace("{rows}", "\n".join(lines))
    return page.replace("{cells}", _cells()).replace("{manifests}", _manifests())


def _ran() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(_OUTCOMES.read_text())
    return found


def _cells() -> str:
    """Return the table of what the tests with the kinds' own controllers have shown."""
    ran = _ran()
    cells = list(ran[0]["cells"])
    lines = [f"| kind | controller | {' | '.join(cells)} |", "|---" * (len(cells) + 2) + "|"]
    notes: list[str] = []

    def shown(outcome: str) -> str:
        if outcome in _SHOWN:
            return _SHOWN[outcome]
        if outcome not in notes:
            notes.append(outcome)
        return f"- ({notes.index(outcome) + 1})"

    for row in ran:
        outcomes = " | ".join(map(shown, row["cells"].values()))
        lines.append(f"| {row['kind']} | {row['controller']} | {outcomes} |")
    noted = [f"{number}. {note}" for number, note in enumerate(notes, start=1)]
    return "\n".join([*lines, "", *noted])


def _manifests() -> str:
    folder = _ROOT / "deploy" / "examples" / "kinds"
    return "\n\n".join(
        f"### {row['kind']}\n\n```yaml\n{(folder / row['manifest']).read_text()}```"
        for row in _ran()
        if row["manifest"]
    )


def _right(where: str, rule: dict[str, Any]) -> str:
    group = rule["apiGroups"][0]
    what = ", ".join(
        f"`{resource}{'.' + group if group else ''}`" for resource in rule["resources"]
    )
    if only := rule.get("resourceNames"):
        what += " named " + ", ".join(f"`{name}`" for name in only)
    return f"| {where} | {what} | {', '.join(rule['verbs'])} | {_why(rule)} |"


def _why(right: dict[str, Any]) -> str:
    return str(right["why"]) + _UNLESS[right.get("unless", "")]


def metrics() -> str:
    """Return the page on what the services tell Prometheus."""
    lines = [_METRICS_HEAD]
    for title, where, collectors in _services():
        lines += [
            f"\n## {title}\n",
            f"{where}\n",
            "| metric | type | labels | meaning |",
            "|---|---|---|---|",
        ]
        families = {family[0]: family for family in _families(collectors)}
        for name, kind, labels, text in sorted(families.values()):
            shown = ", ".join(f"`{label}`" for label in labels)
            only = " With `metrics.detail: gpu`." if name in _DETAIL else ""
            lines.append(f"| `{name}` | {kind} | {shown} | {text}{only} |")
    return "\n".join(lines) + "\n"


def _services() -> Iterator[tuple[str, str, list[Collector]]]:
    yield (
        "Scheduler extender",
        "At `/metrics` of the Service `tandem-webhook` (HTTPS). kube-scheduler in the same pod"
        " serves its own on port 10259.",
        asyncio.run(_of_extender()),
    )
    yield (
        "Node agent",
        "At `/metrics` of port 9405 of each node with an agent.",
        [_of_agent(), ProcessFigures()],
    )
    yield (
        "Predictor",
        "At `/metrics` of the Service `tandem-predictor`, port 8090.",
        _collectors(PredictorMetrics()._registry),
    )


async def _of_extender() -> list[Collector]:
    config = ExtenderConfig.model_validate({"api": "memory", "leader": {"always": True}})
    async with running(config) as service:
        return _collectors(service.metrics.registry)


def _of_agent(*, detail: bool = True) -> AgentCollector:
    # A monitor that has read nothing: no GPU is needed to tell the names.
    monitor = Monitor(AgentSettings(node="n"))
    return AgentCollector(
        node="",
        latest=lambda: None,
        monitor=monitor,
        publisher=SimpleNamespace(written=0, failed=0, last_written_s=0.0),  # type: ignore[arg-type] # as above
        detail=detail,
    )


def _collectors(registry: CollectorRegistry) -> list[Collector]:
    # The registry gives no list of its collectors, and what has no series yet is in no exposition.
    return list(registry._collector_to_names)


def _families(collectors: Iterable[Collector]) -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    for collector in collectors:
        described = (
            [(family, collector._labelnames) for family in collector.describe()]
            if isinstance(collector, MetricWrapperBase)
            else [(family, getattr(family, "_labelnames", ())) for family in collector.collect()]
        )
        for family, labels in described:
            name = f"{family.name}_total" if family.type == "counter" else family.name
            yield name, family.type, tuple(labels), family.documentation


#: What the agent tells only where each GPU is asked for.
_DETAIL = {family[0] for family in _families([_of_agent()])} - {
    family[0] for family in _families([_of_agent(detail=False)])
}
