"""What is learned of pairs decides where a job may go; no report goes beyond its own namespace's
jobs."""

import numpy as np
import pytest
from learning_builders import NOW

from scheduler_extender.cluster.pair_slowdowns import PairSlowdowns
from scheduler_extender.cluster.slowdowns import Slowdowns
from scheduler_extender.learning.config import LearningConfig
from scheduler_extender.learning.learned_state import believing
from tandem.policy.catalog import Profile, load_profile
from tandem.policy.cluster import GpuArrays, add_worker
from tandem.policy.constraints.interference import Apart, Interference
from tandem.policy.job import Job


def job(kind: str, namespace: str = "ml", name: str = "j") -> Job:
    return Job(id=f"{namespace}/{name}", model=kind, gpu_utilisation=40.0)


def allowed(
    pairs: PairSlowdowns,
    newcomer: Job,
    there: Job,
    slowdowns: Slowdowns | None = None,
    by: Apart | Interference | None = None,
) -> bool:
    """Whether `newcomer` may go next to `there`, `by` a constraint."""
    slowdowns = slowdowns or Slowdowns(pairs)
    for each in (newcomer, there):
        slowdowns.of(each)
    slowdowns.settle()
    empty = GpuArrays.empty(np.zeros(1, dtype=np.int64), np.array([80.0]))
    columns = {field: getattr(empty, field).copy() for field in GpuArrays.__dataclass_fields__}
    add_worker(columns, slowdowns.of(there), np.array([0]), 0)
    rule = by or Apart()
    return bool(rule(slowdowns.of(newcomer), GpuArrays(**columns))[0])  # type: ignore[arg-type]


def test_a_pair_that_was_parted_is_refused_in_either_order() -> None:
    pairs = PairSlowdowns()
    assert allowed(pairs, job("bert"), job("resnet"))
    pairs.part("bert", "resnet", "ml", 0.6, NOW, measured=True)
    assert not allowed(pairs, job("bert"), job("resnet"))
    assert not allowed(pairs, job("resnet"), job("bert"))
    assert allowed(pairs, job("bert"), job("vgg"))
    assert allowed(pairs, job("resnet"), job("resnet"))


def test_others_profit_from_measurements_and_from_nothing_else() -> None:
    pairs = PairSlowdowns()
    pairs.part("bert", "resnet", "ml", 0.6, NOW, measured=False)
    assert not allowed(pairs, job("bert"), job("resnet", "other"))
    assert allowed(pairs, job("bert", "other"), job("resnet", "other"))
    assert allowed(pairs, job("resnet", "other"), job("bert"))
    pairs.part("bert", "resnet", "ml", 0.6, NOW, measured=True)
    assert not allowed(pairs, job("bert", "other"), job("resnet", "other"))


def test_one_namespace_has_one_voice_among_others() -> None:
    pairs = PairSlowdowns()
    for _ in range(100):
        pairs.enter("bert", "resnet", "liar", 9.0, NOW, measured=True)
    for honest in ("x", "y"):
        pairs.enter("bert", "resnet", honest, 0.1, NOW, measured=True)
    assert pairs.believed("bert", "resnet", "somebody") == 0.1
    assert pairs.for_all() == {("bert", "resnet"): 0.1}
    assert allowed(pairs, job("bert", "x"), job("resnet", "somebody"))
    assert not allowed(pairs, job("bert", "liar"), job("resnet", "somebody"))


def test_a_flood_displaces_no_other_namespaces_memory() -> None:
    pairs = PairSlowdowns(8)
    pairs.part("bert", "resnet", "ml", 0.6, NOW, measured=True)
    for number in range(300):
        pairs.enter(f"k{number}", f"m{number}", "flood", 9.0, NOW + number, measured=True)
    assert len(pairs) == 9
    assert not allowed(pairs, job("bert", "other"), job("resnet"))


def test_what_was_forgotten_does_not_come_back_from_where_it_is_kept() -> None:
    pairs = PairSlowdowns(8)
    pairs.part("bert", "resnet", "ml", 0.6, NOW, measured=True)
    kept = pairs.stored()
    for number in range(30):
        pairs.enter(f"k{number}", f"m{number}", "flood", 9.0, NOW + number, measured=False)
        pairs.merge(kept)
        kept = pairs.stored()
    assert sorted(row[0] for row in kept) == ["bert", *(f"k{number}" for number in range(22, 30))]
    version = pairs.version
    pairs.merge([*kept, ["k0", "m0", "flood", 9.0, False, NOW]])
    assert (pairs.version, len(pairs)) == (version, 9)


def test_what_was_forgotten_is_no_newer_where_it_is_kept() -> None:
    pairs = PairSlowdowns(1)
    pairs.enter("k0", "m0", "ml", 0.6, NOW + 0.6, measured=True)
    kept = pairs.stored()
    pairs.enter("k1", "m1", "ml", 0.6, NOW + 0.8, measured=True)
    pairs.merge(kept)
    assert [row[0] for row in pairs.stored()] == ["k1"]


def test_the_end_of_an_earlier_run_makes_a_pair_no_older() -> None:
    pairs = PairSlowdowns(2)
    pairs.part("k0", "m0", "ml", 0.6, NOW + 3, measured=False)
    pairs.enter("k1", "m1", "ml", 0.6, NOW + 2, measured=False)
    pairs.enter("k0", "m0", "ml", 0.6, NOW + 1, measured=False)
    pairs.enter("k2", "m2", "ml", 0.6, NOW + 4, measured=False)
    assert [row[0] for row in pairs.stored()] == ["k0", "k2"]


def test_what_was_parted_is_not_believed_to_be_better_later() -> None:
    pairs = PairSlowdowns()
    pairs.part("bert", "resnet", "ml", 0.6, NOW, measured=True)
    pairs.part("bert", "resnet", "ml", 0.4, NOW + 1, measured=False)
    pairs.enter("bert", "resnet", "ml", 0.5, NOW + 2, measured=False)
    assert pairs.believed("bert", "resnet", "ml") == 0.6


def test_it_is_kept_across_a_restart() -> None:
    before, after = PairSlowdowns(), PairSlowdowns()
    before.part("bert", "resnet", "ml", 0.6, NOW, measured=True)
    before.enter("vgg", "vgg", "x", 0.2, NOW, measured=False)
    after.merge(before.stored())
    assert sorted(after.stored()) == sorted(before.stored())
    assert not allowed(after, job("bert", "other"), job("resnet"))
    version = after.version
    after.merge(before.stored())
    assert after.version == version


def test_what_was_measured_stands_in_the_place_of_what_was_predicted_until_it_is_forgotten() -> (
    None
):
    pairs = PairSlowdowns(1)
    slowdowns = Slowdowns(pairs)
    bert, resnet = slowdowns.of(job("bert")), slowdowns.of(job("resnet"))
    assert bert.own_slowdown is not None
    predicted = float(bert.own_slowdown[resnet.interference_class])
    pairs.enter("bert", "resnet", "ml", 0.27, NOW, measured=True)
    assert slowdowns.settle() >= {bert.interference_class, resnet.interference_class}
    assert bert.own_slowdown[resnet.interference_class] == 0.27
    # A load of the same model that was never seen before is believed to be alike.
    heavy = slowdowns.of(Job(id="ml/k", model="bert", gpu_utilisation=90.0))
    slowdowns.settle()
    assert heavy.own_slowdown is not None
    assert heavy.own_slowdown[resnet.interference_class] == 0.27
    pairs.enter("vgg", "vgg", "ml", 0.2, NOW + 1, measured=True)
    slowdowns.settle()
    assert bert.own_slowdown[resnet.interference_class] == predicted


def test_jobs_of_no_known_kind_teach_nothing() -> None:
    pairs = PairSlowdowns()
    pairs.enter("", "bert", "ml", 0.9, NOW, measured=True)
    assert len(pairs) == 0


def rules(profile: Profile, mode: str = "act") -> list[str]:
    """Return the constraints that a live placement has in addition to the profile's."""
    settings = LearningConfig.model_validate({"mode": mode})
    live = believing(profile, settings).constraints
    return [rule.kind for rule in live[len(profile.constraints) :]]


def test_a_finite_bound_on_interference_keeps_parted_pairs_apart_by_itself() -> None:
    pairs = PairSlowdowns()
    pairs.part("bert", "resnet", "ml", 0.6, NOW, measured=True)
    bound = Interference(max_interference=1e6)
    assert not allowed(pairs, job("bert"), job("resnet"), by=bound)
    assert not allowed(pairs, job("resnet"), job("bert"), by=bound)
    assert rules(load_profile("tandem")) == []
    assert rules(load_profile("tandem-guarded")) == ["interference"]


def test_a_profile_without_a_bound_keeps_parted_pairs_apart_by_a_constraint() -> None:
    profile = load_profile("tandem")
    unbounded = [rule for rule in profile.constraints if rule.kind != "interference"]
    without = profile.model_copy(update={"constraints": tuple(unbounded)})
    assert rules(without) == ["apart"]
    assert rules(without, mode="off") == []
    infinite = (*unbounded, Interference(max_interference=float("inf")))
    assert rules(profile.model_copy(update={"constraints": infinite})) == ["apart"]


@pytest.mark.parametrize("name", ["tandem", "tandem-guarded"])
def test_the_profile_of_a_cluster_has_a_compiled_cycle(name: str) -> None:
    live = believing(load_profile(name), LearningConfig())
    assert all(rule.compiled() is not None for rule in live.constraints)
