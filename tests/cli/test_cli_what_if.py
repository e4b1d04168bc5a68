"""`tandem what-if`: start and end now and with a change."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_cli_reach import Service, error_of

from tandem.cli import what_if
from tandem.errors import UsageError
from tandem.kube.tunnel import Answer

JOB = {"namespace": "team-a", "name": "job-train", "workload": {"name": "train"}, "pods": []}
ANSWER = {
    "asOf": "2026-01-01T12:00:00.000000Z",
    "now": {
        "gpus": 4,
        "start": {"earliest": "2026-01-01T12:10:00Z", "latest": "2026-01-01T13:00:00Z"},
        "end": {"earliest": "2026-01-01T14:00:00Z", "latest": None},
    },
    "then": {
        "gpus": 2,
        "start": {"earliest": "2026-01-01T12:00:00Z", "latest": "2026-01-01T12:05:00Z"},
        "end": {"earliest": None, "latest": None},
    },
}


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    found = Service(monkeypatch)
    monkeypatch.setattr(what_if, "_AGAIN_S", 0.0)

    def answers(path: str, query: dict[str, str]) -> Answer:
        view: Any = ANSWER if path.endswith("/what-if") else {"time": "", "view": JOB}
        return Answer(200, json.dumps(view).encode())

    found.answers = answers
    return found


def test_both_cases_are_shown(service: Service) -> None:
    text = service.run("what-if", "train", "--gpus", "2", "--memory", "20Gi", "--no-share").stdout
    lines = [line.split("   ") for line in text.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells[1] == ["as it is", "4", "10m..60m", "2h00m or later"]
    assert cells[2] == ["with the change", "2", "0s..5m", "not within 48h"]
    path, query = service.asked[-1]
    assert path == "/v1/status/jobs/team-a/job-train/what-if"
    assert query == {"gpus": "2", "memory": str(20 << 30), "share": "false"}
    found = json.loads(service.run("what-if", "train", "--gpus", "2", "--json").stdout)
    assert found == ANSWER | {"namespace": "team-a", "name": "job-train"}


def test_a_job_that_never_fits_differs_from_one_that_waits_for_days(service: Service) -> None:
    view: Any = ANSWER | {"then": ANSWER["then"] | {"never": "no node has more than 4"}}  # type: ignore[operator] # of two kinds
    answers = service.answers
    service.answers = lambda path, query: (
        Answer(200, json.dumps(view).encode())
        if path.endswith("/what-if")
        else answers(path, query)
    )
    found = service.run("what-if", "train", "--gpus", "99")
    lines = [line.split("   ") for line in found.stdout.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells[2] == ["with the change", "2", "never", "never"]
    assert "With the change: no node has more than 4." in found.stdout + found.stderr


def test_another_batch_size_shows_what_a_gpu_needs_in_both_cases(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = {
        "now": {"memoryBytes": 20 << 30, "utilisationPercent": 81.4, "iterationSeconds": 0.25},
        "then": {"memoryBytes": 37 << 30, "utilisationPercent": 95.0, "iterationSeconds": 0.4321},
    }
    view: Any = {case: ANSWER[case] | load for case, load in loads.items()}  # type: ignore[operator] # of two kinds
    answers = service.answers
    service.answers = lambda path, query: (
        Answer(200, json.dumps(ANSWER | view).encode())
        if path.endswith("/what-if")
        else answers(path, query)
    )
    text = service.run("what-if", "train", "--batch-size", "64").stdout
    assert service.asked[-1][1] == {"batch_size": "64"}
    lines = [
        [cell.strip() for cell in line.split("   ") if cell.strip()] for line in text.splitlines()
    ]
    assert lines[1][2:5] == ["20.0 GiB", "81 %", "0.25 s"]
    assert lines[2][2:5] == ["37.0 GiB", "95 %", "0.432 s"]
    monkeypatch.setenv("COLUMNS", "80")
    text = service.run("what-if", "train", "--batch-size", "64").stdout
    assert max(map(len, text.splitlines())) <= 80


def test_it_fits_eighty_columns(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = service.run("what-if", "train", "--gpus", "2").stdout
    assert max(map(len, text.splitlines())) <= 80


def test_another_replica_is_asked_until_the_one_that_leads_answers(service: Service) -> None:
    answers, asked = service.answers, []

    def some(path: str, query: dict[str, str]) -> Answer:
        asked.append(path)
        if path.endswith("/what-if") and len(asked) < 6:
            return Answer(421, b'{"detail": "this replica does not plan: another one does"}')
        return answers(path, query)

    service.answers = some
    assert "as it is" in service.run("what-if", "train", "--gpus", "2").stdout
    assert len(asked) == 6
    service.answers = lambda path, query: (
        Answer(421, b'{"detail": "this replica does not plan"}')
        if path.endswith("/what-if")
        else answers(path, query)
    )
    assert "does not plan" in error_of(service.run("what-if", "train", "--gpus", "2")).message


@pytest.mark.parametrize("words", [(), ("--memory", "much"), ("--memory", "0")])
def test_what_changes_nothing_or_cannot_be_is_a_usage_error(
    service: Service, words: tuple[str, ...]
) -> None:
    assert isinstance(service.run("what-if", "train", *words).exception, UsageError)
