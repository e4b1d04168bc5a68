"""The test suite's own rules: `conftest.py`, `ci_retry.py` and `ci_exceptions.toml`."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from ci_exceptions import FILE, AllowedSkip, Exceptions, Unreliable, load
from ci_retry import verdict

TESTS = Path(__file__).parents[1]
#: Other plugins take seconds to import.
PLUGINS = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_PLUGINS": "xdist.plugin,_hypothesis_pytestplugin",
}
DAY = date(2026, 11, 22)
LISTED = Exceptions(
    unreliable=(Unreliable("t.py::flaky", DAY, date(2026, 12, 6), "a race in kwok"),),
    skipped=(AllowedSkip("no data", DAY, "not in the repository"),),
)


@pytest.mark.parametrize(
    ("first", "again", "today", "passes"),
    [
        ({"t.py::broken"}, {"t.py::broken"}, DAY, False),
        ({"t.py::other"}, set(), DAY, False),
        ({"t.py::flaky"}, set(), DAY, True),
        ({"t.py::flaky"}, set(), date(2026, 12, 6), True),
        ({"t.py::flaky"}, set(), date(2026, 12, 7), False),
        ({"t.py::flaky"}, {"t.py::flaky"}, DAY, False),
        ({"t.py::flaky", "t.py::other"}, set(), DAY, False),
        (set(), set(), DAY, False),
    ],
)
def test_only_a_listed_test_may_fail_and_then_pass(first, again, today, passes) -> None:
    outcome, lines = verdict(first, again, LISTED, today)
    assert outcome is passes
    assert len(lines) == max(1, len(first))


def test_every_exception_is_dated_and_has_a_cause(tmp_path: Path) -> None:
    listed = load(FILE)
    for entry in (*listed.unreliable, *listed.skipped):
        assert entry.cause
        assert entry.since <= datetime.now(UTC).date()
    file = tmp_path / "listed.toml"
    file.write_text('[[unreliable]]\ntest = "t.py::flaky"\nsince = 2026-11-22\n')
    with pytest.raises(TypeError, match="until"):
        load(file)


FLAKY = """
import pathlib, random
import pytest

@pytest.mark.xdist_group("flaky")
def test_flaky(seed):
    tries = pathlib.Path("tries")
    tries.write_text(tries.read_text() + f"{seed}\\n" if tries.exists() else f"{seed}\\n")
    assert len(tries.read_text().split()) > 1

def test_sound():
    pass
"""


def project(folder: Path, text: str) -> Path:
    """A project with one test file and the rules of this suite."""
    (folder / "tests").mkdir()
    for name in ("conftest.py", "seeds.py", "ci_exceptions.py", "ci_exceptions.toml"):
        (folder / "tests" / name).symlink_to(TESTS / name)
    (folder / "tests" / "test_it.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    controlplane\n")
    return folder


def python(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **PLUGINS, "CI": "", **env},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("workers", [["-n0"], ["-n2", "--dist", "loadgroup"]])
def test_a_retry_draws_the_same_and_does_not_save_the_run(
    tmp_path: Path, workers: list[str]
) -> None:
    folder = project(tmp_path, FLAKY)
    assert python(folder, "-m", "pytest", "-q", *workers, TANDEM_SEED="7").returncode == 1
    retried = python(folder, str(TESTS / "ci_retry.py"), TANDEM_SEED="7")
    assert retried.returncode == 1
    assert "unreliable: tests/test_it.py::test_flaky" in retried.stdout
    first, again = (folder / "tries").read_text().split()
    assert first == again
    # Another run draws other values.
    python(folder, "-m", "pytest", "-q", "-n0", TANDEM_SEED="8")
    assert (folder / "tries").read_text().split()[2] != first


SKIPPING = """
import pytest

@pytest.mark.controlplane
def test_needs_a_plane():
    pytest.skip("no etcd on this machine")

def test_needs_data():
    pytest.skip("no measured data (TANDEM_SHARED_DATA)")

@pytest.mark.xfail(reason="a known gap", strict=True)
def test_expected():
    assert False
"""


@pytest.mark.slow
def test_a_skipped_suite_fails_in_ci_and_is_reported_elsewhere(tmp_path: Path) -> None:
    folder = project(tmp_path, SKIPPING)
    here = python(folder, "-m", "pytest", "-q", "-n0", TANDEM_SEED="7")
    assert here.returncode == 0, here.stdout
    assert "skipped: 1 in tests/test_it.py: no etcd on this machine" in here.stdout
    assert "TANDEM_SEED=7 repeats" in here.stdout
    in_ci = python(folder, "-m", "pytest", "-q", "-n0", CI="true")
    assert in_ci.returncode == 1
    assert "1 failed, 1 skipped, 1 xfailed" in in_ci.stdout


GROUPED = """
import os
import pytest

@pytest.mark.xdist_group("plane")
@pytest.mark.parametrize("number", range(6))
def test_shares_a_plane(number):
    with open("workers", "a") as file:
        print(os.environ["PYTEST_XDIST_WORKER"], file=file)

@pytest.mark.parametrize("number", range(6))
def test_is_alone(number):
    pass
"""


@pytest.mark.slow
def test_the_tests_of_a_group_run_in_one_worker(tmp_path: Path) -> None:
    folder = project(tmp_path, GROUPED)
    answer = python(folder, "-m", "pytest", "-q", "-n2", "--dist", "loadgroup")
    assert answer.returncode == 0, answer.stdout
    workers = (folder / "workers").read_text().split()
    assert len(workers) == 6
    assert len(set(workers)) == 1


PLANELESS = """
import pytest

@pytest.mark.controlplane
def test_reads_a_page():
    pass
"""


def test_a_test_without_a_plane_is_no_control_plane_test(tmp_path: Path) -> None:
    folder = project(tmp_path, PLANELESS)
    answer = python(folder, "-m", "pytest", "-q", "-n0")
    assert answer.returncode == 1
    assert "there was no control plane while it ran" in answer.stdout


def test_hypothesis_has_no_deadline_and_draws_from_the_seed_of_the_run(
    pytestconfig: pytest.Config,
) -> None:
    from hypothesis import settings

    assert settings().deadline is None
    assert pytestconfig.option.hypothesis_seed is not None
