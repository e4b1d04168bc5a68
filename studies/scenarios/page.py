"""docs/evidence/results/scenarios.md: which scenario of a paper's rules catches which mutant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from benchmarks.tables import markdown
from studies.scenarios import horus, ojpp, sjf_bsbf, tiresias, xonar
from studies.scenarios.model import Scenario
from studies.scenarios.mutants import ROOT, Live, Mutant, caught_by, mutants

PAGE = ROOT / "docs" / "evidence" / "results" / "scenarios.md"
SCENARIOS: tuple[Scenario, ...] = (
    *tiresias.SCENARIOS, *horus.SCENARIOS, *ojpp.SCENARIOS, *sjf_bsbf.SCENARIOS, *xonar.SCENARIOS,
)  # fmt: skip
_SHOWN = 3
_HEAD = """# Scenarios of the papers' rules

A scenario is data: jobs with their loads, GPUs, and where the jobs are at some moments. It runs
through the simulator with a shipped profile; what decides is the profile's `dispatch`, which the
scheduler extender calls as well. Each one says which rule of which paper decides in it.

A mutant is a system with a damage to one rule: a profile that lacks a part or has another one in
its place, or a changed line of code. It is caught where a scenario of its system ends otherwise.
`tests/papers/test_papers_scenarios.py` asserts that each system passes its scenarios, that no other
shipped profile does, and that at least 90 % of the mutants are caught.

Written by `python -m studies.scenarios --write` from `studies/scenarios/`.
"""


@cache
def matrix() -> Mapping[Mutant, Sequence[Scenario]]:
    """Return the scenarios that catch each mutant; those of the equivalent ones are none."""
    live = Live()
    return {mutant: caught_by(mutant, SCENARIOS, live) for mutant in mutants()}


def page() -> str:
    """Return the page as it should be."""
    caught = matrix()
    counted = [mutant for mutant in caught if not mutant.equivalent]
    count = sum(bool(caught[mutant]) for mutant in counted)
    parts = [
        _HEAD,
        f"{len(SCENARIOS)} scenarios. {len(caught)} mutants: {len(caught) - len(counted)} are"
        f" equivalent; of the other {len(counted)}, {count} are caught"
        f" ({count / len(counted):.0%}).\n",
    ]
    for paper in dict.fromkeys(scenario.paper for scenario in SCENARIOS):
        of = [scenario for scenario in SCENARIOS if scenario.paper == paper]
        rows = [[s.name, f"`{s.profile}`", s.section, s.decides] for s in of]
        parts.append(
            f"## {paper}\n\n{markdown(['scenario', 'profile', 'section', 'decides'], rows)}\n"
        )
    parts.append(f"## Mutants\n\n{_mutants(caught)}\n")
    rows = [[f"`{m.profile}`", m.rule, m.fault, m.equivalent] for m in caught if m.equivalent]
    columns = ["profile", "rule", "damage", "why it decides the same"]
    parts.append(f"## Equivalent mutants\n\n{markdown(columns, rows)}")
    return "\n".join(parts) + "\n"


def _mutants(caught: Mapping[Mutant, Sequence[Scenario]]) -> str:
    rows = []
    for mutant, scenarios in caught.items():
        if mutant.equivalent:
            continue
        names = "; ".join(scenario.name for scenario in scenarios[:_SHOWN])
        more = len(scenarios) - _SHOWN
        by = f"{names} and {more} more" if more > 0 else names or "**none**"
        rows.append([f"`{mutant.profile}`", mutant.rule, mutant.fault, by])
    return markdown(["profile", "rule", "damage", "caught by"], rows)
