"""Checks of nodes that hand GPUs over by ResourceClaims (docs/handover.md)."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.cli.doctor.cluster import Cluster
from tandem.cli.doctor.findings import Verdict, failed, some
from tandem.contracts import names
from tandem.kube.client import Object
from tandem.kube.resource import RESOURCE_SLICES, Resource

DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "DeviceClass", "deviceclasses", namespaced=False)


def claims(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether jobs get claims for the nodes that need them, and whether drivers are there.

    A part of the check of GPUs: nothing is said where all is well.
    """
    queued = {report.node for report in cluster.reports if report.by_claims == "queue"}
    ours = queued | {report.node for report in cluster.reports if report.by_claims}
    if not ours:
        return
    if queued and cluster.get(DEVICE_CLASSES, names.QUEUE_CLASS) is None:
        yield failed(
            f"jobs get no ResourceClaims, so that none goes to {some(sorted(queued))}",
            f"helm upgrade tandem helm/tandem -n {cluster.namespace} --reuse-values --set"
            " scheduler.extender.config.admission.gpu_claims=true",
        )
    published = {node for node in cluster.every(RESOURCE_SLICES, trim=_node) if node}
    if silent := sorted(ours - published):
        yield failed(
            f"no DRA driver of Tandem publishes the GPUs of {some(silent)}, where pods with GPUs do"
            " not start",
            f"helm upgrade tandem helm/tandem -n {cluster.namespace} --reuse-values --set"
            f" dra.enabled=true; then: kubectl logs -n {cluster.agents} daemonset/tandem-dra",
        )


def _node(item: Object) -> str:
    """Return the node of a slice of ours, '' for one of another driver."""
    spec = item.get("spec") or {}
    return str(spec.get("nodeName") or "") if spec.get("driver") == names.GROUP else ""
