"""Reads from a Node's label how its GPUs are handed over."""

from __future__ import annotations

from tandem.contracts import names
from tandem.errors import TandemError
from tandem.kube.api import ClusterApi
from tandem.kube.errors import KubeError
from tandem.kube.resource import NODES

WAYS = ("environment", "dra", "dra-queue")


def labelled(api: ClusterApi, node: str) -> str:
    """Return what the label says; a Node without it has `environment`.

    Raises:
        TandemError: the Node cannot be read, or says something else. By a guess, its GPUs could be
            handed over in two ways.
    """
    try:
        labels = api.get(NODES, node)["metadata"].get("labels") or {}
    except KubeError as error:
        raise TandemError(f"How node {node} hands its GPUs over is not known: {error}") from error
    way = str(labels.get(names.HAND_OVER_LABEL, WAYS[0]))
    if way not in WAYS:
        raise TandemError(
            f"Node {node} has the label {names.HAND_OVER_LABEL}={way}.",
            f"Write {', '.join(WAYS[:-1])} or {WAYS[-1]}.",
        )
    return way
