"""The scenarios of the papers' rules, and that they tell each system from a damaged one."""

from __future__ import annotations

import gc

import pytest

from studies.scenarios.model import Scenario, passes
from studies.scenarios.mutants import Live, Mutant, caught_by, in_python, mutants
from studies.scenarios.page import PAGE, SCENARIOS, matrix, page
from tandem.policy.catalog import load_profile, profile_names

SYSTEMS = ("tiresias-l", "tiresias-l-list", "tiresias-l-promote", "tiresias-g", "horus", "horus-f",
           "ojpp", "ojpap", "sjf-bsbf", "xonar")  # fmt: skip
#: Profiles that decide all scenarios of a system as it does, each with a reason.
ALIKE = {"tiresias-l": {"tiresias-g"}}  # without a distribution, its index is attained service


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: f"{s.profile}-{s.name}")
def test_the_rule_decides(scenario: Scenario) -> None:
    assert passes(scenario)


@pytest.mark.parametrize(
    "scenario",
    [s for s in SCENARIOS if load_profile(s.profile).dispatch.kind == "preempt"],
    ids=lambda s: f"{s.profile}-{s.name}",
)
def test_the_rule_decides_where_nothing_is_compiled(scenario: Scenario) -> None:
    with in_python():
        assert passes(scenario)


def test_each_scenario_has_a_name_of_its_own() -> None:
    named = {(scenario.profile, scenario.name) for scenario in SCENARIOS}
    assert len(named) == len(SCENARIOS)


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_no_other_shipped_profile_passes_the_scenarios_of_a_system(system: str) -> None:
    own = [scenario for scenario in SCENARIOS if scenario.profile == system]
    others = [name for name in profile_names() if name != system]
    alike = {name for name in others if all(passes(s, load_profile(name)) for s in own)}
    assert alike == ALIKE.get(system, set())


@pytest.mark.slow
def test_of_ten_mutants_that_decide_otherwise_nine_are_caught() -> None:
    counted = [mutant for mutant in matrix() if not mutant.equivalent]
    assert len(counted) >= 83
    missed = [mutant.name for mutant in counted if not matrix()[mutant]]
    assert len(missed) <= 0.1 * len(counted), missed


@pytest.mark.slow
def test_a_mutant_that_is_called_equivalent_is_caught_by_no_scenario() -> None:
    assert not [m.name for m in matrix() if m.equivalent and matrix()[m]]


@pytest.mark.slow
def test_each_rule_of_a_system_has_a_mutant_and_each_system_scenarios_for_it() -> None:
    assert {mutant.profile for mutant in matrix()} == set(SYSTEMS)


@pytest.mark.slow
def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "python -m studies.scenarios --write"


def test_a_mutant_is_undone_once_its_scenarios_have_run() -> None:
    fault = Mutant(
        "xonar", "", "", file="tandem/policy/equations/xonar.py",
        old="misfit = np.abs(ratio * other - 1)", new="misfit = -np.abs(ratio * other - 1)",
    )  # fmt: skip
    own = [scenario for scenario in SCENARIOS if scenario.profile == "xonar"]
    gc.freeze()  # as a service does that an earlier test of this process ran
    assert caught_by(fault, own, Live())
    assert all(passes(scenario) for scenario in own)


def test_a_mutant_whose_code_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="0 times"):
        caught_by(
            Mutant("xonar", "", "", file="tandem/policy/equations/xonar.py", old="gone"),
            SCENARIOS, Live(),
        )  # fmt: skip


def test_the_list_names_each_mutant_once() -> None:
    names = [mutant.name for mutant in mutants()]
    assert len(set(names)) == len(names)
