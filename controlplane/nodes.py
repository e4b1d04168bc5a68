"""Nodes for kwok to play: what they look like and how many are made at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx

from tandem.errors import TandemError

#: The annotation of the nodes that kwok plays; it leaves all others to their kubelets.
KWOK_NODE = "kwok.tandem.gpu/node"

_PARALLEL_REQUESTS = 8


@dataclass(frozen=True)
class Node:
    """A node. Taints are written as kubectl does, `key=value:Effect` or `key:Effect`.

    `extended`: further resources, which a node keeps as it was created with them.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    cpu: str | int = 64
    memory: str = "256Gi"
    pods: int = 110
    taints: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    extended: Mapping[str, str | int] = field(default_factory=dict)

    def manifest(self) -> dict[str, Any]:
        """Return the Node object."""
        resources = {"cpu": self.cpu, "memory": self.memory, "pods": self.pods, **self.extended}
        quantities = {name: str(value) for name, value in resources.items()}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self.name,
                "labels": {
                    "kubernetes.io/hostname": self.name,
                    "kubernetes.io/os": "linux",
                    **self.labels,
                },
                "annotations": {KWOK_NODE: "true", **self.annotations},
            },
            "spec": {"taints": [_taint(taint) for taint in self.taints]},
            "status": {
                "capacity": quantities,
                "allocatable": quantities,
                # Ready from the start: kwok would see to it, at one more write for each node.
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            },
        }


def _taint(text: str) -> dict[str, str]:
    pair, effect = text.rsplit(":", 1)
    key, _, value = pair.partition("=")
    return {"key": key, "effect": effect} | ({"value": value} if value else {})


def create_nodes(http: httpx.Client, nodes: Iterable[Node]) -> None:
    """Create all nodes through an administrator's client."""

    def create(node: Node) -> None:
        answer = http.post("/api/v1/nodes", json=node.manifest())
        if answer.is_error:
            raise TandemError(f"node {node.name} was refused: {answer.json()['message']}")

    with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
        for _ in pool.map(create, nodes):
            pass  # asking for a result raises what went wrong
