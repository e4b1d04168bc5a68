"""The list of faults that `make mutants` inserts fits the code (benchmarks/hand_mutants.toml)."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENTRIES = tomllib.loads((ROOT / "benchmarks" / "hand_mutants.toml").read_text())["mutant"]
GROUPS = {
    "guard", "ledger", "binding", "leadership", "gates", "preemption", "quota", "admission",
    "simulator",
}  # fmt: skip


def test_each_fault_changes_one_place_of_code_that_can_be_compiled() -> None:
    for entry in ENTRIES:
        code = (ROOT / entry["file"]).read_text()
        named = f"{entry['file']}: {entry['fault']}: change the entry with the code"
        assert code.count(entry["old"]) == 1, named
        compile(code.replace(entry["old"], entry["new"]), entry["file"], "exec")


def test_every_group_has_faults_and_none_is_listed_twice() -> None:
    assert {entry["group"] for entry in ENTRIES} == GROUPS
    listed = [(entry["group"], entry["fault"]) for entry in ENTRIES]
    assert len(listed) == len(set(listed)) >= 50
