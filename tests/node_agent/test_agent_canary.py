"""The canary: a container that must see no GPU, and what the agent makes of what it saw."""

import subprocess
import sys

import pytest

from node_agent import canary
from node_agent.config import AgentSettings
from node_agent.monitor import Monitor
from node_agent.stub import StubGpu

STAMP = "2026-01-02T03:04:05Z"


@pytest.fixture
def dev(tmp_path):
    folder = tmp_path / "dev"
    folder.mkdir()
    for name in ("null", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "shm"):
        (folder / name).touch()
    return folder


def test_what_is_no_gpu_does_not_count(dev, tmp_path):
    canary.leave(tmp_path, dev)
    assert canary.verdict(tmp_path) == ""


@pytest.mark.parametrize("device", ["nvidia0", "nvidia15", "nvidia-caps"])
def test_gpu_in_a_container_that_was_given_none(dev, tmp_path, device):
    (dev / device).touch()
    canary.leave(tmp_path, dev)
    assert f"saw {device}:" in canary.verdict(tmp_path)


@pytest.mark.parametrize("left", [None, "", "[]", "{}", "\x00"])
def test_canary_that_left_nothing_of_use_proves_nothing(tmp_path, left):
    if left is not None:
        (tmp_path / canary.FILE).write_text(left)
    assert canary.verdict(tmp_path) is None


def test_it_never_keeps_the_agent_from_starting(tmp_path):
    command = [sys.executable, "-m", "node_agent.canary"]
    done = subprocess.run([*command, tmp_path], check=False)
    assert done.returncode == 0
    assert canary.verdict(tmp_path) is not None
    assert subprocess.run([*command, tmp_path / "missing"], check=False).returncode == 0


@pytest.mark.parametrize(
    ("seen", "gpus", "status"),
    [
        (None, 1, None),
        ("[]", 1, "True"),
        ("[]", 0, None),
        ('["nvidia0"]', 1, "False"),
        ('["nvidia0"]', 0, "False"),
    ],
)
def test_condition(driver, proc, tmp_path, seen, gpus, status):
    driver.state.gpus = [StubGpu(f"GPU-{i}") for i in range(gpus)]
    driver.apply()
    if seen is not None:
        (tmp_path / canary.FILE).write_text(f'{{"devices": {seen}}}')
    monitor = Monitor(AgentSettings(node="n0", proc=proc.root, canary=tmp_path))
    monitor.tick(driver.now_s, STAMP)
    conditions = monitor.status(driver.now_s, STAMP).conditions
    monitor.close()
    found = [(one.status, one.reason) for one in conditions if one.type == "VariableHonoured"]
    reason = "Honoured" if status == "True" else "NotHonoured"
    assert found == ([] if status is None else [(status, reason)])
