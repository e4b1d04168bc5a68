"""`tandem report`: a table, JSON, CSV and one HTML file of what jobs had of GPUs."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from test_cli_reach import Service, error_of

from scheduler_extender.accounting.account import Account, Parts
from scheduler_extender.accounting.days import DAY_S, Day
from scheduler_extender.accounting.report import report_of
from tandem.cli.report import priced, prices_of
from tandem.errors import UsageError

NOW_S = 20_000.5 * DAY_S


def account(uid: str, **more: Any) -> Account:
    known = {
        "uid": uid, "namespace": "team-a", "name": f"job-{uid}", "user": "ada", "model": "bert",
        "gpu_type": "NVIDIA A100-SXM4-80GB", "gpus": 2, "queued_s": NOW_S - 9000,
        "started_s": NOW_S - 7200, "until_s": NOW_S - 3600, "held_gpu_s": 7200.0,
        "parts": Parts(used=0.5, used_measured=True, neighbours=0.5, lost=0.2), "slowdown": 0.25,
        "waits": {"PlacesTaken": 1800.0}, "phase": "Completed", "neighbours": (("gpt2@8", 0.25),),
    }  # fmt: skip
    return Account(**(known | more))


def document(by: str = "namespace", *more: Account) -> dict[str, Any]:
    day = Day(20_000)
    for each in (account("one"), account("two", namespace="team-b", user="=evil()"), *more):
        day.take(each)
    return report_of({day.number: day}, NOW_S, 7, by, None)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    return Service(monkeypatch)


def test_the_table_has_hours_a_total_and_why_jobs_waited(service: Service) -> None:
    service.say(document())
    lines = service.run("report").stdout.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:4]}
    assert lines[0].split() == [
        "namespace", "jobs", "asked", "held", "used", "saved", "lost", "waited",
    ]  # fmt: skip
    assert rows["team-a"] == ["1", "3.0", "2.0", "1.0", "0.6", "0.4", "30m"]
    assert rows["total"][0] == "2"
    assert "Waits by reason: All suitable GPUs are taken (60m)." in lines


def test_what_is_predicted_is_said(service: Service) -> None:
    service.say(document("namespace", account("three", parts=Parts(used=0.5))))
    assert "Predicted, not measured: 1.0 of used." in service.run("report").stdout


def test_the_table_fits_eighty_columns(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    service.say(document("user", account("x", user="a-user-with-a-long-name-of-his-own")))
    text = service.run("report", "--by", "user", "--price", "A100=2").stdout
    assert max(map(len, text.splitlines())) <= 80


def test_a_price_counts_for_the_types_whose_names_have_it(service: Service) -> None:
    """2 GPU-hours held, half of them the neighbour's: one at 2.5."""
    service.say(document())
    found = json.loads(service.run("report", "--price", "a100=2.5", "--json").stdout)
    assert [row["cost"] for row in found["rows"]] == [2.5, 2.5]
    assert found["total"]["cost"] == 5.0
    assert found["jobs"][0]["cost"] == 2.5
    # The longest name counts; a type without a price makes the cost unknown.
    both = priced(document(), prices_of(["A100=1", "A100-SXM4=4"]))
    assert both["total"]["cost"] == 8.0
    assert priced(document(), prices_of(["H100=1"]))["total"]["cost"] is None


@pytest.mark.parametrize("words", ["A100", "=3", "A100=x", "A100=-1", "A100=inf", "A100=nan"])
def test_what_is_no_price_is_a_usage_error(words: str) -> None:
    with pytest.raises(UsageError, match="is no price"):
        prices_of([words])


def test_csv_is_read_by_programs_and_holds_no_formula(service: Service) -> None:
    service.say(document("user"))
    rows = list(csv.DictReader(io.StringIO(service.run("report", "--by", "user", "--csv").stdout)))
    assert {row["key"] for row in rows} == {"ada", "'=evil()"}
    assert float(rows[0]["heldGpuSeconds"]) == 7200
    service.say(document())
    jobs = list(csv.DictReader(io.StringIO(service.run("report", "--jobs", "--csv").stdout)))
    assert {row["name"] for row in jobs} == {"job-one", "job-two"}


def test_single_jobs_have_wait_run_slowdown_and_neighbours(service: Service) -> None:
    said = document()
    service.say(said)
    text = service.run("report", "--jobs").stdout
    assert re.search(r"team-a/job-one +Completed +30m +60m +2.00 +25% +another model 25%", text)
    said["jobs"][0]["neighbourModels"] = ["gpt2"]
    service.say(said)
    assert re.search(r"2.00 +25% +gpt2 25%", service.run("report", "--jobs").stdout)


def test_a_price_of_a_type_that_does_not_exist_is_an_error(service: Service) -> None:
    service.say(document())
    answer = service.run("report", "--price", "A100=2", "--price", "H10=3")
    assert isinstance(answer.exception, UsageError)
    assert "'h10'" in answer.exception.message
    assert "NVIDIA A100-SXM4-80GB" in answer.exception.hint


def test_the_page_is_one_file_without_scripts(service: Service, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    service.say(document("namespace", account("y", name="<script>x</script>")))
    service.run("report", "--html", str(tmp_path / "report.html"), "--price", "A100=2")
    text = (tmp_path / "report.html").read_text()
    assert "default-src 'none'" in text
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert set(re.findall(r'(?:src|href)="([a-z:/+0-9]*)', text)) == {"data:image/svg+xml"}
    assert "Waits by reason" in text


def test_an_empty_record_is_said_and_a_wrong_namespace_is_an_error(service: Service) -> None:
    service.say(report_of({}, NOW_S, 7, "namespace", None))
    assert "total" in service.run("report").stdout
    assert service.run("report", "--days", "31").exit_code == 2
    assert error_of(service.run("report", "--price", "x")).message == "'x' is no price"
