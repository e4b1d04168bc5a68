"""What all tests share: the seed of the run, a real control plane, and the report at the end."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import ci_exceptions
import pytest
from seeds import SEED, seed_for, without_group

if TYPE_CHECKING:
    from controlplane import ControlPlane

MARK = "controlplane"
#: Conditions are waited for with limits of their own, whose errors say more than this one's.
CONTROL_PLANE_TIMEOUT_S = 600
IN_CI = os.environ.get("CI", "").lower() in ("1", "true")


def pytest_configure(config: pytest.Config) -> None:
    """Let hypothesis draw from the run's seed, and without time limits: machines are loaded."""
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "tandem",
        deadline=None,
        derandomize=False,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("tandem")
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = seed_for("hypothesis")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this test in this run."""
    number = seed_for(without_group(request.node.nodeid))
    print(f"seed {number} of TANDEM_SEED={SEED}")
    return number


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, without a window; `new_page` opens a page."""
    from benchmarks.page import browser as driver

    if why := driver.absent():
        pytest.skip(why)
    with driver.chromium() as found:
        yield found


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A control plane with a default kube-scheduler and no nodes; each test adds its own."""
    # Imported here and not by every test run: it takes half a second.
    from controlplane import ControlPlane, binaries

    absent = binaries.missing()
    if absent:
        pytest.skip(f"no {', '.join(absent)} on this machine. {binaries.how_to_get()}")
    with ControlPlane.start(scheduler=True) as plane:
        yield plane


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace of the test's own, whose default service account exists."""
    from controlplane import wait_until

    name = f"test-{secrets.token_hex(4)}"
    control_plane.kubectl("create", "namespace", name)
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    wait_until(lambda: control_plane.http.get(account).is_success, f"{name} is set up")
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that share the plane in one worker, and mark their reports."""
    for item in items:
        if item.get_closest_marker(MARK):
            item.user_properties.append((MARK, True))
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(CONTROL_PLANE_TIMEOUT_S))
            if not item.get_closest_marker("xdist_group"):
                item.add_marker(pytest.mark.xdist_group(MARK))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Fail what must not pass in silence; show the control planes of a test that failed."""
    report = yield
    skipped = report.skipped and not hasattr(report, "wasxfail")
    if IN_CI and skipped and not listed().allows_skip(skip_reason(report)):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, and not listed in ci_exceptions.toml: {report.longrepr}"
    if report.failed:
        for plane in planes_of(getattr(item, "funcargs", {}).values()):
            report.sections.append(("the control plane", plane.diagnosis()))
            for process in plane.processes.values():
                state = "" if process.running else f" (ended with status {process.exit_code})"
                report.sections.append((f"log of {process.name}{state}", process.log_tail(40)))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that is marked as one of the control plane and runs without any."""
    if not item.get_closest_marker(MARK):
        return (yield)
    from controlplane import ControlPlane

    made = ControlPlane.made
    result = yield
    if ControlPlane.made == made == ControlPlane.closed:
        pytest.fail(f"marked {MARK}, but there was no control plane while it ran", pytrace=False)
    return result


@cache
def listed() -> ci_exceptions.Exceptions:
    """Return the exceptions of continuous integration, read once."""
    return ci_exceptions.load()


def skip_reason(report: pytest.TestReport) -> str:
    """Return why a test was skipped, or expected to fail."""
    said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return said.removeprefix("Skipped: ")


def planes_of(fixtures: Iterable[object]) -> list[ControlPlane]:
    """Return the planes among a test's fixtures, or that one of them holds as `plane`."""
    found: dict[int, ControlPlane] = {}
    for fixture in fixtures:
        for each in fixture if isinstance(fixture, tuple) else (fixture,):
            for one in (each, getattr(each, "plane", None), getattr(each, "cluster", None)):
                plane = getattr(one, "plane", one)
                if hasattr(plane, "diagnosis"):
                    found[id(plane)] = plane
    return list(found.values())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests ran on the control plane, what was skipped and why, and the run's seed."""
    ran = sum(
        (MARK, True) in map(tuple, getattr(report, "user_properties", ()))
        for outcome in ("passed", "failed", "error")
        for report in terminalreporter.getreports(outcome)
    )
    if ran:
        terminalreporter.write_line(f"{ran} tests ran on a real control plane")
    skipped = Counter[tuple[str, str]]()
    for report in terminalreporter.getreports("skipped"):
        skipped[skip_reason(report), report.nodeid.partition("::")[0]] += 1
    for (reason, file), count in sorted(skipped.items()):
        terminalreporter.write_line(f"skipped: {count} in {file}: {reason}")
    terminalreporter.write_line(f"TANDEM_SEED={SEED} repeats the random input of this run")
