"""Pods of several GPUs: each on one node, in order of preference."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tandem.policy.board import Board
from tandem.policy.catalog import load_profile
from tandem.policy.cluster import GpuArrays
from tandem.policy.gather import whole_pods
from tandem.policy.job import Job
from tandem.policy.jobs import JobArrays


def one_by_one(job: Job, node: np.ndarray, rows: np.ndarray) -> list[int] | None:
    """Take the rows one after the other; a pod is had when its last GPU comes."""
    begun: dict[int, list[int]] = {}
    taken: list[int] = []
    for row in rows.tolist():
        pod = begun.setdefault(int(node[row]), [])
        pod.append(row)
        if len(pod) == job.gpus_per_pod:
            taken += begun.pop(int(node[row]))
        if len(taken) == job.gpus:
            return taken
    return None


@given(st.data(), st.integers(1, 3), st.integers(1, 4))
def test_whole_pods_are_those_of_a_walk(data: st.DataObject, pods: int, size: int) -> None:
    node = np.array(sorted(data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=30))))
    rows = np.array(data.draw(st.permutations(range(len(node)))), dtype=np.int64)
    rows = rows[: data.draw(st.integers(0, len(node)))]
    job = Job(id="j", pods=pods, gpus_per_pod=size)
    found = whole_pods(job, node, rows)
    assert (None if found is None else found.tolist()) == one_by_one(job, node, rows)


def test_every_profile_puts_the_gpus_of_a_pod_on_one_node() -> None:
    # Three free GPUs and one taken on each of two nodes: a pod of four has no place, one of three
    # has, by each dispatch. (Tiresias only counts: there, who comes first is counted first.)
    node = np.repeat([0, 1], 4)
    for name in ("tandem", "tiresias-l", "fifo", "horus", "ojpp", "xonar", "sjf-bsbf"):
        profile = load_profile(name)
        taken = Job(id="whole", pods=2, exclusive=True, remaining_s=10.0)
        big = Job(id="big", pods=1, gpus_per_pod=4, memory_base_gib=1, remaining_s=10.0)
        fits = Job(id="fits", pods=2, gpus_per_pod=3, memory_base_gib=1, remaining_s=10.0)
        jobs = [taken, big, fits]
        arrays = JobArrays.of(jobs)
        arrays.running[0] = True
        board = Board.of(jobs, arrays, GpuArrays.empty(node, np.full(8, 80.0)))
        board.place(0, np.array([0, 4]))
        board.pinned.add(0)
        ranked = np.array([0, 2, 1] if profile.dispatch.preempts else [2, 1])
        profile.dispatch(board, ranked, profile.pipeline(), False)
        starts = {action.job: action.rows for action in board.take_actions()}
        assert list(starts) == [2], name
        assert sorted(node[list(starts[2])].tolist()) == [0, 0, 0, 1, 1, 1], name
