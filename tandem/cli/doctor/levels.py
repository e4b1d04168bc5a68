"""The check of levels of topology that come from Kueue (docs/operations.md#topology)."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.cli.doctor.cluster import Cluster
from tandem.cli.doctor.findings import Verdict, failed
from tandem.kube.errors import Forbidden
from tandem.kube.resource import CONFIG_MAPS, KUEUE_TOPOLOGIES


def levels(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether the Topology is there that the extender's settings name.

    A part of the check of the scheduler: nothing is said where all is well, where the settings name
    none, or to callers who may read neither.
    """
    try:
        name = _named(cluster)
        if not name or any(cluster.get(resource, name) for resource in KUEUE_TOPOLOGIES):
            return
    except Forbidden:
        return
    yield failed(
        f"the settings take the levels of topology from Kueue's Topology {name}, which does not"
        " exist; those listed in admission.topology_levels are in use",
        f"create it, or: helm upgrade tandem helm/tandem -n {cluster.namespace} --reuse-values"
        " --set scheduler.extender.config.admission.topology_from=NAME; kubectl get"
        " topologies.kueue.x-k8s.io shows those that there are",
    )


def _named(cluster: Cluster) -> str:
    """Return the name of the Topology in the extender's settings, '' where they name none."""
    import yaml

    found = cluster.get(CONFIG_MAPS, "tandem-scheduler", cluster.namespace) or {}
    try:
        settings = yaml.safe_load((found.get("data") or {}).get("extender.yaml") or "")
        return str(settings["admission"]["topology_from"] or "")
    except (yaml.YAMLError, KeyError, TypeError):
        return ""
