"""The page of the mutants: the score of each module, and the survivors with their reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.tables import markdown
from proof.mutation.sources import Mutant


def page(
    sampled: dict[str, tuple[int, list[Mutant]]],
    hand: Sequence[Mutant],
    outcomes: dict[str, dict[str, Any]],
    reasons: dict[str, str],
    heading: str,
) -> str:
    """Return docs/evidence/mutants.md."""
    rows, total = [], Counter[str]()
    for path, (every, mutants) in sampled.items():
        count = Counter(outcome_of(outcomes, m) for m in mutants)
        rows.append(_row(f"`{path}`", every, count))
        total += count
    rows.append(_row("**all**", sum(every for every, _ in sampled.values()), total))
    groups = []
    for group in dict.fromkeys(m.group for m in hand):
        of = [outcome_of(outcomes, m) for m in hand if m.group == group]
        groups.append((group, len(of), of.count("killed")))
    lines = [
        "# Mutants",
        "",
        "`make mutants` changes one expression at a time in the code that decides about safety,",
        "and runs the fast tests of the module, then those that reach the changed line. A mutant",
        "that no test notices survives.",
        "",
        "The changes are those of [mutmut](https://mutmut.readthedocs.io/), except for log calls",
        "and for the text of messages. A sample of each module is tried, in proportion to its",
        "mutants. A test kills a mutant where it fails, or does not end within ten seconds of the",
        "processor.",
        "",
        heading,
        "",
        markdown(["module", "mutants", "tried", "killed", "survived", "score"], rows),
        "",
        "## Faults chosen by hand",
        "",
        "Each is a small bug that was once inserted without any test failing, or a relative of one",
        "(`proof/mutation/hand_mutants.toml`).",
        "",
        markdown(["group", "faults", "killed"], groups),
    ]
    sampled_all = [m for _, mutants in sampled.values() for m in mutants]
    known = ("killed", "untried")
    survivors = [m for m in (*sampled_all, *hand) if outcome_of(outcomes, m) not in known]
    lines += ["", "## Survivors", ""] if survivors else []
    for mutant in survivors:
        said = reasons.get(mutant.id, "**open**")
        lines += [f"`{mutant.id}`: {said}", "", "```diff"]
        lines += [f"- {mutant.old}", f"+ {mutant.new}", "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def outcome_of(outcomes: dict[str, dict[str, Any]], mutant: Mutant) -> str:
    """Return what became of a mutant in a word: `killed`, `survived`, `no tests`, `untried`."""
    return str(outcomes[mutant.id]["outcome"]) if mutant.id in outcomes else "untried"


def _row(name: str, mutants: int, count: Counter[str]) -> tuple[object, ...]:
    tried, killed = count.total() - count["untried"], count["killed"]
    score = f"{100 * killed / tried:.0f} %" if tried else "-"
    return name, mutants, tried, killed, tried - killed, score
