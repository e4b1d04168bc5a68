"""No namespace decides alone what all have taught; with one namespace nothing changes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_policy_worth import SCALE_S, rates

from scheduler_extender.planning.remaining import draw_remaining_gpu_s, expected_remaining_gpu_s
from tandem.policy.equations.gittins import GittinsIndex, fixed_quantum_index
from tandem.policy.equations.worth import completion_rate
from tandem.policy.jobs import History
from tandem.policy.votes import ENOUGH, beyond_bound, votes

SERVICE = st.lists(st.floats(1, 1e6), min_size=1, max_size=40)


def test_the_worked_number() -> None:
    counts = votes(["a"] * 900 + ["b"] * 100 + ["c"] * 2)
    assert counts is not None
    assert counts.tolist() == [pytest.approx(1 / 9)] * 900 + [1.0] * 102


def test_one_namespace_and_small_ones_count_fully() -> None:
    assert votes([]) is None
    assert votes(["a"] * 1000) is None
    assert votes(["a"] * ENOUGH + ["b"]) is None


def test_one_job_in_a_new_namespace_takes_nothing_from_what_the_others_taught() -> None:
    counts = votes(["a"] * 1000 + ["new"])
    assert counts is not None
    assert counts[:1000].sum() == pytest.approx(ENOUGH)
    assert counts[-1] == 1.0


@given(st.lists(st.sampled_from("abcd"), max_size=60), st.integers(0, 60))
def test_a_namespace_with_its_even_share_loses_nothing(names: list[str], most: int) -> None:
    forgotten = beyond_bound(enumerate(names), most)
    assert len(forgotten) == max(0, len(names) - most)
    lost = [names[index] for index in forgotten]
    for name in set(lost):
        left = names.count(name) - lost.count(name)
        assert left + 1 >= max(names.count(other) - lost.count(other) for other in set(names))
        mine = [index for index, each in enumerate(names) if each == name]
        assert [index for index in forgotten if names[index] == name] == mine[: lost.count(name)]


@given(SERVICE, st.floats(0, 1e6), st.floats(1, 1e5), st.integers(0, 99))
def test_with_one_namespace_every_figure_is_that_without_namespaces(
    service: list[float], attained: float, quantum: float, seed: int
) -> None:
    """Bit by bit: the simulator's traces name none, and a cluster may have one."""
    samples, at = np.array(service), np.array([attained])
    plain, named = History(samples), History(samples, namespaces=("a",) * len(samples))
    one = np.ones(len(samples))
    assert plain.gittins is not None
    assert named.gittins is not None
    assert plain.gittins(at).tolist() == named.gittins(at).tolist()
    for of_one in (named.sorted_votes, one):
        assert (
            fixed_quantum_index(plain.sorted_service, at, np.array([quantum])).tolist()
            == fixed_quantum_index(named.sorted_service, at, np.array([quantum]), of_one).tolist()
        )
        assert (
            expected_remaining_gpu_s(at, plain.sorted_service).tolist()
            == expected_remaining_gpu_s(at, named.sorted_service, of_one).tolist()
        )
        drawn = [
            draw_remaining_gpu_s(at, plain.sorted_service, np.random.default_rng(seed), counts)
            for counts in (None, of_one)
        ]
        assert drawn[0].tolist() == drawn[1].tolist()
    assert plain.runs(SCALE_S).exposure_s.tolist() == named.runs(SCALE_S).exposure_s.tolist()


@given(st.lists(st.tuples(st.floats(1, 1e4), st.integers(1, 4)), min_size=1, max_size=12),
       st.floats(0, 9999), st.floats(1, 5000))  # fmt: skip
def test_a_sample_that_counts_for_several_is_as_several_samples(
    samples: list[tuple[float, int]], attained: float, quantum: float
) -> None:
    samples.sort()
    values, counts = np.array(samples).T
    repeated, at, width = np.repeat(values, counts.astype(int)), np.array([attained]), np.array(
        [quantum]
    )  # fmt: skip
    few, many = GittinsIndex.of(values, counts), GittinsIndex.of(repeated)
    assert few(at)[0] == pytest.approx(many(at)[0], rel=1e-6)
    assert fixed_quantum_index(values, at, width, counts)[0] == pytest.approx(
        fixed_quantum_index(repeated, at, width)[0], rel=1e-6
    )
    assert expected_remaining_gpu_s(at, values, counts)[0] == pytest.approx(
        expected_remaining_gpu_s(at, repeated)[0], rel=1e-6
    )


def expected_s(history: History) -> float:
    """How long a newcomer of one GPU is expected to run: a second for each completion."""
    runs = history.runs(SCALE_S)
    return float(1 / completion_rate(np.zeros(1), np.ones(1, int), runs)[0])


def test_a_thousand_short_runs_of_one_tenant_do_not_decide_how_long_a_newcomer_runs() -> None:
    """Four namespaces ran 100 jobs of three hours each, and a fifth one as many of a second."""
    rng = np.random.default_rng(7)
    honest = rng.uniform(8000.0, 14_000.0, 400)
    teams = [f"team-{index % 4}" for index in range(400)]
    before = expected_s(History(honest, namespaces=tuple(teams)))
    flooded = History(np.append(honest, np.ones(600)), namespaces=(*teams, *["mallory"] * 600))
    fair = History(np.append(honest, np.ones(100)), namespaces=(*teams, *["mallory"] * 100))
    unweighted = 1 / rates([0.0], flooded.service_gpu_s)[0]
    assert before > 5000.0
    assert unweighted < before / 20
    assert expected_s(flooded) == pytest.approx(expected_s(fair))
    assert expected_s(flooded) > 2 * unweighted
