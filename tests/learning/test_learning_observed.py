"""From reports of agents to how much slower a pod runs than alone."""

import pytest
from learning_builders import report, use

from scheduler_extender.learning.config import LearningConfig
from scheduler_extender.learning.observed import Neighbours, Watch, Watched
from tandem.contracts.learning import Means, Reference

AT = ("n0", "g0")


def watched(watch: Watch, uid: str) -> Watched:
    return watch.pods[uid, AT]


def alone_then_with_b(busy: float = 100.0, **then: float) -> Watch:
    """`a` alone for two minutes at 90 % and 2 iterations/s, then next to `b`."""
    watch = Watch(LearningConfig().settle_s)
    for at in range(0, 130, 10):
        watch.take(report(at, 90, use("a", 90, 2.0)))
    watch.take(report(130, busy, use("a", **then), use("b", 44)))
    return watch


def test_its_own_time_alone_is_the_reference() -> None:
    a = watched(alone_then_with_b(percent=56.25, rate=1.25), "a")
    reported = a.slowdown(Means.PROGRESS, {}, {})
    measured = a.slowdown(Means.UTILISATION, {}, {})
    assert reported is not None
    assert measured is not None
    assert (reported.value, reported.reference, reported.estimated) == (0.6, Reference.SOLO, False)
    assert (measured.value, measured.reference, measured.estimated) == (0.6, Reference.SOLO, True)


def test_who_was_never_alone_is_compared_with_earlier_runs_then_with_the_prediction() -> None:
    b = watched(alone_then_with_b(percent=50), "b")
    assert b.slowdown(Means.UTILISATION, {}, {}) is None
    for history, reference in (
        ({Means.UTILISATION: 66.0}, Reference.HISTORY),
        ({}, Reference.PREDICTED),
    ):
        found = b.slowdown(Means.UTILISATION, history, {Means.UTILISATION: 66.0})
        assert found is not None
        assert (found.value, found.reference) == (0.5, reference)


NEXT_TO_A = Neighbours(("a@32",), (0.0,))


def shared_until(end_s: int, busy: float = 100.0) -> Watch:
    """`b` next to `a` from the beginning."""
    watch = Watch(LearningConfig().settle_s)
    for at in range(0, end_s + 1, 10):
        watch.take(report(at, busy, use("a", 56), use("b", 44)))
        watched(watch, "b").note(NEXT_TO_A)
    return watch


def alone_until(watch: Watch, begin_s: int, end_s: int) -> Watched:
    for at in range(begin_s, end_s + 1, 10):
        watch.take(report(at, 66, use("b", 66)))
    return watched(watch, "b")


def test_who_began_next_to_another_is_measured_once_it_is_alone() -> None:
    watch = shared_until(30)
    assert alone_until(watch, 40, 50).measured_late() == [], "its averages still know the other"
    ((neighbours, slowdown),) = alone_until(watch, 60, 80).measured_late()
    assert neighbours == NEXT_TO_A
    assert (slowdown.value, slowdown.reference, slowdown.estimated) == (0.5, Reference.SOLO, True)
    assert watched(watch, "b").measured_late() == [], "once"


def test_what_was_seen_of_a_job_for_a_moment_or_on_an_idle_gpu_is_not_compared_later() -> None:
    for watch in (shared_until(10), shared_until(30, busy=50.0)):
        assert alone_until(watch, 40, 90).measured_late() == []


def test_a_gpu_with_time_to_spare_slows_no_job_down() -> None:
    """A job that loads its data, or evaluates, uses less without suffering."""
    a = watched(alone_then_with_b(busy=50.0, percent=20), "a")
    assert a.slowdown(Means.UTILISATION, {}, {}) is None


def test_alone_again_but_the_averages_still_know_the_neighbour() -> None:
    watch = alone_then_with_b(percent=56, rate=1.25)
    watch.take(report(140, 80, use("a", 60, 1.3)))
    watch.take(report(150, 90, use("a", 80, 1.8)))
    assert watched(watch, "a").solo[Means.PROGRESS] == 2.0
    watch.take(report(170, 90, use("a", 90, 1.9)))
    assert watched(watch, "a").solo[Means.PROGRESS] == pytest.approx(1.95)


def test_a_neighbour_that_has_left_is_none_and_a_stranger_is_one() -> None:
    watch = Watch(LearningConfig().settle_s)
    watch.take(report(0, 90, use("a", 90), use("gone", 0, memory=0)))
    assert watched(watch, "a").others == frozenset()
    watch.take(report(10, 90, use("a", 90), {"foreign": True, "memoryBytes": 5}))
    assert watched(watch, "a").others == {""}


def test_seconds_with_each_neighbour_are_counted_and_pods_that_go_are_forgotten() -> None:
    watch = alone_then_with_b(percent=56)
    watch.take(report(140, 100, use("a", 56), use("b", 44)))
    assert watched(watch, "a").seconds_with == {"b": 10.0}
    watch.take(report(150, 40, use("b", 40)))
    assert list(watch.pods) == [("b", AT)]
    watch.node_gone("n0")
    assert watch.pods == {}
