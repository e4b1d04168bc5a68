"""Checks of `mode: shadow`: the recorder, its rights, its record, and whether there are GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.cli.doctor.cluster import DEPLOYMENTS, Cluster
from tandem.cli.doctor.findings import Verdict, failed, ok, plural, some
from tandem.cli.doctor.nodes import trouble
from tandem.cli.doctor.platform import lacks
from tandem.contracts.shadow import DAY_S, config_map_name, day_in
from tandem.kube.resource import CONFIG_MAPS

COMPONENT = "shadow"
#: What the recorder could not do without, as (verb, group, resource, subresource).
RIGHTS = (
    ("watch", "", "pods", ""),
    ("watch", "", "nodes", ""),
)
#: The recorder writes every 5 minutes at the latest; after 15 the report shows a gap.
_LATE_S = 900.0


def caller(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether the caller may read the record."""
    if cluster.may("get", "configmaps", group="", namespace=cluster.namespace):
        yield ok("you may read the record")
    else:
        yield failed(
            f"you may not get configmaps in {cluster.namespace}, where the record is",
            f"kubectl create rolebinding NAME --clusterrole=view --user=YOU -n {cluster.namespace}",
        )


def account(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether RBAC lets the recorder see pods and nodes."""
    name = f"tandem-{COMPONENT}"
    if missing := lacks(cluster, cluster.namespace, name, RIGHTS):
        yield failed(
            f"{name} may not {some(missing)}",
            "restore the chart's roles and bindings: helm upgrade tandem helm/tandem"
            f" -n {cluster.namespace} --reuse-values",
        )
    else:
        yield ok("the recorder may watch pods and nodes")


def recorder(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether the recorder's pod runs."""
    name = f"tandem-{COMPONENT}"
    found = cluster.get(DEPLOYMENTS, name, cluster.namespace) or {}
    if (found.get("status") or {}).get("availableReplicas", 0):
        yield ok("it runs; another scheduler places all pods (mode: shadow)")
    else:
        yield failed(
            "its pod does not run, and what happens now is not recorded"
            f"{trouble(cluster, cluster.namespace, COMPONENT)}",
            f"kubectl describe pods -n {cluster.namespace}"
            f" -l app.kubernetes.io/component={COMPONENT}",
        )


def record(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether what is recorded is written, and can be read."""
    logs = f"kubectl logs -n {cluster.namespace} deployment/tandem-{COMPONENT}"
    today = int(cluster.server_s // DAY_S)
    saved_s = []
    for number in (today, today - 1):
        found = cluster.get(CONFIG_MAPS, config_map_name(number), cluster.namespace)
        if found is None:
            continue
        try:
            saved_s.append(day_in(found).saved_s)
        except ValueError as error:
            yield failed(f"{config_map_name(number)} cannot be read: {error}", logs)
            return
    if not saved_s:
        yield failed("nothing of today or yesterday is recorded", logs)
    elif (late_s := cluster.server_s - max(saved_s)) > _LATE_S:
        yield failed(f"the record was last written {late_s / 60:.0f} minutes ago", logs)
    else:
        yield ok("the record is written; `tandem report --shadow` reads it")


def gpu_nodes(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether nodes have GPUs of which pods can ask."""
    having = [node.name for node in cluster.nodes if node.handed_out]
    if having:
        yield ok(f"{plural(len(having), 'node')} with GPUs")
    else:
        yield failed(
            "no node has the resource nvidia.com/gpu: there is nothing to record",
            "install NVIDIA's device plugin, or its GPU operator",
        )
