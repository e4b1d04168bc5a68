"""Whether a running gang would find GPUs away from certain neighbours. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.ledger import Claim
from scheduler_extender.cluster.view import ClusterView
from scheduler_extender.planning.what_if import WhatIf
from tandem.policy.cluster import Snapshot
from tandem.policy.decision import Placement
from tandem.policy.job import Job
from tandem.policy.pipeline import Pipeline


def has_place(
    state: ClusterView, pipeline: Pipeline, gang: Gang, job: Job, shunned: frozenset[str]
) -> bool:
    """Say whether a gang that left its GPUs could start anew beside none of the pods `shunned`."""
    claims = state.claims()
    room = WhatIf(state.snapshot(), claims)
    pods = gang.holders()
    room.remove([pod.uid for pod in pods])
    snapshot = _without(room.snapshot, claims, shunned)
    eligible = state.eligible_nodes(pods[0]) if pods else None
    return isinstance(pipeline.place(job, snapshot, eligible), Placement)


def _without(snapshot: Snapshot, claims: Mapping[str, Claim], shunned: frozenset[str]) -> Snapshot:
    """Return the snapshot in which the GPUs of these pods offer no share."""
    held = {(c.node, gpu) for uid, c in claims.items() if uid in shunned for gpu in c.gpus}
    names, node = snapshot.node_names, snapshot.gpus.node
    rows = [row for row, gpu in enumerate(snapshot.gpu_ids) if (names[node[row]], gpu) in held]
    shares = snapshot.gpus.shares.copy()
    shares[np.array(rows, dtype=np.int64)] = 0
    return replace(snapshot, gpus=replace(snapshot.gpus, shares=shares))
