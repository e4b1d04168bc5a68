"""The check for real GPUs, run on a simulated one: it must find what it looks for, and miss it."""

import json
from datetime import UTC, datetime

import pytest

from node_agent import check
from node_agent.stub import StubGpu, StubProcess, Wave

GIB = 1 << 30


class StubLoad:
    """Courses on the simulated GPU; one that fills it fails ten seconds later."""

    def __init__(self, driver, *, wrong=1.0):
        self.driver, self.wrong = driver, wrong
        self.next_pid = 40
        self.fails_at = {}

    def start(self, course):
        pid = self.next_pid = self.next_pid + 1
        memory = 78 * GIB - course.base if course.fill else course.base
        if course.fill:
            self.fails_at[pid] = self.driver.now_s + 10
        process = StubProcess(
            0,
            pid,
            memory,
            extra=course.extra,
            peaks=wave(course.peak_period_s, course.peak_share * self.wrong),
            sm=round(100 * course.level),
            active=wave(course.active_period_s, course.active_share * self.wrong),
        )
        self.driver.state.processes.append(process)
        self.driver.apply()
        return pid

    def failed(self, pid):
        if self.driver.now_s < self.fails_at.get(pid, float("inf")):
            return None
        self.stop(pid)
        return 1

    def stop(self, pid):
        kept = [process for process in self.driver.state.processes if process.pid != pid]
        self.driver.state.processes = kept
        self.driver.apply()
        return 0

    def close(self):
        self.driver.state.processes = []


def wave(period_s, share):
    return Wave(round(period_s * 1e6), round(period_s * share * 1e6), 123_456)


@pytest.fixture
def clock(driver):
    driver.state.gpus = [StubGpu("GPU-a")]
    driver.apply()

    def stamp():
        return datetime.fromtimestamp(driver.now_s, UTC).isoformat().replace("+00:00", "Z")

    return check.Clock(lambda: driver.now_s, lambda s: driver.advance(max(s, 1e-4)), stamp)


@pytest.mark.long
def test_all_holds_on_a_gpu_that_does_what_the_script_says(driver, clock, tmp_path):
    assert check.run(StubLoad(driver), tmp_path, 61.0, clock)
    report = json.loads((tmp_path / "agent-check.json").read_text())
    assert len(report["findings"]) > 15
    assert report["gpu"]["model"].startswith("NVIDIA")
    assert report["sample_ms"]["median"] == pytest.approx(167.6, abs=0.1)
    assert report["call_us"].keys() >= {"memory", "processes"}
    assert "| who is asked to go |" in (tmp_path / "agent-check.md").read_text()


@pytest.mark.long
def test_what_does_not_do_as_the_script_says_is_found(driver, clock, tmp_path):
    assert not check.run(StubLoad(driver, wrong=0.7), tmp_path, 61.0, clock)
    findings = json.loads((tmp_path / "agent-check.json").read_text())["findings"]
    missed = {finding["what"] for finding in findings if not finding["held"]}
    assert "one: peak probability" in missed
    assert sum(what.startswith("active to idle") for what in missed) == len(check.ACTIVITIES)


def test_machine_without_a_gpu(driver, clock, tmp_path):
    driver.state.gpus = []
    driver.apply()
    assert not check.run(StubLoad(driver), tmp_path, 61.0, clock)
    (finding,) = json.loads((tmp_path / "agent-check.json").read_text())["findings"]
    assert finding["what"] == "a GPU is found"
