"""The answer to kube-scheduler is what the simulator decides: one recorded exchange, two paths."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "extender"))

from extender_builders import NOW, gpu, gpu_node, pod

from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.verbs.answers import Verbs, read_pod
from scheduler_extender.verbs.wire import FILTER
from tandem.policy.board import Board
from tandem.policy.catalog import load_profile
from tandem.policy.cluster import Snapshot
from tandem.policy.job import Job
from tandem.policy.jobs import JobArrays
from tandem.policy.pipeline import best_rows

NODES = {"n0": ("a", "b"), "n1": ("c", "d", "e"), "n2": ("f",), "n3": ("g", "h")}
MEMORY_GIB = 32.0
PODS = 60
_ARRAYS = ("own_slowdown", "caused_slowdown")


def record(seed: int) -> str:
    """Let pods come and go at random through the verbs; return the exchange as JSON."""
    rng = np.random.default_rng(seed)
    pipeline = load_profile("tandem").pipeline()
    state = ClusterState(now_s=NOW)
    for name, ids in NODES.items():
        state.upsert("gpunodes", gpu_node(name, *(gpu(i, memory_gib=MEMORY_GIB) for i in ids)))
    verbs = Verbs(state, pipeline)
    exchange, running = [], {}
    for number in range(PODS):
        values = {
            "gpus": int(rng.integers(1, 3)),
            "memory": f"{rng.integers(4, 24)}Gi",
            "utilisation": str(rng.integers(10, 100)),
            "exclusive": bool(rng.random() < 0.1),
        }
        asked = pod(f"p{number}", **values)
        body = json.dumps({"Pod": asked, "Nodes": None, "NodeNames": list(NODES)})
        passed = json.loads(verbs.filter(FILTER.validate_json(body)))["NodeNames"]
        line = {"number": number, "passed": passed, "ended": None}
        job = state.worker(read_pod(FILTER.validate_json(body)["Pod"]))
        line["job"] = {k: v for k, v in asdict(job).items() if k not in _ARRAYS}
        if passed:
            scored = json.loads(verbs.prioritize(FILTER.validate_json(body)))
            line["scores"] = {host["Host"]: host["Score"] for host in scored}
            best = max(passed, key=lambda name: (line["scores"][name], -list(NODES).index(name)))
            rows = best_rows(
                pipeline.evaluate(job, state.gpus), state.table.rows(best), values["gpus"]
            )
            devices = [state.table.gpu_ids[row] for row in rows.tolist()]
            line |= {"node": best, "devices": devices}
            place = {"node_name": best, "devices": ",".join(devices), "phase": "Running"}
            state.upsert("pods", pod(f"p{number}", **values, **place))
            running[number] = pod(f"p{number}", **values, **place)
        if len(running) > 8:
            line["ended"] = int(rng.choice(list(running)))
            state.delete("pods", running.pop(line["ended"]))
        exchange.append(line)
    return json.dumps(exchange)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_recorded_exchange_is_decided_alike_on_the_simulator_s_board(seed: int) -> None:
    exchange = json.loads(record(seed))
    assert sum(bool(line["passed"]) for line in exchange) > PODS / 3
    assert any(not line["passed"] for line in exchange)
    pipeline = load_profile("tandem").pipeline()
    snapshot = Snapshot.from_rows([(n, i, MEMORY_GIB) for n, ids in NODES.items() for i in ids])
    jobs = [Job(**{**line["job"], "sub_batches": ()}) for line in exchange]
    board = Board.of(jobs, JobArrays.of(jobs), snapshot.gpus)
    for line, job in zip(exchange, jobs, strict=True):
        wanted = job.gpus_per_pod
        allowed = pipeline.allowed(job, board.gpus)
        by_node = np.bincount(board.gpus.node, weights=allowed)
        fits = [n for i, n in enumerate(snapshot.node_names) if by_node[i] >= wanted]
        assert fits == (line["passed"] or [])
        if line["passed"]:
            node = snapshot.node_names.index(line["node"])
            on_node = np.flatnonzero(board.gpus.node == node)
            rows = best_rows(pipeline.evaluate(job, board.gpus), on_node, wanted)
            assert [snapshot.gpu_ids[row] for row in rows.tolist()] == line["devices"]
            if wanted == 1:  # the simulator's own choice is a node that had the highest score
                (chosen,) = pipeline.choose(job, board.gpus).tolist()
                scores = {n: line["scores"][n] for n in line["passed"]}
                there = snapshot.node_names[board.gpus.node[chosen]]
                assert scores[there] == max(scores.values())
            board.start(line["number"], rows)
        if line["ended"] is not None:
            board.remove(line["ended"])
