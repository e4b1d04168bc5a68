"""The pods of one node, for the agent that runs there: who they are, and nothing else of them.

An agent may not read pods from the API server: RBAC knows no rights on the pods of one node, and
with the right on all pods come their environments. docs/decisions/0037 has the reasons.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from scheduler_extender.cluster.records import PodRecord, Record
from scheduler_extender.cluster.state import ClusterState
from tandem.contracts.nodepods import EndedContainer, NodeHolds, NodePod, NodePodList
from tandem.contracts.resources import Source

#: Pods of ours that have ended are listed for their containers' exit codes: the last ones.
ENDED_LISTED = 64
#: More pods than kubelet runs on a node.
PODS_LISTED = 1024


class NodePods:
    """Follows the state: which pods are on each node.

    `holds` says of a node by which way its GPUs are had.
    """

    def __init__(self, state: ClusterState) -> None:
        self.holds: Callable[[str], NodeHolds | None] = lambda _: None
        self._state = state
        self._nodes: dict[str, dict[str, PodRecord]] = {}
        state.followers.append(self.follow)

    def follow(self, record: Record, gone: bool) -> None:
        """Take in that a pod has changed, or is gone."""
        if not isinstance(record, PodRecord) or not record.pod.node_name:
            return
        pods = self._nodes.setdefault(record.pod.node_name, {})
        if gone or (record.pod.finished and not record.ours):
            pods.pop(record.uid, None)
            if not pods:
                del self._nodes[record.pod.node_name]
        else:
            pods[record.uid] = record

    def of(self, node: str) -> NodePodList:
        """Return what the agent of a node needs of its pods."""
        records = self._nodes.get(node, {}).values()
        ended = heapq.nlargest(
            ENDED_LISTED,
            (each for each in records if each.pod.finished),
            key=lambda each: each.pod.finished_at,
        )
        running = [each for each in records if not each.pod.finished][:PODS_LISTED]
        listed = sorted((*running, *ended), key=lambda one: one.key)
        pods = [self._listed(each) for each in listed]
        return NodePodList(pods=pods, holds=self.holds(node))

    def _listed(self, record: PodRecord) -> NodePod:
        pod = record.pod
        if not record.ours:
            return NodePod(namespace=pod.namespace, name=pod.name, uid=pod.uid)
        return NodePod(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            ours=True,
            job=record.gpujob[1],
            gpus=list(pod.devices),
            memory_bytes=self._placed_memory(record),
            addresses=list(pod.addresses),
            finished=pod.finished,
            ends=[
                EndedContainer(container=name, exit_code=code, finished_at=at, reason=reason)
                for name, code, at, reason in pod.ends
            ],
        )

    def _placed_memory(self, record: PodRecord) -> int | None:
        """Return the memory per GPU in bytes for which the pod was given its place, if known.

        A pod that was bound by an earlier version bears no note of it; what is believed of its job
        now takes the place. A load that stands for the whole GPU says nothing about the job's use.
        """
        placed = record.pod.placed_with
        if placed is not None:
            return placed.memory_bytes
        gang = self._state.gpu_jobs().get(record.gpujob)
        load = gang.status.load if gang is not None else None
        if load is None or load.memory_source is Source.WHOLE_GPU:
            return None
        return load.memory_p95_bytes


def node_pods_router(pods: NodePods) -> APIRouter:
    """Return the route that the process in front asks, which checks rights."""
    router = APIRouter()

    @router.get("/v1/node-pods")
    async def node_pods(node: str) -> JSONResponse:
        """List the pods of a node."""
        return JSONResponse(pods.of(node).wire())

    return router
