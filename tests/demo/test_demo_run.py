"""The demo as a user runs it, at high speed: real services, simulated GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandem_demo.workload import JOBS

TANDEM = Path(sys.executable).with_name("tandem")
GPUS = 4
SHARES = 2


def run_demo(*arguments, **environment):
    return subprocess.run(
        [str(TANDEM), "demo", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.slow
def test_twelve_jobs_finish_some_share_and_no_gpu_is_over_its_shares(tmp_path):
    logs = tmp_path / "logs"
    done = run_demo("--json", "--no-live", "--speed", "20", "--keep-logs", str(logs))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    jobs = {job["name"]: job for job in result["jobs"]}
    assert set(jobs) == {job.name for job in JOBS}

    assert len({job["gpu"] for job in jobs.values()}) == GPUS
    for name, job in jobs.items():
        # At the same moment, not one after the other: both sides say so.
        assert all(name in jobs[other]["shared_with"] for other in job["shared_with"])
        assert all(jobs[other]["gpu"] == job["gpu"] for other in job["shared_with"])
        # The agents saw what the predictor had promised to be enough.
        if job["measured_memory_gib"] is not None:
            assert job["measured_memory_gib"] <= job["predicted_memory_gib"]
    assert result["shared_jobs"] >= 2
    assert result["max_jobs_on_a_gpu"] == SHARES
    assert result["bindings"] == len(JOBS)
    assert all(job["shared_with"] == [] for job in jobs.values() if job["exclusive"])
    assert any(job["measured_memory_gib"] for job in jobs.values())

    # One Binding a pod, and the services left nothing behind that looks like a bug.
    texts = {path.stem: path.read_text() for path in (logs / "logs").glob("*.log")}
    assert set(texts) == {"extender", "predictor", "agent-node-a", "agent-node-b"}
    assert not [name for name, text in texts.items() if "Traceback" in text]


@pytest.mark.slow
def test_without_a_compiler_it_says_what_to_do(tmp_path):
    done = run_demo("--no-live", PATH=str(tmp_path), CC="none")
    assert done.returncode == 1
    assert "C compiler" in done.stderr
    assert "Install gcc" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_in_use_is_not_written_to(tmp_path):
    (tmp_path / "mine").write_text("kept")
    done = run_demo("--keep-logs", str(tmp_path))
    assert done.returncode == 2
    assert "is not an empty folder" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
