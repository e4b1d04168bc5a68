"""Checks of nodes that hand GPUs over by ResourceClaims (docs/handover.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from tandem.cli.doctor.cluster import Cluster
from tandem.cli.doctor.findings import Verdict, failed, ok, some, warning
from tandem.contracts import claims as claims_contract
from tandem.contracts import names
from tandem.kube.client import Object
from tandem.kube.errors import Forbidden
from tandem.kube.resource import RESOURCE_CLAIMS, RESOURCE_SLICES, Resource

DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "DeviceClass", "deviceclasses", namespaced=False)


def claims(cluster: Cluster) -> Iterator[Verdict]:
    """Check whether jobs get claims for the nodes that need them, and whether drivers are there.

    A part of the check of GPUs: nothing is said where all is well.
    """
    yield from _unknown_ways(cluster)
    yield from _left(cluster)
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


def _unknown_ways(cluster: Cluster) -> Iterator[Verdict]:
    """Name the nodes whose label says what is no way of handing GPUs over."""
    for report in cluster.reports:
        if "HandOverKnown" in report.conditions:
            yield failed(
                f"{report.conditions['HandOverKnown']} Its GPUs stay as they are.",
                f"kubectl label node {report.node} {names.HAND_OVER_LABEL}=dra-queue --overwrite",
            )


def _left(cluster: Cluster) -> Iterator[Verdict]:
    """Say on which nodes that are moved away from claims pods still have some.

    The driver is to stay until the last of these pods has ended: without it, kubelet ends none.
    """
    if cluster.get(DEVICE_CLASSES, names.GROUP) is None:
        return
    try:
        held = Counter(chain.from_iterable(cluster.every(RESOURCE_CLAIMS, trim=_pools)))
        labels = {node.name: node.labels.get(names.HAND_OVER_LABEL) for node in cluster.nodes}
    except Forbidden:
        return
    by_claims = {report.node for report in cluster.reports if report.by_claims}
    label = names.HAND_OVER_LABEL
    if lost := sorted(n for n in held if n in labels and not labels[n] and n not in by_claims):
        yield failed(
            f"pods have GPUs by claims on {some(lost)}, where no driver of Tandem can take them"
            f" back: the label {label} is missing, so that these pods will not end",
            f"kubectl label node {lost[0]} {label}=environment",
        )
    leaving = sorted(node for node, way in labels.items() if way == "environment")
    if staying := [node for node in leaving if held[node]]:
        yield warning(
            f"{some(staying)}: {sum(held[node] for node in staying)} of the claims from before"
            f" {label}=environment have GPUs; the driver stays for them",
            "leave the label until doctor says that no claim is left",
        )
    if free := [node for node in leaving if not held[node]]:
        yield ok(f"{some(free)}: no claim has a GPU there, so the label {label} may be removed")


def _pools(item: Object) -> tuple[str, ...]:
    """Return the node of a claim that has GPUs of ours; () of any other."""
    found = claims_contract.read(item)
    return (found.node,) if found is not None and found.devices else ()


def _node(item: Object) -> str:
    """Return the node of a slice of ours, '' for one of another driver."""
    spec = item.get("spec") or {}
    return str(spec.get("nodeName") or "") if spec.get("driver") == names.GROUP else ""
