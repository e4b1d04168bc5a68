"""The read-only API: GPUs, jobs, and why a pod waits or is where it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from fastapi import APIRouter, Depends, Response
from fastapi.responses import JSONResponse, StreamingResponse

from scheduler_extender.cluster.feed import Feed
from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.cluster.records import GpuNodeRecord, PodRecord
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.planning import explaining
from scheduler_extender.serving.metrics import CONTENT_TYPE, Metrics
from scheduler_extender.serving.parameters import known_parameters
from scheduler_extender.verbs.answers import node_reason
from tandem.contracts.prediction import ErrorBody
from tandem.contracts.resources import GPUJobStatus
from tandem.policy.job import Job
from tandem.policy.pipeline import Pipeline, refusals, wanted
from tandem.reasons.causes import Cause, Reason
from tandem.reasons.words import WORDS, briefly, clause, in_common, in_full

#: Lines per turn of the event loop; a verb waits for no more than one such piece.
_PIECE = 25
_NODES_EXPLAINED = 20
_UNPREDICTED = "its load is being predicted; then it is put in the queue"

Line = dict[str, Any]


def health_router(
    feed: Feed, metrics: Metrics, served: Callable[[], bool] = lambda: True
) -> APIRouter:
    """Return the probes and the metrics; `served` says whether the public port is served."""
    router = APIRouter(tags=["operation"])

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Answer while the event loop turns."""
        return {"status": "ok"}

    @router.get("/readyz", responses={503: {"model": ErrorBody}})
    async def readyz() -> Response:
        """Answer 200 once the cluster has been read and the public port is served."""
        if not served():
            return JSONResponse(ErrorBody(error="the public port is not served yet").wire(), 503)
        if feed.ready:
            return JSONResponse({"status": "ready"})
        return JSONResponse(ErrorBody(error="the cluster has not been read yet").wire(), 503)

    @router.get("/metrics")
    async def exposition() -> Response:
        """Tell Prometheus."""
        return Response(metrics.exposition(), media_type=CONTENT_TYPE)

    return router


def read_router(
    state: ClusterState,
    pipeline: Pipeline,
    agent_answers: Callable[[str], bool] = lambda _: True,
) -> APIRouter:
    """Return the routes under /v1. In a cluster, `front.py` asks them, for whom it has checked.

    `agent_answers` says of a node whether its agent answers, as far as is known.
    """
    router = APIRouter(prefix="/v1", tags=["read-only"], dependencies=[Depends(known_parameters())])

    @router.get("/gpus")
    async def gpus(node: str | None = None) -> StreamingResponse:
        """List GPUs with what holds them, those of one node or all."""
        reports = state.gpu_nodes()
        wanted = [node] if node is not None else sorted(name for _, name in reports)
        found = (reports[key] for key in (("", name) for name in wanted) if key in reports)
        return _listed(
            "gpus",
            (
                gpu
                for report in found
                for gpu in _gpus_of(state, report, answers=agent_answers(report.name))
            ),
        )

    @router.get("/jobs")
    async def jobs(namespace: str | None = None) -> StreamingResponse:
        """List GPUJobs with the places of their pods, those of one namespace or all."""
        keys = sorted(k for k in state.gpu_jobs() if namespace is None or k[0] == namespace)
        return _listed("jobs", (_job(state, key) for key in keys if key in state.gpu_jobs()))

    @router.get("/explain/{namespace}/{pod}", responses={404: {"model": ErrorBody}})
    async def explain(namespace: str, pod: str, nodes: bool = True) -> Response:
        """Say where a pod is, or what keeps it off each node; `nodes` says whether to name them."""
        record = state.pod_named(namespace, pod)
        if record is None or not record.ours:
            error = ErrorBody(
                error=f"no pod {namespace}/{pod} that asks for GPUs of Tandem",
                hint="kubectl get pods shows what there is",
            )
            return JSONResponse(error.wire(), 404)
        return JSONResponse(explanation(state, pipeline, record, names_nodes=nodes))

    return router


def explanation(
    state: ClusterState, pipeline: Pipeline, record: PodRecord, *, names_nodes: bool = True
) -> Line:
    """Return what is known of a pod: its load, its place, and what refuses how many GPUs.

    With `names_nodes`, also the reasons of up to 20 nodes by name. What a node is called, and which
    GPUs it has, is for readers of GPUNodes; a tenant knows the GPUs of its own pods alone.
    """
    pod, worker = record.pod, state.worker(record.pod)
    gang = state.gpu_jobs().get(record.gpujob)
    status = gang.status if gang else GPUJobStatus()
    held = state.ledger.held(record.uid)
    causes, found_at = tuple(status.causes), status.found_at
    nodes: list[Line] = []
    reasons: list[Line] = []
    if not pod.node_name:
        reasons, found = _reasons(state, pipeline, record, worker)
        current = up_to_date(causes, found)
        if current is not causes:
            causes, found_at = current, rfc3339(state.now_s)

    def models(node: str) -> list[str]:
        report = state.gpu_nodes().get(("", node))
        return sorted({kind.model for _, _, kind in report.named}) if report else []

    if not pod.node_name and names_nodes:
        shown = state.table.sorted_names[:_NODES_EXPLAINED]
        for name, lacking in zip(shown, state.nodes_for(pod).lacking(0), strict=False):
            rows = state.table.rows(name)
            left = state.ledger.without(rows, frozenset((record.uid,)))
            ids = [state.table.gpu_ids[row] for row in rows.tolist()]
            names = [state.gpu_name(name, uuid) for uuid in ids]
            evaluation = pipeline.evaluate(worker, left)
            allowed = evaluation.allowed
            nodes.append(
                {
                    "node": name,
                    "models": models(name),
                    "fits": bool(allowed.sum() >= pod.gpus and lacking is None),
                    "gpus": [gpu for gpu, fine in zip(ids, allowed, strict=True) if fine],
                    "gpuNames": [gpu for gpu, fine in zip(names, allowed, strict=True) if fine],
                    "reason": clause(lacking)
                    if lacking is not None
                    else node_reason(
                        worker, left, pipeline.constraints, evaluation.refused_by, names
                    ),
                }
            )
    return {
        "namespace": record.namespace,
        "pod": record.name,
        "job": record.gpujob[1],
        "phase": status.phase.value if gang else None,
        "message": (in_full(causes) if causes else _message(status)) if gang else "",
        "causes": [each.wire() for each in causes],
        "foundAt": found_at,
        "position": status.position,
        "expectedStart": _expected(status),
        "node": pod.node_name or None,
        "gpus": list(pod.devices),
        "gpuNames": [state.gpu_name(pod.node_name, uuid) for uuid in pod.devices],
        "gated": pod.gated,
        "held": held and {"why": held[0].name.lower(), "node": held[1].node,
                          "gpus": list(held[1].gpus)},
        "here": _here(state, pipeline, record, worker),
        "prediction": explaining.prediction(status),
        "memoryLimitGib": state.memory_limit_gib(pod),
        "observed": status.observed.wire() if status.observed else None,
        "decisions": [decision.wire() for decision in reversed(status.decisions)],
        "worker": {
            "gpus": pod.gpus,
            "memoryBaseGib": worker.memory_base_gib,
            "memoryPeakGib": worker.memory_peak_gib,
            "peakProbability": worker.peak_probability,
            "utilisationPercent": worker.gpu_utilisation,
            "exclusive": worker.exclusive,
        },
        "reasons": reasons,
        "nodes": nodes,
        "nodesNotShown": len(state.table.sorted_names) - len(nodes) if not pod.node_name else 0,
    }  # fmt: skip


#: What a look at the cluster finds out anew; the rest is known from the last cycle alone.
_SEEN_NOW = frozenset(
    reason for reason, words in WORDS.items() if words.of or reason is Reason.NEEDS_GPUS
)


#: The look is at one pod on GPUs as they are: whether an empty cluster would hold all, it does not
#: say.
_TOO_LARGE = frozenset({Reason.NODES_TOO_SMALL, Reason.CLUSTER_TOO_SMALL, Reason.DOMAINS_TOO_SMALL})


def up_to_date(said: tuple[Cause, ...], found: tuple[Cause, ...]) -> tuple[Cause, ...]:
    """Return why a pod waits, in one version: what can be seen now replaces what was said of it.

    `said` is what the last cycle has written, `found` what GPUs and nodes say now.
    """
    others = tuple(each for each in said if each.reason not in _SEEN_NOW)
    if len(others) == len(said) or not _TOO_LARGE.isdisjoint(each.reason for each in said):
        return said
    lacks = any(each.reason is not Reason.NEEDS_GPUS for each in found)
    return (*found, *others) if lacks else (Cause(Reason.PLACE_FREE), *others)


def _reasons(
    state: ClusterState, pipeline: Pipeline, record: PodRecord, worker: Job
) -> tuple[list[Line], tuple[Cause, ...]]:
    """Return how many GPUs on how many nodes refuse a pod that waits, and the causes.

    By what refuses them: `fits` counts the GPUs that could take a worker, `nodes` those of nodes
    that do not suit the pod.
    """
    table = state.table
    places = list(table.row_of.items())
    rows = np.array([row for _, row in places], dtype=np.int64)
    gpus = state.ledger.without(rows, frozenset((record.uid,)))
    nodes = state.nodes_for(record.pod)
    lacks = nodes.why_not(0)
    suits = dict(zip(table.sorted_names, nodes.eligible(0).tolist(), strict=True))
    there = np.array([suits.get(node, False) for (node, _), _ in places], dtype=np.bool_)
    evaluation = pipeline.evaluate(worker, gpus)
    refused_by = np.where(there, evaluation.refused_by, -1)
    counted = [
        (
            pipeline.constraints[index].kind,
            pipeline.constraints[index].cause(worker, gpus, of[0]),
            of,
        )
        for index, of in refusals(worker, gpus, pipeline.constraints, refused_by)
    ]
    groups = [
        ("fits", np.flatnonzero(there & evaluation.allowed), "these could take it"),
        *((kind, of, in_common(cause)) for kind, cause, of in counted),
        ("nodes", np.flatnonzero(~there), "; ".join(map(clause, lacks))),
    ]
    lines = [
        {"reason": kind, "gpus": len(of), "nodes": len(np.unique(gpus.node[of])), "says": says}
        for kind, of, says in groups
        if len(of)
    ]
    refusing = [cause.on(gpus=len(of)) for _, cause, of in counted]
    refusing.sort(key=lambda cause: -(cause.gpus or 0))
    return lines, (wanted(worker, there & evaluation.allowed), *refusing, *lacks)


def _here(state: ClusterState, pipeline: Pipeline, record: PodRecord, worker: Job) -> list[Line]:
    """Return what the constraints and scorers say of each GPU that a pod holds, itself left out."""
    held = state.ledger.held(record.uid)
    if held is None:
        return []
    rows = state.rows_of(held[1].node, held[1].gpus)
    gpus = state.ledger.without(rows, frozenset((record.uid,)))
    return [
        {
            "gpu": state.table.gpu_ids[row],
            "name": state.gpu_name(held[1].node, state.table.gpu_ids[row]),
            "constraints": explaining.constraints(pipeline, worker, gpus, index),
            "scores": explaining.scores(pipeline, worker, gpus, index),
        }
        for index, row in enumerate(rows.tolist())
    ]


def _gpus_of(state: ClusterState, report: GpuNodeRecord, *, answers: bool) -> Iterator[Line]:
    live = state.gpus
    for gpu in sorted(report.status.gpus, key=lambda gpu: gpu.uuid):
        row = state.table.row_of.get((report.name, gpu.uuid))
        if row is None:
            continue
        holders = state.ledger.holders(report.name, gpu.uuid)
        yield {
            "node": report.name,
            "gpu": gpu.uuid,
            "index": gpu.index,
            "number": gpu.number,
            "slice": gpu.slice.profile if gpu.slice is not None else None,
            "model": gpu.model,
            "numaNode": gpu.numa_node,
            "nvlinkDomain": gpu.nvlink_domain,
            "shares": int(live.shares[row]),
            "held": int(live.jobs[row]),
            "jobs": sorted(claim.job.id for claim in holders.values()),
            "exclusive": bool(live.exclusive[row]),
            "memoryCapacityGib": round(float(live.memory_capacity_gib[row]), 2),
            "memoryPromisedGib": round(
                float(live.memory_base_gib[row] + live.memory_peak_extra_gib[row]), 2
            ),
            "memoryUsedBytes": gpu.memory_used_bytes,
            "memoryForeignBytes": gpu.memory_foreign_bytes,
            "memorySource": gpu.memory_source,
            "utilisationPromisedPercent": round(float(live.gpu_utilisation[row]), 1),
            "utilisationPercent": gpu.utilisation_percent,
            "healthy": bool(live.healthy[row]),
            "fresh": bool(live.fresh[row]) and answers,
            "reason": gpu.health_reason or gpu.shares_reason,
        }


def _job(state: ClusterState, key: tuple[str, str]) -> Line:
    job = state.gpu_jobs()[key]
    status = job.status
    places = [
        {"pod": member.name, "node": member.pod.node_name, "gpus": list(member.pod.devices)}
        for member in state.members(key)
        if member.bound
    ]
    return {
        "namespace": key[0],
        "name": key[1],
        "phase": status.phase.value,
        "reason": status.reason,
        "message": _message(status),
        "short": briefly(status.causes),
        "causes": [each.wire() for each in status.causes],
        "foundAt": status.found_at,
        "position": status.position,
        "expectedStart": _expected(status),
        "queuedAt": status.queued_at,
        "startedAt": status.started_at,
        "attainedGpuSeconds": status.attained_gpu_seconds,
        "demand": job.spec.demand.wire(),
        "roles": [role.wire() for role in job.spec.roles],
        "places": places,
    }


def _message(status: GPUJobStatus) -> str:
    """Return what is said of a job; before it is in the queue, its status says nothing."""
    return status.message or ("" if status.queued_at else _UNPREDICTED)


def _expected(status: GPUJobStatus) -> Line | None:
    return status.expected_start.wire() if status.expected_start else None


def _listed(name: str, lines: Iterable[Line]) -> StreamingResponse:
    """Return {name: [lines]}, made piece by piece so that the event loop stays free."""

    async def pieces() -> AsyncIterator[bytes]:
        yield f'{{"{name}":['.encode()
        rest, comma = iter(lines), ""
        while piece := list(islice(rest, _PIECE)):
            yield (comma + ",".join(map(json.dumps, piece))).encode()
            comma = ","
            await asyncio.sleep(0)
        yield b"]}"

    return StreamingResponse(pieces(), media_type="application/json")
