"""Who is moved for whose sake, and who is left alone."""

import numpy as np
import pytest
from learning_builders import NOW, gpu, resident

from scheduler_extender.learning import sharing
from scheduler_extender.learning.config import LearningConfig
from scheduler_extender.learning.observed import Watched
from scheduler_extender.learning.separation import (
    Limits,
    Looked,
    Obstacle,
    Separator,
    SharedGpu,
    blamed,
)
from tandem.contracts.learning import Means, ObservedSlowdown, Reference
from tandem.contracts.resources import PodUse

SETTINGS = LearningConfig()
LIMITS = Limits()


def looks(
    separator: Separator,
    gpus: list[SharedGpu],
    times: int = 10,
    start_s: float = NOW,
    place: bool = True,
) -> Looked:
    """Look so often, and stop where something is to be done."""
    for number in range(times):
        looked = separator.look(gpus, lambda *_: place, start_s + number * SETTINGS.every_s)
        if looked.moves or looked.closed:
            return looked
    return looked


def reasons(looked: Looked, name: str = "g0") -> dict[str, str]:
    """Return what keeps each on a GPU, by job."""
    return {each.key[1] if each.key else "": each.why for each in looked.closed["n0", name]}


def test_the_cheapest_of_a_bad_pair_is_moved_within_a_minute() -> None:
    gpus = [gpu(resident("big", 0.1, cost_gib=30), resident("small", 0.6, cost_gib=4))]
    (move,) = looks(Separator(SETTINGS), gpus, times=6).moves
    assert move.key == ("ml", "small")
    assert move.neighbours == (("ml", "big"),)
    assert move.slowdown == 0.6


def test_who_uses_more_than_was_said_goes_first() -> None:
    gpus = [gpu(resident("liar", 0.0, cost_gib=30, outgrew=True), resident("small", 0.6))]
    (move,) = looks(Separator(SETTINGS), gpus).moves
    assert move.key == ("ml", "liar")


@pytest.mark.parametrize("seed", range(20))
def test_a_spike_shorter_than_the_memory_moves_no_job(seed: int) -> None:
    """However high; the rest of the time the pair is as good as predicted, with noise."""
    rng = np.random.default_rng(seed)
    separator = Separator(SETTINGS)
    course: list[float] = []
    while len(course) < 2000:
        course += rng.uniform(0.0, 0.2, size=rng.integers(6, 30)).tolist()
        length_s = rng.uniform(0.0, separator.memory_s)
        course += rng.uniform(0.5, 20.0, size=int(np.ceil(length_s / SETTINGS.every_s))).tolist()
    for number, slowdown in enumerate(course):
        looked = separator.look(
            [gpu(resident("a", slowdown), resident("b", 0.1))],
            lambda *_: True,
            NOW + number * SETTINGS.every_s,
        )
        assert not looked.moves
        assert not looked.closed


@pytest.mark.parametrize("other", ["aa", "zz"])
def test_what_a_tenant_says_of_itself_moves_no_other_job(other: str) -> None:
    """Whatever the namespaces are called: of each who stays it is said why."""
    gpus = [gpu(resident("teller", 5.0, "mine", measured=False, stays="it saves no checkpoint"),
                resident("other", 0.0, other))]  # fmt: skip
    looked = looks(Separator(SETTINGS), gpus)
    assert looked.moves == []
    assert reasons(looked) == {
        "other": "only its neighbours themselves report that they are slow, which moves no other"
        " job",
        "teller": "it saves no checkpoint",
    }


def test_a_teller_is_moved_itself() -> None:
    gpus = [gpu(resident("teller", 5.0, "mine", measured=False, cost_gib=60),
                resident("other", 0.0, "theirs", cost_gib=1))]  # fmt: skip
    (move,) = looks(Separator(SETTINGS), gpus).moves
    assert move.key == ("mine", "teller")


def test_for_one_namespace_only_so_many_others_are_moved_in_an_hour() -> None:
    separator = Separator(SETTINGS)
    moved = []
    for number in range(10):
        sufferer = resident(f"s{number}", 2.0, "mine", stays="it saves no checkpoint")
        gpus = [gpu(sufferer, resident(f"o{number}", 0.0, "theirs"), name=f"g{number}")]
        start_s = NOW + 100 * number
        for move in looks(separator, gpus, start_s=start_s).moves:
            separator.made(move, start_s)
            moved.append(move)
    assert len(moved) == LIMITS.max_moves_of_others_per_hour


def test_moves_that_a_namespace_asks_of_itself_leave_some_for_the_others() -> None:
    """Its jobs say that they suffer and are moved; then two jobs of others do suffer."""
    separator = Separator(SETTINGS)
    shared = gpu(resident("x", 0.0, "theirs"), resident("y", 0.0, "theirs"), name="quiet")
    moved = 0
    for number in range(2 * SETTINGS.max_moves_per_hour):
        reported = [resident(f"{name}{number}", 5.0, "mine", measured=False) for name in "ab"]
        start_s = NOW + 50 * number
        for move in looks(separator, [gpu(*reported), shared], start_s=start_s).moves:
            separator.made(move, start_s)
            moved += 1
    assert moved == SETTINGS.max_moves_per_hour // 2
    others = gpu(resident("c", 2.0, "theirs"), resident("d", 0.1, "theirs"), name="g1")
    mine = gpu(resident("q", 0.0, "mine"), resident("r", 0.0, "mine"))
    (move,) = looks(separator, [mine, others], start_s=start_s).moves
    assert move.key == ("theirs", "c")


def test_who_may_not_be_moved_stays_and_no_job_joins() -> None:
    gpus = [gpu(resident("a", 0.6, stays="it saves no checkpoint"),
                resident("b", 0.6, stays="it saves no checkpoint"))]  # fmt: skip
    looked = looks(Separator(SETTINGS), gpus)
    assert looked.moves == []
    assert list(looked.closed) == [("n0", "g0")]
    assert reasons(looked) == {"a": "it saves no checkpoint", "b": "it saves no checkpoint"}


def test_no_better_place_is_no_move() -> None:
    looked = looks(Separator(SETTINGS), [gpu(resident("a", 0.6), resident("b", 0.6))], place=False)
    assert looked.moves == []
    assert looked.closed["n0", "g0"] == (
        Obstacle("there is no better place for it", ("ml", "a")),
        Obstacle("there is no better place for it", ("ml", "b")),
    )


def test_the_moves_of_one_look_stay_within_the_budget() -> None:
    gpus = [
        gpu(resident(f"a{n}", 0.6, cost_gib=50), resident(f"b{n}", 0.6, cost_gib=50), name=f"g{n}")
        for n in range(6)
    ]
    looked = looks(Separator(SETTINGS), gpus)
    assert len(looked.moves) == 1
    for _, name in looked.closed:
        assert all("50 GiB, 30 left" in why for why in reasons(looked, name).values())


def test_the_worse_half_is_looked_at() -> None:
    gpus = [
        gpu(resident(f"a{n}", 0.4 + n / 10), resident(f"b{n}", 0.4), name=f"g{n}") for n in range(4)
    ]
    looked = looks(Separator(SETTINGS), gpus)
    assert {move.at[1] for move in looked.moves} <= {"g2", "g3"}


def test_a_move_that_did_not_help_is_not_repeated() -> None:
    separator = Separator(SETTINGS)
    (move,) = looks(separator, [gpu(resident("a", 0.6, cost_gib=1), resident("b", 0.5))]).moves
    separator.made(move, NOW)
    later = NOW + LIMITS.rest_s + 1
    again = [
        gpu(resident("a", 0.6, cost_gib=1), resident("c", 0.0, stays="no checkpoint"), name="g1")
    ]
    looked = looks(separator, again, start_s=later)
    assert looked.moves == []
    assert reasons(looked, "g1") == {"a": "its last move did not help", "c": "no checkpoint"}


def test_between_two_moves_of_a_job_lies_a_rest() -> None:
    separator = Separator(SETTINGS)
    (move,) = looks(separator, [gpu(resident("a", 0.9, cost_gib=1), resident("b", 0.5))]).moves
    separator.made(move, NOW + 50)
    pair = [gpu(resident("a", 0.5, cost_gib=1), resident("c", 0.0, stays="no"), name="g1")]
    assert looks(separator, pair, start_s=NOW + 60).moves == []
    rested = looks(separator, pair, start_s=NOW + 60 + LIMITS.rest_s)
    assert [m.key for m in rested.moves] == [("ml", "a")]


def test_while_something_is_done_about_one_of_them_no_other_is_chosen() -> None:
    separator = Separator(SETTINGS)
    pair = (resident("liar", 0.0, outgrew=True, busy=True), resident("honest", 0.6))
    assert looks(separator, [gpu(*pair)]).moves == []
    free = (resident("liar", 0.0, outgrew=True), resident("honest", 0.6))
    (move,) = looks(separator, [gpu(*free)], start_s=NOW + 200).moves
    assert move.key == ("ml", "liar")


def test_new_neighbours_begin_a_new_average() -> None:
    separator = Separator(SETTINGS)
    looks(separator, [gpu(resident("a", 0.6), resident("b", 0.6))], times=3)
    assert separator.level(("n0", "g0")) > 0.3
    separator.look([gpu(resident("a", 0.1), resident("c", 0.1))], lambda *_: True, NOW + 60)
    assert separator.level(("n0", "g0")) < 0.1


def test_of_several_neighbours_those_answer_who_are_expected_to_do_the_most() -> None:
    assert blamed([0.2], 0.6) == [0.6]
    assert blamed([0.0], 0.6) == [0.6]
    assert blamed([0.1, 0.5], 0.9) == [0.0, pytest.approx(0.75)]
    assert blamed([0.3, 0.3], 0.8) == [0.4, 0.4]
    # A neighbour of which nothing is known answers for what the others leave.
    assert blamed([0.1, float("inf")], 0.8) == [0.0, pytest.approx(0.7)]


def test_what_is_measured_next_to_two_is_shared_out_over_their_kinds() -> None:
    at = ("n0", "GPU-0")
    sharing_three = Watched("a", at, "A100", PodUse(uid="a"), others=frozenset({"b", "c"}))
    measured = ObservedSlowdown(value=0.8, means=Means.UTILISATION, reference=Reference.SOLO)
    expected = {"b": 0.1, "c": 0.3}
    kinds = {"b": "kb", "c": "kc"}
    neighbours = sharing._neighbours_of(sharing_three, kinds, expected.__getitem__)
    seen = sharing._with([], neighbours, measured)
    assert {n.kind: n.slowdown for n in seen} == {"kb": 0.2, "kc": 0.6}
    known = sharing._neighbours_of(sharing_three, {"b": "kb"}, expected.__getitem__)
    alone = sharing._with([], known, measured)
    assert {n.kind: n.slowdown for n in alone} == {"kb": 0.8}
