"""Tests whether a running gang would find GPUs away from certain neighbours. Pure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scheduler_extender.cluster.gangs import Gang
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.cluster.table import columns_of, gpu_arrays, places_of
from scheduler_extender.planning.cycle_input import freest_first
from tandem.policy.decision import Placement
from tandem.policy.job import Job
from tandem.policy.pipeline import Pipeline
from tandem.policy.topology import in_largest
from tandem.policy.units import Ints


def has_place(
    state: ClusterState, pipeline: Pipeline, gang: Gang, job: Job, shunned: frozenset[str]
) -> bool:
    """Say whether a gang that left its GPUs could start anew away from all pods in `shunned`.

    A gang of several roles stays where it is: `job` is one of them.
    """
    if gang.job.spec.roles:
        return False
    claims, snapshot, pods = state.ledger.counting(), state.snapshot(), gang.holders()
    row_of = {place: row for row, place in enumerate(places_of(snapshot))}
    leaving = frozenset(pod.uid for pod in pods)

    def held(uids: frozenset[str]) -> tuple[Ints, Ints]:
        """Return the rows of the snapshot, and of the table, on which pods hold GPUs."""
        found = {
            (claims[uid].node, gpu) for uid in uids & claims.keys() for gpu in claims[uid].gpus
        }
        here = sorted((row_of[gpu], state.table.row_of[gpu]) for gpu in found & row_of.keys())
        both = np.array(here, dtype=np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    rows, live = held(leaving)
    left = state.ledger.without(live, leaving)
    columns = columns_of(snapshot.gpus)
    for name, column in columns.items():
        if name != "node":  # a snapshot counts nodes by name, the table by slot
            column[rows] = getattr(left, name)
    columns["shares"][held(shunned)[0]] = 0  # they offer no share
    eligible = most = None
    if pods:
        nodes = state.nodes_picture({0: pods[:1]}, {0: job.gpus_per_pod})
        gpus = np.bincount(snapshot.gpus.node, minlength=len(snapshot.node_names))
        eligible, most = nodes.eligible(0), nodes.most(0, gpus)
        columns["place"] = freest_first(gpu_arrays(columns))
        if job.required_topology and nodes.topology is not None:
            there = gpu_arrays(columns)
            allowed = pipeline.allowed(job, there) & eligible[there.node]
            inside = in_largest(job, there, allowed, nodes.topology)
            eligible = np.bincount(there.node[inside], minlength=len(eligible)) > 0
    found = pipeline.place(job, replace(snapshot, gpus=gpu_arrays(columns)), eligible, most)
    return isinstance(found, Placement)
