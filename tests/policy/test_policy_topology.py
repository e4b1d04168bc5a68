"""Gangs that require or prefer a level of topology, on random boards and on boards by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_policy_compiled import assert_same_cycle

from tandem.policy.board import Board, Start
from tandem.policy.catalog import load_profile
from tandem.policy.cluster import GpuArrays
from tandem.policy.compiled.cycle import compiled_cycle
from tandem.policy.dispatch.share import Share
from tandem.policy.job import Job
from tandem.policy.jobs import JobArrays
from tandem.policy.topology import Gang, Keeper, KeptPipeline, Topology
from tandem.policy.units import Ints

ZONE, RACK = "zone", "rack"
#: Dispatches of all sorts: in compiled code and in Python, with and without preemption.
PROFILES = ("tandem", "fifo", "horus", "tiresias-g", "sjf-bsbf", "best-fit", "yarn-cs", "pab")
ALONE: dict[str, Any] = {"exclusive": True, "checkpointable": True}


def topology_of(zones: list[list[int]]) -> Topology:
    """Return nodes in racks in zones: `zones` has the nodes of each rack of each zone."""
    rows, rack = [], 0
    for zone, racks in enumerate(zones):
        for nodes in racks:
            rows += [[zone, rack]] * nodes
            rack += 1
    return Topology((ZONE, RACK), np.array(rows, dtype=np.int64))


def board_of(jobs: list[Job], topology: Topology, gpus: int = 4, shares: int = 1) -> Board:
    nodes = len(topology.domain)
    empty = GpuArrays.empty(
        np.repeat(np.arange(nodes), gpus), np.full(nodes * gpus, 80.0), shares=shares
    )
    rack = np.repeat(topology.domain[:, 1] + 1, gpus)
    return Board.of(jobs, JobArrays.of(jobs), replace(empty, rack=rack))


def keep(board: Board, topology: Topology, ranked: list[int], profile: str) -> KeptPipeline:
    """Keep the waiting gangs to domains, as a round does."""
    of = load_profile(profile).pipeline()
    keeper = Keeper(topology)
    gangs = [Gang((job,)) for job in ranked if board.jobs[job].asks_topology]
    keeper.keep(board, gangs, of)
    return KeptPipeline(of.constraints, of.scorers, of.gather, nodes=keeper.nodes)


def dispatch(board: Board, topology: Topology, profile: str = "tandem") -> dict[int, Ints]:
    """Run one round on all jobs in their order; return who started where."""
    chosen, ranked = load_profile(profile), list(range(len(board.jobs)))
    pipeline = keep(board, topology, ranked, profile)
    chosen.dispatch(board, np.array(ranked), pipeline, chosen.order.blocks)
    return {a.job: np.array(a.rows) for a in board.take_actions() if isinstance(a, Start)}


def domains(board: Board, topology: Topology, rows: Ints, level: str) -> set[int]:
    of = topology.of(level)
    assert of is not None
    return set(of[board.gpus.node[rows]].tolist())


def random_case(seed: int, level: str, shares: int = 1) -> tuple[Board, Topology]:
    """A board with GPUs and labels missing, and jobs of which some ask for a level."""
    rng = np.random.default_rng(seed)
    zones = [[int(n) for n in rng.integers(1, 4, rng.integers(1, 4))] for _ in range(2)]
    topology = topology_of(zones)
    topology.domain[rng.random(len(topology.domain)) < 0.1] = -1
    jobs = []
    for index in range(int(rng.integers(2, 9))):
        pods, size = int(rng.choice([1, 2, 4, 8])), int(rng.choice([1, 1, 2]))
        asked: dict[str, Any] = {}
        if rng.random() < 0.6:
            asked[f"{level}_topology"] = str(rng.choice([ZONE, RACK]))
        jobs.append(
            Job(
                id=f"{index:03}", pods=pods, gpus_per_pod=size, **ALONE | {
                    "exclusive": shares == 1 or bool(rng.random() < 0.5),
                    "remaining_s": float(rng.uniform(100, 1000)),
                    "memory_base_gib": 5.0, "gpu_utilisation": 30.0,
                    "interference_class": 2,
                    "own_slowdown": np.array([0.0, np.inf, 0.1]),
                    "caused_slowdown": np.array([0.0, np.inf, 0.1]),
                }, **asked,
            )
        )  # fmt: skip
    board = board_of(jobs, topology, shares=shares)
    board.columns["healthy"][:] = rng.random(len(board.gpus)) < 0.8
    return board, topology


@pytest.mark.parametrize("profile", PROFILES)
@given(seed=st.integers(0, 10**6), shares=st.integers(1, 2))
@settings(max_examples=25, deadline=None)
def test_a_gang_never_spans_two_domains_of_a_level_that_it_requires(
    profile: str, seed: int, shares: int
) -> None:
    board, topology = random_case(seed, "required", shares)
    for job, rows in dispatch(board, topology, profile).items():
        level = board.jobs[job].required_topology
        assert not level or len(domains(board, topology, rows, level)) == 1
        assert not level or -1 not in domains(board, topology, rows, level)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_a_gang_starts_where_one_domain_has_room_for_it(seed: int) -> None:
    board, topology = random_case(seed, "required")
    del board.jobs[1:]
    board = Board.of(board.jobs, JobArrays.of(board.jobs), board.gpus)
    job = board.jobs[0]
    free = np.bincount(board.gpus.node[board.gpus.healthy], minlength=len(topology.domain))
    free -= free % job.gpus_per_pod
    level = topology.of(job.required_topology) if job.required_topology else None
    room = (
        free.sum()
        if level is None
        else max((free[level == each].sum() for each in set(level.tolist()) - {-1}), default=0)
    )
    assert bool(dispatch(board, topology, "fifo")) == (room >= job.gpus)


@pytest.mark.parametrize("profile", ["tandem", "fifo", "horus"])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_a_preferred_level_takes_no_more_domains_than_first_fit(profile: str, seed: int) -> None:
    board, topology = random_case(seed, "preferred")
    del board.jobs[1:]
    job = board.jobs[0] = replace(board.jobs[0], gpus_per_pod=1, preferred_topology=RACK)
    board = Board.of([job], JobArrays.of([job]), board.gpus)
    healthy = np.flatnonzero(board.gpus.healthy)
    of_a_rack = healthy[topology.domain[board.gpus.node[healthy], 1] >= 0]
    started = dispatch(board, topology, profile)
    assert bool(started) == (len(healthy) >= job.gpus)
    if len(of_a_rack) < job.gpus:
        return
    for rows in started.values():
        taken, by_first_fit = (
            [len(domains(board, topology, of, level)) for level in (ZONE, RACK)]
            for of in (rows, of_a_rack[: job.gpus])
        )
        # A wider domain counts for more: one zone with three racks is nearer than two with one.
        assert taken <= by_first_fit


@pytest.mark.parametrize("profile", ["tandem", "fifo", "horus"])
def test_few_racks_are_taken_of_a_zone_that_has_room(profile: str) -> None:
    topology = topology_of([[1, 1, 1, 1], [1, 3, 1]])
    board = board_of([gang(14, preferred_topology=RACK)], topology)
    (rows,) = dispatch(board, topology, profile).values()
    assert domains(board, topology, rows, ZONE) == {1}
    assert len(domains(board, topology, rows, RACK)) == 2


@pytest.mark.parametrize("shares", [1, 2])
def test_compiled_code_decides_as_python_about_gangs_that_ask_for_a_level(shares: int) -> None:
    for seed in range(25):
        for level in ("required", "preferred"):
            board, topology = random_case(seed, level, shares)
            ranked = list(range(len(board.jobs)))
            pipeline = keep(board, topology, ranked, "tandem")
            assert compiled_cycle(board, pipeline) is not None
            assert_same_cycle(Share(), board, pipeline, np.array(ranked))


def gang(pods: int, name: str = "a", **asked: Any) -> Job:
    return Job(id=name, pods=pods, **ALONE | asked)


def test_the_smallest_rack_that_has_room_is_taken() -> None:
    topology = topology_of([[4, 2, 3]])
    board = board_of([gang(8, required_topology=RACK)], topology)
    rows = dispatch(board, topology)[0]
    assert domains(board, topology, rows, RACK) == {1}


def test_two_gangs_of_one_round_get_a_rack_each() -> None:
    topology = topology_of([[2, 2]])
    jobs = [gang(8, name, required_topology=RACK) for name in "ab"]
    board = board_of(jobs, topology)
    started = dispatch(board, topology)
    assert [domains(board, topology, started[job], RACK) for job in (0, 1)] == [{0}, {1}]


def test_a_preferred_level_gives_way_to_a_wider_one() -> None:
    topology = topology_of([[1, 1], [2, 2]])
    board = board_of([gang(16, preferred_topology=RACK)], topology)
    rows = dispatch(board, topology)[0]
    assert domains(board, topology, rows, ZONE) == {1}


def test_a_preferred_level_never_makes_a_job_wait() -> None:
    topology = topology_of([[1, 1], [1, 1]])
    board = board_of([gang(16, preferred_topology=RACK)], topology)
    assert len(dispatch(board, topology)[0]) == 16


def test_a_preferred_rack_is_sought_in_the_zone_that_is_required() -> None:
    topology = topology_of([[1, 1], [1, 2]])
    job = gang(8, required_topology=ZONE, preferred_topology=RACK)
    board = board_of([job], topology)
    assert domains(board, topology, dispatch(board, topology)[0], RACK) == {3}


def test_no_node_has_the_level() -> None:
    topology = topology_of([[2]])
    board = board_of([gang(2, required_topology="block")], topology)
    assert dispatch(board, topology) == {}
    topology.domain[:, 1] = -1
    board = board_of([gang(2, required_topology=RACK)], topology)
    assert dispatch(board, topology) == {}


def test_a_gang_on_gpus_stays_in_its_domain() -> None:
    topology = topology_of([[1, 1, 2]])
    job = gang(2, required_topology=RACK)
    board = board_of([job, replace(job, id="b", preferred_topology="")], topology)
    keeper = Keeper(topology)
    keeper.keep(board, [Gang((0,), np.array([4]))], load_profile("tandem").pipeline())
    assert keeper.nodes[board.jobs[0].where].tolist() == [False, True, False, False]
    # One that was torn apart goes to the rack with most of it.
    keeper.keep(board, [Gang((1,), np.array([0, 8, 9]))], load_profile("tandem").pipeline())
    assert keeper.nodes[board.jobs[1].where].tolist() == [False, False, True, True]


def test_roles_of_a_gang_go_to_one_rack() -> None:
    topology = topology_of([[1, 2]])
    jobs = [gang(4, required_topology=RACK), gang(3, "b", required_topology=RACK)]
    board = board_of(jobs, topology)
    keeper = Keeper(topology)
    keeper.keep(board, [Gang((0, 1))], load_profile("tandem").pipeline())
    for job in board.jobs:
        assert keeper.nodes[job.where].tolist() == [False, True, True]


def test_a_job_is_kept_to_another_domain_in_the_next_round() -> None:
    topology = topology_of([[1, 1]])
    board = board_of([gang(4, required_topology=RACK)], topology)
    keeper, pipeline = Keeper(topology), load_profile("tandem").pipeline()
    for rack in (0, 1, 0):
        board.columns["healthy"][:] = topology.domain[board.gpus.node, 1] == rack
        keeper.keep(board, [Gang((0,))], pipeline)
        assert keeper.nodes[board.jobs[0].where].tolist() == [rack == 0, rack == 1]
    assert len(keeper.nodes) == 2
