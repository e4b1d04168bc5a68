"""Which operators there are, and what is said of those that are not built; none is built here."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from controlplane import binaries, build, operators
from controlplane.cli import app
from tandem.errors import TandemError

FAKE_GO = """#!/bin/sh
if [ "$1" = list ]; then echo "$(dirname "$0")/module"; exit; fi
if [ "$1" = mod ]; then exit; fi
while [ "$1" != "-o" ]; do shift; done
printf '#!/bin/sh\\n' > "$2" && chmod +x "$2"
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty cache, and what stands in for Go with an empty module."""
    for name in ("sh", "dirname", "printf", "chmod"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    (tmp_path / "go").write_text(FAKE_GO)
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TANDEM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def module_with(machine: Path, operator: operators.Operator) -> None:
    for pattern in operator.manifests:
        file = machine / "module" / pattern.replace("*", "all").replace("[!m]", "")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("kind: Nothing\n")


def built(operator: operators.Operator) -> list[str]:
    seen: list[str] = []
    operators.build_one(operator, lambda step: seen.append(step.state))
    return seen


def test_every_operator_is_pinned_and_has_a_folder_of_its_own() -> None:
    folders = {operators.folder(each) for each in operators.OPERATORS}
    assert len(folders) == len(operators.OPERATORS)
    for each in operators.OPERATORS:
        assert binaries.version(each.program).startswith("v")
        assert operators.folder(each).name.startswith(f"{each.name}-v")


def test_an_operator_that_is_asked_for_twice_starts_once() -> None:
    assert [each.name for each in operators.chosen(["jobset", "jobset"])] == ["jobset"]


def test_an_operator_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(TandemError, match="no operator is called 'jobsets'") as error:
        operators.chosen(["jobsets"])
    assert "jobset" in str(error.value.hint)


def test_an_operator_is_built_once_with_what_its_module_ships(machine: Path) -> None:
    operator = operators.by_name("jobset")
    module_with(machine, operator)
    assert operators.missing([operator]) == [operator]
    assert built(operator)[-1] == "built"
    assert operators.missing([operator]) == []
    kept = operators.folder(operator) / "manifests"
    assert sorted(file.name for file in kept.iterdir()) == ["all.yaml", "manifests.yaml"]
    assert built(operator) == []


def test_of_one_that_is_played_only_its_definitions_are_kept(machine: Path) -> None:
    operator = operators.by_name("volcano")
    module_with(machine, operator)
    assert operators.missing([operator]) == [operator]
    assert built(operator) == []
    assert operators.missing([operator]) == []
    assert [file.name for file in operators.folder(operator).iterdir()] == ["manifests"]


def test_a_module_without_its_custom_resources_is_an_error_and_nothing_is_kept(
    machine: Path,
) -> None:
    operator = operators.by_name("jobset")
    (machine / "module").mkdir()
    with pytest.raises(TandemError, match=r"sigs.k8s.io/jobset has no config/components/crd"):
        built(operator)
    assert operators.missing([operator]) == [operator]


def test_the_command_builds_operators_with_progress(machine: Path) -> None:
    module_with(machine, operators.by_name("jobset"))
    answer = CliRunner().invoke(app, ["build", "--operators", "jobset"])
    assert answer.exit_code == 0, answer.output
    assert "built jobset" in answer.output
    assert str(operators.folder(operators.by_name("jobset"))) in answer.output.replace("\n", "")


def test_without_go_the_command_says_what_is_skipped(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "go", lambda: None)
    answer = CliRunner().invoke(app, ["build", "--operators", "jobset"])
    assert answer.exit_code == 0, answer.output
    assert "Without Go there is no jobset: tests with it are skipped." in answer.output
