"""Pods of another scheduler as its API server has them, at times counted from a fixed one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tandem.contracts import names

START_S = datetime(2026, 3, 2, 8, tzinfo=UTC).timestamp()


def at(seconds: float) -> str:
    moment = datetime.fromtimestamp(START_S + seconds, UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def node(name: str, gpus: int = 2, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": {names.NVIDIA_RESOURCE: str(gpus), "cpu": "8"}},
    }


def pod(
    name: str,
    *,
    came: float,
    started: float | None = None,
    ended: float | None = None,
    owner: str = "",
    kind: str = "Job",
    gpus: int = 1,
    resource: str = names.NVIDIA_RESOURCE,
    namespace: str = "team-a",
    annotations: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return a pod; `owner` is the name of the workload of a kind that made it."""
    state: dict[str, Any] = {}
    if ended is not None:
        state = {
            "terminated": {"startedAt": at(started or 0), "finishedAt": at(ended), "exitCode": 0}
        }
    elif started is not None:
        state = {"running": {"startedAt": at(started)}}
    phase = "Pending" if started is None else "Running" if ended is None else "Succeeded"
    reference = {
        "apiVersion": "batch/v1" if kind == "Job" else "apps/v1",
        "kind": kind,
        "name": owner,
        "uid": f"{owner}-of-{namespace}",
        "controller": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "creationTimestamp": at(came),
            "annotations": annotations or {},
            "ownerReferences": [reference] if owner else [],
        },
        "spec": {
            "schedulerName": "default-scheduler",
            "containers": [{"name": "train", "resources": {"limits": {resource: str(gpus)}}}],
            **({"nodeName": "n0"} if started is not None else {}),
        },
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": "train", "state": state}] if state else [],
        },
    }
