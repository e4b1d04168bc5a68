"""The demo on a terminal: it names the status page, shows its jobs there, and keeps it."""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from tandem_demo.workload import JOBS, NAMESPACE

TANDEM = Path(sys.executable).with_name("tandem")


@pytest.mark.slow
def test_on_a_terminal_the_page_shows_the_jobs_and_stays_until_ctrl_c() -> None:
    ours, theirs = pty.openpty()
    # The workers of pytest-xdist ignore SIGINT, and a child would inherit that.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [str(TANDEM), "demo", "--speed", "50"],
        stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True, start_new_session=True,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "160"},
    )  # fmt: skip
    signal.signal(signal.SIGINT, handler)
    os.close(theirs)
    said = bytearray()

    def read() -> None:
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:
                return  # the other end is closed
            if not part:
                return
            said.extend(part)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()

    def until(words: str, within_s: float) -> str:
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode(errors="replace"))
            if words in text:
                return text
            assert process.poll() is None, text[-2000:]
            time.sleep(0.1)
        raise AssertionError(f"{words!r} was not said: {said.decode(errors='replace')[-2000:]}")

    try:
        page = re.search(r"Status page: (\S+)", until("/status/", 120))
        assert page is not None
        url = page[1].removesuffix("/status/")
        assert "Tandem" in httpx.get(page[1], trust_env=False).text
        said_so_far = until("until Ctrl+C", 200)
        jobs = httpx.get(f"{url}/v1/status/jobs", trust_env=False, timeout=30).json()["view"]
        assert jobs["total"] == len(JOBS)
        assert jobs["byPhase"]["Completed"] == len(JOBS)
        (row, *_) = httpx.get(f"{url}/v1/status/models", trust_env=False).json()["view"]["rows"]
        profile = f"{url}/v1/status/models/{NAMESPACE}/{row['model']}/profile"
        assert httpx.get(profile, trust_env=False).json()["features"]["parameters"] > 0
        job = jobs["rows"][0]["name"]
        events = httpx.get(f"{url}/v1/status/jobs/{NAMESPACE}/{job}/events", trust_env=False)
        assert events.status_code == 200
        # The second line is a command that can be typed in another terminal.
        command = re.search(
            r"In another terminal: (\S*tandem why \S+ -n \S+ --server \S+)", said_so_far
        )
        assert command is not None
        words = shlex.split(command[1])
        answer = subprocess.run(words, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr
        assert f"(Pod {words[2]}): Completed" in answer.stdout
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        os.close(ours)
