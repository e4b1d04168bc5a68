"""What all tests share: one real control plane for a test process, and a word on who used it."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tandem.controlplane import ControlPlane

MARK = "controlplane"
#: Conditions are waited for with limits of their own, whose errors say more than this one's.
CONTROL_PLANE_TIMEOUT_S = 600


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A control plane with a default kube-scheduler and no nodes; each test adds its own."""
    # Imported here and not by every test run: it takes half a second.
    from tandem.controlplane import ControlPlane, binaries

    absent = binaries.missing()
    if absent:
        pytest.skip(f"no {', '.join(absent)} on this machine. {binaries.how_to_get()}")
    with ControlPlane.start(scheduler=True) as plane:
        yield plane


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace of the test's own, whose default service account exists."""
    from tandem.controlplane import wait_until

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
    """Show what its planes looked like, and the ends of their logs, beside a test that failed."""
    report = yield
    if report.failed:
        for plane in planes_of(getattr(item, "funcargs", {}).values()):
            report.sections.append(("the control plane", plane.diagnosis()))
            for process in plane.processes.values():
                state = "" if process.running else f" (ended with status {process.exit_code})"
                report.sections.append((f"log of {process.name}{state}", process.log_tail(40)))
    return report


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
    """Say how many tests ran on the control plane, and why others did not."""
    ran, skipped = 0, Counter[str]()
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.getreports(outcome):
            if (MARK, True) not in map(tuple, getattr(report, "user_properties", ())):
                continue
            if outcome == "skipped":
                skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1
            else:
                ran += 1
    if ran:
        terminalreporter.write_line(f"{ran} tests ran on a real control plane")
    for reason, count in skipped.items():
        terminalreporter.write_line(f"{count} control-plane tests were skipped: {reason}")
