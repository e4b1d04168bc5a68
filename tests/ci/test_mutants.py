"""The faults that `make mutants` inserts (proof/mutation/hand_mutants.toml) fit the code."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from proof.mutation.runner import changed, changed_constants

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "proof" / "mutation"
SETTINGS = tomllib.loads((FOLDER / "mutants.toml").read_text())
ENTRIES = tomllib.loads((FOLDER / "hand_mutants.toml").read_text())["mutant"]
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


@pytest.mark.parametrize(
    ("after", "assigned"),
    [
        ("LIMIT = 2\ndef f():\n    return LIMIT\n", ["LIMIT"]),
        ("LIMIT = 1\ndef f():\n    return 2\n", []),  # a function: replaced by its code
        ("LIMIT = 2\nMORE = LIMIT + 1\ndef f():\n    return LIMIT\n", []),  # a statement more
    ],
)
def test_a_constant_whose_assignment_alone_differs_is_found(
    after: str, assigned: list[str]
) -> None:
    before = "LIMIT = 1\ndef f():\n    return LIMIT\n"
    found = changed_constants(before, after)
    assert [name for each in found if (name := each.targets[0].id)] == assigned


def test_a_constant_that_other_code_reads_at_import_needs_a_fresh_interpreter() -> None:
    used = "LIMIT = {}\ndef f(most=LIMIT):\n    return most\n"
    assert changed_constants(used.format(1), used.format(2)) == []
    inside = "LIMIT = {}\nclass C:\n    most = LIMIT\n"
    assert changed_constants(inside.format(1), inside.format(2)) == []


def test_the_modules_and_the_tests_that_are_listed_are_there() -> None:
    for pattern in (*SETTINGS["modules"], *SETTINGS["tests"]):
        assert list(ROOT.glob(pattern)), f"proof/mutation/mutants.toml: nothing is {pattern}"
    modules = [str(f.relative_to(ROOT)) for each in SETTINGS["modules"] for f in ROOT.glob(each)]
    for part, files in SETTINGS["near"].items():
        assert any(part in module for module in modules), f"no module is {part}"
        for file in files:
            assert (ROOT / "tests" / f"{file}.py").is_file(), f"{part}: there is no {file}"


def test_every_survivor_on_the_page_has_its_reason() -> None:
    page = ROOT / "docs" / "evidence" / "mutants.md"
    if page.exists():
        assert "**open**" not in page.read_text()


def test_a_function_within_another_is_changed_with_it() -> None:
    code = "def f(n):\n    def g(x):\n        return x {} n\n    return g\n"
    before, after = (compile(code.format(sign), "f.py", "exec") for sign in ("<", "<="))
    assert [old.co_qualname for old, _ in changed(before, after)] == ["f", "f.<locals>.g"]
    assert list(changed(before, before)) == []
