"""The check of levels of topology that come from Kueue (docs/operations.md#topology)."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.cli.doctor.cluster import Cluster
from tandem.cli.doctor.findings import Verdict, failed
from tandem.contracts.levels import LevelsError, levels_of
from tandem.kube.errors import Forbidden
from tandem.kube.resource import CONFIG_MAPS, KUEUE_TOPOLOGIES


def levels(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether the Topology is there that the extender's settings name, with levels for it.

    A part of the check of the scheduler: nothing is said where all is well, where the settings name
    none, or to callers who may read neither.
    """
    try:
        name = _named(cluster)
        if not name:
            return
        # As the extender looks for it: the newer version first.
        found = next(filter(None, (cluster.get(each, name) for each in KUEUE_TOPOLOGIES)), None)
    except Forbidden:
        return
    if found is not None:
        try:
            levels_of(found)
        except LevelsError as error:
            yield failed(
                f"the settings take the levels of topology from Kueue's Topology {name}, whose"
                f" levels cannot be used ({error}); those read before are in use, or those listed"
                " in admission.topology_levels",
                f"kubectl edit topologies.kueue.x-k8s.io {name}: name keys of labels of nodes,"
                " each once, widest first, 16 at most",
            )
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
