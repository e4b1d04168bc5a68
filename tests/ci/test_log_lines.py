"""No caller forges a line of a service's log: a record is one line, and values are quoted in it."""

from __future__ import annotations

import ast
import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.log import FORMAT, LineFormatter

ROOT = Path(__file__).parents[2]
SERVICES = ("tandem", "scheduler_extender", "node_agent", "predictor")
LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
FORGED = "x\n2026-11-25 10:00:00,000 WARNING tandem evicted pod=ml/p\x1b[2J\u202e\u2028 user='root'"


def lines(*args: object, message: str = "refused object=%s why=%s") -> list[str]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter())
    log = logging.Logger("test")
    log.addHandler(handler)
    log.warning(message, *args)
    return stream.getvalue().removesuffix("\n").split("\n")


def test_a_value_that_a_caller_chose_is_quoted() -> None:
    (line,) = lines(FORGED, ValueError(FORGED))
    assert line.isprintable()
    shown = line.partition("refused ")[2]
    assert shown == f"object={FORGED!r} why={FORGED!r}"


def test_plain_values_stand_as_they_are() -> None:
    (line,) = lines("ml/train-1", "GPU-0")
    assert line.endswith("WARNING test refused object=ml/train-1 why=GPU-0")
    (line,) = lines("a", 3, message="user=%r count=%d")
    assert line.endswith("user='a' count=3")


@given(st.text(), st.text())
def test_whatever_is_logged_is_one_line_of_its_own(one: str, two: str) -> None:
    (line,) = lines(one, ("key", two))
    assert line.isprintable()
    if " " in one or "=" in one:
        assert f"object={one}" not in line, "a field could be forged"


def test_the_lines_of_a_traceback_begin_no_record() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter())
    log = logging.Logger("test")
    log.addHandler(handler)
    try:
        raise ValueError(FORGED)
    except ValueError:
        log.exception("object not read key=%s", ("ml", FORGED))
    first, *others = stream.getvalue().removesuffix("\n").split("\n")
    assert re.match(r"\d{4}-\d\d-\d\d ", first)
    assert len(others) > 3
    assert all(line.startswith("  ") and line.isprintable() for line in others)


def test_a_long_value_is_cut() -> None:
    (line,) = lines("x" * 100_000, "y")
    assert len(line) < 5_000


def calls(package: str) -> Iterator[tuple[str, ast.Call]]:
    for file in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield f"{file.relative_to(ROOT)}:{node.lineno}", node


@pytest.mark.parametrize("package", SERVICES)
def test_every_value_is_an_argument_of_its_line(package: str) -> None:
    """What is put into the text itself is not quoted."""
    found = [
        (where, call)
        for where, call in calls(package)
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in LEVELS
        and ast.unparse(call.func.value) in ("log", "logging", "logger")
    ]
    assert found
    wrong = [where for where, call in found if not isinstance(call.args[0], ast.Constant)]
    assert not wrong


@pytest.mark.long
def test_every_service_logs_in_this_way() -> None:
    configured = []
    for package in SERVICES:
        for where, call in calls(package):
            assert isinstance(call.func, ast.Attribute)
            if call.func.attr in ("basicConfig", "setFormatter", "Formatter"):
                configured.append(where.partition(":")[0])
    assert set(configured) == {"tandem/log.py"}
    for main in (
        "scheduler_extender/__main__.py", "scheduler_extender/serving/front.py",
        "predictor/__main__.py", "node_agent/__main__.py",
    ):  # fmt: skip
        assert "configure_log(" in (ROOT / main).read_text(), main
    assert FORMAT.endswith("%(message)s")
